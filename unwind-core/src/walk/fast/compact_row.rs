//! The rows that nearly all frames have, in a few bytes.

use core::fmt;

use crate::origin::Origin;
use crate::register::WordSize;
use crate::row::Row;
use crate::rule::{CfaRule, RegRule};
use crate::source::Coverage;
use crate::trace::Provenance;

/// A row of an ordinary frame: the CFA lies a stack slot or more above the stack
/// or frame pointer, the return address just below the CFA, and the frame
/// pointer is unchanged or saved between that register and the return address.
/// Or the row of an outermost frame, or that there is none.
///
/// Caches keep rows so, and a walk steps by them without the detour over a
/// [`Row`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompactRow {
    /// | bits | meaning |
    /// |---|---|
    /// | 0-25 | the CFA less the register, in slots; 0 if there is no row or no caller |
    /// | 26 | the frame pointer points at a frame record, by a table; bit 27 is 0 |
    /// | 27 | the convention alone says that there is a frame pointer; with bit 30 |
    /// | 28 | for the cache that keeps the row: it was not used since all of its set had been |
    /// | 29 | there is no caller |
    /// | 30 | the CFA is computed from the frame pointer, not the stack pointer |
    /// | 31 | it is no plain row: one of bits 28 to 30 is 1, or there is no row |
    ///
    /// Where the source is known to have no row, bits 26 and 27 are both 1, with bits 30 and 31.
    shape: u32,
    /// | bits | meaning |
    /// |---|---|
    /// | 0-7 | how the caller is found, as [`Provenance`] has it: the code of the [`Origin`], and whether callers may be missing |
    /// | 8-15 | how far below the return address the frame pointer is saved, in slots; 0 if it is unchanged |
    rest: u16,
}

impl CompactRow {
    /// The slots are in the bits below.
    const CFA_SLOTS_END: u32 = 1 << 26;
    const RECORD: u32 = 1 << 26;
    const BY_FP: u32 = 1 << 27;
    const UNUSED: u32 = 1 << 28;
    const OUTERMOST: u32 = 1 << 29;
    const FROM_FP: u32 = 1 << 30;
    const NOT_PLAIN: u32 = 1 << 31;

    /// The bits above the slots, of a row from the frame pointer.
    const OF_FP: u32 = Self::NOT_PLAIN | Self::FROM_FP;
    /// The same where that points at a frame record.
    const OF_RECORD: u32 = Self::OF_FP | Self::RECORD;
    /// The same where only the convention says so.
    const OF_CHAIN: u32 = Self::OF_FP | Self::BY_FP;

    /// No row.
    pub(crate) const NONE: Self = Self { shape: Self::NOT_PLAIN, rest: 0 };

    /// The source is known to have no row. A walk by compact rows stops here.
    pub(crate) const ABSENT: Self = Self { shape: Self::OF_RECORD | Self::BY_FP, rest: 0 };

    /// The [row of a frame pointer](Row::frame_pointer), for stack slots of either size.
    const fn frame_pointer(is_guess: bool) -> Self {
        Self { shape: Self::OF_CHAIN | 2, rest: Self::rest(1, Origin::FramePointer, is_guess) }
    }

    /// The row of all frames, if a source has the same one for each.
    #[inline]
    pub(crate) const fn of_all(coverage: Coverage) -> Option<Self> {
        match coverage {
            Coverage::FramePointer { is_guess } => Some(Self::frame_pointer(is_guess)),
            _ => None,
        }
    }

    /// The compact form of a row, if it has one where stack slots are of this
    /// size.
    // Kept where it is made: it is not worth a call.
    #[inline(always)]
    #[must_use]
    pub(crate) fn new(row: &Row, word: WordSize) -> Option<Self> {
        if !row.is_plain(Self::ra_at_cfa(word)) {
            return Self::outermost(row);
        }
        let cfa_slots = slots(row.cfa_offset(), word);
        // One comparison each, as numbers wrap.
        let below_cfa = cfa_slots.wrapping_sub(1);
        if below_cfa >= Self::CFA_SLOTS_END.wrapping_sub(1) {
            return None;
        }
        let fp_slots = match row.fp_at_cfa() {
            None => 0,
            Some(offset) => {
                // The slot just below the CFA holds the return address.
                let below = slots(offset.wrapping_neg(), word).wrapping_sub(1);
                let most = below_cfa.min(u8::MAX.into());
                u8::try_from(below).ok().filter(|_| below.wrapping_sub(1) < most)?
            }
        };
        let base = match (row.is_from_sp(), row.origin()) {
            // Only rows from the frame pointer are looked at for who found them.
            (true, Origin::FramePointer) => return None,
            (true, _) => 0,
            (false, Origin::FramePointer) => Self::OF_CHAIN,
            (false, _) if (cfa_slots, fp_slots) == (2, 1) => Self::OF_RECORD,
            (false, _) => Self::OF_FP,
        };
        let rest = Self::rest(fp_slots, row.origin(), row.is_guess());
        Some(Self { shape: base | cfa_slots, rest })
    }

