//! The search for the row that covers a pc, wherever the table is.

use core::borrow::Borrow;

use crate::{
    Endian, Error, Fde, Fre, Header, SectionOffset, Version,
    bytes::Cursor,
    fre::{Scan, Stop},
};

/// The function that covers a pc, and its row there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The function.
    pub fde: Fde,
    /// The row. `None` if the function has no rows at all, which only V3 gives
    /// a meaning: in a signal trampoline ([`Fde::is_signal`]) the caller cannot
    /// be recovered, any other function is the outermost frame.
    pub fre: Option<Fre>,
}

/// Where a search gets its bytes from. Each byte that a search uses is fetched
/// once.
pub(crate) trait Source {
    /// A table error, or one of the memory that the table is in.
    type Error: From<Error>;
    /// An entry of the function table, as long as it is in one version.
    type Entry<const N: usize>: Borrow<[u8; N]> + Copy;

    /// Fetches the entry at `index`, below the header's `num_fdes`.
    fn entry<const N: usize>(&mut self, index: u32) -> Result<Self::Entry<N>, Self::Error>;

    /// Opens the window at `fre_offset` in the rows; false if that is outside.
    fn open(&mut self, fre_offset: u32) -> Result<bool, Self::Error>;

    /// The bytes in the window: at least a row and the head of the next, if the
    /// section has them.
    fn window(&self) -> &[u8];

    /// Where in the section the byte at `pos` of the window is.
    fn offset(&self, pos: usize) -> SectionOffset;

    /// Drops the bytes before `keep` from the window and fetches more behind
    /// its end; false if the section has no more.
    fn slide(&mut self, keep: usize) -> Result<bool, Self::Error>;
}

/// An entry with its start, in bytes from the section.
#[derive(Clone, Copy)]
struct Candidate<E> {
    index: u32,
    start: i64,
    entry: E,
}

/// Finds the row at `pc`, an offset from the section's start.
///
/// Offsets are signed, so that a section may lie before, behind or between the
/// code it describes, at both ends of the address space.
#[inline]
pub(crate) fn find<S: Source>(
    source: &mut S,
    header: &Header,
    section: u64,
    pc: i64,
) -> Result<Option<Found>, S::Error> {
    match header.version {
        Version::V1 => Search::<17>::new(header, section, pc).run(source),
        Version::V2 => Search::<20>::new(header, section, pc).run(source),
        Version::V3 => Search::<16>::new(header, section, pc).run(source),
    }
}

/// A search in a table whose entries are `N` bytes long.
struct Search<'a, const N: usize> {
    header: &'a Header,
    section: u64,
    pc: i64,
    /// What the start of entry 0 counts from.
    anchor: i64,
    /// How much further on that is for the next entry.
    stride: i64,
}

impl<'a, const N: usize> Search<'a, N> {
    #[inline]
    fn new(header: &'a Header, section: u64, pc: i64) -> Self {
        let (anchor, stride) = match header.flags.pcrel() {
            // Below 2^33, and 20 at most.
            true => (header.fdes_at().0.cast_signed(), i64::try_from(N).unwrap_or_default()),
            false => (0, 0),
        };
        Self { header, section, pc, anchor, stride }
    }

    #[inline]
    fn run<S: Source>(&self, source: &mut S) -> Result<Option<Found>, S::Error> {
        let candidate = match self.header.flags.sorted() {
            true => self.bisect(source)?,
            false => self.scan(source)?,
        };
        let Some(candidate) = candidate else { return Ok(None) };
        self.row(source, candidate)
    }

    /// Finds the function that covers the pc in a table that ascends.
    #[inline]
    fn bisect<S: Source>(
        &self,
        source: &mut S,
    ) -> Result<Option<Candidate<S::Entry<N>>>, S::Error> {
        let mut best = None;
        let mut first = 0_u32;
        let mut count = self.header.num_fdes;
        // Starts before `first` are at or below the pc, those from
        // `first + count` on above it.
        while count > 0 {
            let half = count / 2;
            let middle = self.candidate(source, first.wrapping_add(half))?;
            if middle.start <= self.pc {
                best = Some(middle);
                first = first.wrapping_add(half).wrapping_add(1);
                count = count.wrapping_sub(half).wrapping_sub(1);
            } else {
                count = half;
            }
        }
        let Some(mut last) = best else { return Ok(None) };
        // Functions of size zero hide the one before them, and functions of
        // equal start are in any order.
        loop {
            let size = self.size(&last)?;
            if self.covers(last.start, size) {
                return Ok(Some(last));
            }
            let Some(before) = last.index.checked_sub(1) else { return Ok(None) };
            let before = self.candidate(source, before)?;
            if size != 0 && before.start != last.start {
                return Ok(None);
            }
            last = before;
        }
    }

