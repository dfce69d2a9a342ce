//! One step: a row and a frame's registers become the caller's.
//!
//! The checks that keep a walk honest are the [`rules`](super::rules), for every source of
//! rows and every CPU.
//!
//! A step that fails changes nothing. It needs the CFA and the return address, nothing else. A
//! frame pointer that cannot be recovered is unknown, with its reason, until a later row needs it.
//! Compilers do not say that `pop rbp` restored the register: at the `ret` after it the row still
//! names a slot, now below the stack pointer. Such a slot is used within the red zone, where nothing
//! overwrites it; elsewhere the register is taken as unchanged, and the frame says so.

use crate::addr::VirtAddr;
use crate::arch::Arch;
use crate::memory::{Memory, ReadError};
use crate::register::{BaseReg, Registers as _};
use crate::row::{Needs, Row};
use crate::rule::{CfaRule, RegRule};
use crate::step_error::StepError;
use crate::walk::rules::{check_cfa, check_frame_pointer, check_progress};

/// What a step found. The frame it started from is unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The registers of an ordinary caller.
    Caller(Caller),
    /// There is no caller: the row says so.
    Outermost,
    /// There is no caller: the return address is zero.
    ZeroReturnAddress {
        /// The frame's CFA.
        cfa: u64,
        /// Where the return address was saved, if in memory.
        slot: Option<VirtAddr>,
    },
}

/// What is known of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The CFA of the frame, which is the stack pointer of its caller.
    pub(crate) cfa: u64,
    /// The return address, as it was saved.
    pub(crate) ra: u64,
    /// Where it was saved, if in memory.
    pub(crate) ra_slot: Option<VirtAddr>,
    /// The caller's frame pointer.
    pub(crate) fp: FramePointer,
}

/// The frame pointer of a frame, or why it is not known. A step can do without it, so
/// the reason is kept until a row needs the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FramePointer {
    Known(u64),
    /// The callee's: a row says that it was saved below the stack pointer, where it could
    /// not be read.
    Assumed(u64),
    /// It was saved in a frame whose function may have written that of another caller over it
    /// since: see [`Row::with_eh_return`].
    Doubted(u64),
    /// A row says that it cannot be recovered, or the sample does not have it.
    Undefined,
    /// It was saved here, which cannot be read, or not now.
    Unreadable(VirtAddr, ReadError),
    /// Its rule needs this register, whose value is not known.
    NeedsRegister(BaseReg),
    /// Its rule leaves the address space.
    Overflow,
}

const _: () = assert!(size_of::<FramePointer>() == size_of::<Option<u64>>(), "kept in a walk");

impl FramePointer {
    /// Of registers that may not have it.
    #[inline]
    pub(crate) const fn new(value: Option<u64>) -> Self {
        match value {
            Some(value) => Self::Known(value),
            None => Self::Undefined,
        }
    }

    #[inline]
    pub(crate) const fn value(self) -> Option<u64> {
        match self {
            Self::Known(value) | Self::Assumed(value) | Self::Doubted(value) => Some(value),
            _ => None,
        }
    }

    /// The same, taken as unchanged against the row.
    const fn assumed(self) -> Self {
        match self {
            Self::Known(value) => Self::Assumed(value),
            unknown => unknown,
        }
    }

    /// The same, restored by this rule from a frame that may have been written over.
    pub(crate) const fn doubted(self, rule: RegRule) -> Self {
        match (self, rule) {
            (unchanged, RegRule::SameValue) => unchanged,
            (Self::Known(value) | Self::Assumed(value), _) => Self::Doubted(value),
            (unknown, _) => unknown,
        }
    }

    /// The value, or why a row that needs it as `base` cannot be applied.
    fn get(self, base: BaseReg) -> Result<u64, StepError> {
        Err(match self {
            Self::Known(value) | Self::Assumed(value) | Self::Doubted(value) => return Ok(value),
            Self::Undefined => StepError::UnknownRegister(base),
            Self::Unreadable(addr, error) => StepError::Unreadable { addr, error },
            Self::NeedsRegister(base) => StepError::UnknownRegister(base),
            Self::Overflow => StepError::Overflow,
        })
    }

    /// What was saved at `addr`.
    const fn saved(addr: VirtAddr, word: Result<u64, ReadError>) -> Self {
        match word {
            Ok(value) => Self::Known(value),
            Err(error) => Self::Unreadable(addr, error),
        }
    }
}