    /// The same of an outermost row of which nothing is particular.
    #[inline]
    fn outermost(row: &Row) -> Option<Self> {
        let is_plain = *row == Row::outermost().with_origin(row.origin());
        let shape = Self::NOT_PLAIN | Self::OUTERMOST;
        is_plain.then_some(Self { shape, rest: Self::rest(0, row.origin(), false) })
    }

    const fn rest(fp_slots: u8, origin: Origin, is_guess: bool) -> u16 {
        u16::from_le_bytes([Provenance::of_row(origin, is_guess).bits(), fp_slots])
    }

    /// The row in full; `None` of an entry without one.
    #[must_use]
    pub(crate) fn row(self, word: WordSize) -> Option<Row> {
        let origin = self.provenance().origin();
        if self.is_outermost() {
            return Some(Row::outermost().with_origin(origin));
        }
        if !self.is_some() {
            return None;
        }
        // Lossless: it was an i32 when it went in.
        let offset = i32::try_from(u64::from(self.cfa_slots()).wrapping_mul(word.bytes()));
        let offset = offset.unwrap_or(i32::MAX);
        let cfa = if self.is_from_fp() { CfaRule::fp(offset) } else { CfaRule::sp(offset) };
        let fp = match self.fp_slots() {
            0 => RegRule::SameValue,
            slots => {
                let slot = if word == WordSize::Four { -4 } else { -8 };
                RegRule::Offset(i32::from(slots).wrapping_add(1).wrapping_mul(slot))
            }
        };
        let ra = RegRule::Offset(Self::ra_at_cfa(word));
        let row = Row::new(cfa, ra, fp).with_origin(origin);
        Some(if self.provenance().is_after_gap() { row.with_guess() } else { row })
    }

    const fn ra_at_cfa(word: WordSize) -> i32 {
        match word {
            WordSize::Four => -4,
            WordSize::Eight => -8,
        }
    }

    /// The CFA less the register that it is computed from, in slots.
    pub(crate) const fn cfa_slots(self) -> u32 {
        self.shape & Self::CFA_SLOTS_END.wrapping_sub(1)
    }

    /// The CFA less the stack pointer, in slots, 1 or more, of a row that needs
    /// nothing else.
    #[inline]
    pub(crate) fn slots_from_sp(self) -> Option<u64> {
        u64::try_from(i32::from_ne_bytes(self.shape.to_ne_bytes())).ok()
    }

    /// Whether the frame pointer points at a standard frame record (the saved frame pointer,
    /// then the return address), and a table, not only the convention, says so.
    #[inline]
    pub(crate) const fn is_record(self) -> bool {
        self.shape == Self::OF_RECORD | 2
    }

    /// As [`slots_from_sp`](Self::slots_from_sp) from the frame pointer, of a row that
    /// a table has.
    #[inline]
    pub(crate) fn slots_from_fp(self) -> Option<u64> {
        self.slots_with(Self::OF_FP)
    }

    /// The same, of a row that only the convention gives.
    #[inline]
    pub(crate) fn slots_by_fp(self) -> Option<u64> {
        self.slots_with(Self::OF_CHAIN)
    }

    /// The slots if just these of the bits above them are 1.
    #[inline]
    fn slots_with(self, bits: u32) -> Option<u64> {
        let slots = self.shape.wrapping_sub(bits);
        (slots < Self::CFA_SLOTS_END).then_some(slots.into())
    }

    /// Whether the source is known to have no row.
    #[inline]
    pub(crate) const fn is_absent(self) -> bool {
        self.shape & !Self::UNUSED == Self::ABSENT.shape
    }

