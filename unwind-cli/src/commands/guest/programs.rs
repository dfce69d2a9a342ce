//! The programs and libraries of user code, found in the guest's memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;

use sframe::{RemoteBuffer, RemoteError, RemoteTable};
use unwind_cfi::{CfiAbi, CfiScratch, RemoteCfi, RemoteCfiError};
use unwind_core::{
    Arch, FrameContext, Memory, RegisterRules, Row, RowSource, TableError, VirtAddr, WordSize,
};
use unwind_guest::linux::{BuildId, Program};
use unwind_target::Untrusted;
use unwind_target::loaded::module::Modules;

use crate::commands::guest::linux::FoundName;
use crate::commands::guest::sysroot::Sysroot;

/// The most programs and libraries that one stack is of, and the most addresses of which names are kept.
const PROGRAMS_LIMIT: usize = 1 << 10;
const NAMES_LIMIT: usize = 1 << 16;

/// Why an object in memory has no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramError {
    Cfi(RemoteCfiError),
    Sframe(RemoteError),
    /// Of a file.
    File(sframe::Error),
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cfi(error) => error.fmt(f),
            Self::Sframe(error) => error.fmt(f),
            Self::File(error) => error.fmt(f),
        }
    }
}

impl From<Infallible> for ProgramError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<sframe::Error> for ProgramError {
    fn from(error: sframe::Error) -> Self {
        Self::File(error)
    }
}

impl TableError for ProgramError {
    fn is_not_resident(&self) -> bool {
        match self {
            Self::Cfi(error) => error.is_not_resident(),
            Self::Sframe(error) => error.is_not_resident(),
            Self::File(error) => error.is_not_resident(),
        }
    }
}

/// The objects of one address space, as a walk meets their code, and their names.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// Files of the guest.
    sysroot: Option<Sysroot>,
    found: Vec<Found>,
    /// Where there are none.
    absent: Vec<u64>,
    scratch: CfiScratch,
    buffer: RemoteBuffer,
    /// Functions by the build of their object and their address in it.
    names: HashMap<(BuildId, u64), Option<Function>>,
}

/// A function, and where it is.
type Function = (Untrusted, Range<u64>);

/// An object, and its tables.
#[derive(Debug)]
struct Found {
    program: Program,
    sframe: Option<RemoteTable>,
    cfi: Option<RemoteCfi>,
    name: Option<Untrusted>,
}

impl Programs {
    /// Has functions be named by files of the guest, too.
    pub(crate) fn use_sysroot(&mut self, sysroot: Sysroot) {
        self.sysroot = Some(sysroot);
    }

    /// Forgets the address space before.
    pub(crate) fn begin(&mut self) {
        self.found.clear();
        self.absent.clear();
    }

    /// The object that an address is of.
    fn find<M: Memory>(&mut self, addr: u64, mem: &mut M) -> Option<usize> {
        let is_of = |found: &Found| found.program.text().contains(&addr);
        if let Some(known) = self.found.iter().position(is_of) {
            return Some(known);
        }
        let page = addr & !0xfff;
        if self.absent.contains(&page) || self.found.len() >= PROGRAMS_LIMIT {
            return None;
        }
        let Some(program) = Program::find(VirtAddr::new(addr), mem).ok().flatten() else {
            self.absent.push(page);
            return None;
        };
        let name = program.name(mem).map(|name| Untrusted::from(name.as_bytes().to_vec()));
        self.found.push(Found { program, sframe: None, cfi: None, name });
        self.found.len().checked_sub(1)
    }

