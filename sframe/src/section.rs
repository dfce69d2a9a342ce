//! A table in bytes at hand, and a section of several tables.

use core::iter::FusedIterator;

use crate::{
    Error, Fde, Fres, FuncRange, Header, SectionOffset, Version,
    bytes::Cursor,
    header::MAGIC,
    lookup::{self, Found, Source},
};

/// One table: a header, functions and their rows.
///
/// Opening it decodes the header and checks that both tables are inside the
/// bytes; everything else is decoded, and checked, when it is asked for.
///
/// Addresses are those of the code if [`at`](Self::at) says where the section
/// is, else offsets from the section's start. In a relocatable object the
/// starts of functions are not resolved: only their sizes and rows mean
/// something.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    bytes: &'a [u8],
    fdes: &'a [u8],
    fres: &'a [u8],
    header: Header,
    addr: u64,
}

impl<'a> Section<'a> {
    /// Opens the table at the start of `bytes`. What is behind its end is
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`Error`] if the header is not valid or says that a table is outside of
    /// `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let header = Header::parse(bytes)?;
        header.check(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
        let part = |start: u64, len: u64| {
            let start = usize::try_from(start).ok()?;
            bytes.get(start..)?.get(..usize::try_from(len).ok()?)
        };
        let table = part(0, header.len());
        let fdes = part(header.fdes_at().0, header.fdes_len());
        let fres = part(header.fres_at().0, header.fre_len.into());
        match (table, fdes, fres) {
            (Some(bytes), Some(fdes), Some(fres)) => {
                Ok(Self { bytes, fdes, fres, header, addr: 0 })
            }
            _ => Err(Error::Truncated(SectionOffset(0))),
        }
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
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The table's bytes, from the header to the last row.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The code that the function at `index` covers; `None` if there are not
    /// so many functions. This is known also where [`fde`](Self::fde) fails.
    #[must_use]
    pub fn range(&self, index: u32) -> Option<FuncRange> {
        let header = &self.header;
        let size = header.version.fde_size();
        let at = usize::try_from(index).ok()?.checked_mul(size)?;
        let entry = self.fdes.get(at..)?.get(..size)?;
        let mut r = Cursor::new(entry, lookup::entry_at(header, index), header.endian);
        let start = match header.version {
            Version::V1 | Version::V2 => r.read::<i32>().ok()?.into(),
            Version::V3 => r.read::<i64>().ok()?,
        };
        let anchor = if header.flags.pcrel() { lookup::entry_at(header, index).0 } else { 0 };
        Some(FuncRange {
            start: self.addr.wrapping_add(anchor).wrapping_add_signed(start),
            size: r.read().ok()?,
        })
    }

    /// Returns the function at `index`, or `None` if there are not so many.
    ///
    /// # Errors
    ///
    /// [`Error::RowsOutside`] if its rows are outside the section.
    pub fn fde(&self, index: u32) -> Result<Option<Fde>, Error> {
        let Some(range) = self.range(index) else { return Ok(None) };
        let header = &self.header;
        let size = header.version.fde_size();
        let entry = usize::try_from(index)
            .ok()
            .and_then(|index| self.fdes.get(index.checked_mul(size)?..))
            .unwrap_or_default();
        let at = lookup::entry_at(header, index);
        let fde = Fde::decode(header, index, range.start, at, entry)?;
        let rows = self.rows(&fde)?;
        match header.version {
            Version::V1 | Version::V2 => Ok(Some(fde)),
            Version::V3 => fde.with_attribute(rows).map(Some),
        }
    }

    /// The functions in the order of the table.
    #[must_use]
    pub const fn fdes(&self) -> Fdes<'a> {
        Fdes { section: *self, next: 0 }
    }

    /// The rows of `fde`, a function of this section.
    ///
    /// # Errors
    ///
    /// [`Error::RowsOutside`] and [`Error::BadFreType`].
    pub fn fres(&self, fde: &Fde) -> Result<Fres<'a>, Error> {
        let skip = match self.header.version {
            Version::V1 | Version::V2 => 0,
            Version::V3 => Fde::ATTRIBUTE_SIZE,
        };
        let rows = self.rows(fde)?.get(skip..).ok_or(fde.rows_outside())?;
        let at = self.header.fres_at().0.saturating_add(fde.fre_offset.into());
        Fres::new(fde, rows, SectionOffset(at).plus(skip))
    }

    /// Finds the row that covers `pc`, or `None` if there is none.
    ///
    /// A table that is sorted is searched by bisection, any other from its
    /// start. One bad function does not harm lookups in another.
    ///
    /// # Errors
    ///
    /// [`Error`] if the function that covers `pc` is malformed, or one of its
    /// rows up to that of the pc.
    pub fn find(&self, pc: u64) -> Result<Option<Found>, Error> {
        let mut source = SliceSource { section: self, window: &[] };
        let offset = pc.wrapping_sub(self.addr).cast_signed();
        lookup::find(&mut source, &self.header, self.addr, offset)
    }

    /// Where the first of `rest` is, bytes that reach to the section's end.
    pub(crate) fn offset_of(&self, rest: &[u8]) -> SectionOffset {
        SectionOffset(0).plus(self.bytes.len().saturating_sub(rest.len()))
    }

    /// The bytes from a function's rows (V3: its attribute) to the section's
    /// end.
    fn rows(&self, fde: &Fde) -> Result<&'a [u8], Error> {
        usize::try_from(fde.fre_offset)
            .ok()
            .and_then(|at| self.fres.get(at..))
            .ok_or(fde.rows_outside())
    }
}

