//! What was mapped where while samples were taken, and what its code is called.

pub mod address_spaces;
pub mod files;
pub mod generated_code;
mod holders;
pub mod kernel;
pub mod layout;
mod lifetimes;
pub mod moved_text;
pub mod names;
pub mod origin;
pub mod probed_returns;
pub mod ranges;
pub mod recorded_file;
pub mod recorded_tables;
pub mod registered_objects;
pub mod running_code;
pub mod text_proof;
