//! What an entry into the kernel leaves on the stack, and whether it is an NMI's.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::CPUS;
use crate::descriptors::USER_CODE_32;
use crate::each_cpu::EachCpu;

/// What every way in leaves on a stack; see entry.s.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frame {
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rbp: u64,
    pub(crate) rbx: u64,
    pub(crate) rdx: u64,
    pub(crate) rcx: u64,
    pub(crate) rax: u64,
    pub(crate) vector: u64,
    pub(crate) error: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
}

impl Frame {
    /// Bytes of x87 and SSE state below it.
    pub(crate) const EXTENDED_STATE: u64 = 512;

    /// Whether it is of user code.
    pub(crate) const fn is_user(&self) -> bool {
        self.cs & 3 == 3
    }

    /// Whether it is of 32-bit user code.
    pub(crate) const fn is_compat(&self) -> bool {
        self.cs == USER_CODE_32
    }
}

static IN_NMI: EachCpu<AtomicBool> = EachCpu([const { AtomicBool::new(false) }; CPUS]);

/// Whether this CPU handles an NMI.
pub(crate) fn in_nmi() -> bool {
    IN_NMI.own().load(Ordering::Relaxed)
}

/// Notes that an NMI is handled.
pub(crate) fn enter_nmi() {
    assert!(!IN_NMI.own().swap(true, Ordering::Relaxed), "an nmi in an nmi");
}

/// Notes that it is no longer.
pub(crate) fn leave_nmi() {
    IN_NMI.own().store(false, Ordering::Relaxed);
}
