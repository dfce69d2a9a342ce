//! What differs between CPUs.

use core::fmt;

use crate::{Memory, StepError, VirtAddr};

/// A register by its DWARF number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DwarfReg(pub u8);

impl fmt::Display for DwarfReg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The size of a stack slot: of a saved register and of a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordSize {
    /// 4 bytes: 32-bit code.
    Four,
    /// 8 bytes: 64-bit code.
    Eight,
}

impl WordSize {
    /// The size in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// The highest value of a register of this size.
    #[inline]
    #[must_use]
    pub const fn max_value(self) -> u64 {
        match self {
            // Lossless: the largest u32.
            Self::Four => 0xffff_ffff,
            Self::Eight => u64::MAX,
        }
    }

    /// A register value with an offset in bytes added, or `None` where that
    /// leaves the range of the register.
    #[inline]
    #[must_use]
    pub const fn offset(self, value: u64, offset: i32) -> Option<u64> {
        // i32 to i64 always fits; `From` is not const.
        #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
        match value.checked_add_signed(offset as i64) {
            Some(sum) if sum <= self.max_value() => Some(sum),
            _ => None,
        }
    }
}

/// All registers of a target at one point of time, as far as they are known.
pub trait Registers: Copy + fmt::Debug {
    /// The program counter, an offset in the code segment where there is one.
    fn pc(&self) -> u64;

    /// The stack pointer, an offset in the stack segment where there is one.
    fn sp(&self) -> u64;

    /// The register that the ABI uses as frame pointer, if known.
    fn fp(&self) -> Option<u64>;

    /// Any register by its DWARF number, if known.
    fn get(&self, reg: DwarfReg) -> Option<u64>;
}

/// A CPU and its mode, as far as a walk has to know it.
///
/// The defaults are those of a flat address space in which every value is an
/// address.
pub trait Arch {
    /// The registers that a walk starts from.
    type Regs: Registers;

    /// The size of a stack slot.
    const WORD: WordSize;

    /// The stack pointer's DWARF number, if it has one.
    const SP: Option<DwarfReg> = None;

    /// The frame pointer's DWARF number, if it has one.
    const FP: Option<DwarfReg> = None;

    /// The register that a call leaves the return address in; none where the
    /// call pushes it.
    const RA: Option<DwarfReg> = None;

    /// Whether this mode's stacks can be walked. VM86, where they cannot, says
    /// no, and a walk has then no frames.
    #[inline]
    fn is_walkable(&self) -> bool {
        true
    }

    /// The linear address of the instruction at `pc`, or `None` if this CPU
    /// can have no instruction there.
    #[inline]
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        Some(VirtAddr::new(pc))
    }

    /// Whether `pc` is not zero and its instruction is at the linear address of
    /// the same value. No for others, and where more than a glance is needed to
    /// tell: [`code_addr`](Self::code_addr) is asked then.
    #[inline]
    fn is_plain_code_addr(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }

    /// The linear address of the stack slot at `sp`.
    #[inline]
    fn stack_addr(&self, sp: u64) -> VirtAddr {
        VirtAddr::new(sp)
    }

    /// How many bytes below the stack pointer code may keep its own data, which
    /// nothing that interrupts it overwrites: the ABI's red zone, 128 for the user code
    /// of x86-64. None by default, as for code that interrupts share a stack with.
    ///
    /// A row of the sampled frame may say that a register was saved there; a walk
    /// believes the slot only if it lies in this zone.
    #[inline]
    fn red_zone(&self) -> u64 {
        0
    }

    /// The registers that a signal interrupted, read from the context that the
    /// kernel left for the trampoline at `pc` with this `sp`; `None` if there
    /// is no such trampoline.
    ///
    /// # Errors
    ///
    /// [`StepError::Unreadable`] if the context could not be read.
    #[inline]
    fn signal_context<M: Memory>(
        &self,
        pc: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Self::Regs>, StepError> {
        let _ = (pc, sp, mem);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_never_leaves_the_register() {
        assert_eq!(WordSize::Four.offset(0xffff_fff8, 7), Some(0xffff_ffff));
        assert_eq!(WordSize::Four.offset(0xffff_fff8, 8), None);
        assert_eq!(WordSize::Four.offset(4, -8), None);
        assert_eq!(WordSize::Eight.offset(u64::MAX, 1), None);
        assert_eq!(WordSize::Eight.offset(0, i32::MIN), None);
        assert_eq!(WordSize::Eight.offset(0xffff_fff8, 8), Some(0x1_0000_0000));
    }
}