    /// What an address of user code is called. `comm` is what its thread is called.
    pub(crate) fn name<M: Memory>(
        &mut self,
        addr: u64,
        comm: Option<&[u8]>,
        mem: &mut M,
    ) -> Option<FoundName> {
        let index = self.find(addr, mem)?;
        let Found { program, name, .. } = self.found.get(index)?;
        let bias = program.bias();
        let id = program.build_id().map(BuildId::as_bytes);
        let of_file = id.zip(self.sysroot.as_ref()).and_then(|(id, root)| root.name(id));
        let object = of_file.or_else(|| name.clone()).unwrap_or_else(|| match comm {
            Some(comm) => Untrusted::from(comm.to_vec()),
            None => Untrusted::from("[program]"),
        });
        let sysroot = &mut self.sysroot;
        let mut of_file = |linked: u64| sysroot.as_mut()?.function(id?, linked);
        let look_up = |mem: &mut M| {
            let symbol = program.find_at(VirtAddr::new(addr), mem)?;
            let name = Untrusted::from(symbol.name.as_bytes().to_vec());
            let [start, end] = [symbol.start, symbol.end].map(|addr| addr.get().wrapping_sub(bias));
            Some((name, start..end))
        };
        let linked = addr.wrapping_sub(bias);
        let mut look_up = |mem: &mut M| of_file(linked).or_else(|| look_up(mem));
        let function = match program.build_id() {
            Some(build) => {
                if self.names.len() > NAMES_LIMIT {
                    self.names.clear();
                }
                let key = (*build, linked);
                self.names.entry(key).or_insert_with(|| look_up(mem)).clone()
            }
            None => look_up(mem),
        };
        let function = function.map(|(name, Range { start, end })| {
            (name, start.wrapping_add(bias)..end.wrapping_add(bias))
        });
        let (text, offset) = (program.text(), program.text_offset());
        let build_id = id.map(Into::into);
        Some(FoundName { object, bias: Some(bias), text, offset, build_id, function })
    }
}

/// Rows of objects in memory, of code that no file is given for.
#[derive(Debug)]
pub(crate) struct ProgramRows<'p> {
    pub(crate) programs: &'p mut Programs,
    pub(crate) files: &'p Modules,
}

impl<A: Arch> RowSource<A> for ProgramRows<'_> {
    type Error = ProgramError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, ProgramError> {
        let addr = frame.lookup_addr().get();
        if addr >> 63 != 0 || self.files.find(addr).is_some() {
            return Ok(None);
        }
        // Another process may have other code there.
        frame.may_change();
        let programs = &mut *self.programs;
        let Some(index) = programs.find(addr, mem) else { return Ok(None) };
        let Some(found) = programs.found.get_mut(index) else { return Ok(None) };
        let is_wide = A::WORD == WordSize::Eight;
        if found.program.is_wide() != is_wide {
            return Ok(None);
        }
        if let Some((at, len)) = found.program.sframe().filter(|_| is_wide) {
            let table = match found.sframe.take() {
                Some(table) => table,
                None => RemoteTable::open(mem, at, len).map_err(ProgramError::Sframe)?,
            };
            let row = table.find_row(mem, addr, &mut programs.buffer);
            found.sframe = Some(table);
            if let Some(row) = row.map_err(ProgramError::Sframe)? {
                return Ok(Some(row));
            }
        }
        let Some(header) = found.program.eh_frame_header() else { return Ok(None) };
        let cfi = match found.cfi {
            Some(cfi) => cfi,
            None => {
                let abi = if is_wide { CfiAbi::X86_64 } else { CfiAbi::Ia32 };
                let opened = RemoteCfi::open(mem, abi, header).map_err(ProgramError::Cfi)?;
                let Some(opened) = opened else { return Ok(None) };
                *found.cfi.insert(opened)
            }
        };
        cfi.find_row_in(frame, mem, &mut programs.scratch).map_err(ProgramError::Cfi)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, ProgramError> {
        let addr = frame.lookup_addr().get();
        let programs = &mut *self.programs;
        let is_of = |found: &&Found| found.program.text().contains(&addr);
        let Some(cfi) = programs.found.iter().find(is_of).and_then(|found| found.cfi) else {
            return Ok(None);
        };
        cfi.find_register_rules(mem, addr, &mut programs.scratch).map_err(ProgramError::Cfi)
    }
}
