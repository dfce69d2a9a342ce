//! The rows that nearly all frames have, in eight bytes.

use core::fmt;

use crate::{Base, CfaRule, Origin, RegRule, Row, WordSize};

/// A row of an ordinary frame: the CFA lies a stack slot or more above the stack
/// or frame pointer, the return address just below the CFA, and the frame
/// pointer is unchanged or saved between that register and the return address.
/// Or the row of an outermost frame.
///
/// Caches keep rows so, and a walk steps by them without the detour over a
/// [`Row`].
#[derive(Clone, Copy)]
pub struct ShortRow(
    /// | bits | meaning |
    /// |---|---|
    /// | 0-7 | the code of the [`Origin`] |
    /// | 8-15 | how far below the return address the frame pointer is saved, in slots; 0 if it is unchanged |
    /// | 16-31 | for the cache that keeps the row: where it expects the caller's |
    /// | 32-58 | the CFA less the register, in slots; 0 if there is no row or no caller |
    /// | 59 | a frame pointer alone tells the caller; with bit 62 |
    /// | 60 | for the cache that keeps the row: it was not used since all of its set had been |
    /// | 61 | there is no caller |
    /// | 62 | the CFA is computed from the frame pointer, not the stack pointer |
    /// | 63 | it is no plain row: one of bits 60 to 62 is 1, or there is no row |
    u64,
);

impl ShortRow {
    const FP_SLOTS_AT: u32 = 8;
    const GUESS_AT: u32 = 16;
    const CFA_SLOTS_AT: u32 = 32;
    /// Of what is in the bits from there on.
    const CFA_SLOTS_END: u64 = 1 << 27;
    const BY_FP: u64 = 1 << 59;
    const UNUSED: u64 = 1 << 60;
    const OUTERMOST: u64 = 1 << 61;
    const FROM_FP: u64 = 1 << 62;
    const NOT_PLAIN: u64 = 1 << 63;

    /// No row.
    pub(crate) const NONE: Self = Self(Self::NOT_PLAIN);

    /// That of code of which nothing is known but that it keeps a frame pointer:
    /// the pointer leads to the caller's, above which is the return address. It
    /// is the same for stack slots of either size.
    #[expect(clippy::as_conversions, reason = "widening, in a const")]
    pub const FRAME_POINTER: Self = Self(
        Self::NOT_PLAIN
            | Self::FROM_FP
            | Self::BY_FP
            | 2 << Self::CFA_SLOTS_AT
            | 1 << Self::FP_SLOTS_AT
            | Origin::FramePointer.code() as u64,
    );