/// One frame, with what its registers are read through.
pub(crate) struct Stepper<'a, A: Arch, M> {
    pub(crate) arch: &'a A,
    pub(crate) sp: u64,
    pub(crate) fp: &'a FramePointer,
    /// Other registers, where any are known.
    pub(crate) registers: Option<&'a A::Regs>,
    /// Those are all registers as they were sampled or interrupted: the frame has not
    /// called.
    pub(crate) is_innermost: bool,
    pub(crate) stack_end: Option<u64>,
    pub(crate) mem: &'a mut M,
}

impl<A: Arch, M: Memory> Stepper<'_, A, M> {
    /// Applies `row`, of a frame that is no signal frame or whose rules say how
    /// to leave it.
    pub(crate) fn step(&mut self, row: &Row) -> Result<Step, StepError> {
        let ra_rule = row.ra();
        if ra_rule == RegRule::Undefined {
            return Ok(Step::Outermost);
        }
        let cfa = match row.is_by_rules() {
            false => match (row.needs(), row.other_stack_cfa()) {
                (Some(needs), _) => return Err(self.unmet(needs)),
                // Stacks have no order.
                (None, cfa) => cfa.ok_or(StepError::BadRule)?,
            },
            true => {
                // Code that says so, or keeps its CFA in a register of its own, may have come from
                // any stack.
                let rises = !row.is_signal();
                let cfa = self.cfa(row.cfa(), rises)?;
                if rises && (!row.is_from_other_register() || Self::is_of_stack(row.cfa())) {
                    // Only where all registers are known can one have the return address.
                    check_progress(cfa, self.sp, self.is_innermost)?;
                }
                cfa
            }
        };
        check_cfa(cfa, A::WORD, self.stack_end)?;
        let (ra, ra_slot) = self.return_address(ra_rule, cfa)?;
        if ra == 0 {
            return Ok(Step::ZeroReturnAddress { cfa, slot: ra_slot });
        }
        // The CFA and the return address are the caller: it does not take its frame
        // pointer to go there.
        let fp = self.caller_value(row.fp(), cfa, *self.fp);
        Ok(Step::Caller(Caller { cfa, ra, ra_slot, fp }))
    }

    /// Whether a CFA is found from the stack or frame pointer, by their numbers.
    fn is_of_stack(rule: CfaRule) -> bool {
        let CfaRule::Register(base, _) = rule else { return false };
        [A::SP, A::FP].iter().flatten().any(|&reg| base == BaseReg::Reg(reg))
    }

    /// Why a row that needs something tells no caller.
    #[cold]
    fn unmet(&mut self, needs: Needs) -> StepError {
        match needs {
            Needs::Register(register) => StepError::UnknownRegister(register),
            Needs::Memory(addr) => {
                // It may be there by now: the next walk will see it.
                let read = self.mem.read_word(addr, A::WORD);
                let error = read.err().unwrap_or(ReadError::NotResident);
                StepError::Unreadable { addr, error }
            }
        }
    }

    fn cfa(&mut self, rule: CfaRule, rises: bool) -> Result<u64, StepError> {
        match rule {
            CfaRule::Register(base, offset) => {
                let value = self.cfa_base(base, rises)?;
                A::WORD.offset(value, offset).ok_or(StepError::Overflow)
            }
            CfaRule::AtRegister(base, offset) => {
                let value = self.cfa_base(base, rises)?;
                self.load(value, offset).map(|(word, _)| word)
            }
            CfaRule::AtRegisterPlus(base, offset, plus) => {
                let value = self.cfa_base(base, rises)?;
                let (word, _) = self.load(value, offset)?;
                A::WORD.offset(word, plus.bytes()).ok_or(StepError::Overflow)
            }
        }
    }

    /// The register that the CFA is computed from.
    fn cfa_base(&self, base: BaseReg, rises: bool) -> Result<u64, StepError> {
        let value = self.register(base)?;
        if base == BaseReg::Fp && rises {
            check_frame_pointer(value, self.sp)?;
        }
        Ok(value)
    }

    fn return_address(
        &mut self,
        rule: RegRule,
        cfa: u64,
    ) -> Result<(u64, Option<VirtAddr>), StepError> {
        match rule {
            RegRule::Offset(offset) => self.load(cfa, offset).map(|(ra, at)| (ra, Some(at))),
            RegRule::AtRegister(base, offset) => {
                let value = self.register(base)?;
                self.load(value, offset).map(|(ra, at)| (ra, Some(at)))
            }
            RegRule::Register(base, offset) => {
                self.check_keeps_return_address(base)?;
                let value = self.register(base)?;
                let ra = A::WORD.offset(value, offset).ok_or(StepError::Overflow)?;
                Ok((ra, None))
            }
            RegRule::SameValue => match A::RA {
                Some(reg) => Ok((self.register(BaseReg::Reg(reg))?, None)),
                None => Err(StepError::BadRule),
            },
            RegRule::ValOffset(_) | RegRule::Undefined => Err(StepError::BadRule),
        }
    }

    /// A call overwrites whatever register keeps a return address, and the stack
    /// pointer keeps none: a row that says so would make up a pc.
    fn check_keeps_return_address(&self, base: BaseReg) -> Result<(), StepError> {
        let is_sp = base == BaseReg::Sp || Some(base) == A::SP.map(BaseReg::Reg);
        if is_sp || self.is_fp(base) && !self.is_innermost {
            return Err(StepError::BadRule);
        }
        Ok(())
    }

    /// The caller's value of the frame pointer, or of another register: `own` is the
    /// frame's.
    pub(crate) fn caller_value(
        &mut self,
        rule: RegRule,
        cfa: u64,
        own: FramePointer,
    ) -> FramePointer {
        let (value, offset, is_saved) = match rule {
            RegRule::SameValue => return own,
            RegRule::Undefined => return FramePointer::Undefined,
            RegRule::Offset(offset) => (cfa, offset, true),
            RegRule::ValOffset(offset) => (cfa, offset, false),
            RegRule::AtRegister(base, offset) | RegRule::Register(base, offset) => {
                let is_saved = matches!(rule, RegRule::AtRegister(..));
                match self.register(base) {
                    Ok(value) => (value, offset, is_saved),
                    Err(_) if self.is_fp(base) => return *self.fp,
                    Err(_) => return FramePointer::NeedsRegister(base),
                }
            }
        };
        match A::WORD.offset(value, offset) {
            None => FramePointer::Overflow,
            Some(value) if !is_saved => FramePointer::Known(value),
            Some(at) => self.saved(at, own),
        }
    }

    /// The caller's value of a register of which the frame has this one.
    #[inline(never)]
    pub(crate) fn preserved(&mut self, rule: RegRule, cfa: u64, own: Option<u64>) -> Option<u64> {
        self.caller_value(rule, cfa, FramePointer::new(own)).value()
    }

    /// The register that the row says was saved at `at`, a stack pointer's value.
    ///
    /// Compilers do not say that a register was restored, only that its slot is still
    /// where it was. After `pop rbp` that slot lies below the stack pointer: the
    /// register has the caller's value again, and the slot too until something else is
    /// written there. A function that calls none may also save it below the stack
    /// pointer and change it; so the slot is read where nothing overwrites it, in the
    /// red zone.
    fn saved(&mut self, at: u64, own: FramePointer) -> FramePointer {
        let addr = self.arch.stack_addr(at);
        let below = self.sp.checked_sub(at).filter(|below| *below != 0);
        match below {
            // Only registers that are all known can have been restored.
            Some(below) if self.is_innermost => {
                let is_kept = below <= self.arch.red_zone();
                match is_kept.then(|| self.mem.read_word(addr, A::WORD)) {
                    Some(Ok(value)) => FramePointer::Known(value),
                    _ => own.assumed(),
                }
            }
            _ => FramePointer::saved(addr, self.mem.read_word(addr, A::WORD)),
        }
    }

    /// Whether a register is the frame pointer.
    fn is_fp(&self, base: BaseReg) -> bool {
        base == BaseReg::Fp || Some(base) == A::FP.map(BaseReg::Reg)
    }

    /// A register's value in this frame.
    fn register(&self, base: BaseReg) -> Result<u64, StepError> {
        let unknown = StepError::UnknownRegister(base);
        match base {
            BaseReg::Sp => Ok(self.sp),
            BaseReg::Fp => self.fp.get(base),
            BaseReg::Reg(reg) if Some(reg) == A::SP => Ok(self.sp),
            BaseReg::Reg(reg) if Some(reg) == A::FP => self.fp.get(base),
            BaseReg::Reg(reg) => self.registers.and_then(|all| all.get(reg)).ok_or(unknown),
        }
    }

    /// The word at `value + offset` in the stack segment, and its linear
    /// address.
    fn load(&mut self, value: u64, offset: i32) -> Result<(u64, VirtAddr), StepError> {
        let at = A::WORD.offset(value, offset).ok_or(StepError::Overflow)?;
        let addr = self.arch.stack_addr(at);
        match self.mem.read_word(addr, A::WORD) {
            Ok(word) => Ok((word, addr)),
            Err(error) => Err(StepError::Unreadable { addr, error }),
        }
    }
}
