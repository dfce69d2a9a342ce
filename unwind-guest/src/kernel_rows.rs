//! What the sources of a kernel's rows have in common.

use core::fmt;

use unwind_core::{BaseReg, CfaRule, FrameContext, Memory, RegRule, Row, RowSource, StepError};

use crate::kernel_code::LinuxKernel;
use crate::parts::VcpuMemory;
use crate::saved_registers::{Interrupted, RBP, RIP, RSP, SavedRegisters, Whose};
use crate::user_code::UserCode;
use crate::vcpu::CodeKind;

/// What a kernel's stack was entered from, as its outermost frame tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// From user code, whose registers are there: by a system call, an interrupt or an exception.
    User(SavedRegisters),
    /// From nowhere: a thread of the kernel's own, or the idle one.
    KernelThread,
    /// That is not known: the walk did not come to the outermost frame, or that is code at the kernel's
    /// entry that has saved no registers yet.
    Unknown,
}

impl Entry {
    /// The user code that has entered the kernel: its kind, and its registers. From then on `memory` reads on behalf
    /// of that code: what it cannot read is none of its stack.
    ///
    /// # Errors
    ///
    /// Why there is none, or what is not known of it.
    pub fn user_code<M: VcpuMemory>(
        self,
        memory: &mut M,
    ) -> Result<(CodeKind, Interrupted), UserCode> {
        let saved = match self {
            Self::User(saved) => saved,
            Self::KernelThread => return Err(UserCode::None),
            Self::Unknown => return Err(UserCode::Unknown),
        };
        let interrupted = saved.read(memory).map_err(UserCode::Unreadable)?;
        let code = interrupted.code().ok_or(UserCode::Segment(interrupted.cs))?;
        memory.read_as_user();
        Ok((code, interrupted))
    }
}

/// A source of a kernel's rows that knows how the kernel was entered.
pub trait KernelRows: RowSource<LinuxKernel, Error: fmt::Display> {
    /// Forgets the walk before.
    fn begin(&mut self);

    /// How the kernel was entered, after a walk.
    fn entry(&self) -> Entry;
}

impl<K: KernelRows> KernelRows for &mut K {
    fn begin(&mut self) {
        (**self).begin();
    }

    fn entry(&self) -> Entry {
        (**self).entry()
    }
}

/// What the frames before have told, for those after them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) entry: Entry,
    /// The frame that was interrupted last, by its pc, and where its registers are.
    interrupted: Option<(u64, SavedRegisters)>,
}

impl Way {
    pub(crate) const START: Self = Self { entry: Entry::Unknown, interrupted: None };

    /// Where the registers of this frame were saved, if all were.
    pub(crate) fn of_frame<R>(&self, frame: &FrameContext<'_, R>) -> Option<SavedRegisters> {
        let (pc, saved) = self.interrupted?;
        (frame.is_interrupted() && frame.lookup_addr().get() == pc).then_some(saved)
    }

    /// The row of a frame that saved registers lead out of: to the interrupted code in the kernel, or else
    /// to the end of the kernel's stack. They are at `base` plus `offset`; `None` if there are none.
    ///
    /// `is_signal`: the code was interrupted, and has not called.
    pub(crate) fn leave<M: Memory>(
        &mut self,
        saved: SavedRegisters,
        is_all: bool,
        (base, offset): (BaseReg, i32),
        is_signal: bool,
        mem: &mut M,
    ) -> Option<Row> {
        match self.try_leave(saved, is_all, (base, offset), is_signal, mem) {
            Ok(row) => row,
            Err(StepError::Unreadable { addr, .. }) => Some(Row::needs_memory(addr)),
            Err(_) => None,
        }
    }

    fn try_leave<M: Memory>(
        &mut self,
        saved: SavedRegisters,
        is_all: bool,
        (base, offset): (BaseReg, i32),
        is_signal: bool,
        mem: &mut M,
    ) -> Result<Option<Row>, StepError> {
        match saved.whose(mem)? {
            Whose::Users => {
                self.entry = Entry::User(saved);
                return Ok(Some(Row::outermost()));
            }
            Whose::Kernels => {}
            Whose::Nobodys => return Ok(None),
        }
        let at = |register: i32| offset.wrapping_add(register);
        let fp = match is_all {
            true => RegRule::AtRegister(base, at(RBP)),
            false => RegRule::SameValue,
        };
        let cfa = CfaRule::AtRegister(base, at(RSP));
        let row = Row::new(cfa, RegRule::AtRegister(base, at(RIP)), fp);
        if is_signal {
            self.interrupted = is_all.then_some((saved.word(RIP, mem)?, saved));
            return Ok(Some(row.with_signal()));
        }
        // The stack may be another one, which only a row of one frame may say.
        Ok(row.with_other_stack(saved.word(RSP, mem)?))
    }
}
