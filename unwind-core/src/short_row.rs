//! The rows that nearly all frames have, in eight bytes.

use core::fmt;

use crate::{Base, CfaRule, Origin, RegRule, Row, WordSize};

/// A row of an ordinary frame: the CFA lies a stack slot or more above the stack
/// or frame pointer, the return address just below the CFA, and the frame
/// pointer is unchanged or saved between that register and the CFA. Or the row
/// of an outermost frame.
///
/// Caches keep rows so, and a walk steps by them without the detour over a
/// [`Row`]. The parts are fields of two and four bytes, so that one load each
/// gets them.
#[derive(Clone, Copy)]
pub struct ShortRow {
    /// The CFA less the register, in bytes: a multiple of a slot, 0 if there is
    /// no row.
    cfa_offset: u32,
    /// | bits | meaning |
    /// |---|---|
    /// | 0-2 | the code of the [`Origin`] |
    /// | 3 | the CFA is computed from the frame pointer, not the stack pointer |
    /// | 4 | there is no caller |
    /// | 5 | for the cache that keeps the row: it was used since others of its set were |
    /// | 6 | a frame pointer alone tells the caller |
    /// | 7 | there is something to do before a step: bit 4 is 1 or bit 5 is 0 |
    /// | 8-15 | how far below the CFA the frame pointer is saved, in slots; 0 if it is unchanged |
    rule: u16,
    /// For the cache that keeps the row: where it expects the caller's.
    guess: u16,
}

const _: () = assert!(size_of::<ShortRow>() == 8, "the documented size");

impl ShortRow {
    const ORIGIN: u8 = 7;
    const FP_SLOTS_AT: u32 = 8;
    const FROM_FP: u16 = 1 << 3;
    const OUTERMOST: u16 = 1 << 4;
    const USED: u16 = 1 << 5;
    const BY_FP: u16 = 1 << 6;
    const SPECIAL: u16 = 1 << 7;

    /// Of an entry without a row.
    pub(crate) const NONE: Self = Self { cfa_offset: 0, rule: Self::SPECIAL, guess: 0 };

    /// The short form of a row, if it has one where stack slots are of this
    /// size.
    #[inline]
    #[must_use]
    pub fn new(row: &Row, word: WordSize) -> Option<Self> {
        let origin = u16::from(row.origin().code());
        if row.is_outermost() {
            let is_plain = *row == Row::outermost().with_origin(row.origin());
            let rule = origin | Self::USED | Self::OUTERMOST | Self::SPECIAL;
            return is_plain.then_some(Self { rule, ..Self::NONE });
        }
        let (from_fp, cfa_offset) = match row.cfa() {
            CfaRule::Offset(Base::Sp, offset) => (0, offset),
            CfaRule::Offset(Base::Fp, offset) => (Self::FROM_FP, offset),
            _ => return None,
        };
        let cfa_offset = u32::try_from(cfa_offset).ok()?;
        let fp_below = match row.fp() {
            RegRule::Same => 0,
            RegRule::AtCfa(offset @ ..0) => offset.unsigned_abs(),
            _ => return None,
        };
        let fp_slots = u8::try_from(u64::from(fp_below).checked_div(word.bytes())?).ok()?;
        let is_aligned = |bytes| u64::from(bytes) & word.bytes().wrapping_sub(1) == 0;
        let is_plain = !row.is_signal() && !row.is_ra_signed() && row.ra() == Self::ra(word);
        let is_inside = u64::from(cfa_offset) >= word.bytes() && fp_below <= cfa_offset;
        let is_short = is_plain && is_inside && is_aligned(cfa_offset) && is_aligned(fp_below);
        let by_fp = match row.origin() {
            // Only rows that start from the frame pointer are looked at for it.
            Origin::FramePointer if from_fp == 0 => return None,
            Origin::FramePointer => Self::BY_FP,
            _ => 0,
        };
        let fp_slots = u16::from(fp_slots) << Self::FP_SLOTS_AT;
        let rule = fp_slots | origin | Self::USED | by_fp | from_fp;
        is_short.then_some(Self { cfa_offset, rule, guess: 0 })
    }

