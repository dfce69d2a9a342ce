//! The stack of a vCPU, in two parts.

use core::fmt;

use unwind_core::{
    Arch, End, PackedFrame, ReturnAddresses, RowSource, RowStore, StepError, Trace, VirtAddr,
    Walker,
};
use unwind_x86::paging::Fault;

use crate::parts::{StackPart, StackParts, VcpuMemory};
use crate::user_code::UserCode;
use crate::vcpu::CodeKind;

/// The stack of what a vCPU executes: the kernel's frames, and those of the user code that has
/// entered it. Each part has the provenance of its frames and its own end.
///
/// `N` is how many frames either part has room for.
#[derive(Clone, Debug)]
pub struct GuestStack<const N: usize = 126> {
    kernel: Part<N>,
    user: Part<N>,
    user_code: UserCode,
}

/// One part.
#[derive(Clone, Debug)]
struct Part<const N: usize> {
    code: Option<CodeKind>,
    trace: Trace<[PackedFrame; N]>,
    fault: Option<Fault>,
}

impl<const N: usize> GuestStack<N> {
    /// A stack without frames.
    #[must_use]
    pub const fn new() -> Self {
        Self { kernel: Part::NONE, user: Part::NONE, user_code: UserCode::Unknown }
    }

    /// The frames of the kernel, innermost first; `None` if user code runs.
    #[must_use]
    pub fn kernel(&self) -> Option<&Trace> {
        self.kernel.trace()
    }

    /// The frames of user code, innermost first; `None` if there are none, or not known where:
    /// [`user_code`](Self::user_code) says why.
    #[must_use]
    pub fn user(&self) -> Option<&Trace> {
        self.user.trace()
    }

    /// The kind of the user code that was walked, or else of the kernel's.
    #[must_use]
    pub fn code(&self) -> Option<CodeKind> {
        self.user.code.or(self.kernel.code)
    }

    /// What is known of the user code.
    #[must_use]
    pub const fn user_code(&self) -> UserCode {
        self.user_code
    }

    /// Why the memory could not be read at which the kernel's part ends: which entry of which
    /// page table.
    #[must_use]
    pub const fn kernel_fault(&self) -> Option<Fault> {
        self.kernel.fault
    }

    /// The same of the user's part.
    #[must_use]
    pub const fn user_fault(&self) -> Option<Fault> {
        self.user.fault
    }

    /// Whether these are all frames, of both parts.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        // A return address of zero is no end that a kernel's table names.
        let kernel = self.kernel();
        let kernel = kernel
            .is_none_or(|kernel| kernel.is_complete() && kernel.end() == Some(End::Outermost));
        kernel
            && match self.user_code {
                UserCode::Running | UserCode::Entered => self.user.trace.is_complete(),
                UserCode::None => self.kernel.code.is_some(),
                _ => false,
            }
    }

    /// Whether a part ends where memory is absent: once that is there, another walk may get further.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let ends = [self.kernel(), self.user()].map(|part| part.and_then(Trace::end));
        let registers = match self.user_code {
            UserCode::Unreadable(error) => Some(End::Step(error)),
            _ => None,
        };
        ends.into_iter().chain([registers]).flatten().any(|end| end.is_retryable())
    }

    /// Writes the frames of both parts into a trace, the kernel's first, as a delivery of
    /// [`unwind_core::deferred`] has them. The trace is complete if this is.
    pub fn write_to(&self, trace: &mut Trace) {
        trace.clear();
        let parts = [self.kernel(), self.user()];
        parts.into_iter().flatten().for_each(|part| trace.append(part));
        if !self.is_complete() && trace.is_complete() {
            // Of user code nothing is known: that is no end.
            trace.append(&Trace::<[PackedFrame; 0]>::new());
        }
    }

    /// Empties it, as before a walk by [`walk_parts`](crate::GuestWalker::walk_parts).
    pub const fn clear(&mut self) {
        self.kernel.clear();
        self.user.clear();
        self.user_code = UserCode::Unknown;
    }
}

impl<const N: usize> StackParts for GuestStack<N> {
    fn walk<A, S, F, T, C, M>(
        &mut self,
        part: StackPart,
        mut walker: Walker<A, S, F, T, C>,
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
        M: VcpuMemory,
    {
        let (part, code) = match part {
            StackPart::Kernel(code) => (&mut self.kernel, code),
            StackPart::User(code) => (&mut self.user, code),
        };
        part.code = Some(code);
        walker.trace(regs, memory, &mut part.trace);
        let end = part.trace.end();
        part.keep_fault(end.as_ref().and_then(|end| memory.fault_of(end)));
        end == Some(End::Outermost)
    }

    fn user_code(&mut self, user_code: UserCode) {
        self.user_code = user_code;
    }
}

impl<const N: usize> Default for GuestStack<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Part<N> {
    const NONE: Self = Self { code: None, trace: Trace::new(), fault: None };

    fn trace(&self) -> Option<&Trace> {
        let trace: &Trace = &self.trace;
        self.code.map(|_| trace)
    }

    const fn clear(&mut self) {
        self.code = None;
        self.trace.clear();
        self.fault = None;
    }

    /// Keeps the reason of a read that has failed, if the walk has ended by it.
    fn keep_fault(&mut self, last: Option<(VirtAddr, Fault)>) {
        let Some(End::Step(StepError::Unreadable { addr, .. })) = self.trace.end() else { return };
        // A read that continues on the next page has failed there.
        let is_that = |at: VirtAddr| at.get().wrapping_sub(addr.get()) < LONGEST_READ;
        self.fault = last.filter(|(at, _)| is_that(*at)).map(|(_, fault)| fault);
    }
}

/// No step reads more at once than all registers.
const LONGEST_READ: u64 = 168;
