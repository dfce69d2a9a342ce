//! What an interpreter has to tell of itself.

use std::fmt;

use unwind_core::{Frame, Memory};

use crate::interpreters::bounded_memory::BoundedMemory;
use crate::interpreters::objects::Objects;
use crate::interpreters::runs::ReadFrames;
use crate::target::maps::Mapping;
use crate::target::registers::UserRegisters;

/// A thread of a program that stands.
#[derive(Clone, Debug)]
pub(crate) struct StoppedThread {
    pub(crate) registers: UserRegisters,
    /// Its native frames, innermost first; none if they are not known yet.
    pub(crate) frames: Vec<NativeFrame>,
}

/// A native frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativeFrame {
    /// Where its execution stands.
    pub(crate) pc: u64,
    /// That is the instruction that runs next, and else the one after a call.
    pub(crate) is_exact: bool,
    pub(crate) sp: u64,
    /// The stack pointer of its caller, if that is known.
    pub(crate) cfa: Option<u64>,
}

impl From<&Frame> for NativeFrame {
    fn from(frame: &Frame) -> Self {
        let (pc, is_exact) = (frame.pc.addr().get(), frame.pc.is_exact());
        Self { pc, is_exact, sp: frame.sp, cfa: frame.cfa }
    }
}

/// An interpreter in a program.
pub(super) trait Interpreter: Sized + fmt::Debug {
    /// What it executes is found by the native frames, which it needs.
    const NEEDS_FRAMES: bool;

    /// Finds itself among the loaded files.
    fn find(objects: &mut Objects<'_>) -> Option<Self>;

    /// The code by which it was found: it is the same program as long as that is mapped.
    fn mapping(&self) -> &Mapping;

    /// Reads the frames of these threads, each told by the base of its own data. `mappings` are those of the same
    /// moment.
    fn read<M: Memory>(
        &self,
        threads: &[StoppedThread],
        mappings: &[Mapping],
        memory: &mut BoundedMemory<'_, M>,
    ) -> ReadFrames;
}