    /// The short form of a row, if it has one where stack slots are of this
    /// size.
    #[inline]
    #[must_use]
    pub fn new(row: &Row, word: WordSize) -> Option<Self> {
        let origin = u64::from(row.origin().code());
        if row.is_outermost() {
            let is_plain = *row == Row::outermost().with_origin(row.origin());
            return is_plain.then_some(Self(Self::NOT_PLAIN | Self::OUTERMOST | origin));
        }
        let (base, cfa_offset) = match row.cfa() {
            CfaRule::Offset(Base::Sp, offset) => (0, offset),
            CfaRule::Offset(Base::Fp, offset) => (Self::NOT_PLAIN | Self::FROM_FP, offset),
            _ => return None,
        };
        let cfa_slots = slots(u32::try_from(cfa_offset).ok()?, word)?;
        let fp_slots = match row.fp() {
            RegRule::Same => 0,
            // The slot just below the CFA holds the return address.
            RegRule::AtCfa(offset @ ..0) => match slots(offset.unsigned_abs(), word)? {
                below @ 2.. if below <= cfa_slots => u8::try_from(below.wrapping_sub(1)).ok()?,
                _ => return None,
            },
            _ => return None,
        };
        let cfa_slots = u64::from(cfa_slots);
        let is_plain = !row.is_signal() && !row.is_ra_signed() && row.ra() == Self::ra(word);
        let base = match (base, row.origin()) {
            // Only rows from the frame pointer are looked at for who found them.
            (0, Origin::FramePointer) => return None,
            (base, Origin::FramePointer) => base | Self::BY_FP,
            (base, _) => base,
        };
        let is_short = is_plain && (1..Self::CFA_SLOTS_END).contains(&cfa_slots);
        let cfa = base | cfa_slots << Self::CFA_SLOTS_AT;
        is_short.then_some(Self(cfa | origin | u64::from(fp_slots) << Self::FP_SLOTS_AT))
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
        let offset = i32::try_from(self.cfa_slots().wrapping_mul(word.bytes()));
        let offset = offset.unwrap_or(i32::MAX);
        let cfa = if self.is_from_fp() { CfaRule::fp(offset) } else { CfaRule::sp(offset) };
        let fp = match self.fp_slots() {
            0 => RegRule::Same,
            slots => {
                let slot = if word == WordSize::Four { -4 } else { -8 };
                RegRule::AtCfa(i32::from(slots).wrapping_add(1).wrapping_mul(slot))
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

    const fn cfa_slots(self) -> u64 {
        self.0 >> Self::CFA_SLOTS_AT & Self::CFA_SLOTS_END.wrapping_sub(1)
    }

    /// The CFA less the stack pointer, in slots, 1 or more, of a row that needs
    /// nothing else.
    #[inline]
    pub(crate) const fn slots_from_sp(self) -> Option<u64> {
        let high = self.0.cast_signed() >> Self::CFA_SLOTS_AT;
        if high >= 0 { Some(high.cast_unsigned()) } else { None }
    }

    /// The same from the frame pointer, of a row that not that alone tells.
    #[inline]
    pub(crate) const fn slots_from_fp(self) -> Option<u64> {
        self.slots_with(Self::NOT_PLAIN | Self::FROM_FP)
    }

    /// The same, of a row that a frame pointer alone tells.
    #[inline]
    pub(crate) const fn slots_by_fp(self) -> Option<u64> {
        self.slots_with(Self::NOT_PLAIN | Self::FROM_FP | Self::BY_FP)
    }

    /// The slots if just these of the bits behind them are 1.
    #[inline]
    const fn slots_with(self, bits: u64) -> Option<u64> {
        // As numbers with a sign, so that the bits are a constant to subtract.
        let high = self.0.cast_signed() >> Self::CFA_SLOTS_AT;
        let bits = bits.cast_signed() >> Self::CFA_SLOTS_AT;
        let slots = high.wrapping_sub(bits).cast_unsigned();
        if slots < Self::CFA_SLOTS_END { Some(slots) } else { None }
    }

    /// Whether there is a row.
    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.cfa_slots() != 0 || self.is_outermost()
    }

    /// Whether there is no caller.
    #[inline]
    pub(crate) const fn is_outermost(self) -> bool {
        self.0 & Self::OUTERMOST != 0
    }

    const fn is_from_fp(self) -> bool {
        self.0 & Self::FROM_FP != 0
    }

    /// How far below the return address the caller's frame pointer is saved, in
    /// slots; 0 if it is unchanged.
    #[inline]
    pub(crate) const fn fp_slots(self) -> u8 {
        let [_, slots, ..] = self.0.to_le_bytes();
        slots
    }

    /// The code of the origin.
    #[inline]
    pub(crate) const fn origin_code(self) -> u8 {
        let [origin, ..] = self.0.to_le_bytes();
        origin
    }

    /// Where the cache expects the caller's row.
    #[inline]
    pub(crate) fn guess(self) -> usize {
        usize::try_from(self.0 >> Self::GUESS_AT & 0xffff).unwrap_or(0)
    }

    /// The same with another guess, of which 16 bits are kept.
    #[inline]
    #[must_use]
    pub(crate) fn with_guess(self, guess: usize) -> Self {
        let bits = 0xffff << Self::GUESS_AT;
        let guess = u64::try_from(guess & 0xffff).unwrap_or(0);
        Self(self.0 & !bits | guess << Self::GUESS_AT)
    }

    /// Whether it was used since all of its set had been.
    #[inline]
    pub(crate) const fn is_used(self) -> bool {
        self.0 & Self::UNUSED == 0
    }

    /// The same, used or not.
    #[inline]
    #[must_use]
    pub(crate) const fn with_use(self, is_used: bool) -> Self {
        let row = self.0 & !(Self::NOT_PLAIN | Self::UNUSED);
        let unused = if is_used { 0 } else { Self::UNUSED };
        let is_plain = is_used && row >> Self::CFA_SLOTS_AT < Self::CFA_SLOTS_END;
        Self(row | unused | if is_plain { 0 } else { Self::NOT_PLAIN })
    }

    /// The same, from [`bits`](Self::bits).
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// For a cache that keeps it.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// A number of bytes in stack slots, if it is a multiple.
#[inline]
fn slots(bytes: u32, word: WordSize) -> Option<u32> {
    let shift = word.bytes().trailing_zeros();
    let slots = bytes >> shift;
    (slots << shift == bytes).then_some(slots)
}

impl fmt::Debug for ShortRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortRow")
            .field("outermost", &self.is_outermost())
            .field("from_fp", &self.is_from_fp())
            .field("cfa_slots", &self.cfa_slots())
            .field("fp_slots", &self.fp_slots())
            .field("origin", &Origin::from_code(self.origin_code()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_a_frame_pointer_is_the_short_form_of_its_row() {
        for (word, cfa, ra, fp) in [(WordSize::Four, 8, -4, -8), (WordSize::Eight, 16, -8, -16)] {
            let row = Row::new(CfaRule::fp(cfa), RegRule::AtCfa(ra), RegRule::AtCfa(fp));
            let row = row.with_origin(Origin::FramePointer);
            assert_eq!(ShortRow::new(&row, word).unwrap().0, ShortRow::FRAME_POINTER.0);
            assert_eq!(ShortRow::FRAME_POINTER.row(word), Some(row));
        }
    }

    const SAVED: RegRule = RegRule::AtCfa(-16);

    fn short(cfa: CfaRule, fp: RegRule, origin: Origin) -> ShortRow {
        let row = Row::new(cfa, RegRule::AtCfa(-8), fp).with_origin(origin);
        ShortRow::new(&row, WordSize::Eight).unwrap()
    }

    /// The three ways to read the slots, of which each row has one.
    fn slots_of(row: ShortRow) -> [Option<u64>; 3] {
        [row.slots_from_sp(), row.slots_from_fp(), row.slots_by_fp()]
    }

    #[test]
    fn each_row_has_its_slots_in_one_way() {
        for (bytes, slots) in [(16, 2), (0x1000, 0x200), (0x3fff_fff8, 0x07ff_ffff)] {
            let (sp, fp) = (CfaRule::sp(bytes), CfaRule::fp(bytes));
            assert_eq!(slots_of(short(sp, SAVED, Origin::Table)), [Some(slots), None, None]);
            assert_eq!(slots_of(short(fp, SAVED, Origin::Table)), [None, Some(slots), None]);
            assert_eq!(slots_of(short(fp, SAVED, Origin::FramePointer)), [None, None, Some(slots)]);
        }
        let higher = Row::new(CfaRule::sp(0x4000_0000), RegRule::AtCfa(-8), SAVED);
        assert!(ShortRow::new(&higher, WordSize::Eight).is_none());
        let outermost = ShortRow::new(&Row::outermost(), WordSize::Eight).unwrap();
        assert_eq!(slots_of(outermost), [None; 3]);
        assert_eq!(slots_of(ShortRow::NONE), [None; 3]);
    }

    #[test]
    fn a_row_that_is_marked_as_used_again_is_the_row_before() {
        let (sp, fp) = (CfaRule::sp(16), CfaRule::fp(16));
        let outermost = ShortRow::new(&Row::outermost(), WordSize::Eight).unwrap();
        for row in [
            short(sp, SAVED, Origin::Table),
            short(sp, RegRule::Same, Origin::BuiltTable),
            short(fp, SAVED, Origin::Table),
            ShortRow::FRAME_POINTER,
            outermost,
        ] {
            let unused = row.with_use(false);
            assert!(row.is_used() && !unused.is_used());
            // What takes it for a plain row would not mark it.
            assert_eq!(slots_of(unused), [None; 3]);
            assert_eq!(unused.row(WordSize::Eight), row.row(WordSize::Eight));
            assert_eq!(unused.with_use(true).bits(), row.bits());
            assert_eq!(unused.with_use(false).bits(), unused.bits());
        }
    }

    #[test]
    fn sixteen_bits_of_a_guess_are_kept_and_no_other_bit_changes() {
        let row = short(CfaRule::sp(16), SAVED, Origin::Table);
        let guessed = row.with_guess(0x5_a50f);
        assert_eq!(guessed.guess(), 0xa50f);
        assert_eq!(guessed.with_guess(0x0f5a).guess(), 0x0f5a);
        assert_eq!(guessed.with_guess(0).bits(), row.bits());
    }
}
