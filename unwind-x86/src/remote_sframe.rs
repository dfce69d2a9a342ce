//! Rows of 64-bit code from SFrame tables that lie in the target's memory.

use core::convert::Infallible;
use core::fmt;

use sframe::{Abi, RemoteBuffer, RemoteError, RemoteTable};
use unwind_core::{
    FrameContext, Memory, Row, RowKey, RowSource, SharedModuleMap, TableError, TableLocation,
    VirtAddr,
};

use crate::ia32::{Ia32, Ia32Regs};
use crate::x86_64::{X86_64, X86_64Regs};

/// Why a row could not be had from a table in the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteSframeError {
    /// The table could not be read, or is malformed.
    Table(RemoteError),
    /// Modules came and went faster than they could be looked up.
    Contended,
}

impl From<RemoteError> for RemoteSframeError {
    fn from(error: RemoteError) -> Self {
        Self::Table(error)
    }
}

impl From<Infallible> for RemoteSframeError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for RemoteSframeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => error.fmt(f),
            Self::Contended => unwind_core::Contended.fmt(f),
        }
    }
}

impl core::error::Error for RemoteSframeError {}

/// Codes are those of [`RemoteError`], and 512 for [`Contended`](RemoteSframeError::Contended).
impl TableError for RemoteSframeError {
    fn is_not_resident(&self) -> bool {
        match self {
            Self::Table(error) => error.is_not_resident(),
            // The same lookup may work the next time.
            Self::Contended => true,
        }
    }

    fn code(&self) -> u16 {
        match self {
            Self::Table(error) => error.code(),
            Self::Contended => 512,
        }
    }
}

/// A source of rows whose tables are read from the target's memory, as a
/// kernel reads those of its user programs.
///
/// One is made for each walk: it keeps the header of the table that it used
/// last. 32-bit code has no SFrame tables, so for it there are no rows; with
/// the same error, so that walks of both kinds of code end in one trace type.
#[derive(Debug)]
pub struct RemoteSframe<'m, const N: usize> {
    modules: &'m SharedModuleMap<N>,
    scratch: &'m mut SframeScratch,
}

/// What a [`RemoteSframe`] reads of a table, in memory that the host
/// places where it is not short: in the task, say, and not on a kernel's stack.
///
/// Nothing in it is used after the walk.
#[derive(Clone, Debug, Default)]
pub struct SframeScratch {
    last: Option<(TableLocation, RemoteTable)>,
    window: RemoteBuffer,
}

impl SframeScratch {
    /// Memory for the lookups of one walk after another.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: None, window: RemoteBuffer::new() }
    }

    /// Opens the table at `location`, unless it is the last one.
    #[inline(never)]
    fn open<M: Memory>(&mut self, location: TableLocation, mem: &mut M) -> Result<(), RemoteError> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != location) {
            self.last = None;
            let table = RemoteTable::open(mem, location.addr.get(), location.len)?;
            self.last = Some((location, table));
        }
        Ok(())
    }

    /// Looks `addr` up in the table at `location`.
    fn look_up<M: Memory>(
        &mut self,
        location: TableLocation,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteError> {
        self.open(location, mem)?;
        match &self.last {
            Some((_, table)) if table.header().abi == Abi::Amd64Little => {
                table.find_row(mem, addr.get(), &mut self.window)
            }
            _ => Ok(None),
        }
    }
}

impl<'m, const N: usize> RemoteSframe<'m, N> {
    /// The tables of `modules`, read to `scratch`.
    #[must_use]
    pub const fn new(modules: &'m SharedModuleMap<N>, scratch: &'m mut SframeScratch) -> Self {
        scratch.last = None;
        Self { modules, scratch }
    }

    #[inline(never)]
    fn table_of(&self, addr: VirtAddr) -> Result<Option<TableLocation>, RemoteSframeError> {
        let module = self.modules.find(addr).map_err(|_| RemoteSframeError::Contended)?;
        Ok(module.map(|module| module.table))
    }

    /// The row for `addr`. Each part is on the stack only while it runs.
    #[inline(never)]
    fn find<M: Memory>(
        &mut self,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteSframeError> {
        let Some(location) = self.table_of(addr)? else { return Ok(None) };
        // Its origin is a table, as that of all new rows.
        Ok(self.scratch.look_up(location, addr, mem)?)
    }
}

impl<const N: usize> RowSource<X86_64> for RemoteSframe<'_, N> {
    type Error = RemoteSframeError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteSframeError> {
        self.find(frame.lookup_addr(), mem)
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.modules.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        let table = self.table_of(addr).ok()??;
        Some(RowKey { table: table.id?.get(), offset: addr.get().wrapping_sub(table.addr.get()) })
    }
}

impl<const N: usize> RowSource<Ia32> for RemoteSframe<'_, N> {
    type Error = RemoteSframeError;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Ia32Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, RemoteSframeError> {
        Ok(None)
    }
}
