//! The files whose code a target executes.

pub(crate) mod file_data;
pub mod loaded_file;
pub mod module;
pub mod module_error;
pub mod remapped_text;
