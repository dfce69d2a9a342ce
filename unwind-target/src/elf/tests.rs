//! ELF files that are whole, cut or lying. Only the part that is wrong is lost.
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::fs::File;
use std::io::Write as _;

use object::elf;

use crate::elf::error::{ElfError, Part};
use crate::elf::sframe_section::SframeSection;
use crate::elf::{ElfFile, section_name, shared};
use crate::symbols::Symbols;

const HEADER_LEN: u64 = 64;
const SEGMENTS_AT: u64 = HEADER_LEN;
const NOTE_AT: u64 = 0x100;
const SFRAME_AT: u64 = 0x120;
const SYMBOLS_AT: u64 = 0x140;
const STRINGS_AT: u64 = 0x180;
const NAMES_AT: u64 = 0x190;
const SECTIONS_AT: u64 = 0x1c0;
const LEN: u64 = SECTIONS_AT + 6 * 64;

/// Where a program header or a section header has a field.
const P_OFFSET: u64 = 8;
const P_FILE_SIZE: u64 = 32;
const SH_OFFSET: u64 = 24;
const SH_TYPE: u64 = 4;
const SH_SIZE: u64 = 32;
const SH_LINK: u64 = 40;
const SH_ENTRY_SIZE: u64 = 56;

/// Bytes that are laid out one field a call.
struct Bytes(Vec<u8>);

impl Bytes {
    fn half(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    /// Fills up with zeroes to an offset.
    fn to(&mut self, at: u64) -> &mut Self {
        let at = usize::try_from(at).unwrap();
        assert!(self.0.len() <= at);
        self.0.resize(at, 0);
        self
    }

    fn segment(&mut self, kind: u32, flags: u32, offset: u64, addr: u64, size: u64) -> &mut Self {
        self.word(kind).word(flags).long(offset).long(addr).long(addr);
        self.long(size).long(size).long(4)
    }

    #[expect(clippy::too_many_arguments, reason = "a section header")]
    fn section(
        &mut self,
        name: u32,
        kind: u32,
        flags: u64,
        addr: u64,
        offset: u64,
        size: u64,
        link: u32,
        entry_size: u64,
    ) -> &mut Self {
        self.word(name).word(kind).long(flags).long(addr).long(offset).long(size);
        self.word(link).word(0).long(1).long(entry_size)
    }
}

/// A program with code at 0x1000, a function `alpha` of 0x20 bytes in it, a
/// build id and a `.sframe` of four bytes.
fn program() -> Vec<u8> {
    let mut file = Bytes(Vec::new());
    // ELF header: 64-bit, little-endian, version 1; ET_EXEC, x86-64.
    file.text(b"\x7fELF\x02\x01\x01").to(16).half(2).half(62).word(1);
    file.long(0x1000).long(SEGMENTS_AT).long(SECTIONS_AT).word(0);
    file.half(64).half(56).half(3).half(64).half(6).half(5);
    file.segment(1, 5, 0, 0x1000, LEN);
    file.segment(4, 4, NOTE_AT, 0x1000 + NOTE_AT, 20);
    file.segment(0x6474_e554, 4, SFRAME_AT, 0x1000 + SFRAME_AT, 4);
    file.to(NOTE_AT).word(4).word(4).word(3).text(b"GNU\0").text(&[0xaa, 0xbb, 0xcc, 0xdd]);
    file.to(SFRAME_AT).text(&[1, 2, 3, 4]);
    // Symbols: none, and a global function in section 1.
    file.to(SYMBOLS_AT).to(SYMBOLS_AT + 24);
    file.word(1).text(&[0x12, 0]).half(1).long(0x1010).long(0x20);
    file.to(STRINGS_AT).text(b"\0alpha\0");
    file.to(NAMES_AT).text(b"\0.text\0.sframe\0.symtab\0.strtab\0.shstrtab\0");
    file.to(SECTIONS_AT);
    file.section(0, 0, 0, 0, 0, 0, 0, 0);
    file.section(1, 1, 6, 0x1000, 0, 0x100, 0, 0);
    file.section(7, 1, 2, 0x1000 + SFRAME_AT, SFRAME_AT, 4, 0, 0);
    file.section(15, 2, 0, 0, SYMBOLS_AT, 48, 4, 24);
    file.section(23, 3, 0, 0, STRINGS_AT, 7, 0, 0);
    file.section(31, 3, 0, 0, NAMES_AT, 41, 0, 0);
    file.to(LEN);
    file.0
}

/// The program with some bytes at an offset replaced.
fn program_with(at: u64, bytes: &[u8]) -> ElfFile {
    let mut file = program();
    let at = usize::try_from(at).unwrap();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    ElfFile::from_bytes(file).unwrap()
}

fn section_field(section: u64, field: u64) -> u64 {
    SECTIONS_AT + section * 64 + field
}

fn sframe() -> SframeSection {
    SframeSection::new(0x1000 + SFRAME_AT, vec![1, 2, 3, 4])
}

fn function_at(file: &ElfFile, addr: u64) -> Result<Option<String>, ElfError> {
    Ok(Symbols::read(file)?.find(file, addr).map(|function| function.name.to_string()))
}

/// Asks for everything that a file may have.
fn read_all(file: &ElfFile) {
    let _ = (file.sections(), file.sframe(), file.build_id(), file.bias(0x1000, 0));
    let _ = function_at(file, 0x1018);
}

#[test]
fn a_whole_file_gives_all_its_parts() {
    let file = ElfFile::from_bytes(program()).unwrap();
    assert_eq!((file.is_64, file.kind, file.machine), (true, elf::ET_EXEC, elf::EM_X86_64));
    assert_eq!((file.entry, file.segments.len()), (0x1000, 3));
    assert_eq!(file.sframe(), Ok(Some(sframe())));
    assert_eq!(file.build_id(), Some(vec![0xaa, 0xbb, 0xcc, 0xdd]));
    assert_eq!(function_at(&file, 0x1010), Ok(Some("alpha".into())));
    assert_eq!(function_at(&file, 0x102f), Ok(Some("alpha".into())));
    assert_eq!(function_at(&file, 0x1030), Ok(None));
    // Code of the first page, mapped 0x55000 higher than linked.
    assert_eq!(file.bias(0x56000, 0), Some(0x55000));
    assert_eq!(file.bias(0x56000, LEN), None);
}

#[test]
fn a_file_that_is_cut_anywhere_gives_its_front_or_an_error() {
    let whole = program();
    for len in 0..whole.len() {
        match ElfFile::from_bytes(whole[..len].to_vec()) {
            Err(ElfError::NotElf) => assert!(len < 16, "{len}"),
            Err(ElfError::Truncated { end, .. }) => assert_eq!(usize::try_from(end), Ok(len)),
            Err(other) => panic!("{len}: {other}"),
            Ok(file) => {
                read_all(&file);
                assert!(file.sections().is_err(), "{len}: the table is at the end");
                // The program headers lead to what the sections do not.
                let has_sframe = len >= usize::try_from(SFRAME_AT + 4).unwrap();
                assert_eq!(file.sframe().is_ok(), has_sframe, "{len}");
            }
        }
    }
}

#[test]
fn any_byte_may_be_wrong() {
    let whole = program();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            if let Ok(file) = ElfFile::from_bytes(bytes) {
                read_all(&file);
            }
        }
    }
}

