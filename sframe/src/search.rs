//! The search for the function that covers a pc, wherever the table is.

use core::{borrow::Borrow, hint::select_unpredictable};

use crate::{Endian, Header, Version, bytes::Fields, fde::Entry, lookup::Source};

/// A function that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) index: u32,
    /// In bytes from the section. Signed, so that a section may lie before,
    /// behind or between the code it describes, at both ends of the address
    /// space.
    pub(crate) start: i64,
    pub(crate) entry: Entry,
}

impl Place {
    #[inline(always)]
    fn covers(&self, pc: i64) -> bool {
        pc.wrapping_sub(self.start).cast_unsigned() < u64::from(self.entry.size)
    }
}

/// Functions that ascend by start: of those at other positions, the ones before
/// start at or below any pc that is looked for here, the ones behind above it.
///
/// A position is the index of a function in a sorted table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ascending {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Ascending {
    /// All functions, if the table says that they ascend.
    #[inline]
    pub(crate) const fn all(header: &Header) -> Option<Self> {
        match header.flags.sorted() {
            true => Some(Self { first: 0, count: header.num_fdes }),
            false => None,
        }
    }
}

/// Finds the function that covers `pc`, in bytes from the section, among those
/// that ascend, or in all of the table in any order.
#[inline(always)]
pub(crate) fn find<S: Source>(
    source: &mut S,
    header: &Header,
    among: Option<Ascending>,
    pc: i64,
) -> Result<Option<Place>, S::Fault> {
    match (header.version, header.endian) {
        (Version::V1, Endian::Little) => Fdes::<17, false>::find(source, header, among, pc),
        (Version::V1, Endian::Big) => Fdes::<17, true>::find(source, header, among, pc),
        (Version::V2, Endian::Little) => Fdes::<20, false>::find(source, header, among, pc),
        (Version::V2, Endian::Big) => Fdes::<20, true>::find(source, header, among, pc),
        (Version::V3, Endian::Little) => Fdes::<16, false>::find(source, header, among, pc),
        (Version::V3, Endian::Big) => Fdes::<16, true>::find(source, header, among, pc),
    }
}

/// The same in a table that [`is_plain`](crate::lookup::is_plain), among one
/// function or more; `None` if it is not as simple as that.
#[inline(always)]
pub(crate) fn find_plain<S: Source>(
    source: &mut S,
    header: &Header,
    among: Ascending,
    pc: i64,
) -> Option<Place> {
    match header.version {
        Version::V1 => Fdes::<17, false>::find_plain(source, header, among, pc),
        Version::V2 => Fdes::<20, false>::find_plain(source, header, among, pc),
        Version::V3 => Fdes::<16, false>::find_plain(source, header, among, pc),
    }
}

/// A function table in one layout: entries of `N` bytes, in one byte order.
struct Fdes<'a, const N: usize, const BIG: bool> {
    header: &'a Header,
    /// What the start of entry 0 counts from, in bytes from the section.
    anchor: i64,
    /// How much further on that is for the next entry.
    stride: i64,
}

impl<'a, const N: usize, const BIG: bool> Fdes<'a, N, BIG> {
    const ENDIAN: Endian = if BIG { Endian::Big } else { Endian::Little };
    const VERSION: Version = match N {
        17 => Version::V1,
        20 => Version::V2,
        _ => Version::V3,
    };

    #[inline(always)]
    fn new(header: &'a Header) -> Self {
        let (anchor, stride) = match header.flags.pcrel() {
            // Below 2^33, and 20 at most.
            true => (header.fdes_at().0.cast_signed(), i64::try_from(N).unwrap_or_default()),
            false => (0, 0),
        };
        Self { header, anchor, stride }
    }

    fn find<S: Source>(
        source: &mut S,
        header: &'a Header,
        among: Option<Ascending>,
        pc: i64,
    ) -> Result<Option<Place>, S::Fault> {
        let fdes = Self::new(header);
        let Some(among) = among else { return fdes.scan(source, pc) };
        if among.count == 0 {
            return Ok(None);
        }
        let position = fdes.last_start(source, among, pc.saturating_sub(fdes.anchor))?;
        fdes.step_back(source, position, pc)
    }

