//! The lookup of the row that covers a pc, wherever the table is.

use unwind_core::Row;

use crate::{
    Endian, Error, Fde, FdeKind, Fre, FreInfo, FreType, Header, SectionOffset, Version,
    fde::{Dialect, EntryBytes},
    fre::{Scan, Stop},
    search::{self, Ascending, Place},
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

/// Where a search gets its bytes from. Each byte that an answer depends on is
/// fetched once.
pub(crate) trait Source {
    /// Why bytes could not be fetched.
    type Fault;
    /// That, or what is wrong with a table.
    type Error: From<Error> + From<Self::Fault>;

    /// The functions to search among, if they ascend; else all of the table.
    fn among(&self) -> Option<Ascending>;

    /// Fetches an entry of the function table by its position, which is below
    /// the header's `num_fdes`, with its index in the table. The two differ only
    /// where the source puts a table in order that is not.
    fn entry(&mut self, position: u32) -> Result<(u32, EntryBytes), Self::Fault>;

    /// A place in the rows of the function at `index` from which a search for
    /// `target` may start, if the source knows one behind the first.
    #[inline]
    fn checkpoint(&self, _index: u32, _num_fres: u32, _target: u32) -> Option<Checkpoint> {
        None
    }

    /// Opens a window at `fre_offset` in the rows. Returns where that is in the
    /// window, `None` if it is not in the section.
    fn open(&mut self, fre_offset: u32) -> Result<Option<usize>, Self::Fault>;

    /// The bytes in the window, at least as many as a V3 attribute has, if the
    /// section has them.
    fn window(&self) -> &[u8];

    /// Where in the section the byte at `pos` of the window is.
    fn offset(&self, pos: usize) -> SectionOffset;

    /// Drops the bytes before `keep` from the window and fetches more behind
    /// its end; false if the section has no more.
    fn slide(&mut self, keep: usize) -> Result<bool, Self::Fault>;
}

/// A row behind good rows, at or before which a search ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    /// How many rows are before it.
    pub(crate) passed: u32,
    /// Where it is, in bytes from the function's first row.
    pub(crate) at: u32,
    /// Where it begins to hold.
    pub(crate) start: u32,
}

/// Finds the function that covers `pc`, and its row there, in the table at
/// `section`.
pub(crate) fn find<S: Source>(
    source: &mut S,
    header: &Header,
    section: u64,
    pc: u64,
) -> Result<Option<Found>, S::Error> {
    let pc = pc.wrapping_sub(section).cast_signed();
    let mut place = Place::NONE;
    if !search::find(source, header, pc, &mut place)? {
        return Ok(None);
    }
    let Some(row) = locate(source, header, &mut place, pc)? else { return Ok(None) };
    let fre = match row {
        RowAt::Window(found) => Some(decode(source, header, &place, found)?),
        RowAt::Nowhere => None,
    };
    Ok(Some(Found { fde: fde(header, section, &place), fre }))
}

/// Finds the rules for `pc`, as [`find`] and [`Found::row`] do, on less stack.
#[inline(always)]
pub(crate) fn find_row<S: Source>(
    source: &mut S,
    header: &Header,
    section: u64,
    pc: u64,
) -> Result<Option<Row>, S::Error> {
    let pc = pc.wrapping_sub(section).cast_signed();
    let mut place = Place::NONE;
    if !search::find(source, header, pc, &mut place)? {
        return Ok(None);
    }
    let Some(row) = locate(source, header, &mut place, pc)? else { return Ok(None) };
    Ok(Some(rules(source, header, &place, row)?))
}

/// Where the row of a function is.
#[derive(Clone, Copy, Debug)]
enum RowAt {
    /// In the window.
    Window(usize),
    /// Nowhere: the function has no rows at all, and that means something.
    Nowhere,
}

/// Completes the entry at `place`, and opens a window at its first row, which is
/// there in the window.
#[inline(always)]
fn complete<S: Source>(
    source: &mut S,
    header: &Header,
    place: &mut Place,
) -> Result<usize, S::Error> {
    let Place { index, ref mut entry, .. } = *place;
    let at = entry_at(header, index);
    let outside = Error::RowsOutside { at, fre_offset: entry.fre_offset };
    let Some(first) = source.open(entry.fre_offset)? else { return Err(outside.into()) };
    if header.version == Version::V3 {
        let attribute = source.window().get(first..).unwrap_or_default();
        if !entry.add_attribute(attribute, header.endian) {
            return Err(outside.into());
        }
    }
    if let FdeKind::Unknown(_) = entry.kind() {
        return Err(Error::UnknownFdeType { at, info2: entry.info2 }.into());
    }
    // Inside the window.
    Ok(first.wrapping_add(header.version.attribute_size()))
}

