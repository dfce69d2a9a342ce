//! One table, in bytes that are borrowed.

use crate::sign::Unsigned;
use core::iter::FusedIterator;

use crate::{
    error::{Error, TableOffset},
    format::{
        fde::{EntryBytes, Fde, FdeEntry, FuncRange},
        flags::Flags,
        fre::Fres,
        header::{Header, Version},
    },
    read::{amd64::table::FastReader, source::entry_at},
};

/// One table: a header, functions and their rows.
///
/// [`parse`](Self::parse) decodes the header and checks that the functions and the rows are inside
/// the bytes. Everything else is decoded, and checked, when it is asked for.
///
/// Addresses are those of the code if [`at`](Self::at) says where the section
/// is, else offsets from the section's start. In a relocatable object the
/// starts of functions are not resolved: only their sizes and rows mean
/// something.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    bytes: &'a [u8],
    fdes: &'a [u8],
    fres: &'a [u8],
    pub(super) header: Header,
    pub(super) addr: u64,
    /// For the shorter way of [`find_row`](Self::find_row), if there is one.
    pub(super) fast: Option<FastReader>,
}

impl<'a> Table<'a> {
    /// Opens the table at the start of `bytes`. What is after its end is
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`Error`] if the header is not valid or says that functions or rows are outside of
    /// `bytes`.
    #[inline(never)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let header = Header::parse(bytes)?;
        header.check(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        // All of it is inside, as was checked.
        Self::of(bytes, header).ok_or(Error::Truncated(TableOffset(0)))
    }

    /// The table with this header; `None` where [`Header::check`] has an error.
    fn of(bytes: &'a [u8], header: Header) -> Option<Self> {
        let at = |offset: TableOffset| usize::try_from(offset.0).ok();
        let table = bytes.get(..usize::try_from(header.len()).ok()?)?;
        let (before, fres) = table.split_at_checked(at(header.fres_at())?)?;
        let fdes = before.get(at(header.fdes_at())?..)?;
        let fdes = fdes.get(..usize::try_from(header.fdes_len()).ok()?)?;
        let fast = FastReader::new(&header);
        Some(Self { bytes: table, fdes, fres, header, addr: 0, fast })
    }

    /// Says that the section is loaded, or linked, at `addr`.
    #[must_use]
    pub const fn at(mut self, addr: u64) -> Self {
        self.addr = addr;
        self
    }

    /// Where the section is, 0 if that was not said.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// The header.
    #[must_use]
    #[inline(always)]
    pub const fn header(&self) -> Header {
        self.header
    }

    /// The table's bytes, from the header to the last row.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The code that the function at `index` covers; `None` if there are
    /// fewer functions. This is known also where [`fde`](Self::fde) fails.
    #[must_use]
    pub fn range(&self, index: u32) -> Option<FuncRange> {
        let (start, entry) = self.entry(index)?;
        Some(FuncRange { start: self.addr.wrapping_add_signed(start), size: entry.size })
    }

    /// The start of the function at `index`, in bytes from the section, and what
    /// its entry says, in V3 without the attribute.
    #[inline]
    pub(crate) fn entry(&self, index: u32) -> Option<(i64, FdeEntry)> {
        let header = &self.header;
        let bytes = self.entry_bytes(index)?;
        let (start, entry) = FdeEntry::decode(&bytes, header.version, header.endian);
        let anchor =
            if header.flags.contains(Flags::PCREL) { entry_at(header, index).0 } else { 0 };
        Some((start.wrapping_add_unsigned(anchor), entry))
    }

    /// The bytes from the first row of a function to the section's end; `None` if
    /// it, or the attribute that completes `entry` in V3, is outside the section.
    #[inline]
    pub(crate) fn rows(&self, entry: &mut FdeEntry) -> Option<&'a [u8]> {
        let Header { version, endian, .. } = self.header;
        let rows = self.rows_from(entry.fre_offset)?;
        if version == Version::V3 && !entry.add_attribute(rows, endian) {
            return None;
        }
        rows.get(version.attribute_size()..)
    }

    /// Returns the function at `index`, or `None` if the table has fewer.
    ///
    /// # Errors
    ///
    /// [`Error::RowsOutside`] if its rows are outside the section.
    pub fn fde(&self, index: u32) -> Result<Option<Fde>, Error> {
        let header = &self.header;
        let Some((start, mut entry)) = self.entry(index) else { return Ok(None) };
        let at = entry_at(header, index);
        let outside = Error::RowsOutside { at, fre_offset: entry.fre_offset };
        self.rows(&mut entry).ok_or(outside)?;
        let start = self.addr.wrapping_add_signed(start);
        Ok(Some(Fde::new(header, at, index, start, entry)))
    }

    /// The functions in the order of the table.
    #[must_use]
    pub fn fdes(&self) -> Fdes<'a> {
        Fdes { table: *self, next: 0 }
    }

    /// A limit for code that reads all rows of all functions: 16 for each byte of rows, and at
    /// least 65,536.
    ///
    /// A row takes two bytes or more, so a table whose functions share no rows is far below the
    /// limit. But a malformed table can give each of its functions all rows, which makes as many
    /// as the square of its bytes. Validation and merging stop at this limit.
    #[must_use]
    pub fn max_rows(&self) -> u64 {
        const ROWS_PER_BYTE: u64 = 16;
        u64::from(self.header.fre_len).saturating_mul(ROWS_PER_BYTE).max(0x1_0000)
    }

    /// The rows of `fde`, a function of this section.
    ///
    /// # Errors
    ///
    /// [`Error::RowsOutside`] and [`Error::BadFreType`].
    pub fn fres(&self, fde: &Fde) -> Result<Fres<'a>, Error> {
        let header = &self.header;
        let skip = header.version.attribute_size();
        let rows = self.rows_from(fde.fre_offset).and_then(|rows| rows.get(skip..));
        let rows = rows.ok_or(fde.rows_outside())?;
        let at = header.fres_at().0.saturating_add(fde.fre_offset.into());
        Fres::new(fde, rows, TableOffset(at).plus(skip))
    }

    /// Where `pc` is, in bytes from the table.
    #[inline(always)]
    pub(crate) fn offset(&self, pc: u64) -> i64 {
        pc.wrapping_sub(self.addr).signed()
    }

    /// The bytes of the entry at `index`.
    #[inline]
    pub(crate) fn entry_bytes(&self, index: u32) -> Option<EntryBytes> {
        let version = self.header.version;
        let at = usize::try_from(index).ok()?.checked_mul(version.fde_size())?;
        let rest = self.fdes.get(at..)?;
        let mut entry = EntryBytes::default();
        let bytes = entry.as_flattened_mut();
        // Of sizes known here, so that no function is called to copy a few bytes.
        match version {
            Version::V1 => bytes.first_chunk_mut().zip(rest.first_chunk::<17>()).map(copy),
            Version::V2 => bytes.first_chunk_mut().zip(rest.first_chunk::<20>()).map(copy),
            Version::V3 => bytes.first_chunk_mut().zip(rest.first_chunk::<16>()).map(copy),
        }?;
        Some(entry)
    }

    /// All entries.
    #[inline(always)]
    pub(crate) const fn fdes_bytes(&self) -> &'a [u8] {
        self.fdes
    }

    /// The rows of all functions.
    #[inline(always)]
    pub(crate) const fn fres_bytes(&self) -> &'a [u8] {
        self.fres
    }

    /// Where the first of `rest` is, bytes that reach to the section's end.
    pub(crate) fn offset_of(&self, rest: &[u8]) -> TableOffset {
        TableOffset(0).plus(self.bytes.len().saturating_sub(rest.len()))
    }

    /// The bytes from a function's rows (V3: its attribute) to the section's
    /// end.
    fn rows_from(&self, fre_offset: u32) -> Option<&'a [u8]> {
        self.fres.get(usize::try_from(fre_offset).ok()?..)
    }
}

fn copy<const N: usize>((to, from): (&mut [u8; N], &[u8; N])) {
    *to = *from;
}

/// The functions of a table, in the order of the table.
///
/// A malformed function is an error in its place; those after it follow.
#[derive(Clone, Debug)]
pub struct Fdes<'a> {
    table: Table<'a>,
    next: u32,
}

impl Iterator for Fdes<'_> {
    type Item = Result<Fde, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let fde = self.table.fde(self.next).transpose()?;
        self.next = self.next.saturating_add(1);
        Some(fde)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.table.header.num_fdes.saturating_sub(self.next);
        usize::try_from(left).map_or((usize::MAX, None), |left| (left, Some(left)))
    }
}

impl FusedIterator for Fdes<'_> {}
