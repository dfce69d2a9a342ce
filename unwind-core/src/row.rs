//! How to get from a frame to its caller, in any format's terms.

use core::fmt;
use core::num::NonZero;

use crate::origin::Origin;
use crate::register::{BaseReg, DwarfReg, WordSize};

/// How the CFA is found: the value that the stack pointer had in the caller
/// just before its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule {
    /// The register's value plus an offset in bytes.
    Register(BaseReg, i32),
    /// The word in memory at the register's value plus an offset in bytes.
    AtRegister(BaseReg, i32),
}

impl CfaRule {
    /// The stack pointer plus `offset` bytes.
    #[must_use]
    pub const fn sp(offset: i32) -> Self {
        Self::Register(BaseReg::Sp, offset)
    }

    /// The frame pointer plus `offset` bytes.
    #[must_use]
    pub const fn fp(offset: i32) -> Self {
        Self::Register(BaseReg::Fp, offset)
    }
}

/// How a register of the caller is found.
///
/// The names are those of DWARF's register rules (DWARF 5, section 6.4.1), with an
/// offset also where a rule starts from a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegRule {
    /// Unchanged: the register still has the caller's value. For a return
    /// address: the link register has it, on CPUs with one.
    SameValue,
    /// Not recoverable. For a return address: this is the outermost frame.
    Undefined,
    /// The word in memory at the CFA plus an offset in bytes.
    Offset(i32),
    /// The CFA plus an offset in bytes.
    ValOffset(i32),
    /// A register's value plus an offset in bytes. For a return address: not the
    /// stack pointer's, and only where all registers are known.
    Register(BaseReg, i32),
    /// The word in memory at a register's value plus an offset in bytes.
    AtRegister(BaseReg, i32),
}

/// The rules for one range of pcs: all that a walk needs to step to the
/// caller, and all that is ever copied or cached of a table.
///
/// Made by a [`RowSource`](crate::RowSource). 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    cfa_offset: i32,
    ra_offset: i32,
    fp_offset: i32,
    /// The CFA's and the return address's rule, as [`Packed`] has them. In words, so that what
    /// a row is can be told by few comparisons. A rule of a CFA is not zero.
    cfa_and_ra: NonZero<u32>,
    /// The frame pointer's rule, the flags, the code of the origin.
    rest: u32,
}

const _: () = assert!(size_of::<Option<Row>>() <= 20, "rows are cached and copied");

/// A rule without its offset, in two bytes.
#[derive(Clone, Copy)]
struct Packed {
    kind: u8,
    base: PackedBase,
}

/// In the order of [`RegRule`], so that one comes of the other without a jump.
impl Packed {
    const SAME_VALUE: u8 = 0;
    const UNDEFINED: u8 = 1;
    /// At an address that is computed from the CFA, resp. that address.
    const OFFSET: u8 = 2;
    const VAL_OFFSET: u8 = 3;
    /// What is computed from a register, resp. at that address.
    const REGISTER: u8 = 4;
    const AT_REGISTER: u8 = 5;
}

/// A register number, with two that no ABI uses for the neutral names.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PackedBase(u8);

impl PackedBase {
    const SP: Self = Self(0xff);
    const FP: Self = Self(0xfe);

    #[inline(always)]
    const fn new(base: BaseReg) -> Self {
        match base {
            BaseReg::Sp => Self::SP,
            BaseReg::Fp => Self::FP,
            // No ABI has registers of these numbers: the walk will say that it is unknown.
            BaseReg::Reg(DwarfReg(0xfe..)) => Self(0xfd),
            BaseReg::Reg(DwarfReg(number)) => Self(number),
        }
    }

    #[inline]
    const fn get(self) -> BaseReg {
        match self {
            Self::SP => BaseReg::Sp,
            Self::FP => BaseReg::Fp,
            Self(number) => BaseReg::Reg(DwarfReg(number)),
        }
    }
}

impl Packed {
    #[inline(always)]
    const fn new(kind: u8, base: BaseReg) -> Self {
        Self { kind, base: PackedBase::new(base) }
    }

