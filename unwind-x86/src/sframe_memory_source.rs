//! Rows of 64-bit code from SFrame tables that lie in the target's memory.

use core::convert::Infallible;
use core::fmt;

use sframe::{Abi, RemoteError, RemoteSection};
use unwind_core::{
    FrameContext, Memory, Origin, Row, RowSource, SharedModuleMap, TableError, TableLocation,
    VirtAddr,
};

use crate::{Ia32, Ia32Regs, X86_64, X86_64Regs};

/// Why a row could not be had from a table in the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SframeMemoryError {
    /// The table could not be read, or is malformed.
    Table(RemoteError),
    /// Modules came and went faster than they could be looked up.
    Changing,
}

impl From<RemoteError> for SframeMemoryError {
    fn from(error: RemoteError) -> Self {
        Self::Table(error)
    }
}

impl From<Infallible> for SframeMemoryError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for SframeMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => error.fmt(f),
            Self::Changing => unwind_core::Changing.fmt(f),
        }
    }
}

impl core::error::Error for SframeMemoryError {}

impl TableError for SframeMemoryError {
    fn is_not_resident(&self) -> bool {
        match self {
            Self::Table(error) => error.is_not_resident(),
            // The same lookup may work the next time.
            Self::Changing => true,
        }
    }
}

/// A source of rows whose tables are read from the target's memory, as a
/// kernel reads those of its user programs.
///
/// One is made for each walk: it keeps the header of the table that it used
/// last. 32-bit code has no SFrame tables, so for it there are no rows; with
/// the same error, so that walks of both kinds of code end in one trace type.
#[derive(Clone, Debug)]
pub struct SframeMemorySource<'m, const N: usize> {
    modules: &'m SharedModuleMap<N>,
    last: Option<(TableLocation, RemoteSection)>,
}

impl<'m, const N: usize> SframeMemorySource<'m, N> {
    /// The tables of `modules`.
    #[must_use]
    pub const fn new(modules: &'m SharedModuleMap<N>) -> Self {
        Self { modules, last: None }
    }

    /// The table at `location`, its header read unless it is the last one.
    fn open<M: Memory>(
        &mut self,
        location: TableLocation,
        mem: &mut M,
    ) -> Result<&RemoteSection, RemoteError> {
        let last = self.last.take().filter(|(last, _)| *last == location);
        let (_, table) = match last {
            Some(last) => self.last.insert(last),
            None => {
                let table = RemoteSection::open(mem, location.addr.get(), location.len)?;
                self.last.insert((location, table))
            }
        };
        Ok(table)
    }

    /// Looks `addr` up in the table at `location`.
    // What it reads of the table is on the stack only while it runs.
    #[inline(never)]
    fn look_up<M: Memory>(
        &mut self,
        location: TableLocation,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteError> {
        let table = self.open(location, mem)?;
        if table.header().abi != Abi::Amd64Little {
            return Ok(None);
        }
        let found = table.find(mem, addr.get())?;
        Ok(found.map(|found| found.row()).transpose()?)
    }
}

impl<const N: usize> RowSource<X86_64> for SframeMemorySource<'_, N> {
    type Error = SframeMemoryError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, SframeMemoryError> {
        let addr = frame.pc.lookup_addr();
        let module = self.modules.find(addr).map_err(|_| SframeMemoryError::Changing)?;
        let Some(module) = module else { return Ok(None) };
        let row = self.look_up(module.table, addr, mem)?;
        Ok(row.map(|row| row.with_origin(Origin::Table)))
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.modules.generation()
    }
}

impl<const N: usize> RowSource<Ia32> for SframeMemorySource<'_, N> {
    type Error = SframeMemoryError;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Ia32Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, SframeMemoryError> {
        Ok(None)
    }
}