/// The rules of the row that is `at` so many bytes from the first of all, of the
/// function at `position`, where all rows are in the window.
pub(crate) fn row_at<S: Source>(
    source: &mut S,
    header: &Header,
    position: u32,
    at: usize,
) -> Result<Row, S::Error> {
    let mut place = Place::NONE;
    search::fetch(source, header, position, &mut place)?;
    complete(source, header, &mut place)?;
    Ok(rules(source, header, &place, RowAt::Window(at))?)
}

/// Finds the row for `pc`, in bytes from the section, of the function at
/// `place`, the entry of which it completes.
#[inline(never)]
fn locate<S: Source>(
    source: &mut S,
    header: &Header,
    place: &mut Place,
    pc: i64,
) -> Result<Option<RowAt>, S::Error> {
    let first = complete(source, header, place)?;
    let Place { index, start, entry } = *place;
    let at = entry_at(header, index);
    if entry.num_fres == 0 {
        // It has no meaning before.
        return Ok((header.version == Version::V3).then_some(RowAt::Nowhere));
    }
    // Inside the function, so that it is shorter than `u32::MAX`.
    let offset = u32::try_from(pc.wrapping_sub(start)).unwrap_or_default();
    let target = entry.pc_offset(at, header, offset)?;
    let kind = entry.fre_type(at)?;
    let checkpoint = source.checkpoint(index, entry.num_fres, target);
    let scan = Scan::new(target, entry.num_fres, first).from(checkpoint);
    Ok(last_row(source, kind, header.endian, scan)?.map(RowAt::Window))
}

/// The function at `place` in the table at `section`.
#[inline(always)]
fn fde(header: &Header, section: u64, place: &Place) -> Fde {
    let Place { index, start, entry } = *place;
    let start = section.wrapping_add_signed(start);
    Fde::new(header, entry_at(header, index), index, start, entry)
}

/// Decodes the row at `found` in the window, one of the function at `place`.
#[inline(always)]
fn decode<S: Source>(
    source: &S,
    header: &Header,
    place: &Place,
    found: usize,
) -> Result<Fre, Error> {
    let kind = place.entry.fre_type(entry_at(header, place.index))?;
    let bytes = source.window().get(found..).unwrap_or_default();
    Fre::decode(bytes, source.offset(found), kind, header.endian)
}

/// The rules of the row that [`locate`] found.
#[inline(never)]
fn rules<S: Source>(source: &S, header: &Header, place: &Place, row: RowAt) -> Result<Row, Error> {
    let Place { index, ref entry, .. } = *place;
    let RowAt::Window(found) = row else { return Ok(entry.row_of_none(header.version)) };
    // By reference: a copy of the row would be on the stack, too.
    match &decode(source, header, place, found) {
        Ok(fre) => entry.row(Dialect::new(header), entry_at(header, index), fre),
        Err(error) => Err(*error),
    }
}

/// Where in the window of `source` the row is that `scan` looks for.
#[inline(always)]
fn last_row<S: Source>(
    source: &mut S,
    kind: FreType,
    endian: Endian,
    mut scan: Scan,
) -> Result<Option<usize>, S::Error> {
    loop {
        let stop = scan.advance(source.window(), kind, endian);
        // The words of the last row that was passed may be cut off, too.
        if stop == Stop::Done && scan.next <= source.window().len() {
            return Ok(scan.found);
        }
        more(source, kind, &mut scan, stop)?;
    }
}

/// Fetches what is behind the window, if all rows that `scan` passed are good.
#[cold]
#[inline(never)]
fn more<S: Source>(
    source: &mut S,
    kind: FreType,
    scan: &mut Scan,
    stop: Stop,
) -> Result<(), S::Error> {
    if stop == Stop::Unsorted {
        return Err(Error::UnsortedFres(source.offset(scan.next)).into());
    }
    let keep = scan.found.unwrap_or(scan.next);
    let last = source.window().get(keep..).unwrap_or_default();
    if let Some(&info) = last.get(usize::from(kind.width()))
        && FreInfo(info).word_size().is_none()
    {
        return Err(Error::BadWordSize { at: source.offset(keep), info }.into());
    }
    let cut = if scan.next <= source.window().len() { scan.next } else { keep };
    let at = source.offset(cut);
    if !source.slide(keep)? {
        return Err(Error::Truncated(at).into());
    }
    scan.slide(keep);
    Ok(())
}

/// Where the entry at `index` is in the section.
#[inline]
pub(crate) fn entry_at(header: &Header, index: u32) -> SectionOffset {
    let size = u64::try_from(header.version.fde_size()).unwrap_or_default();
    SectionOffset(header.fdes_at().0.wrapping_add(u64::from(index).wrapping_mul(size)))
}