/// The functions of a table, in the order of the table.
///
/// A malformed function is an error in its place; those behind it follow.
#[derive(Clone, Debug)]
pub struct Fdes<'a> {
    section: Section<'a>,
    next: u32,
}

impl Iterator for Fdes<'_> {
    type Item = Result<Fde, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let fde = self.section.fde(self.next).transpose()?;
        self.next = self.next.saturating_add(1);
        Some(fde)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.section.header.num_fdes.saturating_sub(self.next);
        usize::try_from(left).map_or((usize::MAX, None), |left| (left, Some(left)))
    }
}

impl FusedIterator for Fdes<'_> {}

/// A section as linkers leave it: one table, none, or several one after
/// another, each at a multiple of 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'a> {
    bytes: &'a [u8],
    addr: u64,
}

impl<'a> Sections<'a> {
    /// The section in `bytes`. Nothing is looked at. No bytes are no tables.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, addr: 0 }
    }

    /// Says that the section is loaded, or linked, at `addr`.
    #[must_use]
    pub const fn at(mut self, addr: u64) -> Self {
        self.addr = addr;
        self
    }

    /// The tables in order.
    #[must_use]
    pub const fn tables(&self) -> Tables<'a> {
        Tables { rest: self.bytes, addr: self.addr, first: true }
    }

    /// Finds the row that covers `pc` in any of the tables.
    ///
    /// # Errors
    ///
    /// As [`Section::find`] and [`Section::parse`]; a malformed table is an
    /// error only if no table before it covers `pc`.
    pub fn find(&self, pc: u64) -> Result<Option<Found>, Error> {
        for table in self.tables() {
            if let Some(found) = table?.find(pc)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// The tables of a [`Sections`], in order.
///
/// After an error the iterator is at its end: where the next table would be is
/// not known.
#[derive(Clone, Debug)]
pub struct Tables<'a> {
    rest: &'a [u8],
    addr: u64,
    first: bool,
}

impl Tables<'_> {
    /// What is behind a table is another one only if it looks like that.
    fn is_table(&self) -> bool {
        self.rest
            .first_chunk()
            .is_some_and(|&magic| [MAGIC, MAGIC.swap_bytes()].contains(&u16::from_le_bytes(magic)))
    }
}

impl<'a> Iterator for Tables<'a> {
    type Item = Result<Section<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = core::mem::take(&mut self.first);
        if self.rest.is_empty() || (!first && !self.is_table()) {
            return None;
        }
        let bytes = core::mem::take(&mut self.rest);
        Some(Section::parse(bytes).map(|section| {
            let section = section.at(self.addr);
            let next = section.bytes.len().next_multiple_of(8);
            self.rest = bytes.get(next..).unwrap_or_default();
            self.addr = self.addr.wrapping_add(u64::try_from(next).unwrap_or_default());
            section
        }))
    }
}

impl FusedIterator for Tables<'_> {}

/// A table at hand: what is fetched is borrowed.
struct SliceSource<'s, 'a> {
    section: &'s Section<'a>,
    window: &'a [u8],
}

impl<'a> Source for SliceSource<'_, 'a> {
    type Error = Error;
    type Entry<const N: usize> = &'a [u8; N];

    #[inline]
    fn entry<const N: usize>(&mut self, index: u32) -> Result<&'a [u8; N], Error> {
        let (entries, _) = self.section.fdes.as_chunks();
        usize::try_from(index)
            .ok()
            .and_then(|index| entries.get(index))
            .ok_or(Error::Truncated(self.section.header.fdes_at()))
    }

    #[inline]
    fn open(&mut self, fre_offset: u32) -> Result<bool, Error> {
        let rows = usize::try_from(fre_offset).ok().and_then(|at| self.section.fres.get(at..));
        self.window = rows.unwrap_or_default();
        Ok(rows.is_some())
    }

    #[inline]
    fn window(&self) -> &[u8] {
        self.window
    }

    #[inline]
    fn offset(&self, pos: usize) -> SectionOffset {
        self.section.offset_of(self.window).plus(pos)
    }

    #[inline]
    fn slide(&mut self, _keep: usize) -> Result<bool, Error> {
        Ok(false)
    }
}
