//! The registers of a CPU, and the size of what is saved of them.

use core::fmt;

/// A register by its DWARF number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DwarfReg(pub u8);

impl fmt::Display for DwarfReg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A register that a rule starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BaseReg {
    /// The stack pointer.
    Sp,
    /// The frame pointer.
    Fp,
    /// Any register. Known in the first frame and right below a signal frame, in others
    /// if calls preserve it and
    /// [all frames between](crate::RowSource::register_rules) tell how.
    Reg(DwarfReg),
}

impl fmt::Display for BaseReg {
    /// `sp`, `fp`, or `r` and the DWARF number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sp => f.write_str("sp"),
            Self::Fp => f.write_str("fp"),
            Self::Reg(register) => register.fmt(f),
        }
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

    /// The number of the slot just below a stack pointer.
    #[inline]
    pub(crate) const fn slot_below(self, sp: u64) -> u64 {
        sp.wrapping_sub(self.bytes()).wrapping_shr(self.bytes().trailing_zeros())
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
