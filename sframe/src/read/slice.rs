//! A table in memory, as lookups see it.

use unwind_core::Row;

use crate::{
    error::{Error, TableOffset},
    format::fde::EntryBytes,
    read::{
        amd64::table::{FastLookup, FastReader, Function},
        bisect::Ascending,
        checkpoint::Checkpoints,
        lookup::{self, Lookup},
        source::{Checkpoint, Source},
        table::Table,
    },
};

/// A table in memory, by its index if there is one. The window is all rows.
pub(crate) struct SliceSource<'s, 'a> {
    table: &'s Table<'a>,
    among: Option<Ascending>,
    /// Positions to indices, where they differ.
    order: Option<&'s [u32]>,
    checkpoints: Checkpoints<'s>,
}

/// An entry is not there. As many as the header says are, since the table was
/// opened.
pub(crate) struct Missing;

impl From<Missing> for Error {
    fn from(_: Missing) -> Self {
        Self::Truncated(TableOffset(0))
    }
}

impl<'s, 'a> SliceSource<'s, 'a> {
    /// The functions of the table that ascend, or all of it in any order.
    pub(crate) const fn new(table: &'s Table<'a>, among: Option<Ascending>) -> Self {
        Self { table, among, order: None, checkpoints: Checkpoints::NONE }
    }

    /// The same with what an index has.
    pub(crate) const fn by(self, order: Option<&'s [u32]>, checkpoints: Checkpoints<'s>) -> Self {
        Self { order, checkpoints, ..self }
    }
}

impl Source for SliceSource<'_, '_> {
    type Fault = Missing;
    type Error = Error;

    fn among(&self) -> Option<Ascending> {
        self.among
    }

    fn entry(&mut self, position: u32) -> Result<(u32, EntryBytes), Missing> {
        let index = match self.order {
            None => position,
            Some(order) => {
                let at = usize::try_from(position).map_err(|_| Missing)?;
                *order.get(at).ok_or(Missing)?
            }
        };
        Ok((index, self.table.entry_bytes(index).ok_or(Missing)?))
    }

    fn checkpoint(&self, index: u32, num_fres: u32, target: u32) -> Option<Checkpoint> {
        self.checkpoints.find(index, num_fres, target)
    }

    fn open(&mut self, fre_offset: u32) -> Result<Option<usize>, Missing> {
        let first = usize::try_from(fre_offset).ok();
        Ok(first.filter(|&first| first <= self.table.fres_bytes().len()))
    }

    fn window(&self) -> &[u8] {
        self.table.fres_bytes()
    }

    fn offset(&self, pos: usize) -> TableOffset {
        self.table.offset_of(self.table.fres_bytes()).plus(pos)
    }

    fn slide(&mut self, _keep: usize) -> Result<bool, Missing> {
        Ok(false)
    }
}

impl Table<'_> {
    /// Finds the row that covers `pc`, or `None` if there is none.
    ///
    /// A table that is sorted is searched by bisection, any other from its
    /// start. One bad function does not harm lookups in another.
    ///
    /// # Errors
    ///
    /// [`Error`] if the function that covers `pc` is malformed, or one of its
    /// rows up to that of the pc.
    pub fn find(&self, pc: u64) -> Result<Option<Lookup>, Error> {
        let among = Ascending::all_if_sorted(&self.header);
        lookup::find(&mut SliceSource::new(self, among), &self.header, self.addr, pc)
    }

    /// Finds the rules for `pc`, or `None` if there are none. The same as
    /// [`find`](Self::find) and [`Lookup::row`], but faster.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find) and [`Lookup::row`].
    #[inline(never)]
    pub fn find_row(&self, pc: u64) -> Result<Option<Row>, Error> {
        let Some(fast) = &self.fast else { return self.find_any_row(None, pc) };
        self.find_row_fast(fast, Ascending::all(&self.header), &Checkpoints::NONE, pc)
    }

    /// The same among these functions by the fast reader, and by the general one where that
    /// has no answer.
    #[inline(always)]
    pub(crate) fn find_row_fast(
        &self,
        fast: &FastReader,
        among: Ascending,
        checkpoints: &Checkpoints<'_>,
        pc: u64,
    ) -> Result<Option<Row>, Error> {
        let checkpoint = |function: &Function| {
            checkpoints.find(fast.index(function.at), function.num_fres, function.offset)
        };
        let (fdes, fres) = (self.fdes_bytes(), self.fres_bytes());
        match fast.find_row(fdes, fres, among, self.offset(pc), checkpoint) {
            FastLookup::Row(row) => Ok(Some(row)),
            FastLookup::RowAt { index, at } => self.row_at(index, at),
            FastLookup::Unknown { position } => self.find_any_row(position, pc),
        }
    }

    /// The same for tables of any form, and to say what is wrong. `position` is
    /// that of the last function that starts at or before `pc`, or of the first
    /// one, if it is known.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_any_row(
        &self,
        position: Option<u32>,
        pc: u64,
    ) -> Result<Option<Row>, Error> {
        let among = match position {
            Some(first) => Some(Ascending { first, count: self.header.num_fdes.min(1) }),
            None => Ascending::all_if_sorted(&self.header),
        };
        lookup::find_row(&mut SliceSource::new(self, among), &self.header, self.addr, pc)
    }

    /// The rules of the row at `at`, in bytes from the first of all, of the
    /// function at `index`.
    #[cold]
    #[inline(never)]
    pub(crate) fn row_at(&self, index: u32, at: usize) -> Result<Option<Row>, Error> {
        lookup::row_at(&mut SliceSource::new(self, None), &self.header, index, at).map(Some)
    }
}