    /// Of an entry that is used, the row by which a walk continues where the source has none:
    /// that of the fallback, if it has the same one for all frames.
    #[inline]
    pub(crate) const fn in_place_of_none(self, fallback: Coverage) -> Option<Self> {
        if self.shape == Self::ABSENT.shape { Self::of_all(fallback) } else { None }
    }

    /// Whether there is a row.
    #[inline]
    pub(crate) const fn is_some(self) -> bool {
        self.cfa_slots() != 0 || self.is_outermost()
    }

    /// Whether there is no caller.
    #[inline]
    pub(crate) const fn is_outermost(self) -> bool {
        self.shape & Self::OUTERMOST != 0
    }

    /// Whether that register is the frame pointer.
    pub(crate) const fn is_from_fp(self) -> bool {
        self.shape & Self::FROM_FP != 0
    }

    /// How far below the return address the caller's frame pointer is saved, in
    /// slots; 0 if it is unchanged.
    #[inline]
    pub(crate) const fn fp_slots(self) -> u8 {
        let [_, slots] = self.rest.to_le_bytes();
        slots
    }

    /// Whether the caller's frame pointer is unchanged.
    #[inline]
    pub(crate) const fn keeps_fp(self) -> bool {
        self.rest < 1 << 8
    }

    /// How a caller that it leads to is found.
    #[inline]
    pub(crate) const fn provenance(self) -> Provenance {
        let [bits, _] = self.rest.to_le_bytes();
        Provenance::from_bits(bits)
    }

    /// Whether it was used since all of its set had been.
    #[inline]
    pub(crate) const fn is_used(self) -> bool {
        self.shape & Self::UNUSED == 0
    }

    /// The same, used or not.
    #[inline]
    #[must_use]
    pub(crate) const fn with_use(self, is_used: bool) -> Self {
        let shape = self.shape & !(Self::NOT_PLAIN | Self::UNUSED);
        let unused = if is_used { 0 } else { Self::UNUSED };
        let is_plain = is_used && shape < Self::CFA_SLOTS_END;
        let not_plain = if is_plain { 0 } else { Self::NOT_PLAIN };
        Self { shape: shape | unused | not_plain, ..self }
    }

    /// The same as not used, of a row in [bytes](Self::from_bytes) from the third one on.
    #[inline]
    pub(crate) fn forget_use(shape: &mut [u8; 4]) {
        let unused = Self::NOT_PLAIN | Self::UNUSED;
        *shape = (u32::from_le_bytes(*shape) | unused).to_le_bytes();
    }

    /// In the lower 48 bits of a word, for a cache that keeps it.
    #[inline]
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.shape) << 16 | u64::from(self.rest)
    }

    /// The same, from those bits as bytes.
    #[inline]
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "each part is read by itself")]
    pub(crate) fn from_bytes(bytes: &[u8; 6]) -> Self {
        let &[a, b, shape @ ..] = bytes;
        Self { shape: u32::from_le_bytes(shape), rest: u16::from_le_bytes([a, b]) }
    }
}

/// A number of bytes in stack slots. More than any row has if it is negative or no
/// multiple: what is left of the division goes to the highest bits.
#[inline]
const fn slots(bytes: i32, word: WordSize) -> u32 {
    u32::from_ne_bytes(bytes.to_ne_bytes()).rotate_right(word.bytes().trailing_zeros())
}

