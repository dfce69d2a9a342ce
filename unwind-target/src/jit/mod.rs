//! What compilers in a process tell of the code that they make.

pub(crate) mod compiler_file;
pub mod jit_code;
pub mod jit_dump;
pub mod jit_map;
pub mod jit_maps;
pub mod registered_objects;
pub(crate) mod told_code;
