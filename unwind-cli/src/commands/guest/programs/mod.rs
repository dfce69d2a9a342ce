//! The programs and libraries of user code, found in the guest's memory.

pub(crate) mod rows;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;

use sframe::{RemoteBuffer, RemoteError, RemoteTable};
use unwind_cfi::{CfiAbi, CfiScratch, RemoteCfi, RemoteCfiError};
use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, TableError, VirtAddr, WordSize};
use unwind_guest::linux::{BuildId, PROGRAM_PAGES, Program, ProgramSearch};
use unwind_target::Untrusted;

use crate::commands::guest::linux::FoundName;
use crate::commands::guest::sysroot::Sysroot;

/// The most programs and libraries that one stack is of, and the most addresses of which names are kept.
const PROGRAMS_LIMIT: usize = 1 << 10;
const NAMES_LIMIT: usize = 1 << 16;

/// The most address spaces of which it is remembered what the last stack was of, and the most objects of each.
const SPACES_LIMIT: usize = 1 << 8;
const REMEMBERED_LIMIT: usize = 1 << 6;

/// The most ranges of pages without an object that are remembered of an address space, and for how many stacks.
const ABSENT_LIMIT: usize = 1 << 8;
const ABSENT_WALKS: u32 = 64;

/// The most pages that are looked at for objects of one stack: the guest stands meanwhile.
const PAGES_LIMIT: u64 = 4 * PROGRAM_PAGES;
const PAGE: u64 = 0x1000;

/// The most objects without a table that are told.
const MOST_WITHOUT_TABLE: usize = 4;

/// The most builds of objects whose rows are kept.
const BUILDS_LIMIT: usize = 1 << 16;

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
    /// The root of the address space, and what was found in it.
    root: u64,
    space: Space,
    /// How many pages may still be looked at for objects of this stack.
    pages_left: u64,
    /// What the last stack of each address space was of.
    remembered: HashMap<u64, Space>,
    /// The code of objects by its build, in the order in which it was met.
    builds: HashMap<(BuildId, Range<u64>), u64>,
    /// What the thread is called whose stack is walked.
    comm: Option<Untrusted>,
    /// Some that have no table, neither in memory nor in a file, and whether they have a build id.
    without_table: BTreeSet<(Untrusted, bool)>,
    scratch: CfiScratch,
    buffer: RemoteBuffer,
    /// Functions by the build of their object and their address in it.
    names: HashMap<(BuildId, u64), Function>,
}

/// What was found in an address space.
#[derive(Debug, Default)]
struct Space {
    found: Vec<Found>,
    /// Pages of code without an object, and below these what was searched for it.
    absent: Vec<Range<u64>>,
    /// How many walks ago the first of these was.
    walks: u32,
}

/// A function, and where it is.
type Function = (Untrusted, Range<u64>);

/// An object, and its tables.
#[derive(Debug)]
struct Found {
    program: Program,
    /// Of its build.
    number: Option<u64>,
    sframe: Option<RemoteTable>,
    cfi: Option<RemoteCfi>,
    name: Option<Untrusted>,
}

impl Programs {
    /// Has functions be named by files of the guest, too, and stacks be walked by what those say of their code.
    pub(crate) fn use_sysroot(&mut self, sysroot: Sysroot) {
        self.sysroot = Some(sysroot);
    }

