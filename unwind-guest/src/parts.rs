//! Who walks the parts of a stack with a walker that is ready, and whom the memory is of.

use core::fmt;

use unwind_core::{
    Arch, End, Memory, ReturnAddresses, RowSource, RowStore, StepError, VirtAddr, Walker,
};
use unwind_x86::paging::{Access, Fault, PagedMemory, PhysicalMemory};

use crate::user_code::UserCode;
use crate::vcpu::CodeKind;

/// A part of the stack of a vCPU, with the kind of its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackPart {
    /// The kernel's frames.
    Kernel(CodeKind),
    /// Those of user code, that runs or has entered the kernel.
    User(CodeKind),
}

/// Who takes the frames of a stack: a [`GuestStack`](crate::GuestStack), or a host that wants more of each, as its
/// CFA, or of the end, as the error of a table.
pub trait StackParts {
    /// Walks a part from `regs` on, the kernel's first. Returns whether the walk has come to the outermost frame by
    /// that one's row ([`End::Outermost`](unwind_core::End::Outermost)): only then what the kernel's source has told
    /// last is of that frame, and the user code is walked, too.
    fn walk<A, S, F, T, C, M>(
        &mut self,
        part: StackPart,
        walker: Walker<A, S, F, T, C>,
        regs: A::Regs,
        memory: &mut M,
    ) -> bool
    where
        A: Arch,
        S: RowSource<A, Error: fmt::Display>,
        F: RowSource<A>,
        F::Error: Into<S::Error>,
        T: ReturnAddresses,
        C: RowStore,
        M: VcpuMemory;

    /// Takes what is known of the user code, once for each stack. Of what runs or has entered the kernel the part
    /// comes afterwards.
    fn user_code(&mut self, user_code: UserCode);
}

/// The memory of a vCPU as the code that is walked reads it.
pub trait VcpuMemory: Memory {
    /// From now on it is read on behalf of user code.
    fn read_as_user(&mut self);

    /// The last read that has failed, and why: which entry of which page table.
    fn last_fault(&self) -> Option<(VirtAddr, Fault)>;

    /// Why memory could not be read at which a walk has ended: what it has read to see whether that is the start of
    /// a process may have failed as well.
    fn fault_of<E>(&mut self, end: &End<E>) -> Option<(VirtAddr, Fault)> {
        if let End::Step(StepError::Unreadable { addr, .. }) = end {
            // It fails again, as the last one.
            let _ = self.read(*addr, &mut [0; 8]);
        }
        self.last_fault()
    }
}

impl<P: PhysicalMemory, const PAGES: usize> VcpuMemory for PagedMemory<P, PAGES> {
    fn read_as_user(&mut self) {
        let space = self.space().access(Access::User);
        self.switch(space);
    }

    fn last_fault(&self) -> Option<(VirtAddr, Fault)> {
        Self::last_fault(self)
    }
}
