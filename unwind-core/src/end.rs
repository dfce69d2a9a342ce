//! Why a walk has no more frames.
//!
//! Only an outermost row, a return address of zero, and the stack that a process starts with are the
//! end of a stack. A frame pointer that is zero, or points to a zero, does not prove it: start-up code
//! ends a chain that way, but where code uses the register for something else the remaining frames are
//! lost.

use core::fmt;

use crate::addr::VirtAddr;
use crate::memory::ReadError;
use crate::register::{BaseReg, DwarfReg};
use crate::step_error::StepError;
use crate::table_error::{TableError, TableFault};

/// Why a walk has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End<E = TableFault> {
    /// The last frame is the outermost one: its row says that it has no
    /// caller, or it has no row, and its stack pointer is [where the stack of its
    /// process begins](crate::Arch::is_initial_stack).
    Outermost,
    /// The last frame's return address is zero, which is how start-up code
    /// marks the outermost frame. A zero that a frame pointer led to, or a look
    /// at the instructions, is none, see [`StepError::ZeroReturnAddress`], unless it is
    /// in the last slot before the [stack's end](crate::Walker::stack_end) and no
    /// [guess](crate::Row::is_guess) led there.
    ZeroReturnAddress,
    /// There are more frames than were asked for, or than there is room for.
    FrameLimit,
    /// No source covers the last frame's pc.
    NoRow,
    /// The last frame's row could not be applied.
    Step(StepError),
    /// The table that covers the last frame's pc is malformed.
    Table(E),
    /// There is no stack to walk: the target runs in a mode whose stacks this
    /// CPU's back end does not know, such as VM86.
    NotWalkable,
}

impl<E: TableError> End<E> {
    /// A number for records and other languages, which stays the same in later versions.
    ///
    /// | code | end |
    /// |---|---|
    /// | 0 | none: no walk was done |
    /// | 1 | [`Outermost`](Self::Outermost) |
    /// | 2 | [`ZeroReturnAddress`](Self::ZeroReturnAddress) |
    /// | 3 | [`FrameLimit`](Self::FrameLimit) |
    /// | 4 | [`NoRow`](Self::NoRow) |
    /// | 5 | [`NotWalkable`](Self::NotWalkable) |
    /// | 6 | [`Table`](Self::Table) |
    /// | 33 to 47 | [`Step`](Self::Step): 32 more than the error's [code](StepError::code) |
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            Self::Outermost => 1,
            Self::ZeroReturnAddress => 2,
            Self::FrameLimit => 3,
            Self::NoRow => 4,
            Self::NotWalkable => 5,
            Self::Table(_) => 6,
            Self::Step(error) => STEP | error.code(),
        }
    }

    /// The same end as a [`Trace`](crate::Trace) has it, of a walk whose last frame has
    /// this lookup address.
    #[must_use]
    pub fn with_fault(self, addr: VirtAddr) -> End {
        match self {
            Self::Outermost => End::Outermost,
            Self::ZeroReturnAddress => End::ZeroReturnAddress,
            Self::FrameLimit => End::FrameLimit,
            Self::NoRow => End::NoRow,
            Self::Step(error) => End::Step(error),
            Self::Table(error) => End::Table(TableFault::new(error, addr)),
            Self::NotWalkable => End::NotWalkable,
        }
    }

    /// Whether the last frame is known to be the outermost one. That alone does not
    /// make a stack complete: callers may be missing before a frame that comes
    /// [after a gap](crate::Provenance::is_after_gap). [`Trace::is_complete`](crate::Trace::is_complete) and
    /// [`Frames::is_complete`](crate::Frames::is_complete) look at both.
    #[must_use]
    pub const fn is_outermost(&self) -> bool {
        matches!(self, Self::Outermost | Self::ZeroReturnAddress)
    }

    /// Whether the same walk may get further at another time or place, where
    /// absent memory may be brought in.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Step(error) => error.is_not_resident(),
            Self::Table(error) => error.is_not_resident(),
            _ => false,
        }
    }
}

