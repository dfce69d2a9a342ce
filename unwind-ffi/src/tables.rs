//! Rows of 64-bit and 32-bit code by the tables of a space, in the target's memory or in the host's.

use core::convert::Infallible;
use core::fmt;

use sframe::{Abi, RemoteBuffer, RemoteError, RemoteTable};
use unwind_cfi::{CfiAbi, CfiScratch, RemoteCfi, RemoteCfiError};
use unwind_core::{
    Arch, Contended, FrameContext, Memory, Origin, ReadError, RegisterRules, Row, RowSource,
    SliceMemory, TableError, VirtAddr, WordSize,
};

use crate::numbers::unwind_format;
use crate::raw::{Context, held_bytes};
use crate::space::{AnySpace, Table};

/// Why there is no row of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TablesError {
    Sframe(RemoteError),
    Cfi(RemoteCfiError),
    Contended,
    /// It is still to come.
    Awaited,
}

impl From<Infallible> for TablesError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<RemoteError> for TablesError {
    fn from(error: RemoteError) -> Self {
        Self::Sframe(error)
    }
}

impl From<RemoteCfiError> for TablesError {
    fn from(error: RemoteCfiError) -> Self {
        Self::Cfi(error)
    }
}

impl From<Contended> for TablesError {
    fn from(_: Contended) -> Self {
        Self::Contended
    }
}

impl fmt::Display for TablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sframe(error) => error.fmt(f),
            Self::Cfi(error) => error.fmt(f),
            Self::Contended => Contended.fmt(f),
            Self::Awaited => f.write_str("the table is still to come"),
        }
    }
}

impl core::error::Error for TablesError {}

impl TableError for TablesError {
    fn is_not_resident(&self) -> bool {
        match self {
            Self::Sframe(error) => error.is_not_resident(),
            Self::Cfi(error) => error.is_not_resident(),
            // The same lookup may work the next time.
            Self::Contended | Self::Awaited => true,
        }
    }

    fn code(&self) -> u16 {
        match self {
            Self::Sframe(error) => error.code(),
            Self::Contended => 512,
            Self::Awaited => 513,
            Self::Cfi(error) => error.code().saturating_add(1024),
        }
    }
}

/// What lookups read, one after the other.
#[derive(Debug)]
pub(crate) struct TableScratch {
    pub(crate) last: Option<(Table, Opened)>,
    pub(crate) sframe: RemoteBuffer,
    pub(crate) cfi: CfiScratch,
}

/// A table whose header was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opened {
    Sframe(RemoteTable),
    Cfi(RemoteCfi),
    /// It has no rows for this code.
    Nothing,
}

/// The tables of one walk.
#[derive(Debug)]
pub(crate) struct Tables<'w> {
    space: Option<AnySpace<'w>>,
    scratch: &'w mut TableScratch,
    /// Whom to ask for modules that are not known.
    finder: Option<Context>,
}

impl<'w> Tables<'w> {
    pub(crate) const fn new(
        space: Option<AnySpace<'w>>,
        scratch: &'w mut TableScratch,
        finder: Option<Context>,
    ) -> Self {
        scratch.last = None;
        Self { space, scratch, finder }
    }

    /// The table of an address, for which the host may look first.
    #[inline(never)]
    fn table_of(&self, addr: VirtAddr) -> Result<Option<Table>, Contended> {
        let Some(space) = self.space else { return Ok(None) };
        let found = space.find(addr)?;
        match self.finder {
            Some(finder) if found.is_none() && finder.find_module(addr) => space.find(addr),
            _ => Ok(found),
        }
    }

    /// Opens a table, unless it is the last one.
    #[inline(never)]
    fn open<A: Arch>(
        &mut self,
        table: Table,
        mem: &mut impl Memory,
    ) -> Result<Opened, TablesError> {
        if let Some((last, opened)) = self.scratch.last
            && last == table
        {
            return Ok(opened);
        }
        let is_64 = A::WORD == WordSize::Eight;
        let opened = match table.format {
            unwind_format::Sframe | unwind_format::SframeOfCallFrames if is_64 => {
                let opened = RemoteTable::open(mem, table.addr, table.len.into())?;
                match opened.header().abi {
                    Abi::Amd64Little => Opened::Sframe(opened),
                    _ => Opened::Nothing,
                }
            }
            unwind_format::EhFrame => {
                let abi = if is_64 { CfiAbi::X86_64 } else { CfiAbi::Ia32 };
                RemoteCfi::open(mem, abi, table.addr)?.map_or(Opened::Nothing, Opened::Cfi)
            }
            _ => Opened::Nothing,
        };
        self.scratch.last = Some((table, opened));
        Ok(opened)
    }

    fn find_row<A: Arch>(
        &mut self,
        table: Table,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut impl Memory,
    ) -> Result<Option<Row>, TablesError> {
        match table.format {
            unwind_format::FramePointers => return Ok(Some(Row::frame_pointer(A::WORD))),
            unwind_format::Awaited => return Err(TablesError::Awaited),
            _ => {}
        }
        let mem = &mut Overlay::new(table, mem);
        let addr = frame.lookup_addr().get();
        match self.open::<A>(table, mem)? {
            Opened::Sframe(opened) => {
                let found = opened.find_row(mem, addr, &mut self.scratch.sframe)?;
                Ok(match table.format {
                    unwind_format::SframeOfCallFrames => {
                        found.map(|row| row.with_origin(Origin::CallFrames))
                    }
                    _ => found,
                })
            }
            // Expressions are evaluated for 64-bit code alone, so that what asks for values is one
            // function, which is called by its name. 32-bit code has no need of them.
            Opened::Cfi(opened) if A::WORD == WordSize::Eight => {
                Ok(opened.find_row_in(frame, mem, &mut self.scratch.cfi)?)
            }
            Opened::Cfi(opened) => Ok(opened.find_row(mem, addr, &mut self.scratch.cfi)?),
            Opened::Nothing => Ok(None),
        }
    }
}

impl<A: Arch> RowSource<A> for Tables<'_> {
    type Error = TablesError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, TablesError> {
        match self.table_of(frame.lookup_addr())? {
            Some(table) => self.find_row::<A>(table, frame, mem),
            None => {
                if self.space.is_some() {
                    // Another walk may find a module there.
                    frame.may_change();
                }
                Ok(None)
            }
        }
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, TablesError> {
        let addr = frame.lookup_addr();
        let Some(table) = self.table_of(addr)? else { return Ok(None) };
        let mem = &mut Overlay::new(table, mem);
        match self.open::<A>(table, mem)? {
            Opened::Cfi(opened) => {
                Ok(opened.find_register_rules(mem, addr.get(), &mut self.scratch.cfi)?)
            }
            _ => Ok(None),
        }
    }

    fn generation(&self) -> u64 {
        self.space.map_or(0, AnySpace::generation)
    }
}

/// The target's memory, of which the host holds a part.
struct Overlay<'m, M> {
    held: Option<SliceMemory<'m>>,
    mem: &'m mut M,
}

impl<'m, M: Memory> Overlay<'m, M> {
    fn new(table: Table, mem: &'m mut M) -> Self {
        let held = table.held.map(|held| {
            let addr = table.addr.wrapping_sub(held.before.into());
            SliceMemory::new(VirtAddr::new(addr), held_bytes(held))
        });
        Self { held, mem }
    }
}

impl<M: Memory> Memory for Overlay<'_, M> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let held = self.held.as_mut().map(|held| held.read(addr, buf));
        if held == Some(Ok(())) { Ok(()) } else { self.mem.read(addr, buf) }
    }
}
