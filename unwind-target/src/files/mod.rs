//! Files of programs: where their bytes come from, with the proof that they are the right ones.

pub mod build_id_cache;
pub mod debug_files;
pub(crate) mod debug_servers;
pub mod mapped_file;
pub mod regular_file;
pub mod same_file;
pub mod source_file;