impl<E: fmt::Display> fmt::Display for End<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outermost => f.write_str("outermost frame"),
            Self::ZeroReturnAddress => f.write_str("return address zero"),
            Self::FrameLimit => f.write_str("more frames than room"),
            Self::NoRow => f.write_str("no source covers this pc"),
            Self::Step(error) => error.fmt(f),
            Self::Table(error) => write!(f, "the table has no row that can be used: {error}"),
            Self::NotWalkable => f.write_str("no stack that can be walked"),
        }
    }
}

/// In the [code](End::code) of an end, the bit of a step's error.
const STEP: u8 = 0x20;

/// The end of a walk, or that there is none yet, which is all zeroes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PackedEnd {
    /// [`End::code`], or zero.
    code: u8,
    /// Of a read or a table: the memory is not resident.
    is_not_resident: bool,
    /// [`TableError::code`].
    table_code: u16,
    /// An address, a register's value or the number of a register.
    first: u64,
    /// The stack pointer, or another address.
    second: u64,
}

impl PackedEnd {
    pub(crate) const NONE: Self =
        Self { code: 0, is_not_resident: false, table_code: 0, first: 0, second: 0 };

    /// The registers that have no number, as numbers.
    const SP: u64 = 0x100;
    const FP: u64 = 0x101;
    /// The second number of a read that a supervisor's page has refused.
    const SUPERVISOR: u64 = 1;

    pub(crate) fn new<E: TableError>(end: End<E>) -> Self {
        let none = Self { code: end.code(), ..Self::NONE };
        match end {
            End::Step(error) => {
                let (first, second) = match error {
                    StepError::Unreadable { addr, error } => (
                        addr.get(),
                        if error == ReadError::Supervisor { Self::SUPERVISOR } else { 0 },
                    ),
                    StepError::NoProgress { cfa: first, sp }
                    | StepError::FramePointerBelowStack { fp: first, sp } => (first, sp),
                    StepError::Misaligned { cfa: first }
                    | StepError::BeyondStack { cfa: first }
                    | StepError::ZeroReturnAddress { cfa: first }
                    | StepError::NonCanonical { pc: first } => (first, 0),
                    StepError::NotCode { pc } | StepError::ReturnProbe { pc } => (pc.get(), 0),
                    StepError::CallerBesideZero { cfa, pc } => (cfa, pc.get()),
                    StepError::UnknownRegister(BaseReg::Sp) => (Self::SP, 0),
                    StepError::UnknownRegister(BaseReg::Fp) => (Self::FP, 0),
                    StepError::UnknownRegister(BaseReg::Reg(reg)) => (reg.0.into(), 0),
                    StepError::ZeroFramePointer
                    | StepError::Overflow
                    | StepError::BadRule
                    | StepError::UnknownTrampoline => (0, 0),
                };
                Self { is_not_resident: error.is_not_resident(), first, second, ..none }
            }
            End::Table(error) => {
                Self { is_not_resident: error.is_not_resident(), table_code: error.code(), ..none }
            }
            _ => none,
        }
    }

