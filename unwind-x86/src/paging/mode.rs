//! How many levels of tables there are, and what they look like.

use super::fault::Level;
use crate::x86_64::X86_64;

/// The binary logarithm of the size of the smallest page.
pub(super) const PAGE_BITS: u32 = 12;

/// How many levels of tables there are, and of which shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PagingMode {
    /// Paging is off: a linear address, of 32 bits, is the physical one.
    Off,
    /// 32-bit paging: 4-byte entries, 32-bit linear addresses, physical ones
    /// of up to 40 bits by 4-MiB pages (PSE-36).
    TwoLevel,
    /// PAE paging: 8-byte entries, 32-bit linear addresses.
    Pae,
    /// 48-bit linear addresses.
    FourLevel,
    /// 57-bit linear addresses.
    FiveLevel,
}

/// The shape of one level: the table, and the lowest address bit of its index.
pub(super) type Shape = (Level, u32);

impl PagingMode {
    /// The levels from the root down.
    pub(super) const fn levels(self) -> &'static [Shape] {
        const FOUR: &[Shape] =
            &[(Level::Pml4, 39), (Level::Pdpt, 30), (Level::Pd, 21), (Level::Pt, PAGE_BITS)];
        const FIVE: &[Shape] = &[
            (Level::Pml5, 48),
            (Level::Pml4, 39),
            (Level::Pdpt, 30),
            (Level::Pd, 21),
            (Level::Pt, PAGE_BITS),
        ];
        match self {
            Self::Off => &[],
            Self::TwoLevel => &[(Level::Pd, 22), (Level::Pt, PAGE_BITS)],
            Self::Pae => &[(Level::Pdpt, 30), (Level::Pd, 21), (Level::Pt, PAGE_BITS)],
            Self::FourLevel => FOUR,
            Self::FiveLevel => FIVE,
        }
    }

    /// The binary logarithms of the bytes of an entry and of how many entries
    /// a full table has.
    pub(super) const fn table_shape(self) -> (u32, u32) {
        if matches!(self, Self::TwoLevel) { (2, 10) } else { (3, 9) }
    }

    /// Whether `addr` is an address of this mode.
    pub(super) const fn has(self, addr: u64) -> bool {
        match self {
            Self::Off | Self::TwoLevel | Self::Pae => addr >> 32 == 0,
            Self::FourLevel => X86_64::FOUR_LEVEL.is_canonical(addr),
            Self::FiveLevel => X86_64::FIVE_LEVEL.is_canonical(addr),
        }
    }
}
