//! What an interpreter has to tell of itself.

use std::fmt;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::BoundedMemory;
use crate::interpreters::objects::Objects;
use crate::interpreters::runs::ReadFrames;
use crate::target::maps::Mapping;

/// An interpreter in a program.
pub(super) trait Interpreter: Sized + fmt::Debug {
    /// Finds itself among the loaded files.
    fn find(objects: &mut Objects<'_>) -> Option<Self>;

    /// The code by which it was found: it is the same program as long as that is mapped.
    fn mapping(&self) -> &Mapping;

    /// Reads the frames of these threads, each told by the base of its own data.
    fn read<M: Memory>(&self, threads: &[u64], memory: &mut BoundedMemory<'_, M>) -> ReadFrames;
}
