//! A table in the target's memory.

use core::{convert::Infallible, fmt};

use unwind_core::{Memory, ReadError, Row, TableError, VirtAddr};

use crate::{
    error::{Error, TableOffset},
    format::{fde::EntryBytes, header::Header},
    read::{
        bisect::Ascending,
        lookup::{self, Lookup},
        source::{Source, entry_at},
    },
};

/// A table that could not be used where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteError {
    /// What was read is malformed.
    Table(Error),
    /// The memory could not be read.
    Unreadable {
        /// What was to be read.
        at: TableOffset,
        /// Why it could not be.
        error: ReadError,
    },
    /// A lookup needed more reads than it may do.
    TooManyReads {
        /// How many it may do.
        limit: u32,
    },
}

const _: () = assert!(size_of::<RemoteError>() <= 32);

impl From<Error> for RemoteError {
    fn from(error: Error) -> Self {
        Self::Table(error)
    }
}

impl From<Infallible> for RemoteError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => error.fmt(f),
            Self::Unreadable { at, error } => write!(f, "{at}: {error}"),
            Self::TooManyReads { limit } => {
                write!(f, "the lookup takes more than {limit} reads of the table")
            }
        }
    }
}

impl core::error::Error for RemoteError {}

/// Codes are those of [`Error`], 256 for [`Unreadable`](RemoteError::Unreadable) and 257 for
/// [`TooManyReads`](RemoteError::TooManyReads).
impl TableError for RemoteError {
    fn is_not_resident(&self) -> bool {
        matches!(self, Self::Unreadable { error: ReadError::NotResident, .. })
    }

    fn code(&self) -> u16 {
        match self {
            Self::Table(error) => error.code(),
            Self::Unreadable { .. } => 256,
            Self::TooManyReads { .. } => 257,
        }
    }
}

/// One table in the target's memory, whose pages may be absent, or change at
/// any time.
///
/// The header is read once, when the table is opened. A lookup reads each byte
/// that it uses once, and checks what it read: whatever the target does to its
/// table meanwhile, there is an error or an answer in bounded time.
///
/// # Bounds
///
/// A lookup does at most [`max_reads`](Self::with_max_reads) reads, of at most
/// 192 bytes each, none of which touches a page that nothing needed is in. In a
/// sorted table of `n` functions it takes log2(`n`) + 1 reads to find the
/// function, and one for each 192 bytes of the function's rows up to the one
/// that is found. In optimised code it needs at most 1,280 bytes of stack, and
/// [`find_row`](Self::find_row) at most 640, its window and what the [`Memory`]
/// needs not counted.
#[derive(Clone, Copy, Debug)]
pub struct RemoteTable {
    header: Header,
    addr: u64,
    max_reads: u32,
}

impl RemoteTable {
    /// How many reads a lookup does at most, unless
    /// [`with_max_reads`](Self::with_max_reads) says otherwise. Enough for a
    /// function of 65,535 rows of the usual sizes.
    pub const MAX_READS: u32 = 4096;

    /// Reads the header of the table at `addr`. `len` is how many bytes there
    /// are at most, such as the size of `PT_GNU_SFRAME`.
    ///
    /// # Errors
    ///
    /// [`RemoteError`] if the header cannot be read or is not valid, or if it
    /// says that a table is not inside `len` bytes.
    pub fn open<M: Memory>(mem: &mut M, addr: u64, len: u64) -> Result<Self, RemoteError> {
        let start = TableOffset(0);
        if len < HEADER_LEN {
            return Err(Error::Truncated(start).into());
        }
        let mut bytes = [0; Header::SIZE];
        mem.read(VirtAddr::new(addr), &mut bytes)
            .map_err(|error| RemoteError::Unreadable { at: start, error })?;
        let header = Header::decode(&bytes)?;
        header.check(len)?;
        Ok(Self { header, addr, max_reads: Self::MAX_READS })
    }

    /// The same table, with another limit on the reads of one lookup.
    #[must_use]
    pub const fn with_max_reads(mut self, limit: u32) -> Self {
        self.max_reads = limit;
        self
    }

    /// The header, as it was when the table was opened.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Where the table is.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Finds the row that covers `pc`, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`RemoteError::Unreadable`] if a part that is needed cannot be read: if
    /// it is not resident, the same lookup may work where faulting is allowed.
    /// Otherwise as [`Table::find`](crate::Table::find), or
    /// [`RemoteError::TooManyReads`].
    pub fn find<M: Memory>(&self, mem: &mut M, pc: u64) -> Result<Option<Lookup>, RemoteError> {
        let mut window = RemoteBuffer::new();
        let mut source = self.source(mem, &mut window);
        lookup::find(&mut source, &self.header, self.addr, pc)
    }

    /// Finds the rules at `pc`, as [`find`](Self::find) and [`Lookup::row`] do,
    /// through a window that the caller lends, on less stack.
    ///
    /// # Errors
    ///
    /// As these two.
    #[inline]
    pub fn find_row<M: Memory>(
        &self,
        mem: &mut M,
        pc: u64,
        window: &mut RemoteBuffer,
    ) -> Result<Option<Row>, RemoteError> {
        window.restart(0);
        let mut source = self.source(mem, window);
        lookup::find_row(&mut source, &self.header, self.addr, pc)
    }

