//! Rules as a row has them: kind and register in two bytes, the offset beside them.

use core::num::NonZero;

use crate::register::{BaseReg, DwarfReg};
use crate::rule::{Addend, CfaRule, RegRule};

/// A rule without its offset, in two bytes.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub(super) kind: u8,
    pub(super) base: PackedBase,
}

/// In the order of [`RegRule`], so that one comes of the other without a jump.
impl Packed {
    pub(super) const SAME_VALUE: u8 = 0;
    pub(super) const UNDEFINED: u8 = 1;
    /// At an address that is computed from the CFA, resp. that address.
    pub(super) const OFFSET: u8 = 2;
    pub(super) const VAL_OFFSET: u8 = 3;
    /// What is computed from a register, resp. at that address.
    pub(super) const REGISTER: u8 = 4;
    pub(super) const AT_REGISTER: u8 = 5;
    /// Of a CFA alone: what is at that address, and an [`Addend`] in the other bits.
    const AT_REGISTER_PLUS: u8 = 6;
    const KIND: u8 = 7;
}

/// A register number, with two that no ABI uses for the neutral names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedBase(pub(super) u8);

impl PackedBase {
    pub(super) const SP: Self = Self(0xff);
    pub(super) const FP: Self = Self(0xfe);

    #[inline(always)]
    pub(super) const fn new(base: BaseReg) -> Self {
        match base {
            BaseReg::Sp => Self::SP,
            BaseReg::Fp => Self::FP,
            // No ABI has registers of these numbers: the walk will say that it is unknown.
            BaseReg::Reg(DwarfReg(0xfe..)) => Self(0xfd),
            BaseReg::Reg(DwarfReg(number)) => Self(number),
        }
    }

    #[inline]
    pub(super) const fn get(self) -> BaseReg {
        match self {
            Self::SP => BaseReg::Sp,
            Self::FP => BaseReg::Fp,
            Self(number) => BaseReg::Reg(DwarfReg(number)),
        }
    }
}

impl Packed {
    #[inline(always)]
    pub(super) const fn new(kind: u8, base: BaseReg) -> Self {
        Self { kind, base: PackedBase::new(base) }
    }

    #[inline(always)]
    pub(super) const fn pack(rule: RegRule) -> (Self, i32) {
        let kind = match rule {
            RegRule::SameValue => Self::SAME_VALUE,
            RegRule::Undefined => Self::UNDEFINED,
            RegRule::Offset(_) => Self::OFFSET,
            RegRule::ValOffset(_) => Self::VAL_OFFSET,
            RegRule::Register(..) => Self::REGISTER,
            RegRule::AtRegister(..) => Self::AT_REGISTER,
        };
        let base = match rule {
            RegRule::Register(base, _) | RegRule::AtRegister(base, _) => base,
            _ => BaseReg::Sp,
        };
        let offset = match rule {
            RegRule::SameValue | RegRule::Undefined => 0,
            RegRule::Offset(offset)
            | RegRule::ValOffset(offset)
            | RegRule::Register(_, offset)
            | RegRule::AtRegister(_, offset) => offset,
        };
        (Self::new(kind, base), offset)
    }

    #[inline(always)]
    pub(super) const fn pack_cfa(rule: CfaRule) -> (Self, i32) {
        match rule {
            CfaRule::Register(base, offset) => (Self::new(Self::REGISTER, base), offset),
            CfaRule::AtRegister(base, offset) => (Self::new(Self::AT_REGISTER, base), offset),
            CfaRule::AtRegisterPlus(base, offset, plus) => {
                // A multiple of 4 whose sign is in two bits.
                let [bits] = plus.0.wrapping_shl(1).to_ne_bytes();
                (Self::new(Self::AT_REGISTER_PLUS | bits, base), offset)
            }
        }
    }

    #[inline]
    pub(super) const fn unpack_cfa(self, offset: i32) -> CfaRule {
        let base = self.base.get();
        match self.kind & Self::KIND {
            Self::AT_REGISTER => CfaRule::AtRegister(base, offset),
            Self::AT_REGISTER_PLUS => {
                let bits = i8::from_ne_bytes([self.kind & !Self::KIND]);
                let plus = Addend(bits.wrapping_shr(1));
                CfaRule::AtRegisterPlus(base, offset, plus)
            }
            _ => CfaRule::Register(base, offset),
        }
    }

    /// A CFA's rule and another one, in a word.
    #[inline(always)]
    pub(super) const fn with_cfa(self, cfa: Self) -> NonZero<u32> {
        let word = u32::from_le_bytes([cfa.kind, cfa.base.0, self.kind, self.base.0]);
        match NonZero::new(word) {
            Some(word) => word,
            // Its kind is not zero.
            None => NonZero::<u32>::MAX,
        }
    }

    /// Whether a rule, not of a CFA, has an offset.
    #[inline]
    pub(super) const fn has_offset(self) -> bool {
        self.kind >= Self::OFFSET
    }

    #[inline]
    pub(super) const fn unpack(self, offset: i32) -> RegRule {
        match self.kind {
            Self::SAME_VALUE => RegRule::SameValue,
            Self::UNDEFINED => RegRule::Undefined,
            Self::OFFSET => RegRule::Offset(offset),
            Self::VAL_OFFSET => RegRule::ValOffset(offset),
            Self::REGISTER => RegRule::Register(self.base.get(), offset),
            _ => RegRule::AtRegister(self.base.get(), offset),
        }
    }
}