    #[inline(always)]
    fn find_plain<S: Source>(
        source: &mut S,
        header: &'a Header,
        among: Ascending,
        pc: i64,
    ) -> Option<Place> {
        let fdes = Self::new(header);
        let position = fdes.last_start(source, among, pc.checked_sub(fdes.anchor)?).ok()?;
        fdes.place(source, position).ok().filter(|place| place.covers(pc))
    }

    /// The position of the last function that starts at or before the pc, or of
    /// the first one. The pc counts from the anchor.
    #[inline(always)]
    fn last_start<S: Source>(
        &self,
        source: &mut S,
        among: Ascending,
        pc: i64,
    ) -> Result<u32, S::Fault> {
        match self.stride {
            0 => Self::bisect::<S, false>(source, among, pc),
            _ => Self::bisect::<S, true>(source, among, pc),
        }
    }

    /// The same. If `PCREL`, a start counts from its entry.
    ///
    /// Never inlined, so that the loop has all registers.
    #[inline(never)]
    fn bisect<S: Source, const PCREL: bool>(
        source: &mut S,
        among: Ascending,
        pc: i64,
    ) -> Result<u32, S::Fault> {
        let stride = if PCREL { i64::try_from(N).unwrap_or_default() } else { 0 };
        let mut entry = source.entries::<N>();
        let Ascending { mut first, mut count } = among;
        // If any start is at or below the pc, the last such one is among the
        // `count` from `first` on.
        while count > 1 {
            let half = count / 2;
            let middle = first.wrapping_add(half);
            let (index, bytes) = entry(middle)?;
            let value = Self::start_value(bytes.borrow());
            let start = value.wrapping_add(i64::from(index).wrapping_mul(stride));
            // Half of all guesses would be wrong.
            first = select_unpredictable(start <= pc, middle, first);
            count = count.wrapping_sub(half);
        }
        Ok(first)
    }

    /// Goes back from the function at `position`, the last that starts at or
    /// before the pc, to one that covers it: functions of size zero hide the one
    /// before them, and functions of equal start are in any order.
    fn step_back<S: Source>(
        &self,
        source: &mut S,
        mut position: u32,
        pc: i64,
    ) -> Result<Option<Place>, S::Fault> {
        let mut last = self.place(source, position)?;
        while !last.covers(pc) {
            let Some(before) = position.checked_sub(1) else { return Ok(None) };
            position = before;
            let before = self.place(source, before)?;
            if last.entry.size != 0 && before.start != last.start {
                return Ok(None);
            }
            last = before;
        }
        Ok(Some(last))
    }

    /// Finds the function that covers `pc` in a table in any order.
    fn scan<S: Source>(&self, source: &mut S, pc: i64) -> Result<Option<Place>, S::Fault> {
        for index in 0..self.header.num_fdes {
            let place = self.place(source, index)?;
            if place.covers(pc) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    #[inline(always)]
    fn place<S: Source>(&self, source: &mut S, position: u32) -> Result<Place, S::Fault> {
        let (index, bytes) = source.entries::<N>()(position)?;
        let value = Self::start_value(bytes.borrow());
        let anchor = self.anchor.wrapping_add(i64::from(index).wrapping_mul(self.stride));
        let entry = Entry::decode(bytes.borrow(), Self::VERSION, Self::ENDIAN);
        Ok(Place { index, start: value.wrapping_add(anchor), entry })
    }

    /// The raw start of an entry: 4 bytes before V3, 8 from there on.
    #[inline(always)]
    fn start_value(entry: &[u8; N]) -> i64 {
        let mut r = Fields::new(entry, Self::ENDIAN);
        match Self::VERSION {
            Version::V1 | Version::V2 => r.u32().cast_signed().into(),
            Version::V3 => r.u64().cast_signed(),
        }
    }
}