    /// The row in full; `None` of an entry without one.
    #[must_use]
    pub(crate) fn row(self, word: WordSize) -> Option<Row> {
        let origin = Origin::from_code(self.origin_code());
        if self.is_outermost() {
            return Some(Row::outermost().with_origin(origin));
        }
        if !self.is_some() {
            return None;
        }
        // Lossless: it was an i32 when it went in.
        let offset = i32::try_from(self.cfa_offset).unwrap_or(i32::MAX);
        let cfa = if self.is_from_fp() { CfaRule::fp(offset) } else { CfaRule::sp(offset) };
        let fp = match self.fp_slots() {
            0 => RegRule::Same,
            slots => {
                let slot = if word == WordSize::Four { -4 } else { -8 };
                RegRule::AtCfa(i32::from(slots).wrapping_mul(slot))
            }
        };
        Some(Row::new(cfa, Self::ra(word), fp).with_origin(origin))
    }

    const fn ra(word: WordSize) -> RegRule {
        RegRule::AtCfa(match word {
            WordSize::Four => -4,
            WordSize::Eight => -8,
        })
    }

    /// Whether something is to be done before a step: the row is of an
    /// outermost frame, or there is none, or the cache is to be told that it
    /// was used.
    #[inline]
    pub(crate) const fn is_special(self) -> bool {
        self.rule & Self::SPECIAL != 0
    }

    /// Whether there is a row.
    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.cfa_offset != 0 || self.is_outermost()
    }

    /// Whether there is no caller.
    #[inline]
    pub(crate) const fn is_outermost(self) -> bool {
        self.rule & Self::OUTERMOST != 0
    }

    /// Whether the CFA is computed from the frame pointer, else from the stack
    /// pointer.
    #[inline]
    pub(crate) const fn is_from_fp(self) -> bool {
        self.rule & Self::FROM_FP != 0
    }

    /// The CFA less the register, in bytes: a stack slot or more, or 0 if there
    /// is no row.
    #[inline]
    pub(crate) fn cfa_offset(self) -> u64 {
        self.cfa_offset.into()
    }

    /// How far below the CFA the caller's frame pointer is saved, in slots; 0 if
    /// it is unchanged.
    #[inline]
    pub(crate) const fn fp_slots(self) -> u8 {
        let [_, slots] = self.rule.to_le_bytes();
        slots
    }

    /// The code of the origin.
    #[inline]
    pub(crate) const fn origin_code(self) -> u8 {
        let [low, _] = self.rule.to_le_bytes();
        low & Self::ORIGIN
    }

    /// Whether a frame pointer alone tells the caller.
    #[inline]
    pub(crate) const fn is_by_fp(self) -> bool {
        self.rule & Self::BY_FP != 0
    }

    /// Where the cache expects the caller's row.
    #[inline]
    pub(crate) const fn guess(self) -> u16 {
        self.guess
    }

    /// Changes where the cache expects the caller's row.
    #[inline]
    pub(crate) const fn set_guess(&mut self, guess: u16) {
        self.guess = guess;
    }

    /// Whether it was used since others of its set were.
    #[inline]
    pub(crate) const fn is_used(self) -> bool {
        self.rule & Self::USED != 0
    }

    /// Marks it as used or not.
    pub(crate) const fn set_used(&mut self, is_used: bool) {
        let special = if self.is_outermost() || !is_used { Self::SPECIAL } else { 0 };
        let used = if is_used { Self::USED } else { 0 };
        self.rule = self.rule & !(Self::SPECIAL | Self::USED) | special | used;
    }
}

impl fmt::Debug for ShortRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortRow")
            .field("outermost", &self.is_outermost())
            .field("from_fp", &self.is_from_fp())
            .field("cfa_offset", &self.cfa_offset)
            .field("fp_slots", &self.fp_slots())
            .field("origin", &Origin::from_code(self.origin_code()))
            .finish()
    }
}
