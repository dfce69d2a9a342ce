//! Where lookups get the bytes of a table from.

use crate::{
    error::{Error, TableOffset},
    format::{fde::EntryBytes, header::Header},
    read::bisect::Ascending,
};

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
    /// `target` may start, if the source knows one after the first.
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
    fn offset(&self, pos: usize) -> TableOffset;

    /// Drops the bytes before `keep` from the window and fetches more after
    /// its end; false if the section has no more.
    fn slide(&mut self, keep: usize) -> Result<bool, Self::Fault>;
}

/// A row after good rows, at or before which a search ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    /// How many rows are before it.
    pub(crate) passed: u32,
    /// Where it is, in bytes from the function's first row.
    pub(crate) at: u32,
    /// Where it begins to hold.
    pub(crate) start: u32,
}

/// Where the entry at `index` is in the section.
#[inline]
pub(crate) fn entry_at(header: &Header, index: u32) -> TableOffset {
    let size = u64::try_from(header.version.fde_size()).unwrap_or_default();
    TableOffset(header.fdes_at().0.wrapping_add(u64::from(index).wrapping_mul(size)))
}
