//! All that the compiler cannot check, each part with a safe interface.

pub(crate) mod caller;
pub(crate) mod letter;
pub(crate) mod loads;
pub(crate) mod mailbox;
pub(crate) mod object;
pub(crate) mod place;
pub(crate) mod program_code;
pub(crate) mod readable;
pub(crate) mod registers;
pub(crate) mod rows;
mod sframe_rows;
mod slot;
mod sync;
mod syscall;
mod thread;