#[test]
fn a_section_table_outside_the_file_costs_the_symbols_alone() {
    // e_shoff
    let file = program_with(40, &0x7fff_ffff_ffff_fff0_u64.to_le_bytes());
    let outside = |error: Result<_, ElfError>| {
        matches!(error, Err(ElfError::Truncated { part: Part::SectionHeaders, .. }))
    };
    assert!(outside(file.sections().map(drop)));
    assert!(outside(function_at(&file, 0x1010).map(drop)));
    assert_eq!(file.sframe(), Ok(Some(sframe())));
    assert!(file.build_id().is_some());
}

#[test]
fn sizes_and_offsets_that_lie_are_named() {
    let truncated = |part, at, len| ElfError::Truncated { part, at, len, end: LEN };
    // .sframe lies, and so does the program header.
    let mut bytes = program();
    for at in [section_field(2, SH_SIZE), SEGMENTS_AT + 2 * 56 + P_FILE_SIZE] {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    }
    let file = ElfFile::from_bytes(bytes).unwrap();
    assert_eq!(file.sframe(), Err(truncated(Part::Sframe, SFRAME_AT, 1 << 40)));

    let file = program_with(section_field(3, SH_OFFSET), &u64::MAX.to_le_bytes());
    assert_eq!(function_at(&file, 0x1010), Err(truncated(Part::Symbols, u64::MAX, 48)));

    let file = program_with(section_field(5, SH_SIZE), &0xffff_u64.to_le_bytes());
    assert_eq!(file.sections(), Err(truncated(Part::SectionNames, NAMES_AT, 0xffff)));

    let file = program_with(SEGMENTS_AT + 56 + P_OFFSET, &u64::MAX.to_le_bytes());
    assert_eq!(file.build_id(), None);
}

#[test]
fn indices_and_entry_sizes_that_lie_are_named() {
    let file = program_with(section_field(3, SH_LINK), &9_u32.to_le_bytes());
    let missing = ElfError::NoSuchSection { part: Part::SymbolNames, index: 9 };
    assert_eq!(function_at(&file, 0x1010), Err(missing));

    let file = program_with(section_field(3, SH_ENTRY_SIZE), &1_u64.to_le_bytes());
    let size = ElfError::EntrySize { part: Part::Symbols, size: 1 };
    assert_eq!(function_at(&file, 0x1010), Err(size));

    // e_shstrndx, e_shentsize
    let file = program_with(62, &7_u16.to_le_bytes());
    let missing = ElfError::NoSuchSection { part: Part::SectionNames, index: 7 };
    assert_eq!(file.sections(), Err(missing));
    let file = program_with(58, &63_u16.to_le_bytes());
    let size = ElfError::EntrySize { part: Part::SectionHeaders, size: 63 };
    assert_eq!(file.sections(), Err(size));
}

