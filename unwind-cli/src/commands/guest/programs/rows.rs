//! Rows of user code by the tables of its programs, and what names them between walks.

use std::cell::RefCell;
use std::ops::Range;

use unwind_core::{
    Arch, FrameContext, KeyedRange, Memory, RegisterRules, Row, RowKey, RowKeys, RowSource,
    VirtAddr,
};
use unwind_target::loaded::module::Modules;

use crate::commands::guest::programs::{Found, ProgramError, Programs};

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
        self.programs.borrow_mut().row::<A, M>(frame, mem)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, ProgramError> {
        let addr = frame.lookup_addr().get();
        self.programs.borrow_mut().register_rules(addr, A::WORD, mem)
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
        let found = programs.space.found.iter().find(is_of)?;
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
    use crate::commands::guest::programs::{BUILDS_LIMIT, SPACES_LIMIT};
    use crate::commands::guest::sysroot::Sysroot;

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
        let program = programs.space.found[0].program;
        let id = *program.build_id().unwrap();
        programs.builds = (0..BUILDS_LIMIT)
            .map(|number| ((id, 1..number.try_into().unwrap()), number.try_into().unwrap()))
            .collect();
        assert_eq!((programs.number(&program), programs.builds.len()), (None, BUILDS_LIMIT));
    }
}