    const fn source<'s, M>(
        &'s self,
        mem: &'s mut M,
        window: &'s mut RemoteBuffer,
    ) -> MemorySource<'s, M> {
        let reads = Reads { mem, table: self.addr, left: self.max_reads, limit: self.max_reads };
        MemorySource { reads, header: &self.header, window }
    }
}

const HEADER_LEN: u64 = 28;

/// A row is 65 bytes long at most, the head of the next one 5. Neighbours of an
/// entry are likely to be asked for next.
const WINDOW: usize = 192;
/// No smaller pages are in use: what is inside one is resident as a whole.
const PAGE: u64 = 4096;

/// The bytes of a table that a lookup reads at once, in memory that the caller
/// places. Nothing in it outlives the lookup.
#[derive(Clone, Copy, Debug)]
pub struct RemoteBuffer {
    bytes: [u8; WINDOW],
    len: usize,
    /// The section offset of the first byte.
    start: u64,
}

impl RemoteBuffer {
    /// A window without bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; WINDOW], len: 0, start: 0 }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The entry of `size` bytes at a section offset, if it is held.
    fn entry_at(&self, at: u64, size: usize) -> Option<EntryBytes> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes().get(from..)?.get(..size)?;
        let mut entry = EntryBytes::default();
        for (to, &from) in entry.as_flattened_mut().iter_mut().zip(bytes) {
            *to = from;
        }
        Some(entry)
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(to_u64(self.len))
    }

    /// Drops all bytes: the next one is at `start`.
    fn restart(&mut self, start: u64) {
        self.len = 0;
        self.start = start;
    }

    /// Drops the first `count` bytes.
    fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len).min(WINDOW);
        // No rotation, which takes 256 bytes of stack.
        for at in count..self.len.min(WINDOW) {
            let byte = self.bytes.get(at).copied().unwrap_or_default();
            if let Some(to) = self.bytes.get_mut(at.wrapping_sub(count)) {
                *to = byte;
            }
        }
        self.len = self.len.saturating_sub(count);
        self.start = self.start.saturating_add(to_u64(count));
    }
}

impl Default for RemoteBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// The memory, and how often it may still be read.
struct Reads<'s, M> {
    mem: &'s mut M,
    table: u64,
    left: u32,
    limit: u32,
}

impl<M: Memory> Reads<'_, M> {
    /// Reads on after the end of `window`: up to the end of the page, of the
    /// window, or of the part of the table that ends at `part_end`; but `need`
    /// bytes in any case, if the part has them.
    fn extend(
        &mut self,
        window: &mut RemoteBuffer,
        need: usize,
        part_end: u64,
    ) -> Result<(), RemoteError> {
        let start = window.end();
        let addr = self.table.wrapping_add(start);
        let in_page = PAGE.saturating_sub(addr % PAGE).max(to_u64(need));
        let in_part = part_end.saturating_sub(start);
        let room = window.bytes.get_mut(window.len..).unwrap_or_default();
        let want = usize::try_from(in_page.min(in_part)).unwrap_or(usize::MAX).min(room.len());
        if want == 0 {
            return Ok(());
        }
        let limit = self.limit;
        self.left = self.left.checked_sub(1).ok_or(RemoteError::TooManyReads { limit })?;
        let at = TableOffset(start);
        self.mem
            .read(VirtAddr::new(addr), room.get_mut(..want).unwrap_or_default())
            .map_err(|error| RemoteError::Unreadable { at, error })?;
        window.len = window.len.saturating_add(want);
        Ok(())
    }
}

struct MemorySource<'s, M> {
    reads: Reads<'s, M>,
    header: &'s Header,
    /// Entries until one is found, then its rows.
    window: &'s mut RemoteBuffer,
}

impl<M: Memory> Source for MemorySource<'_, M> {
    type Fault = RemoteError;
    type Error = RemoteError;

    fn among(&self) -> Option<Ascending> {
        Ascending::all_if_sorted(self.header)
    }

    fn entry(&mut self, index: u32) -> Result<(u32, EntryBytes), RemoteError> {
        let at = entry_at(self.header, index).0;
        let size = self.header.version.fde_size();
        if let Some(entry) = self.window.entry_at(at, size) {
            return Ok((index, entry));
        }
        let part_end = self.header.fdes_at().0.saturating_add(self.header.fdes_len());
        self.window.restart(at);
        self.reads.extend(self.window, size, part_end)?;
        let entry = self.window.entry_at(at, size);
        Ok((index, entry.ok_or(Error::Truncated(TableOffset(at)))?))
    }

    fn open(&mut self, fre_offset: u32) -> Result<Option<usize>, RemoteError> {
        if fre_offset > self.header.fre_len {
            return Ok(None);
        }
        let need = self.header.version.attribute_size().max(1);
        self.window.restart(self.header.fres_at().0.saturating_add(fre_offset.into()));
        self.reads.extend(self.window, need, self.header.len())?;
        Ok(Some(0))
    }

    fn window(&self) -> &[u8] {
        self.window.bytes()
    }

    fn offset(&self, pos: usize) -> TableOffset {
        TableOffset(self.window.start).plus(pos)
    }

    fn slide(&mut self, keep: usize) -> Result<bool, RemoteError> {
        self.window.drop_front(keep);
        let before = self.window.len;
        self.reads.extend(self.window, 1, self.header.len())?;
        Ok(self.window.len > before)
    }
}

fn to_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
