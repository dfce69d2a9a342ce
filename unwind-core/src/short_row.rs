//! The rows that nearly all frames have, in eight bytes.

use core::fmt;

use crate::{Base, CfaRule, Origin, RegRule, Row, WordSize};

/// A row of an ordinary frame: the CFA lies a stack slot or more above the stack
/// or frame pointer, the return address just below the CFA, and the frame
/// pointer is unchanged or saved between that register and the CFA.
///
/// Caches keep rows so, and a walk steps by them without the detour over a
/// [`Row`].
///
/// | bits | meaning |
/// |---|---|
/// | 0-31 | the CFA less the register, in bytes |
/// | 32-47 | how far below the CFA the frame pointer is saved, in bytes; 0 if it is unchanged |
/// | 48-50 | the [`Origin`] |
/// | 51 | the register is the frame pointer, not the stack pointer |
/// | 52-63 | for the cache that keeps the row |
#[derive(Clone, Copy)]
pub struct ShortRow(u64);

impl ShortRow {
    const FP_BELOW_AT: u32 = 32;
    const ORIGIN_AT: u32 = 48;
    const FROM_FP: u64 = 1 << 51;
    const TAG_AT: u32 = 52;

    /// Of an entry without a row.
    pub(crate) const NONE: Self = Self(0);

    /// The short form of a row, if it has one where stack slots are of this
    /// size.
    #[inline]
    #[must_use]
    pub fn new(row: &Row, word: WordSize) -> Option<Self> {
        let (from_fp, cfa_offset) = match row.cfa() {
            CfaRule::Offset(Base::Sp, offset) => (0, offset),
            CfaRule::Offset(Base::Fp, offset) => (Self::FROM_FP, offset),
            _ => return None,
        };
        let cfa_offset = u32::try_from(cfa_offset).ok()?;
        let fp_below = match row.fp() {
            RegRule::Same => 0,
            RegRule::AtCfa(offset @ ..0) => u16::try_from(offset.unsigned_abs()).ok()?,
            _ => return None,
        };
        let is_plain = !row.is_signal() && !row.is_ra_signed() && row.ra() == Self::ra(word);
        let bits = u64::from(cfa_offset)
            | u64::from(fp_below) << Self::FP_BELOW_AT
            | u64::from(row.origin().code()) << Self::ORIGIN_AT
            | from_fp;
        let is_inside = u64::from(cfa_offset) >= word.bytes() && u32::from(fp_below) <= cfa_offset;
        (is_plain && is_inside).then_some(Self(bits))
    }

    /// The row in full.
    #[must_use]
    pub fn row(self, word: WordSize) -> Row {
        // Lossless: it was an i32 when it went in.
        let offset = i32::try_from(self.cfa_offset()).unwrap_or(i32::MAX);
        let cfa = if self.is_from_fp() { CfaRule::fp(offset) } else { CfaRule::sp(offset) };
        let fp = match self.fp_below() {
            0 => RegRule::Same,
            below => RegRule::AtCfa(i32::from(below).wrapping_neg()),
        };
        Row::new(cfa, Self::ra(word), fp).with_origin(Origin::from_code(self.origin_code()))
    }

    const fn ra(word: WordSize) -> RegRule {
        RegRule::AtCfa(match word {
            WordSize::Four => -4,
            WordSize::Eight => -8,
        })
    }

    /// Whether the CFA is computed from the frame pointer, else from the stack
    /// pointer.
    #[inline]
    pub(crate) const fn is_from_fp(self) -> bool {
        self.0 & Self::FROM_FP != 0
    }

    /// The CFA less the register: a stack slot or more.
    #[inline]
    pub(crate) const fn cfa_offset(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// How far below the CFA the caller's frame pointer is saved; 0 if it is
    /// unchanged.
    #[inline]
    pub(crate) const fn fp_below(self) -> u16 {
        let [_, _, _, _, low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// The code of the origin, with other bits above its three.
    #[inline]
    pub(crate) const fn origin_code(self) -> u8 {
        let [.., code, _] = self.0.to_le_bytes();
        code
    }

    /// What the cache that keeps the row has written to it, 12 bits.
    #[inline]
    pub(crate) const fn tag(self) -> u16 {
        let [.., low, high] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high]) >> 4
    }

    /// The same row with another tag.
    #[inline]
    #[expect(clippy::as_conversions, reason = "widening, in a const fn")]
    pub(crate) const fn with_tag(self, tag: u16) -> Self {
        let row = self.0 & ((1 << Self::TAG_AT) - 1);
        Self(row | (tag as u64) << Self::TAG_AT)
    }
}

impl fmt::Debug for ShortRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShortRow")
            .field("from_fp", &self.is_from_fp())
            .field("cfa_offset", &self.cfa_offset())
            .field("fp_below", &self.fp_below())
            .field("origin", &Origin::from_code(self.origin_code()))
            .finish()
    }
}
