//! The programs and libraries of user code, found in the guest's memory.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;

use sframe::{RemoteBuffer, RemoteError, RemoteTable};
use unwind_cfi::{CfiAbi, CfiScratch, RemoteCfi, RemoteCfiError};
use unwind_core::{
    Arch, FrameContext, KeyedRange, Memory, RegisterRules, Row, RowKey, RowKeys, RowSource,
    TableError, VirtAddr, WordSize,
};
use unwind_guest::linux::{BuildId, Program};
use unwind_target::Untrusted;
use unwind_target::loaded::module::Modules;

use crate::commands::guest::linux::FoundName;
use crate::commands::guest::sysroot::Sysroot;

/// The most programs and libraries that one stack is of, and the most addresses of which names are kept.
const PROGRAMS_LIMIT: usize = 1 << 10;
const NAMES_LIMIT: usize = 1 << 16;

/// The most address spaces of which it is remembered what the last stack was of, and the most objects of each.
const SPACES_LIMIT: usize = 1 << 8;
const REMEMBERED_LIMIT: usize = 1 << 6;

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
    space: u64,
    found: Vec<Found>,
    /// What the last stack of each address space was of.
    remembered: HashMap<u64, Vec<Found>>,
    /// The code of objects by its build, in the order in which it was met.
    builds: HashMap<(BuildId, Range<u64>), u64>,
    /// Where there are none.
    absent: Vec<u64>,
    /// What the thread is called whose stack is walked.
    comm: Option<Untrusted>,
    /// Some that have no table, neither in memory nor in a file, and whether they have a build id.
    without_table: BTreeSet<(Untrusted, bool)>,
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
        let mut found = std::mem::take(&mut self.found);
        if !found.is_empty() {
            found.truncate(REMEMBERED_LIMIT);
            if self.remembered.len() >= SPACES_LIMIT {
                self.remembered.clear();
            }
            self.remembered.insert(self.space, found);
        }
        self.absent.clear();
    }

    /// Enters the user code of the address space with this root. What its last stack was of is known again if it is
    /// still there, so that it need not be searched for.
    pub(crate) fn enter<M: Memory>(&mut self, root: u64, mem: &mut M) {
        self.space = root;
        self.found = self.remembered.remove(&root).unwrap_or_default();
        self.found.retain(|Found { program, .. }| {
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
        let number = self.number(&program);
        self.found.push(Found { program, number, sframe: None, cfi: None, name });
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

/// Rows of objects in memory, of code that no file is given for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramRows<'p> {
    pub(crate) programs: &'p RefCell<Programs>,
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
        let programs = &mut *self.programs.borrow_mut();
        let Some(index) = programs.find(addr, mem) else { return Ok(None) };
        if !programs.found.get(index).is_some_and(|found| found.is_of(A::WORD)) {
            return Ok(None);
        }
        let found = programs.row_in_memory::<A, M>(index, frame, mem);
        let is_absent = match &found {
            Ok(row) => row.is_none(),
            Err(error) => error.is_not_resident(),
        };
        if !is_absent {
            return found;
        }
        if let Some(row) = programs.row_of_file::<A, M>(index, frame, mem) {
            return Ok(Some(row));
        }
        programs.note_missing_table(index);
        found
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, ProgramError> {
        let addr = frame.lookup_addr().get();
        let programs = &mut *self.programs.borrow_mut();
        let is_of = |found: &Found| found.program.text().contains(&addr) && found.is_of(A::WORD);
        let Some(index) = programs.found.iter().position(is_of) else { return Ok(None) };
        let Some(found) = programs.found.get_mut(index) else { return Ok(None) };
        // The row may have been kept.
        let rules = match found.cfi(A::WORD, mem) {
            Ok(Some(cfi)) => {
                let rules = cfi.find_register_rules(mem, addr, &mut programs.scratch);
                rules.map_err(ProgramError::Cfi)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        match rules {
            Err(error) if !error.is_not_resident() => Err(error),
            Ok(Some(rules)) => Ok(Some(rules)),
            absent => match programs.rules_of_file(index, addr, A::WORD) {
                Some(rules) => Ok(Some(rules)),
                None => absent,
            },
        }
    }
}

impl Programs {
    /// Takes note of an object that has neither table.
    fn note_missing_table(&mut self, index: usize) {
        let Some(Found { program, name, .. }) = self.found.get(index) else { return };
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
        let Some(found) = self.found.get_mut(index) else { return Ok(None) };
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
        let program = self.found.get(index)?.program;
        let sysroot = self.sysroot.as_mut()?;
        sysroot.row::<A, M>(program.build_id()?.as_bytes(), program.bias(), frame, mem)
    }

    fn rules_of_file(&mut self, index: usize, addr: u64, word: WordSize) -> Option<RegisterRules> {
        let program = self.found.get(index)?.program;
        let addr = addr.wrapping_sub(program.bias());
        self.sysroot.as_mut()?.register_rules(program.build_id()?.as_bytes(), addr, word)
    }
}

/// What names rows of 64-bit code in all address spaces: a file by its place, since each that is given stands for all
/// of them, and an object in memory by its build id. Who forges that of another program has its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramKeys<'p>(pub(crate) ProgramRows<'p>);

/// Files have the numbers before these.
const BUILDS: u64 = 1 << 20;

impl RowKeys for ProgramKeys<'_> {
    /// What the walk has not met yet has no key: it is known after its first row.
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let Self(ProgramRows { programs, files }) = self;
        let keyed = |text: &Range<u64>, table| {
            let text = VirtAddr::new(text.start)..VirtAddr::new(text.end);
            Some(KeyedRange { text, key: RowKey { table, offset: 0 } })
        };
        if let Some((number, text)) = files.piece(addr.get()) {
            return keyed(text, u64::try_from(number).ok().filter(|number| *number < BUILDS)?);
        }
        let programs = programs.borrow();
        let is_of = |found: &&Found| found.program.text().contains(&addr.get());
        let found = programs.found.iter().find(is_of)?;
        let text = found.program.text();
        // A file that has a part of it has the rows of that part.
        if files.has_code_in(text.clone()) {
            return None;
        }
        keyed(&text, BUILDS.saturating_add(found.number?))
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use testdata::{
        CfiBuilder, Cie, ElfBuilder, ElfSection, ElfSegment, Function, Row, TableBuilder, note,
    };
    use unwind_core::{ReadError, RowCache, SliceMemory, Walker};
    use unwind_x86::{X86_64, X86_64Regs};

    use super::*;

    /// Where its code is in a program, and where programs and the stack are in address spaces.
    const CODE: u64 = 0x800;
    const LOW: u64 = 0x40_0000;
    const HIGH: u64 = 0x7f00_1234_5000;
    const STACK: u64 = 0x7fff_0000_0000;

    /// What is mapped in an address space: a program, and its stack.
    struct Space {
        at: u64,
        program: Vec<u8>,
        stack: Vec<u8>,
    }

    impl Space {
        /// Of a program whose function has frames of `cfa` bytes by its SFrame table; three frames of it.
        fn new(at: u64, build_id: Option<&[u8]>, cfa: i32) -> Self {
            Self::with_table(at, build_id, cfa, true)
        }

        fn with_table(at: u64, build_id: Option<&[u8]>, cfa: i32, has_table: bool) -> Self {
            let mut file = ElfBuilder::new(ElfBuilder::EXECUTABLE);
            let segment = |file: &mut ElfBuilder, kind, bytes: &[u8]| {
                let addr = file.put(bytes);
                let memory_size = bytes.len().try_into().unwrap();
                file.segments.push(ElfSegment { kind, addr, memory_size, ..Default::default() });
                addr
            };
            if let Some(id) = build_id {
                segment(&mut file, 4, &note(b"GNU", 3, id));
            }
            let rows = vec![Row::sp(0, &[cfa])];
            let table = |at: u64| {
                let start = i64::try_from(CODE).unwrap() - i64::try_from(at).unwrap();
                TableBuilder::amd64(2).function(Function::new(start, 0x100, rows.clone())).build()
            };
            let at_of_table = file.clone().put(&[]);
            if has_table {
                segment(&mut file, 0x6474_e554, &table(at_of_table));
            }
            let code = ElfSegment { kind: 1, flags: 5, memory_size: 0x1000, ..Default::default() };
            file.segments.push(code);
            let mut program = file.finish();
            assert!(program.len() < usize::try_from(CODE).unwrap());
            program.resize(0x1000, 0xcc);
            let mut stack = vec![0; 0x200];
            let word = usize::try_from(cfa).unwrap() - 8;
            stack[word..word + 8].copy_from_slice(&(at + CODE + 0x20).to_le_bytes());
            let word = word + usize::try_from(cfa).unwrap();
            stack[word..word + 8].copy_from_slice(&(at + CODE + 0x30).to_le_bytes());
            Self { at, program, stack }
        }
    }

    impl Memory for &Space {
        fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            let of = |at, bytes| SliceMemory::new(VirtAddr::new(at), bytes);
            let program = of(self.at, &self.program).read(addr, buf);
            program.or_else(|_| of(STACK, &self.stack).read(addr, buf))
        }
    }

    /// What is kept between walks.
    struct Kept {
        programs: RefCell<Programs>,
        rows: RowCache<64>,
    }

    impl Kept {
        fn new() -> Self {
            Self { programs: RefCell::default(), rows: RowCache::new() }
        }

        /// Walks the stack of an address space with this root: how far its frames are in the code, and how many rows
        /// were looked up.
        fn walk(&mut self, root: u64, space: &Space) -> (Vec<u64>, u64) {
            let before = self.rows.stats().misses;
            let mut memory = space;
            self.programs.get_mut().begin(Some(b"comm"));
            self.programs.get_mut().enter(root, &mut memory);
            let files = Modules::default();
            let rows = ProgramRows { programs: &self.programs, files: &files };
            let walker = Walker::new(X86_64::FOUR_LEVEL, rows);
            let mut walker = walker.cache_by_key(&mut self.rows, ProgramKeys(rows));
            let code = space.at + CODE;
            let frames = walker.frames(X86_64Regs::new(code + 0x10, STACK, 0), &mut memory);
            let pcs = frames.map(|frame| frame.pc.addr().get() - code).collect();
            (pcs, self.rows.stats().misses - before)
        }
    }

    /// A file of this build, with `.eh_frame` that says the same of its function.
    fn file_of(build_id: &[u8], cfa: u8) -> Vec<u8> {
        let mut file = ElfBuilder::new(ElfBuilder::EXECUTABLE);
        let id = note(b"GNU", 3, build_id);
        let addr = file.put(&id);
        let size = id.len().try_into().unwrap();
        let file_size = size;
        let note = ElfSegment {
            kind: 4,
            offset: addr,
            addr,
            file_size,
            memory_size: size,
            ..Default::default()
        };
        file.segments = vec![
            ElfSegment {
                kind: 1,
                flags: 5,
                file_size: 0x1000,
                memory_size: 0x1000,
                ..Default::default()
            },
            note,
        ];
        let name = b"\0.eh_frame\0";
        let names = file.put(name);
        let addr = file.put(&[]);
        let mut cfi = CfiBuilder::eh_frame(addr);
        let cie = cfi.cie(&Cie::amd64());
        // DW_CFA_def_cfa_offset.
        cfi.fde(cie, CODE, 0x100, &[0x0e, cfa]);
        let offset = file.put(cfi.build());
        let size = cfi.build().len().try_into().unwrap();
        file.section(ElfSection {
            name: 1,
            kind: 1,
            flags: 2,
            addr,
            offset,
            size,
            ..Default::default()
        });
        let size = name.len().try_into().unwrap();
        file.names =
            file.section(ElfSection { kind: 3, offset: names, size, ..Default::default() });
        let mut bytes = file.finish();
        bytes.resize(0x1000, 0xcc);
        bytes
    }

    #[test]
    fn a_file_of_its_build_has_the_rows_that_a_program_lacks_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("program"), file_of(b"built", 24)).unwrap();
        let mut kept = Kept::new();
        kept.programs.get_mut().use_sysroot(Sysroot::read(folder.path()).unwrap());
        for (id, wanted) in [(b"built", frames()), (b"other", vec![0x10])] {
            let space = Space::with_table(HIGH, Some(id), 24, false);
            assert_eq!(kept.walk(0x1000, &space).0, wanted);
        }
        let of_memory = Space::new(HIGH, Some(b"built"), 40);
        assert_eq!(Kept::new().walk(0x1000, &of_memory).0, frames(), "its own table");
        let told: Vec<String> = kept.programs.get_mut().warnings().collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("comm has no table") && told[0].contains("--sysroot"),
            "{told:?}"
        );
        let unnamed = Space::with_table(HIGH, None, 24, false);
        assert_eq!(kept.walk(0x1000, &unnamed).0, [0x10]);
        let told: Vec<String> = kept.programs.get_mut().warnings().collect();
        assert!(told.iter().any(|line| line.contains("no build id")), "{told:?}");
    }

    fn frames() -> Vec<u64> {
        vec![0x10, 0x20, 0x30]
    }

    #[test]
    fn rows_of_a_build_are_kept_for_all_address_spaces_that_have_it() {
        let (low, high) = (Space::new(LOW, Some(b"one"), 24), Space::new(HIGH, Some(b"one"), 24));
        let mut kept = Kept::new();
        assert_eq!(kept.walk(0x1000, &low), (frames(), 3));
        assert_eq!(kept.walk(0x1000, &low), (frames(), 0));
        // Only the first row tells what there is.
        assert_eq!(kept.walk(0x2000, &high), (frames(), 1));
        assert_eq!(
            [kept.walk(0x2000, &high), kept.walk(0x1000, &low)],
            [(frames(), 0), (frames(), 0)]
        );
    }

    #[test]
    fn another_build_has_rows_of_its_own_wherever_it_is() {
        let mut kept = Kept::new();
        let one = Space::new(LOW, Some(b"one"), 24);
        assert_eq!(kept.walk(0x1000, &one), (frames(), 3));
        // In another address space, and in the same one, in which a program was executed.
        for root in [0x2000, 0x1000] {
            let other = Space::new(LOW, Some(b"two"), 40);
            let (pcs, _) = kept.walk(root, &other);
            assert_eq!(pcs, frames(), "{root:#x}");
        }
        assert_eq!(kept.walk(0x1000, &one).0, frames());
    }

    #[test]
    fn rows_of_an_object_without_a_build_id_are_looked_up_each_time() {
        let mut kept = Kept::new();
        for cfa in [24, 24, 40] {
            let unnamed = Space::new(LOW, None, cfa);
            assert_eq!(kept.walk(0x1000, &unnamed), (frames(), 3));
        }
    }

    #[test]
    fn what_is_remembered_of_address_spaces_and_builds_is_bounded() {
        let mut kept = Kept::new();
        for number in 0..SPACES_LIMIT + 3 {
            let root = u64::try_from(number).unwrap() << 12;
            let space = Space::new(LOW, Some(&root.to_le_bytes()), 24);
            assert_eq!(kept.walk(root, &space).0, frames());
            let programs = kept.programs.get_mut();
            assert!(programs.remembered.len() <= SPACES_LIMIT);
        }
        let programs = kept.programs.get_mut();
        assert_eq!(programs.builds.len(), SPACES_LIMIT + 3);
        let program = programs.found[0].program;
        let id = *program.build_id().unwrap();
        programs.builds = (0..BUILDS_LIMIT)
            .map(|number| ((id, 1..number.try_into().unwrap()), number.try_into().unwrap()))
            .collect();
        assert_eq!((programs.number(&program), programs.builds.len()), (None, BUILDS_LIMIT));
    }
}
