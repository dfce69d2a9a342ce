//! Frames of interpreters: the functions of the program's own language, of which the native stack has
//! only the interpreter's evaluator.
//!
//! An `Interpreter` finds itself among the files that a program has loaded, by their names, so that
//! other programs pay nothing. It reads its frames while the program stands, since they are on the heap,
//! as runs that each belong to one native frame of its evaluator. `join` puts them there, and
//! counts: an evaluator's frame without a run, or a run without one, is a stack that is not complete.

mod bounded_memory;
pub mod frame;
pub(crate) mod interpreter;
pub(crate) mod join;
mod objects;
pub mod python;
mod reader;
pub(crate) mod runs;
pub mod sampled;
pub mod v8;

pub(crate) use crate::interpreters::reader::Interpreters;
