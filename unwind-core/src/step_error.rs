//! Why a walk cannot step from a frame to its caller.

use core::fmt;

use crate::addr::VirtAddr;
use crate::memory::ReadError;
use crate::register::BaseReg;

/// Why a row could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepError {
    /// A saved register, a return address or a signal context could not be
    /// read.
    Unreadable {
        /// Where it should have been.
        addr: VirtAddr,
        /// Why it could not be read.
        error: ReadError,
    },
    /// The CFA does not lie above the stack pointer: the walk would stand
    /// still or turn back.
    NoProgress {
        /// The CFA that the row gives.
        cfa: u64,
        /// The stack pointer of the frame.
        sp: u64,
    },
    /// The CFA is not a multiple of the size of a stack slot.
    Misaligned {
        /// The CFA that the row gives.
        cfa: u64,
    },
    /// The CFA lies above the end of the stack that the caller named.
    BeyondStack {
        /// The CFA that the row gives.
        cfa: u64,
    },
    /// The return address cannot be one: this CPU has no code there.
    NonCanonical {
        /// The value that was found.
        pc: u64,
    },
    /// The target has no code where the return address points; see
    /// [`ReturnAddresses::is_code`](crate::ReturnAddresses::is_code).
    NotCode {
        /// The return address.
        pc: VirtAddr,
    },
    /// The return address is zero, but it was found by a frame pointer, in this
    /// frame or before, or by a look at the instructions. A frame pointer that
    /// is none points at zeroes as well as anywhere, and code may look like
    /// other code.
    ZeroReturnAddress {
        /// The CFA that the row gives.
        cfa: u64,
    },
    /// The frame pointer is zero, which is how start-up code marks the end of
    /// a chain of frame pointers; but any code that uses the register for
    /// something else may leave a zero too.
    ZeroFramePointer,
    /// The frame pointer lies below the stack pointer, so it is none.
    FramePointerBelowStack {
        /// The frame pointer.
        fp: u64,
        /// The stack pointer.
        sp: u64,
    },
    /// The row needs a register whose value is not known in this frame, also not
    /// [by the frames before](crate::RowSource::register_rules). A frame
    /// pointer is unknown where an earlier row says that it cannot be recovered; one
    /// whose save slot could not be read ends the walk with
    /// [`Unreadable`](Self::Unreadable) of that slot.
    UnknownRegister(BaseReg),
    /// An address that the row computes leaves the address space.
    Overflow,
    /// The row has a rule that cannot be right: a return address that is
    /// computed from the CFA or the stack pointer, or is kept in the link
    /// register of a CPU without one, or in a frame pointer that has been
    /// through a call.
    BadRule,
    /// A signal trampoline that this CPU's kernel does not make.
    UnknownTrampoline,
    /// The return address is that of a tracer's trampoline, and the tracer alone knows the
    /// real one; see [`ReturnAddresses::is_trampoline`](crate::ReturnAddresses::is_trampoline).
    ReturnProbe {
        /// The trampoline.
        pc: VirtAddr,
    },
    /// The return address is zero, but beside it on the stack is one that code with a row was
    /// called from. A row that is wrong by a slot, or that reads another word for another reason,
    /// finds a zero as easily as anything else: so this zero does not prove the outermost frame.
    CallerBesideZero {
        /// The CFA that the row gives.
        cfa: u64,
        /// The return address that was found beside the zero.
        pc: VirtAddr,
    },
}

impl StepError {
    /// A number for records and other languages, which stays the same in later versions:
    /// 1 to 15 in the order of the variants.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Unreadable { .. } => 1,
            Self::NoProgress { .. } => 2,
            Self::Misaligned { .. } => 3,
            Self::BeyondStack { .. } => 4,
            Self::NonCanonical { .. } => 5,
            Self::NotCode { .. } => 6,
            Self::ZeroReturnAddress { .. } => 7,
            Self::ZeroFramePointer => 8,
            Self::FramePointerBelowStack { .. } => 9,
            Self::UnknownRegister(_) => 10,
            Self::Overflow => 11,
            Self::BadRule => 12,
            Self::UnknownTrampoline => 13,
            Self::ReturnProbe { .. } => 14,
            Self::CallerBesideZero { .. } => 15,
        }
    }

    /// Whether memory was absent that may be there at another time.
    #[must_use]
    pub const fn is_not_resident(&self) -> bool {
        matches!(self, Self::Unreadable { error: ReadError::NotResident, .. })
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unreadable { addr, error } => write!(f, "{error} at {addr}"),
            Self::NoProgress { cfa, sp } => {
                write!(f, "no progress: cfa {cfa:#x} is not above sp {sp:#x}")
            }
            Self::Misaligned { cfa } => write!(f, "cfa {cfa:#x} is misaligned"),
            Self::BeyondStack { cfa } => write!(f, "cfa {cfa:#x} is beyond the stack"),
            Self::NonCanonical { pc } => write!(f, "return address {pc:#x} is not canonical"),
            Self::NotCode { pc } => write!(f, "return address {pc} does not lead to code"),
            Self::ZeroReturnAddress { cfa } => {
                write!(f, "a zero just below {cfa:#x}, which no table led to")
            }
            Self::ZeroFramePointer => f.write_str("the frame pointer is zero"),
            Self::FramePointerBelowStack { fp, sp } => {
                write!(f, "frame pointer {fp:#x} is below sp {sp:#x}")
            }
            Self::UnknownRegister(base) => match base {
                BaseReg::Sp => f.write_str("the value of sp is not known"),
                BaseReg::Fp => f.write_str("the value of fp is not known"),
                BaseReg::Reg(reg) => write!(f, "the value of {reg} is not known"),
            },
            Self::Overflow => f.write_str("an address leaves the address space"),
            Self::BadRule => f.write_str("the rule cannot be right"),
            Self::UnknownTrampoline => f.write_str("unknown signal trampoline"),
            Self::ReturnProbe { pc } => {
                write!(f, "return address {pc} is a return probe's, which keeps the real one")
            }
            Self::CallerBesideZero { cfa, pc } => {
                write!(f, "the return address below {cfa:#x} is zero, but {pc} beside it is one")
            }
        }
    }
}

impl core::error::Error for StepError {}