impl fmt::Debug for CompactRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactRow")
            .field("outermost", &self.is_outermost())
            .field("from_fp", &self.is_from_fp())
            .field("cfa_slots", &self.cfa_slots())
            .field("fp_slots", &self.fp_slots())
            .field("origin", &self.provenance().origin())
            .field("guess", &self.provenance().is_after_gap())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_a_frame_pointer_is_the_short_form_of_its_row() {
        for word in [WordSize::Four, WordSize::Eight] {
            let row = Row::frame_pointer(word);
            for (row, expected) in [
                (row.with_guess(), CompactRow::frame_pointer(true)),
                (row, CompactRow::frame_pointer(false)),
            ] {
                let short = CompactRow::new(&row, word).unwrap();
                assert_eq!(short.to_bits(), expected.to_bits());
                assert_eq!(expected.row(word), Some(row));
            }
        }
    }

    #[test]
    fn for_debugging_a_row_is_shown_in_slots() {
        extern crate std;
        let row = Row::new(CfaRule::sp(24), RegRule::Offset(-8), SAVED).with_guess();
        let text = std::format!("{:?}", CompactRow::new(&row, WordSize::Eight).unwrap());
        for part in ["outermost: false", "from_fp: false", "cfa_slots: 3", "guess: true"] {
            assert!(text.contains(part), "{text}");
        }
    }

    const SAVED: RegRule = RegRule::Offset(-16);

    fn short(cfa: CfaRule, fp: RegRule, origin: Origin) -> CompactRow {
        let row = Row::new(cfa, RegRule::Offset(-8), fp).with_origin(origin);
        CompactRow::new(&row, WordSize::Eight).unwrap()
    }

    /// The four ways to read the slots, of which each row has one.
    fn slots_of(row: CompactRow) -> [Option<u64>; 4] {
        let record = row.is_record().then_some(2);
        [row.slots_from_sp(), row.slots_from_fp(), row.slots_by_fp(), record]
    }

    #[test]
    fn each_row_has_its_slots_in_one_way() {
        for (bytes, slots) in [(24, 3), (0x1000, 0x200), (0x1fff_fff8, 0x03ff_ffff)] {
            let (sp, fp) = (CfaRule::sp(bytes), CfaRule::fp(bytes));
            let ways = |row| slots_of(row).map(|found| found.map(|found| found == slots));
            let (yes, no) = (Some(true), None);
            assert_eq!(ways(short(sp, SAVED, Origin::Table)), [yes, no, no, no]);
            assert_eq!(ways(short(fp, SAVED, Origin::Table)), [no, yes, no, no]);
            assert_eq!(ways(short(fp, SAVED, Origin::FramePointer)), [no, no, yes, no]);
        }
        let fp = CfaRule::fp(16);
        assert_eq!(slots_of(short(fp, SAVED, Origin::Table)), [None, None, None, Some(2)]);
        assert_eq!(
            slots_of(short(fp, RegRule::SameValue, Origin::Table)),
            [None, Some(2), None, None]
        );
        assert_eq!(slots_of(CompactRow::frame_pointer(true)), [None, None, Some(2), None]);
        let higher = Row::new(CfaRule::sp(0x2000_0000), RegRule::Offset(-8), SAVED);
        assert!(CompactRow::new(&higher, WordSize::Eight).is_none());
        let outermost = CompactRow::new(&Row::outermost(), WordSize::Eight).unwrap();
        assert_eq!(slots_of(outermost), [None; 4]);
        assert_eq!(slots_of(CompactRow::NONE), [None; 4]);
    }

    #[test]
    fn a_row_of_any_origin_keeps_the_frame_pointer_or_says_where_it_is_saved() {
        for origin in (0..8).map(Origin::from_code) {
            for (fp, slots) in
                [(RegRule::SameValue, 0), (SAVED, 1), (RegRule::Offset(-0x800), 0xff)]
            {
                let row = short(CfaRule::fp(0x1000), fp, origin);
                assert_eq!((row.keeps_fp(), row.fp_slots()), (slots == 0, slots), "{origin:?}");
                assert_eq!(row.provenance(), Provenance::of_row(origin, false));
            }
        }
    }

    #[test]
    fn an_entry_without_a_row_has_none_in_full_either() {
        for word in [WordSize::Four, WordSize::Eight] {
            assert_eq!(CompactRow::NONE.row(word), None);
        }
    }

    #[test]
    fn a_row_that_is_marked_as_used_again_is_the_row_before() {
        let (sp, fp) = (CfaRule::sp(16), CfaRule::fp(16));
        let outermost = CompactRow::new(&Row::outermost(), WordSize::Eight).unwrap();
        for row in [
            short(sp, SAVED, Origin::Table),
            short(sp, RegRule::SameValue, Origin::CallFrames),
            short(fp, SAVED, Origin::Table),
            CompactRow::frame_pointer(true),
            outermost,
        ] {
            let unused = row.with_use(false);
            assert!(row.is_used() && !unused.is_used());
            // What takes it for a plain row would not mark it.
            assert_eq!(slots_of(unused), [None; 4]);
            assert_eq!(unused.row(WordSize::Eight), row.row(WordSize::Eight));
            assert_eq!(unused.with_use(true).to_bits(), row.to_bits());
            assert_eq!(unused.with_use(false).to_bits(), unused.to_bits());
            assert_eq!(
                CompactRow::from_bytes(row.to_bits().to_le_bytes().first_chunk().unwrap())
                    .to_bits(),
                row.to_bits()
            );
        }
    }
}
