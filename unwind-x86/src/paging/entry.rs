//! One entry of a paging table.

use super::fault::Level;
use super::mode::{PAGE_BITS, PagingMode};

/// What the meaning of an entry depends on, besides its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryRules {
    pub(super) mode: PagingMode,
    /// How many bits a physical address has.
    pub(super) phys_bits: u32,
    /// Whether 32-bit paging has pages of 4 MiB.
    pub(super) large_pages: bool,
    /// Whether there are pages of 1 GiB.
    pub(super) huge_pages: bool,
    /// Whether bit 63 says that code may not run.
    pub(super) no_execute: bool,
}

/// An entry, zero-extended where it has 4 bytes.
///
/// | bit | meaning |
/// |---|---|
/// | 0 | present |
/// | 2 | for user code too (not in the page-directory-pointer table of PAE) |
/// | 7 | a page and no table, above the page table |
/// | 12- | where the page or table begins |
/// | 63 | no execution: of no interest to reads, but reserved if off |
///
/// See "Paging" in volume 3 of Intel's manual, tables 5-4 to 5-20. AMD reserves
/// bit 8 of some entries that Intel ignores; here it is ignored.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryBits(pub(super) u64);

/// The bits from `low` up to, but not with, `end`.
const fn bits(low: u32, end: u32) -> u64 {
    from_bit(low) & !from_bit(end)
}

/// The bits from `low` up.
const fn from_bit(low: u32) -> u64 {
    match u64::MAX.checked_shl(low) {
        Some(bits) => bits,
        None => 0,
    }
}

const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;

impl EntryBits {
    pub(super) const fn is_present(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) const fn is_user(self, mode: PagingMode, level: Level) -> bool {
        let has_no_rights = matches!((mode, level), (PagingMode::Pae, Level::Pdpt));
        has_no_rights || self.0 & 1 << 2 != 0
    }

    /// Whether it is a page. In a table where that cannot be, the bit is a
    /// reserved one.
    pub(super) const fn is_page(self, rules: EntryRules, level: Level) -> bool {
        let is_large = self.0 & LARGE != 0;
        match level {
            Level::Pt => true,
            Level::Pd => is_large && (rules.large_pages || !is_two_level(rules.mode)),
            Level::Pdpt => is_large && !matches!(rules.mode, PagingMode::Pae),
            Level::Pml4 | Level::Pml5 => false,
        }
    }

    /// Those of its bits that must be zero and are not.
    pub(super) const fn reserved_bits(self, rules: EntryRules, level: Level) -> u64 {
        let width = rules.phys_bits;
        let is_page = self.is_page(rules, level);
        let no_execute = if rules.no_execute { 0 } else { NO_EXECUTE };
        let must_be_zero = match rules.mode {
            PagingMode::TwoLevel if is_page && matches!(level, Level::Pd) => {
                // Bits 13 to 20 are bits 32 to 39 of the address.
                let width = if width < 40 { width } else { 40 };
                bits(width.wrapping_sub(19), 22)
            }
            PagingMode::Off | PagingMode::TwoLevel => 0,
            PagingMode::Pae if matches!(level, Level::Pdpt) => {
                bits(1, 3) | bits(5, 9) | bits(width, 64)
            }
            PagingMode::Pae => bits(width, 63) | no_execute | low_reserved(level, is_page),
            PagingMode::FourLevel | PagingMode::FiveLevel => {
                let large = match level {
                    Level::Pml4 | Level::Pml5 => LARGE,
                    Level::Pdpt if !rules.huge_pages => LARGE,
                    _ => 0,
                };
                bits(width, 52) | no_execute | large | low_reserved(level, is_page)
            }
        };
        self.0 & must_be_zero
    }

    /// Where the next table begins.
    pub(super) const fn table(self, mode: PagingMode) -> u64 {
        self.0 & bits(PAGE_BITS, if is_two_level(mode) { 32 } else { 52 })
    }

    /// Where the page of `1 << size_bits` bytes begins.
    pub(super) const fn page(self, mode: PagingMode, level: Level, size_bits: u32) -> u64 {
        match (mode, level) {
            (PagingMode::TwoLevel, Level::Pd) => {
                self.0 & bits(size_bits, 32) | (self.0 & bits(13, 21)) << 19
            }
            (PagingMode::TwoLevel, _) => self.0 & bits(size_bits, 32),
            _ => self.0 & bits(size_bits, 52),
        }
    }
}

const fn is_two_level(mode: PagingMode) -> bool {
    matches!(mode, PagingMode::TwoLevel)
}

/// In 8-byte entries that are a large page, the bits below the address but for
/// the memory type in bit 12.
const fn low_reserved(level: Level, is_page: bool) -> u64 {
    match level {
        Level::Pd if is_page => bits(13, 21),
        Level::Pdpt if is_page => bits(13, 30),
        _ => 0,
    }
}
