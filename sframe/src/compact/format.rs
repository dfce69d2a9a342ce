//! The numbers of the format.

/// The first word.
pub(crate) const MAGIC: [u8; 8] = *b"UNWTABL1";
/// Bytes of the words before the page index.
pub(crate) const HEADER: usize = 32;
/// The logarithm of [`PAGE_SIZE`].
pub(crate) const PAGE_SHIFT: u32 = 16;
/// Bytes of code in a page.
pub(crate) const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// The end of the addresses that an image can have.
pub(crate) const MAX_ADDR: u64 = 1 << 48;
/// The most pages: 64 GiB of code.
pub(crate) const MAX_PAGES: u64 = 1 << 20;
/// The most rules, with the one that says that there is no row.
pub(crate) const MAX_RULES: u64 = 1 << 16;
