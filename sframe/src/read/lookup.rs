//! The lookup of the row that covers a pc, wherever the table is.

use crate::sign::{Signed, Unsigned};
use unwind_core::Row;

use crate::{
    error::Error,
    format::{
        bytes::Endian,
        fde::{Dialect, Fde, FdeEntry, FdeType, FreType},
        flags::Flags,
        fre::{Fre, FreInfo},
        header::{Header, Version},
    },
    read::{
        bisect::Ascending,
        scan::{Scan, Stop},
        source::{Source, entry_at},
    },
};

/// The function that covers a pc, and its row there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lookup {
    /// The function.
    pub fde: Fde,
    /// The row. `None` if the function has no rows at all, which only V3 gives
    /// a meaning: in a signal trampoline ([`Fde::is_signal`]) the caller cannot
    /// be recovered, any other function is the outermost frame.
    pub fre: Option<Fre>,
}

impl Lookup {
    /// The rules to get to the caller's frame.
    ///
    /// # Errors
    ///
    /// As [`Fde::row`].
    #[inline]
    pub fn row(&self) -> Result<Row, Error> {
        match &self.fre {
            Some(fre) => self.fde.row(fre),
            None => Ok(self.fde.row_of_none()),
        }
    }
}

/// A function that was found.
#[derive(Clone, Copy, Debug)]
struct Place {
    index: u32,
    /// In bytes from the section. Signed, so that a section may lie before,
    /// after or between the code it describes, at both ends of the address
    /// space.
    start: i64,
    entry: FdeEntry,
}

impl Place {
    /// None, to be filled in.
    const NONE: Self = Self { index: 0, start: 0, entry: FdeEntry::NONE };

    fn covers(&self, pc: i64) -> bool {
        pc.wrapping_sub(self.start).unsigned() < u64::from(self.entry.size)
    }
}

/// Finds the function that covers `pc`, and its row there, in the table at
/// `section`.
pub(crate) fn find<S: Source>(
    source: &mut S,
    header: &Header,
    table: u64,
    pc: u64,
) -> Result<Option<Lookup>, S::Error> {
    let pc = pc.wrapping_sub(table).signed();
    let mut place = Place::NONE;
    if !find_function(source, header, pc, &mut place)? {
        return Ok(None);
    }
    let Some(row) = locate(source, header, &mut place, pc)? else { return Ok(None) };
    let fre = match row {
        RowAt::Window(found) => Some(decode(source, header, &place, found)?),
        RowAt::Nowhere => None,
    };
    Ok(Some(Lookup { fde: fde(header, table, &place), fre }))
}

/// Finds the rules for `pc`, as [`find`] and [`Lookup::row`] do, on less stack.
#[inline(always)]
pub(crate) fn find_row<S: Source>(
    source: &mut S,
    header: &Header,
    table: u64,
    pc: u64,
) -> Result<Option<Row>, S::Error> {
    let pc = pc.wrapping_sub(table).signed();
    let mut place = Place::NONE;
    if !find_function(source, header, pc, &mut place)? {
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
    if let FdeType::Unknown(_) = entry.fde_type() {
        return Err(Error::UnknownFdeType { at, info2: entry.info2 }.into());
    }
    // Inside the window.
    Ok(first.wrapping_add(header.version.attribute_size()))
}

/// The rules of the row that is `at` bytes from the first of all, of the
/// function at `position`, where all rows are in the window.
pub(crate) fn row_at<S: Source>(
    source: &mut S,
    header: &Header,
    position: u32,
    at: usize,
) -> Result<Row, S::Error> {
    let mut place = Place::NONE;
    fetch(source, header, position, &mut place)?;
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
fn fde(header: &Header, table: u64, place: &Place) -> Fde {
    let Place { index, start, entry } = *place;
    let start = table.wrapping_add_signed(start);
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

/// Fetches what is after the window, if all rows that `scan` passed are good.
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
    let info = last.get(usize::from(kind.width()));
    if let Some(&info) = info.filter(|&&info| FreInfo(info).word_size().is_none()) {
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

/// Finds the function that covers `pc`, in bytes from the section. If there is
/// one, `place` is where.
///
/// Never inlined, like the other parts of a lookup, each of which is on the stack
/// only while it runs.
#[inline(never)]
fn find_function<S: Source>(
    source: &mut S,
    header: &Header,
    pc: i64,
    place: &mut Place,
) -> Result<bool, S::Fault> {
    match source.among() {
        None => scan(source, header, pc, place),
        Some(Ascending { count: 0, .. }) => Ok(false),
        Some(among) => {
            let last = last_start(source, header, among, pc, place)?;
            find_from(source, header, last, pc, place)
        }
    }
}

/// The position of the last function that starts at or before `pc`, or of the
/// first one.
fn last_start<S: Source>(
    source: &mut S,
    header: &Header,
    among: Ascending,
    pc: i64,
    place: &mut Place,
) -> Result<u32, S::Fault> {
    // From here no start wraps. Below 2^33.
    let anchor = if header.flags.contains(Flags::PCREL) { header.fdes_at().0.signed() } else { 0 };
    let pc = pc.saturating_sub(anchor);
    among.last(|position| {
        fetch(source, header, position, place)?;
        Ok(place.start.wrapping_sub(anchor) <= pc)
    })
}

/// The same, if the function at `position` is the last that starts at or before
/// `pc`, or the first one. Functions of size zero hide the one before them, and
/// functions of equal start are in any order.
fn find_from<S: Source>(
    source: &mut S,
    header: &Header,
    mut position: u32,
    pc: i64,
    place: &mut Place,
) -> Result<bool, S::Fault> {
    let mut later = None;
    loop {
        fetch(source, header, position, place)?;
        if later.is_some_and(|start| start != place.start) {
            return Ok(false);
        }
        if place.covers(pc) {
            return Ok(true);
        }
        later = (place.entry.size != 0).then_some(place.start);
        let Some(before) = position.checked_sub(1) else { return Ok(false) };
        position = before;
    }
}

/// The same in a table in any order.
fn scan<S: Source>(
    source: &mut S,
    header: &Header,
    pc: i64,
    place: &mut Place,
) -> Result<bool, S::Fault> {
    for position in 0..header.num_fdes {
        fetch(source, header, position, place)?;
        if place.covers(pc) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Fetches the function at `position`.
// Out of line, as it is used in many places and fast in none.
#[inline(never)]
fn fetch<S: Source>(
    source: &mut S,
    header: &Header,
    position: u32,
    place: &mut Place,
) -> Result<(), S::Fault> {
    let (index, bytes) = source.entry(position)?;
    let (start, entry) = FdeEntry::decode(&bytes, header.version, header.endian);
    let anchor = if header.flags.contains(Flags::PCREL) { entry_at(header, index).0 } else { 0 };
    *place = Place { index, start: start.wrapping_add_unsigned(anchor), entry };
    Ok(())
}
