//! All that the compiler cannot check, each part with a safe interface.

mod c_library;
pub(crate) mod caller;
mod elf;
mod file;
mod late_function;
pub(crate) mod letter;
pub(crate) mod listed_objects;
pub(crate) mod loaded_object;
pub(crate) mod loads;
pub(crate) mod machine;
pub(crate) mod mailbox;
mod object;
pub(crate) mod place;
pub(crate) mod program_code;
mod program_headers;
pub(crate) mod program_index;
pub(crate) mod readable;
pub(crate) mod registers;
pub(crate) mod rows;
mod sframe_rows;
mod slot;
pub(crate) mod symbol_table;
mod sync;
mod syscall;
mod thread;