#[test]
fn a_huge_file_makes_nothing_huge_be_copied() {
    let path = std::env::temp_dir().join(format!("unwind-huge-{}", std::process::id()));
    let mut file = File::create_new(&path).unwrap();
    let mut bytes = program();
    let at = usize::try_from(section_field(2, SH_SIZE)).unwrap();
    bytes[at..at + 8].copy_from_slice(&(1_u64 << 39).to_le_bytes());
    file.write_all(&bytes).unwrap();
    // Takes no room: all but the front is a hole.
    file.set_len(1 << 40).unwrap();
    let file = ElfFile::from_file(File::open(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let too_large = ElfError::TooLarge { part: Part::Sframe, len: 1 << 39 };
    assert_eq!(file.sections().unwrap()[2].size, 1 << 39);
    let section = file.sections().unwrap()[2].clone();
    assert_eq!(file.section_bytes(Part::Sframe, &section), Err(too_large));
}

#[test]
fn counts_that_do_not_fit_their_fields_are_in_the_first_section_header() {
    let mut bytes = program();
    let mut put = |at: u64, value: &[u8]| {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    put(56, &0xffff_u16.to_le_bytes()); // e_phnum
    put(60, &0_u16.to_le_bytes()); // e_shnum
    put(62, &0xffff_u16.to_le_bytes()); // e_shstrndx
    put(section_field(0, SH_SIZE), &6_u64.to_le_bytes());
    put(section_field(0, SH_LINK), &5_u32.to_le_bytes());
    put(section_field(0, SH_LINK + 4), &3_u32.to_le_bytes()); // sh_info
    let file = ElfFile::from_bytes(bytes).unwrap();
    assert_eq!(file.segments.len(), 3);
    assert_eq!(function_at(&file, 0x1010), Ok(Some("alpha".into())));
}

#[test]
fn a_zero_byte_sframe_section_is_none() {
    let mut bytes = program();
    for at in [section_field(2, SH_SIZE), SEGMENTS_AT + 2 * 56 + P_FILE_SIZE] {
        let at = usize::try_from(at).unwrap();
        bytes[at..at + 8].fill(0);
    }
    assert_eq!(ElfFile::from_bytes(bytes).unwrap().sframe(), Ok(None));
}

#[test]
fn a_section_of_the_type_is_one_whatever_its_name() {
    let mut bytes = program();
    // No program header leads to it.
    let at = usize::try_from(SEGMENTS_AT + 2 * 56).unwrap();
    bytes[at..at + 4].fill(0);
    let at = usize::try_from(NAMES_AT).unwrap();
    bytes[at + 8] = b'S';
    assert_eq!(ElfFile::from_bytes(bytes.clone()).unwrap().sframe(), Ok(None));
    let at = usize::try_from(section_field(2, SH_TYPE)).unwrap();
    bytes[at..at + 4].copy_from_slice(&0x6fff_fff4_u32.to_le_bytes());
    let found = ElfFile::from_bytes(bytes).unwrap().sframe();
    assert_eq!(found, Ok(Some(SframeSection { name: ".Sframe".into(), ..sframe() })));
}

#[test]
fn c3_a_name_of_a_section_is_read_up_to_a_limit() {
    let names =
        [b"\0", "x".repeat(300).as_bytes(), b"\0", "y".repeat(255).as_bytes(), b"\0"].concat();
    let long = section_name(&names, 1);
    assert_eq!(long, ["x".repeat(255), "…".into()].concat().into_bytes());
    assert_eq!(section_name(&names, 302), "y".repeat(255).into_bytes());
    assert_eq!(section_name(&names, 0), b"");
    assert_eq!(section_name(b"\0unfinished", 1), b"");
    assert_eq!(section_name(b"\0", 7), b"");
}

#[test]
fn c4_ranges_that_share_bytes_are_found_in_any_order() {
    let found = |ranges: &[(u64, u64)]| shared(ranges.iter().copied());
    assert_eq!(found(&[(10, 10), (20, 5), (0, 10)]), [false, false, false]);
    assert_eq!(found(&[(10, 10), (19, 5), (0, 11)]), [true, true, false]);
    assert_eq!(found(&[(10, 10), (10, 10), (12, 0)]), [false, true, false]);
    assert_eq!(found(&[(0, u64::MAX), (5, 1), (u64::MAX, 9)]), [false, true, false]);
    assert_eq!(found(&[]), [false; 0]);
}
