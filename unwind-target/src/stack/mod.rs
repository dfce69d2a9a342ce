//! Stacks with names, of processes and core files.

pub(crate) mod core_dump;
pub mod frame;
mod namer;
pub mod naming;
pub(crate) mod options;
pub(crate) mod process;
mod source_lines;
pub(crate) mod source_text;
pub mod stacks;
pub(crate) mod symbol;
pub(crate) mod symbolizer;
pub mod walk;
pub(crate) mod walked;