    #[inline(always)]
    const fn pack(rule: RegRule) -> (Self, i32) {
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
    const fn pack_cfa(rule: CfaRule) -> (Self, i32) {
        match rule {
            CfaRule::Register(base, offset) => (Self::new(Self::REGISTER, base), offset),
            CfaRule::AtRegister(base, offset) => (Self::new(Self::AT_REGISTER, base), offset),
        }
    }

    /// A CFA's rule and another one, in a word.
    #[inline(always)]
    const fn with_cfa(self, cfa: Self) -> NonZero<u32> {
        let word = u32::from_le_bytes([cfa.kind, cfa.base.0, self.kind, self.base.0]);
        match NonZero::new(word) {
            Some(word) => word,
            // Its kind is not zero.
            None => NonZero::<u32>::MAX,
        }
    }

    #[inline]
    const fn unpack(self, offset: i32) -> RegRule {
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

impl Row {
    const SIGNAL: u8 = 1;
    const CONTEXT: u8 = 2;
    const SIGNED_RA: u8 = 4;
    const GUESS: u8 = 8;
    const OTHER_STACK: u8 = 16;

    /// A row with these rules, for an ordinary frame, found by a
    /// [`Table`](Origin::Table).
    #[inline(always)]
    #[must_use]
    pub const fn new(cfa: CfaRule, ra: RegRule, fp: RegRule) -> Self {
        let (cfa, cfa_offset) = Packed::pack_cfa(cfa);
        let (ra, ra_offset) = Packed::pack(ra);
        let (fp, fp_offset) = Packed::pack(fp);
        let rest = u32::from_le_bytes([fp.kind, fp.base.0, 0, Origin::Table.code()]);
        Self { cfa_offset, ra_offset, fp_offset, cfa_and_ra: ra.with_cfa(cfa), rest }
    }

    /// The row of code that keeps a frame pointer: it points to the caller's, above which
    /// is the return address, in stack slots of this size.
    #[must_use]
    pub const fn frame_pointer(word: WordSize) -> Self {
        let row = match word {
            WordSize::Four => Self::new(CfaRule::fp(8), RegRule::Offset(-4), RegRule::Offset(-8)),
            WordSize::Eight => {
                Self::new(CfaRule::fp(16), RegRule::Offset(-8), RegRule::Offset(-16))
            }
        };
        row.with_origin(Origin::FramePointer)
    }

    /// The row of an outermost frame: there is no caller.
    #[inline]
    #[must_use]
    pub const fn outermost() -> Self {
        Self::new(CfaRule::sp(0), RegRule::Undefined, RegRule::Undefined)
    }

    /// The row of a signal trampoline about which nothing is known but that:
    /// the caller's registers are in the context that the kernel saved.
    #[must_use]
    pub const fn signal_context() -> Self {
        let row = Self::outermost().with_origin(Origin::SignalContext);
        row.with_flags(Self::SIGNAL | Self::CONTEXT)
    }

    /// The row of code that has changed to this stack from its caller's, for one frame only:
    /// the CFA is this value, wherever the frame itself is, and the return address is saved
    /// `ra_offset` bytes above it. The CFA may be lower than the frame, as by no other row. The
    /// frame pointer is unchanged if `keeps_fp`, and unknown else.
    ///
    /// Found by who knows the frame's stack pointer, so no walk keeps it for another frame.
    #[must_use]
    pub const fn other_stack(cfa: u64, ra_offset: i32, keeps_fp: bool) -> Self {
        let fp = if keeps_fp { RegRule::SameValue } else { RegRule::Undefined };
        let [a, b, c, d, e, f, g, h] = cfa.to_le_bytes();
        // Who takes it for a rule finds a register that no CPU has.
        let no_rule = CfaRule::Register(BaseReg::Reg(DwarfReg(0xfd)), 0);
        let row = Self::new(no_rule, RegRule::Offset(ra_offset), fp);
        let mut row = row.with_flags(Self::OTHER_STACK);
        // Neither the rule of the CFA nor that of the frame pointer has an offset here.
        row.cfa_offset = i32::from_le_bytes([a, b, c, d]);
        row.fp_offset = i32::from_le_bytes([e, f, g, h]);
        row
    }

    /// The same row with another rule for the CFA.
    #[inline]
    #[must_use]
    pub const fn with_cfa(mut self, rule: CfaRule) -> Self {
        let (cfa, offset) = Packed::pack_cfa(rule);
        (self.cfa_and_ra, self.cfa_offset) = (self.packed_ra().with_cfa(cfa), offset);
        self
    }

    /// The same row, of a signal frame: its return address is the interrupted
    /// instruction itself.
    #[inline]
    #[must_use]
    pub const fn with_signal(self) -> Self {
        self.with_flags(Self::SIGNAL)
    }

    /// The same row, whose return address carries an authentication code
    /// (AArch64) that has to be stripped.
    #[inline]
    #[must_use]
    pub const fn with_signed_ra(self) -> Self {
        self.with_flags(Self::SIGNED_RA)
    }

    /// The same row, which may lead past callers: neither a table nor the instructions
    /// prove that it is the frame's own. A walk marks the frame that such a row leads
    /// to, and the stack does not count as complete.
    #[inline]
    #[must_use]
    pub const fn with_guess(self) -> Self {
        self.with_flags(Self::GUESS)
    }

    /// The same row, found by `origin`.
    #[inline]
    #[must_use]
    pub const fn with_origin(mut self, origin: Origin) -> Self {
        let [fp, fp_base, flags, _] = self.rest.to_le_bytes();
        self.rest = u32::from_le_bytes([fp, fp_base, flags, origin.code()]);
        self
    }

    /// The CFA itself, where it [does not depend](Self::other_stack) on the frame; no rule of
    /// the row tells it then.
    #[inline]
    #[must_use]
    pub const fn other_stack_cfa(&self) -> Option<u64> {
        if self.flags() & Self::OTHER_STACK == 0 {
            return None;
        }
        let [a, b, c, d] = self.cfa_offset.to_le_bytes();
        let [e, f, g, h] = self.fp_offset.to_le_bytes();
        Some(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// How the CFA is found.
    #[inline]
    #[must_use]
    pub const fn cfa(&self) -> CfaRule {
        let Packed { kind, base } = self.packed_cfa();
        match kind {
            Packed::AT_REGISTER => CfaRule::AtRegister(base.get(), self.cfa_offset),
            _ => CfaRule::Register(base.get(), self.cfa_offset),
        }
    }

    /// How the return address is found.
    #[inline]
    #[must_use]
    pub const fn ra(&self) -> RegRule {
        self.packed_ra().unpack(self.ra_offset)
    }

    /// How the caller's frame pointer is found.
    #[inline]
    #[must_use]
    pub const fn fp(&self) -> RegRule {
        self.packed_fp().unpack(self.fp_offset)
    }

    /// Whether nothing is particular but the CFA and the frame pointer: no signal frame, the
    /// CFA is found from the stack or frame pointer, the return address is saved as it is at
    /// this offset from the CFA, and the frame pointer at another one, or unchanged.
    #[inline(always)]
    pub(crate) const fn is_plain(&self, ra_at_cfa: i32) -> bool {
        const PLAIN: Row = Row::new(CfaRule::sp(0), RegRule::Offset(0), RegRule::SameValue);
        // The bit that tells the stack pointer from the frame pointer.
        const BASES: u32 = u32::from_le_bytes([0, PackedBase::SP.0 ^ PackedBase::FP.0, 0, 0]);
        // The one that tells what is saved from what is unchanged, a flag, and the origin.
        const SAVED: u8 = Packed::SAME_VALUE ^ Packed::OFFSET;
        const OTHERS: u32 = u32::from_le_bytes([SAVED, 0, Row::GUESS, 0xff]);
        self.cfa_and_ra.get() | BASES == PLAIN.cfa_and_ra.get() | BASES
            && self.rest | OTHERS == PLAIN.rest | OTHERS
            && self.ra_offset == ra_at_cfa
    }

    /// The offset from the register that the CFA is found from.
    #[inline]
    pub(crate) const fn cfa_offset(&self) -> i32 {
        self.cfa_offset
    }

    /// Where the caller's frame pointer is saved, less the CFA, if it is saved at an offset
    /// from that.
    #[inline]
    pub(crate) const fn fp_at_cfa(&self) -> Option<i32> {
        match self.packed_fp().kind {
            Packed::OFFSET => Some(self.fp_offset),
            _ => None,
        }
    }

    /// Whether the CFA is found from the stack pointer.
    #[inline]
    #[must_use]
    pub const fn is_from_sp(&self) -> bool {
        matches!(self.packed_cfa().base.get(), BaseReg::Sp)
    }

    /// Whether this is the frame of a signal trampoline.
    #[inline]
    #[must_use]
    pub const fn is_signal(&self) -> bool {
        self.flags() & Self::SIGNAL != 0
    }

    /// Whether only the signal context, and no rule, tells the caller.
    #[inline]
    #[must_use]
    pub const fn is_context_only(&self) -> bool {
        self.flags() & Self::CONTEXT != 0
    }

    /// Whether the return address carries an authentication code.
    #[inline]
    #[must_use]
    pub const fn is_ra_signed(&self) -> bool {
        self.flags() & Self::SIGNED_RA != 0
    }

    /// Whether the row may lead past callers.
    #[inline]
    #[must_use]
    pub const fn is_guess(&self) -> bool {
        self.flags() & Self::GUESS != 0
    }

    /// Whether there is no caller.
    #[inline]
    #[must_use]
    pub const fn is_outermost(&self) -> bool {
        self.packed_ra().kind == Packed::UNDEFINED && !self.is_context_only()
    }

    /// Who found the row.
    #[inline]
    #[must_use]
    pub const fn origin(&self) -> Origin {
        let [.., code] = self.rest.to_le_bytes();
        Origin::from_code(code)
    }

    #[inline]
    const fn packed_cfa(&self) -> Packed {
        let [kind, base, ..] = self.cfa_and_ra.get().to_le_bytes();
        Packed { kind, base: PackedBase(base) }
    }

    #[inline]
    const fn packed_ra(&self) -> Packed {
        let [.., kind, base] = self.cfa_and_ra.get().to_le_bytes();
        Packed { kind, base: PackedBase(base) }
    }

    #[inline]
    const fn packed_fp(&self) -> Packed {
        let [kind, base, ..] = self.rest.to_le_bytes();
        Packed { kind, base: PackedBase(base) }
    }

    #[inline]
    const fn flags(&self) -> u8 {
        let [_, _, flags, _] = self.rest.to_le_bytes();
        flags
    }

    /// The same row with these flags, too.
    #[inline]
    const fn with_flags(mut self, flags: u8) -> Self {
        self.rest |= u32::from_le_bytes([0, 0, flags, 0]);
        self
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("cfa", &self.cfa())
            .field("other_stack_cfa", &self.other_stack_cfa())
            .field("ra", &self.ra())
            .field("fp", &self.fp())
            .field("signal", &self.is_signal())
            .field("context_only", &self.is_context_only())
            .field("signed_ra", &self.is_ra_signed())
            .field("guess", &self.is_guess())
            .field("origin", &self.origin())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: [BaseReg; 4] =
        [BaseReg::Sp, BaseReg::Fp, BaseReg::Reg(DwarfReg(0)), BaseReg::Reg(DwarfReg(0xfd))];

    #[test]
    fn every_rule_comes_back_as_it_went_in() {
        for base in BASES {
            for offset in [0, 8, -16, i32::MIN, i32::MAX] {
                let rules = [
                    RegRule::SameValue,
                    RegRule::Undefined,
                    RegRule::Offset(offset),
                    RegRule::ValOffset(offset),
                    RegRule::Register(base, offset),
                    RegRule::AtRegister(base, offset),
                ];
                for cfa in [CfaRule::Register(base, offset), CfaRule::AtRegister(base, offset)] {
                    for ra in rules {
                        for fp in rules {
                            let row = Row::new(cfa, ra, fp);
                            assert_eq!((row.cfa(), row.ra(), row.fp()), (cfa, ra, fp));
                            assert_eq!(Row::new(CfaRule::sp(8), ra, fp).with_cfa(cfa), row);
                            assert_eq!(row.is_outermost(), ra == RegRule::Undefined);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn marks_do_not_disturb_each_other() {
        let plain = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
        let marked = plain.with_signal().with_origin(Origin::Host);
        assert!(marked.is_signal() && !marked.is_ra_signed() && !marked.is_context_only());
        assert_eq!((marked.cfa(), marked.origin()), (plain.cfa(), Origin::Host));
        assert!(plain.with_signed_ra().is_ra_signed() && !plain.is_ra_signed());
        let guess = marked.with_guess();
        assert!(guess.is_guess() && guess.is_signal() && !marked.is_guess());
        assert_eq!((guess.cfa(), guess.origin()), (plain.cfa(), Origin::Host));
    }

    #[test]
    fn a_signal_trampoline_is_not_the_outermost_frame() {
        assert!(Row::outermost().is_outermost());
        assert!(!Row::signal_context().is_outermost());
        assert!(Row::signal_context().is_signal() && Row::signal_context().is_context_only());
    }

    #[test]
    fn a_row_of_another_stack_has_any_cfa_and_rules_without_offsets() {
        for cfa in [0, 16, 0xc0_0012_3458, u64::MAX] {
            for (keeps_fp, fp) in [(true, RegRule::SameValue), (false, RegRule::Undefined)] {
                let row = Row::other_stack(cfa, -8, keeps_fp);
                let row = row.with_origin(Origin::Instructions);
                assert_eq!((row.other_stack_cfa(), row.fp()), (Some(cfa), fp));
                assert_eq!((row.ra(), row.is_outermost()), (RegRule::Offset(-8), false));
                let no_register = BaseReg::Reg(DwarfReg(0xfd));
                assert!(matches!(row.cfa(), CfaRule::Register(base, _) if base == no_register));
                assert!(!row.is_signal() && !row.is_guess() && !row.is_plain(-8));
            }
        }
        assert_eq!(Row::outermost().other_stack_cfa(), None);
        assert_eq!(Row::frame_pointer(WordSize::Four).other_stack_cfa(), None);
    }

    #[test]
    fn origins_survive_three_bits() {
        for code in 0..8 {
            assert_eq!(Origin::from_code(code).code(), code);
        }
    }
}