    /// Finds the function that covers the pc in a table in any order.
    fn scan<S: Source>(&self, source: &mut S) -> Result<Option<Candidate<S::Entry<N>>>, S::Error> {
        for index in 0..self.header.num_fdes {
            let candidate = self.candidate(source, index)?;
            if self.covers(candidate.start, self.size(&candidate)?) {
                return Ok(Some(candidate));
            }
        }
        Ok(None)
    }

    #[inline]
    fn candidate<S: Source>(
        &self,
        source: &mut S,
        index: u32,
    ) -> Result<Candidate<S::Entry<N>>, S::Error> {
        let entry = source.entry::<N>(index)?;
        let value = start_value(entry.borrow(), self.header.endian)?;
        let start = value
            .wrapping_add(self.anchor)
            .wrapping_add(i64::from(index).wrapping_mul(self.stride));
        Ok(Candidate { index, start, entry })
    }

    #[inline]
    fn covers(&self, start: i64, size: u32) -> bool {
        self.pc.wrapping_sub(start).cast_unsigned() < u64::from(size)
    }

    #[inline]
    fn size<E: Borrow<[u8; N]>>(&self, candidate: &Candidate<E>) -> Result<u32, Error> {
        let entry: &[u8; N] = candidate.entry.borrow();
        let start_len = match self.header.version {
            Version::V1 | Version::V2 => 4,
            Version::V3 => 8,
        };
        let size = entry.get(start_len..).unwrap_or_default();
        Cursor::new(size, SectionOffset(0), self.header.endian).read()
    }

    /// Finds the row in the function that covers the pc.
    #[inline]
    fn row<S: Source>(
        &self,
        source: &mut S,
        candidate: Candidate<S::Entry<N>>,
    ) -> Result<Option<Found>, S::Error> {
        let header = self.header;
        let start = self.section.wrapping_add_signed(candidate.start);
        let at = entry_at(header, candidate.index);
        let entry: &[u8; N] = candidate.entry.borrow();
        let mut fde = Fde::decode(header, candidate.index, start, at, entry)?;
        if !source.open(fde.fre_offset)? {
            return Err(fde.rows_outside().into());
        }
        let mut first = 0;
        if header.version == Version::V3 {
            fde = fde.with_attribute(source.window())?;
            first = Fde::ATTRIBUTE_SIZE;
        }
        fde.check_kind()?;
        if fde.num_fres == 0 {
            // Before V3 this has no meaning.
            let found = Found { fde, fre: None };
            return Ok((header.version == Version::V3).then_some(found));
        }
        let pc = self.section.wrapping_add_signed(self.pc);
        let Some(target) = fde.pc_offset(pc)? else { return Ok(None) };
        let scan = Scan::new(target, header.endian, fde.num_fres, first);
        Ok(find_fre(source, &fde, scan)?.map(|fre| Found { fde, fre: Some(fre) }))
    }
}

/// The rows of `fde`, from the window that `source` has open.
#[inline]
fn find_fre<S: Source>(source: &mut S, fde: &Fde, mut scan: Scan) -> Result<Option<Fre>, S::Error> {
    let kind = fde.fre_type()?;
    loop {
        let stop = scan.advance(source.window(), kind);
        // The words of the last row that was passed may be cut off, too.
        let whole = scan.next <= source.window().len();
        match stop {
            Stop::Done if whole => break,
            Stop::Done | Stop::Short => {
                let keep = scan.found.unwrap_or(scan.next);
                let at = source.offset(if whole { scan.next } else { keep });
                if !source.slide(keep)? {
                    return Err(Error::Truncated(at).into());
                }
                scan.slide(keep);
            }
            Stop::Unsorted => return Err(Error::UnsortedFres(source.offset(scan.next)).into()),
            Stop::BadWordSize(info) => {
                return Err(Error::BadWordSize { at: source.offset(scan.next), info }.into());
            }
        }
    }
    let Some(found) = scan.found else { return Ok(None) };
    let row = source.window().get(found..).unwrap_or_default();
    Ok(Some(Fre::decode(row, source.offset(found), kind, fde.dialect.endian)?))
}

/// Where the entry at `index` is in the section.
pub(crate) fn entry_at(header: &Header, index: u32) -> SectionOffset {
    let size = u64::try_from(header.version.fde_size()).unwrap_or_default();
    SectionOffset(header.fdes_at().0.wrapping_add(u64::from(index).wrapping_mul(size)))
}

/// The raw start of an entry: 4 bytes before V3, 8 from there on.
#[inline]
pub(crate) fn start_value<const N: usize>(entry: &[u8; N], endian: Endian) -> Result<i64, Error> {
    let mut r = Cursor::new(entry, SectionOffset(0), endian);
    if N == Version::V3.fde_size() { r.read() } else { r.read::<i32>().map(i64::from) }
}