    /// What is wrong with the folder of these files, and which programs lack one there.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let of_program = |(name, has_build_id): &(Untrusted, bool)| {
            let lacks = format!("{name} has no table of its frames in the guest's memory");
            match has_build_id {
                true => format!(
                    "{lacks}: its callers are known with --sysroot and a folder that has its file"
                ),
                false => format!(
                    "{lacks}, and no build id, so its file is not known either; link it with --build-id or \
                     --eh-frame-hdr"
                ),
            }
        };
        let of_folder = self.sysroot.as_ref().and_then(Sysroot::warning);
        of_folder.into_iter().chain(self.without_table.iter().map(of_program))
    }

    /// Leaves the address space before. `comm` is what the thread is called whose stack is walked next.
    pub(crate) fn begin(&mut self, comm: Option<&[u8]>) {
        self.comm = comm.map(Untrusted::from);
        let mut space = std::mem::take(&mut self.space);
        if !space.found.is_empty() || !space.absent.is_empty() {
            space.found.truncate(REMEMBERED_LIMIT);
            if self.remembered.len() >= SPACES_LIMIT {
                self.remembered.clear();
            }
            self.remembered.insert(self.root, space);
        }
    }

    /// Enters the user code of the address space with this root. What its last stack was of is known again if it is
    /// still there, so that it need not be searched for.
    pub(crate) fn enter<M: Memory>(&mut self, root: u64, mem: &mut M) {
        (self.root, self.pages_left) = (root, PAGES_LIMIT);
        self.space = self.remembered.remove(&root).unwrap_or_default();
        self.space.walks = self.space.walks.wrapping_add(1);
        if self.space.walks.is_multiple_of(ABSENT_WALKS) {
            self.space.absent.clear();
        }
        self.space.found.retain(|Found { program, .. }| {
            let there = Program::open(program.start(), VirtAddr::new(program.text().start), mem);
            there.is_ok_and(|there| there.as_ref() == Some(program))
        });
    }

    /// A number for the code of a build, the same in all address spaces.
    fn number(&mut self, program: &Program) -> Option<u64> {
        let Range { start, end } = program.text();
        let [start, end] = [start, end].map(|addr| addr.wrapping_sub(program.bias()));
        let build = (*program.build_id()?, start..end);
        let next = self.builds.len();
        match self.builds.get(&build) {
            None if next < BUILDS_LIMIT => {
                let next = u64::try_from(next).ok()?;
                self.builds.insert(build, next);
                Some(next)
            }
            known => known.copied(),
        }
    }

    /// The object that an address is of.
    fn find<M: Memory>(&mut self, addr: u64, mem: &mut M) -> Option<usize> {
        let is_of = |found: &Found| found.program.text().contains(&addr);
        if let Some(known) = self.space.found.iter().position(is_of) {
            return Some(known);
        }
        let absent = &self.space.absent;
        if absent.iter().any(|range| range.contains(&addr))
            || self.space.found.len() >= PROGRAMS_LIMIT
            || self.pages_left == 0
        {
            return None;
        }
        let page = addr & !(PAGE - 1);
        let below = absent.iter().map(|range| range.end).filter(|end| *end <= addr);
        let reach = self.pages_left.min(PROGRAM_PAGES).saturating_sub(1).saturating_mul(PAGE);
        let floor = below.max().unwrap_or(0).max(page.saturating_sub(reach));
        let program = match Program::search(VirtAddr::new(addr), VirtAddr::new(floor), mem) {
            Ok(ProgramSearch::Found(program)) => {
                self.take_pages(program.start().get(), page);
                program
            }
            nothing => {
                self.take_pages(floor, page);
                let from = match nothing {
                    Ok(ProgramSearch::NothingFrom(from)) => from.get(),
                    _ => page,
                };
                self.space.pass_over(from..page.saturating_add(PAGE));
                return None;
            }
        };
        let name = program.name(mem).map(|name| Untrusted::from(name.as_bytes().to_vec()));
        let number = self.number(&program);
        self.space.found.push(Found { program, number, sframe: None, cfi: None, name });
        self.space.found.len().checked_sub(1)
    }

    /// Counts the pages from `lowest` to `page`, which were looked at.
    const fn take_pages(&mut self, lowest: u64, page: u64) {
        let pages = page.saturating_sub(lowest).saturating_div(PAGE).saturating_add(1);
        self.pages_left = self.pages_left.saturating_sub(pages);
    }

    /// What an address of user code is called. `comm` is what its thread is called.
    pub(crate) fn name<M: Memory>(
        &mut self,
        addr: u64,
        comm: Option<&[u8]>,
        mem: &mut M,
    ) -> Option<FoundName> {
        let index = self.find(addr, mem)?;
        let Found { program, name, .. } = self.space.found.get(index)?;
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
                // What was absent may be there later.
                let key = (*build, linked);
                match self.names.get(&key) {
                    Some(known) => Some(known.clone()),
                    None => look_up(mem).inspect(|name| {
                        self.names.insert(key, name.clone());
                    }),
                }
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

impl Space {
    /// Takes note of pages without an object.
    fn pass_over(&mut self, pages: Range<u64>) {
        if let Some(below) = self.absent.iter_mut().find(|range| range.end == pages.start) {
            below.end = pages.end;
        } else if self.absent.len() < ABSENT_LIMIT {
            self.absent.push(pages);
        }
    }
}

impl Found {
    /// Its `.eh_frame`, if it has one.
    fn cfi<M: Memory>(
        &mut self,
        word: WordSize,
        mem: &mut M,
    ) -> Result<Option<RemoteCfi>, ProgramError> {
        if self.cfi.is_none()
            && let Some(header) = self.program.eh_frame_header()
        {
            let abi = match word {
                WordSize::Eight => CfiAbi::X86_64,
                WordSize::Four => CfiAbi::Ia32,
            };
            self.cfi = RemoteCfi::open(mem, abi, header).map_err(ProgramError::Cfi)?;
        }
        Ok(self.cfi)
    }

    fn is_of(&self, word: WordSize) -> bool {
        self.program.is_wide() == (word == WordSize::Eight)
    }
}

impl Programs {
    /// The row of a frame by the tables of its object.
    fn row<A: Arch, M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, ProgramError> {
        let addr = frame.lookup_addr().get();
        let Some(index) = self.find(addr, mem) else { return Ok(None) };
        if !self.space.found.get(index).is_some_and(|found| found.is_of(A::WORD)) {
            return Ok(None);
        }
        let found = self.row_in_memory::<A, M>(index, frame, mem);
        let is_absent = match &found {
            Ok(row) => row.is_none(),
            Err(error) => error.is_not_resident(),
        };
        if !is_absent {
            return found;
        }
        if let Some(row) = self.row_of_file::<A, M>(index, frame, mem) {
            return Ok(Some(row));
        }
        self.note_missing_table(index);
        found
    }

    /// What the object of an address says of the other registers.
    fn register_rules<M: Memory>(
        &mut self,
        addr: u64,
        word: WordSize,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, ProgramError> {
        let is_of = |found: &Found| found.program.text().contains(&addr) && found.is_of(word);
        let Some(index) = self.space.found.iter().position(is_of) else { return Ok(None) };
        let Some(found) = self.space.found.get_mut(index) else { return Ok(None) };
        // The row may have been kept.
        let rules = match found.cfi(word, mem) {
            Ok(Some(cfi)) => {
                let rules = cfi.find_register_rules(mem, addr, &mut self.scratch);
                rules.map_err(ProgramError::Cfi)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match rules {
            Err(error) if !error.is_not_resident() => Err(error),
            Ok(Some(rules)) => Ok(Some(rules)),
            absent => match self.rules_of_file(index, addr, word) {
                Some(rules) => Ok(Some(rules)),
                None => absent,
            },
        }
    }

    /// Takes note of an object that has neither table.
    fn note_missing_table(&mut self, index: usize) {
        let Some(Found { program, name, .. }) = self.space.found.get(index) else { return };
        let has_table = program.sframe().is_some() || program.eh_frame_header().is_some();
        if !has_table && self.without_table.len() < MOST_WITHOUT_TABLE {
            // Only libraries have names of their own.
            let name = name.clone().or_else(|| self.comm.clone());
            let name = name.unwrap_or_else(|| Untrusted::from("a program"));
            self.without_table.insert((name, program.build_id().is_some()));
        }
    }

    /// The row of a frame by the tables that its object has in memory.
    fn row_in_memory<A: Arch, M: Memory>(
        &mut self,
        index: usize,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, ProgramError> {
        let addr = frame.lookup_addr().get();
        let Some(found) = self.space.found.get_mut(index) else { return Ok(None) };
        if let Some((at, len)) = found.program.sframe().filter(|_| A::WORD == WordSize::Eight) {
            let table = match found.sframe.take() {
                Some(table) => table,
                None => RemoteTable::open(mem, at, len).map_err(ProgramError::Sframe)?,
            };
            let row = table.find_row(mem, addr, &mut self.buffer);
            found.sframe = Some(table);
            if let Some(row) = row.map_err(ProgramError::Sframe)? {
                return Ok(Some(row));
            }
        }
        let Some(cfi) = found.cfi(A::WORD, mem)? else { return Ok(None) };
        cfi.find_row_in(frame, mem, &mut self.scratch).map_err(ProgramError::Cfi)
    }

    /// The row of a frame by a file of its object's build: where a program was linked without a table to search in,
    /// or the guest does not have that in memory.
    fn row_of_file<A: Arch, M: Memory>(
        &mut self,
        index: usize,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Option<Row> {
        let program = self.space.found.get(index)?.program;
        let sysroot = self.sysroot.as_mut()?;
        sysroot.row::<A, M>(program.build_id()?.as_bytes(), program.bias(), frame, mem)
    }

    fn rules_of_file(&mut self, index: usize, addr: u64, word: WordSize) -> Option<RegisterRules> {
        let program = self.space.found.get(index)?.program;
        let addr = addr.wrapping_sub(program.bias());
        self.sysroot.as_mut()?.register_rules(program.build_id()?.as_bytes(), addr, word)
    }
}
