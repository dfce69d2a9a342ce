//! How to get from a frame to its caller, in any format's terms.

use core::fmt;
use core::num::NonZero;

use crate::addr::VirtAddr;
use crate::origin::Origin;
use crate::register::{BaseReg, DwarfReg, WordSize};
use crate::row::packed::{Packed, PackedBase};
use crate::rule::{CfaRule, RegRule};

mod packed;

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

impl Row {
    const SIGNAL: u8 = 1;
    const CONTEXT: u8 = 2;
    const SIGNED_RA: u8 = 4;
    const GUESS: u8 = 8;
    const OTHER_STACK: u8 = 16;
    const EH_RETURN: u8 = 32;
    const NEEDS: u8 = 64;

    /// In place of a CFA's rule: who takes it for one finds a register that no CPU has.
    const NO_RULE: CfaRule = CfaRule::Register(BaseReg::Reg(DwarfReg(0xfd)), 0);

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
        let row = Self::new(Self::NO_RULE, RegRule::Offset(ra_offset), fp);
        match row.with_other_stack(cfa) {
            Some(row) => row,
            // There is room where the frame pointer's rule has no offset.
            None => row,
        }
    }

    /// The same row, for one frame only, whose CFA is this value wherever the frame itself is:
    /// see [`other_stack`](Self::other_stack). `None` if its other rules have offsets of 32 KiB or
    /// more, for which there is no room then.
    #[must_use]
    pub const fn with_other_stack(self, cfa: u64) -> Option<Self> {
        let (ra, fp) = (self.ra_offset, self.fp_offset);
        if self.flags() & Self::OTHER_STACK != 0 {
            return None;
        }
        let has_fp = self.packed_fp().has_offset();
        if has_fp && (!fits(ra) || !fits(fp)) {
            return None;
        }
        let [a, b, c, d, e, f, g, h] = cfa.to_le_bytes();
        let (cfa, _) = Packed::pack_cfa(Self::NO_RULE);
        let mut row = self.with_flags(Self::OTHER_STACK);
        row.cfa_and_ra = row.packed_ra().with_cfa(cfa);
        // Neither the rule of the CFA nor that of the frame pointer has an offset here.
        row.cfa_offset = i32::from_le_bytes([a, b, c, d]);
        row.fp_offset = i32::from_le_bytes([e, f, g, h]);
        if has_fp {
            let ([ra_low, ra_high, ..], [fp_low, fp_high, ..]) =
                (ra.to_le_bytes(), fp.to_le_bytes());
            row.ra_offset = i32::from_le_bytes([ra_low, ra_high, fp_low, fp_high]);
        }
        Some(row)
    }

    /// The row of a frame whose rules need the value of this register, which is not known yet.
    ///
    /// A walk that can [tell it](crate::RowSource::register_rules) asks the source again, with it among the
    /// [registers](crate::FrameContext::registers). Else it ends with
    /// [`UnknownRegister`](crate::StepError::UnknownRegister).
    #[must_use]
    pub const fn needs_register(register: BaseReg) -> Self {
        let cfa = CfaRule::Register(register, 0);
        Self::new(cfa, RegRule::Offset(0), RegRule::Undefined).with_flags(Self::NEEDS)
    }

    /// The row of a frame whose rules need the word at this address, which cannot be read: a
    /// walk ends with [`Unreadable`](crate::StepError::Unreadable).
    #[must_use]
    pub const fn needs_memory(addr: VirtAddr) -> Self {
        let [a, b, c, d, e, f, g, h] = addr.get().to_le_bytes();
        let cfa = CfaRule::AtRegister(BaseReg::Sp, i32::from_le_bytes([a, b, c, d]));
        let mut row = Self::new(cfa, RegRule::Offset(0), RegRule::Undefined);
        row.fp_offset = i32::from_le_bytes([e, f, g, h]);
        row.with_flags(Self::NEEDS)
    }

    /// What has to be known before the row of the frame is: no rule of this one tells the caller.
    #[inline]
    #[must_use]
    pub const fn needs(&self) -> Option<Needs> {
        if self.flags() & Self::NEEDS == 0 {
            return None;
        }
        Some(match self.cfa() {
            CfaRule::Register(register, _) => Needs::Register(register),
            _ => {
                let [a, b, c, d] = self.cfa_offset.to_le_bytes();
                let [e, f, g, h] = self.fp_offset.to_le_bytes();
                Needs::Memory(VirtAddr::new(u64::from_le_bytes([a, b, c, d, e, f, g, h])))
            }
        })
    }

    /// Whether a walk has to look at more than the rules: neither on
    /// [another stack](Self::other_stack_cfa), nor in [need](Self::needs) of something.
    #[inline]
    pub(crate) const fn is_by_rules(&self) -> bool {
        self.flags() & (Self::OTHER_STACK | Self::NEEDS) == 0
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

    /// The same row, of a function that returns to where an exception is caught
    /// (`__builtin_eh_return`), as libgcc's `_Unwind_RaiseException` does.
    ///
    /// Before it returns, it writes that function's registers over those of its own caller, which
    /// it has saved in its frame, and its table still says that they are the caller's. It does so
    /// itself, or in a function that it calls and that calls none. So where the frame is the one
    /// that was interrupted, or has called that one, a walk believes the row's CFA and return address,
    /// but not the registers that it restores: the first later row that needs the frame pointer while
    /// nothing else has restored it is a [guess](Self::with_guess), and no other register is
    /// recovered.
    #[inline]
    #[must_use]
    pub const fn with_eh_return(self) -> Self {
        self.with_flags(Self::EH_RETURN)
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
        self.packed_cfa().unpack_cfa(self.cfa_offset)
    }

    /// How the return address is found.
    #[inline]
    #[must_use]
    pub const fn ra(&self) -> RegRule {
        self.packed_ra().unpack(self.offsets().0)
    }

    /// How the caller's frame pointer is found.
    #[inline]
    #[must_use]
    pub const fn fp(&self) -> RegRule {
        self.packed_fp().unpack(self.offsets().1)
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

    /// Whether the CFA or the return address may depend on the frame pointer.
    pub(crate) const fn needs_fp(&self) -> bool {
        let has_plain_ra = matches!(self.ra(), RegRule::Offset(_) | RegRule::SameValue);
        let is_plain = self.is_by_rules() && self.is_from_sp() && has_plain_ra;
        !(is_plain || self.is_context_only())
    }

    /// Whether a table says that the CFA is found from another register than these two, in which
    /// code keeps it that changes to another stack.
    #[inline]
    pub(crate) const fn is_from_other_register(&self) -> bool {
        matches!(self.cfa(), CfaRule::Register(BaseReg::Reg(_), _))
            && matches!(self.origin(), Origin::Table | Origin::CallFrames)
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

    /// Whether the function may [return to where an exception is caught](Self::with_eh_return).
    #[inline]
    #[must_use]
    pub const fn is_eh_return(&self) -> bool {
        self.flags() & Self::EH_RETURN != 0
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

    /// The offsets of the return address's rule and of the frame pointer's.
    #[inline]
    const fn offsets(&self) -> (i32, i32) {
        if self.flags() & Self::OTHER_STACK == 0 || !self.packed_fp().has_offset() {
            return (self.ra_offset, self.fp_offset);
        }
        let [a, b, c, d] = self.ra_offset.to_le_bytes();
        (sign_extended(a, b), sign_extended(c, d))
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

/// Whether an offset needs no more than 16 bits.
const fn fits(offset: i32) -> bool {
    let [a, b, ..] = offset.to_le_bytes();
    sign_extended(a, b) == offset
}

const fn sign_extended(low: u8, high: u8) -> i32 {
    let sign = if high < 0x80 { 0 } else { 0xff };
    i32::from_le_bytes([low, high, sign, sign])
}

/// What has to be known before there is a row: see [`Row::needs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Needs {
    /// The value of this register.
    Register(BaseReg),
    /// The word at this address.
    Memory(VirtAddr),
}

impl fmt::Display for Row {
    /// As `CFA = sp+16, RA = [CFA-8], fp = [CFA-16]`, and what else the row says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_outermost() {
            return f.write_str("RA is undefined: the outermost frame");
        }
        if self.is_context_only() {
            return f.write_str("the registers that the kernel saved for a signal handler");
        }
        match self.needs() {
            Some(Needs::Register(register)) => return write!(f, "rules that need {register}"),
            Some(Needs::Memory(addr)) => return write!(f, "rules that need the word at {addr}"),
            None => {}
        }
        match self.other_stack_cfa() {
            Some(cfa) => write!(f, "CFA = {cfa:#x}, on another stack")?,
            None => write!(f, "CFA = {}", self.cfa())?,
        }
        write!(f, ", RA = {}, fp = {}", self.ra(), self.fp())?;
        f.write_str(if self.is_ra_signed() { ", RA is signed" } else { "" })?;
        f.write_str(if self.is_signal() { ", of a signal frame" } else { "" })?;
        f.write_str(if self.is_eh_return() { ", may return to a handler" } else { "" })?;
        f.write_str(if self.is_guess() { ", a guess" } else { "" })
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("cfa", &self.cfa())
            .field("other_stack_cfa", &self.other_stack_cfa())
            .field("needs", &self.needs())
            .field("ra", &self.ra())
            .field("fp", &self.fp())
            .field("signal", &self.is_signal())
            .field("context_only", &self.is_context_only())
            .field("signed_ra", &self.is_ra_signed())
            .field("guess", &self.is_guess())
            .field("eh_return", &self.is_eh_return())
            .field("origin", &self.origin())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Addend;

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
                let plus = [-64, -4, 0, 8, 16, 60].map(|bytes| Addend::new(bytes).unwrap());
                let plus = plus.map(|plus| CfaRule::AtRegisterPlus(base, offset, plus));
                let others = [CfaRule::Register(base, offset), CfaRule::AtRegister(base, offset)];
                for cfa in plus.into_iter().chain(others) {
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
    fn u2_what_is_added_to_a_loaded_cfa_is_a_few_slots() {
        for bytes in -200..200 {
            let has_room = bytes % 4 == 0 && (-64..=60).contains(&bytes);
            assert_eq!(Addend::new(bytes).map(Addend::bytes), has_room.then_some(bytes));
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