    /// The end of a walk whose last frame has this lookup address.
    pub(crate) fn unpack(&self, last: impl FnOnce() -> VirtAddr) -> Option<End> {
        let Self { code, is_not_resident, table_code, first, second: sp } = *self;
        let addr = VirtAddr::new(first);
        let error = match (is_not_resident, sp) {
            (true, _) => ReadError::NotResident,
            (false, Self::SUPERVISOR) => ReadError::Supervisor,
            (false, _) => ReadError::Invalid,
        };
        Some(match code {
            1 => End::Outermost,
            2 => End::ZeroReturnAddress,
            3 => End::FrameLimit,
            4 => End::NoRow,
            5 => End::NotWalkable,
            6 => End::Table(TableFault { addr: last(), code: table_code, is_not_resident }),
            _ => End::Step(match code ^ STEP {
                1 => StepError::Unreadable { addr, error },
                2 => StepError::NoProgress { cfa: first, sp },
                3 => StepError::Misaligned { cfa: first },
                4 => StepError::BeyondStack { cfa: first },
                5 => StepError::NonCanonical { pc: first },
                6 => StepError::NotCode { pc: addr },
                7 => StepError::ZeroReturnAddress { cfa: first },
                8 => StepError::ZeroFramePointer,
                9 => StepError::FramePointerBelowStack { fp: first, sp },
                10 => StepError::UnknownRegister(match first {
                    Self::SP => BaseReg::Sp,
                    Self::FP => BaseReg::Fp,
                    number => BaseReg::Reg(DwarfReg(u8::try_from(number).unwrap_or(u8::MAX))),
                }),
                11 => StepError::Overflow,
                12 => StepError::BadRule,
                13 => StepError::UnknownTrampoline,
                14 => StepError::ReturnProbe { pc: addr },
                15 => StepError::CallerBesideZero { cfa: first, pc: VirtAddr::new(sp) },
                _ => return None,
            }),
        })
    }

    /// Whether the last frame is known to be the outermost one.
    pub(crate) const fn is_outermost(&self) -> bool {
        matches!(self.code, 1 | 2)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use super::*;

    const ADDR: VirtAddr = VirtAddr::new(0x7000);

    fn ends() -> [End; 27] {
        let fault = TableFault { addr: ADDR, code: 0x1234, is_not_resident: false };
        [
            End::Outermost,
            End::ZeroReturnAddress,
            End::FrameLimit,
            End::NoRow,
            End::NotWalkable,
            End::Table(fault),
            End::Table(TableFault { is_not_resident: true, ..fault }),
            End::Step(StepError::Unreadable { addr: ADDR, error: ReadError::Invalid }),
            End::Step(StepError::Unreadable { addr: ADDR, error: ReadError::NotResident }),
            End::Step(StepError::Unreadable { addr: ADDR, error: ReadError::Supervisor }),
            End::Step(StepError::NoProgress { cfa: u64::MAX, sp: 1 }),
            End::Step(StepError::Misaligned { cfa: 3 }),
            End::Step(StepError::BeyondStack { cfa: 4 }),
            End::Step(StepError::NonCanonical { pc: u64::MAX }),
            End::Step(StepError::NotCode { pc: ADDR }),
            End::Step(StepError::ZeroReturnAddress { cfa: 5 }),
            End::Step(StepError::ZeroFramePointer),
            End::Step(StepError::FramePointerBelowStack { fp: 6, sp: u64::MAX }),
            End::Step(StepError::UnknownRegister(BaseReg::Sp)),
            End::Step(StepError::UnknownRegister(BaseReg::Fp)),
            End::Step(StepError::UnknownRegister(BaseReg::Reg(DwarfReg(0)))),
            End::Step(StepError::UnknownRegister(BaseReg::Reg(DwarfReg(0xff)))),
            End::Step(StepError::Overflow),
            End::Step(StepError::BadRule),
            End::Step(StepError::UnknownTrampoline),
            End::Step(StepError::ReturnProbe { pc: ADDR }),
            End::Step(StepError::CallerBesideZero { cfa: 7, pc: ADDR }),
        ]
    }

    #[test]
    fn an_end_comes_out_of_a_trace_as_it_went_in() {
        assert_eq!(PackedEnd::NONE.unpack(|| ADDR), None);
        for end in ends() {
            let packed = PackedEnd::new(end);
            assert_eq!(packed.unpack(|| ADDR), Some(end));
            assert_eq!(packed.is_outermost(), end.is_outermost(), "{end}");
        }
    }

    #[test]
    fn the_number_of_each_end_is_the_documented_one() {
        let mut codes: Vec<u8> = ends().iter().map(End::code).collect();
        codes.dedup();
        let steps = 33..=47;
        assert_eq!(codes, (1..=6).chain(steps).collect::<Vec<_>>());
    }
}
