//! Damaged, changing and absent call frame information: an answer or an error, in bounded
//! work.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use proptest::{collection::vec, prelude::*};
use testdata::{CfiBuilder, Cie};
use unwind_cfi::{
    CfiAbi, CfiError, CfiScratch, CfiSection, CfiTable, Entries, IndexEntry, MAX_INSTRUCTIONS,
    RemoteCfi, RemoteCfiError, TooFewSlots, index, work_counter,
};
use unwind_core::{CfaRule, Memory, ReadError, RegRule, Row, TableError, VirtAddr};

const FRAME: u64 = 0x10_0000;
const HEADER: u64 = 0xf_0000;
const CODE: u64 = 0x1000;

const ADVANCE4: u8 = 0x44;
const DEF_CFA_OFFSET: u8 = 0x0e;
const REMEMBER: u8 = 0x0a;

/// `.eh_frame_hdr` with these starts of code and offsets of FDEs.
fn header(entries: &[(u64, u64)]) -> Vec<u8> {
    let relative = |addr: u64, from: u64| {
        i32::try_from(addr.wrapping_sub(from).cast_signed()).unwrap().to_le_bytes()
    };
    let mut bytes = vec![1, 0x1b, 3, 0x3b];
    bytes.extend(relative(FRAME, HEADER + 4));
    bytes.extend(u32::try_from(entries.len()).unwrap().to_le_bytes());
    for &(start, at) in entries {
        bytes.extend(relative(start, HEADER));
        bytes.extend(relative(FRAME + at, HEADER));
    }
    bytes
}

/// A section of functions of 0x100 bytes with these instructions, and its header.
fn object(functions: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let mut builder = CfiBuilder::eh_frame(FRAME);
    let cie = builder.cie(&Cie::amd64());
    let mut entries = Vec::new();
    for (index, instructions) in functions.iter().enumerate() {
        let start = CODE + 0x100 * u64::try_from(index).unwrap();
        entries.push((start, builder.fde(cie, start, 0x100, instructions)));
    }
    (builder.build().to_vec(), header(&entries))
}

fn table<'a>(frame: &'a [u8], header: &'a [u8]) -> Result<Option<CfiTable<'a>>, CfiError> {
    CfiTable::with_search_table(CfiSection::eh_frame(frame, FRAME), CfiAbi::X86_64, header, HEADER)
}

/// Memory that counts what is read, and may lie.
struct Target<'a> {
    parts: [(u64, &'a [u8]); 2],
    reads: u64,
    longest: usize,
    /// Added to a byte of each read, if not 0.
    noise: u8,
    /// From this address on nothing is resident.
    absent: u64,
}

impl<'a> Target<'a> {
    fn new(frame: &'a [u8], header: &'a [u8]) -> Self {
        let parts = [(FRAME, frame), (HEADER, header)];
        Self { parts, reads: 0, longest: 0, noise: 0, absent: u64::MAX }
    }
}

impl Memory for Target<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        self.longest = self.longest.max(buf.len());
        if addr.get() >= self.absent {
            return Err(ReadError::NotResident);
        }
        let bytes = self.parts.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(addr.get().checked_sub(*start)?).ok()?;
            bytes.get(at..)?.get(..buf.len())
        });
        buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
        if self.noise != 0 && !buf.is_empty() {
            let at = usize::try_from(self.reads * 7).unwrap() % buf.len();
            buf[at] = buf[at].wrapping_add(self.noise);
            self.noise = self.noise.wrapping_mul(5).wrapping_add(2);
        }
        Ok(())
    }
}

fn row_with_cfa(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue)
        .with_origin(unwind_core::Origin::CallFrames)
}

#[test]
fn a_row_is_found_by_the_search_table_by_an_index_among_all_entries_and_in_parts() {
    let (frame, header) =
        object(&[vec![ADVANCE4, DEF_CFA_OFFSET, 16], vec![ADVANCE4, DEF_CFA_OFFSET, 32]]);
    let by_table = table(&frame, &header).unwrap().unwrap();
    let section = CfiSection::eh_frame(&frame, FRAME);
    let mut slots = [IndexEntry::default(); 2];
    let entries = Entries::new(section, CfiAbi::X86_64);
    assert_eq!(index(entries, &mut []), Err(TooFewSlots { needed: 2 }));
    let by_index =
        CfiTable::with_index(section, CfiAbi::X86_64, index(entries, &mut slots).unwrap());
    let mut target = Target::new(&frame, &header);
    let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
    let mut scratch = CfiScratch::new();
    for (pc, row) in [
        (CODE - 1, None),
        (CODE, Some(row_with_cfa(8))),
        (CODE + 3, Some(row_with_cfa(8))),
        (CODE + 4, Some(row_with_cfa(16))),
        (CODE + 0xff, Some(row_with_cfa(16))),
        (CODE + 0x100, Some(row_with_cfa(8))),
        (CODE + 0x1ff, Some(row_with_cfa(32))),
        (CODE + 0x200, None),
    ] {
        assert_eq!(by_table.find_row(pc), Ok(row), "{pc:#x}");
        assert_eq!(by_index.find_row(pc), Ok(row), "{pc:#x}");
        let entry = IndexEntry::find(entries, pc);
        let by_entry = CfiTable::with_index(section, CfiAbi::X86_64, entry.as_slice());
        assert_eq!(by_entry.find_row(pc), Ok(row), "{pc:#x}");
        assert_eq!(remote.find_row(&mut target, pc, &mut scratch), Ok(row), "{pc:#x}");
        let bias = 0x5555_0000_0000;
        assert_eq!(by_table.bias(bias).find_row(pc + bias), Ok(row), "{pc:#x}");
        assert_eq!(remote.bias(bias).find_row(&mut target, pc + bias, &mut scratch), Ok(row));
    }
}

/// What is found of an address, by the search table in a slice and in parts, and after how many
/// reads of the latter.
fn rows_of(frame: &[u8], header: &[u8], addr: u64) -> (Result<Option<Row>, CfiError>, u64) {
    let found = table(frame, header).unwrap().unwrap().find_row(addr);
    let mut target = Target::new(frame, header);
    let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
    target.reads = 0;
    let in_parts = remote.find_row(&mut target, addr, &mut CfiScratch::new());
    assert_eq!(in_parts, found.map_err(RemoteCfiError::Cfi));
    (found, target.reads)
}

#[test]
fn fdes_about_no_code_do_not_hide_the_one_after_them() {
    for (empty, is_found) in [(1, true), (20, true), (64, true), (65, false), (1000, false)] {
        let mut builder = CfiBuilder::eh_frame(FRAME);
        let cie = builder.cie(&Cie::amd64());
        let first = builder.fde(cie, CODE, 0, &[]);
        for _ in 1..empty {
            builder.fde(cie, CODE, 0, &[]);
        }
        builder.fde(cie, CODE, 0x10, &[DEF_CFA_OFFSET, 48]);
        let (frame, header) = (builder.build(), header(&[(CODE, first)]));
        let (found, reads) = rows_of(frame, &header, CODE + 5);
        assert_eq!(found, Ok(is_found.then(|| row_with_cfa(48))), "{empty}");
        assert!(reads <= 1 + 4 * 65, "{reads}");
        assert_eq!(rows_of(frame, &header, CODE + 0x10).0, Ok(None));
        let found = table(frame, &header).unwrap().unwrap().find_exception_data(CODE + 5);
        assert!(found.is_ok());
    }
}

#[test]
fn after_fdes_about_no_code_a_cie_and_the_end_are_about_no_code_either() {
    for has_cie in [true, false] {
        let mut builder = CfiBuilder::eh_frame(FRAME);
        let cie = builder.cie(&Cie::amd64());
        let first = builder.fde(cie, CODE, 0, &[]);
        if has_cie {
            builder.cie(&Cie::amd64());
        }
        let mut frame = builder.build().to_vec();
        frame.extend([0; 4]);
        let header = header(&[(CODE, first)]);
        assert_eq!(rows_of(&frame, &header, CODE).0, Ok(None));
        // The search table has to name an FDE.
        let header = self::header(&[(CODE, 0)]);
        assert_eq!(rows_of(&frame, &header, CODE).0, Err(CfiError::NotFde { at: 0 }));
    }
}

#[test]
fn a_search_table_that_cannot_be_used_is_an_error_or_none() {
    let (frame, good) = object(&[vec![]]);
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(table(&frame, &changed(0, 2)).unwrap_err(), CfiError::SearchTableVersion(2));
    assert_eq!(table(&frame, &changed(8, 2)).unwrap_err(), CfiError::SearchTableTruncated);
    assert_eq!(table(&frame, &good[..11]).unwrap_err(), CfiError::SearchTableTruncated);
    // No entries, an encoding that no linker writes, another section.
    for bytes in [changed(3, 0xff), changed(1, 0x03), changed(4, 0)] {
        assert!(table(&frame, &bytes).unwrap().is_none());
    }
    let outside = header(&[(CODE, 0x8000)]);
    let found = table(&frame, &outside).unwrap().unwrap().find_row(CODE);
    assert_eq!(found, Err(CfiError::OutsideSection { addr: FRAME + 0x8000 }));
}

#[test]
fn absent_memory_is_told_from_malformed_memory() {
    let (frame, header) = object(&[vec![ADVANCE4, DEF_CFA_OFFSET, 16]]);
    let mut target = Target::new(&frame, &header);
    let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
    for absent in [HEADER, FRAME] {
        target.absent = absent;
        let error = remote.find_row(&mut target, CODE, &mut CfiScratch::new()).unwrap_err();
        assert!(error.is_not_resident(), "{error}");
    }
    let mut damaged = frame.clone();
    damaged[8] = 9;
    let mut target = Target::new(&damaged, &header);
    let error = remote.find_row(&mut target, CODE, &mut CfiScratch::new()).unwrap_err();
    assert_eq!(error, RemoteCfiError::Cfi(CfiError::CieVersion(9)));
    assert!(!error.is_not_resident());
}

#[test]
fn entries_of_64_bit_dwarf_are_read_in_parts_too() {
    let mut builder = CfiBuilder::eh_frame(FRAME);
    builder.dwarf64 = true;
    let cie = builder.cie(&Cie::amd64());
    let at = builder.fde(cie, CODE, 0x100, &[ADVANCE4, DEF_CFA_OFFSET, 16]);
    let (frame, header) = (builder.build().to_vec(), header(&[(CODE, at)]));
    let mut target = Target::new(&frame, &header);
    let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
    assert_eq!(remote.abi(), CfiAbi::X86_64);
    for (addr, offset) in [(CODE, 8), (CODE + 4, 16)] {
        let row = remote.find_row(&mut target, addr, &mut CfiScratch::new());
        assert_eq!(row, Ok(Some(row_with_cfa(offset))));
    }
    // The length of 64 bits lies at the end of what is resident.
    target.absent = FRAME + at + 4;
    let error = remote.find_row(&mut target, CODE, &mut CfiScratch::new()).unwrap_err();
    assert!(error.is_not_resident(), "{error}");
}

#[test]
fn a_cie_has_as_many_instructions_as_an_fde_may_have() {
    for (len, is_good) in [(MAX_INSTRUCTIONS - 64, true), (MAX_INSTRUCTIONS + 64, false)] {
        let mut instructions = Cie::amd64().instructions;
        instructions.resize(len, 0);
        let mut builder = CfiBuilder::eh_frame(FRAME);
        let cie = builder.cie(&Cie { instructions, ..Cie::amd64() });
        let at = builder.fde(cie, CODE, 0x100, &[]);
        let header = header(&[(CODE, at)]);
        let row = table(builder.build(), &header).unwrap().unwrap().find_row(CODE);
        let expected =
            if is_good { Ok(Some(row_with_cfa(8))) } else { Err(CfiError::TooManyInstructions) };
        assert_eq!(row, expected);
    }
}

#[test]
fn no_code_continues_after_the_end_of_the_address_space() {
    let mut builder = CfiBuilder::eh_frame(FRAME);
    let cie = builder.cie(&Cie::amd64());
    let last = builder.fde(cie, 0xffff_ffff_ffff_fff0, 0x20, &[]);
    let (frame, header) = (builder.build(), header(&[(0xffff_ffff_ffff_fff0, last)]));
    let found = table(frame, &header).unwrap().unwrap();
    let mut target = Target::new(frame, &header);
    let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
    for (pc, row) in [(0xffff_ffff_ffff_fff8, Some(row_with_cfa(8))), (8, None)] {
        assert_eq!(found.find_row(pc), Ok(row), "{pc:#x}");
        assert_eq!(remote.find_row(&mut target, pc, &mut CfiScratch::new()), Ok(row), "{pc:#x}");
    }
}

/// The most steps of bounded time that a lookup takes.
const MOST_STEPS: usize = 2 * MAX_INSTRUCTIONS + 256;

/// The most reads of one.
const MOST_READS: u64 = 48 + (1 << 16) / 160;

#[test]
fn the_largest_programs_take_the_stated_work_and_larger_ones_end_typed() {
    let fill = |len: usize| [vec![REMEMBER; 3], vec![0; len]].concat();
    for len in [10, 300, 5000, MAX_INSTRUCTIONS - 16, MAX_INSTRUCTIONS + 16, 1 << 20] {
        let (frame, header) = object(&[fill(len)]);
        let found = table(&frame, &header).unwrap().unwrap();
        let mut row = Ok(None);
        let steps = work_counter::count(|| row = found.find_row(CODE + 0xf0));
        let mut target = Target::new(&frame, &header);
        let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
        target.reads = 0;
        let far = remote.find_row(&mut target, CODE + 0xf0, &mut CfiScratch::new());
        let expected = match len < MAX_INSTRUCTIONS {
            true => Ok(Some(row_with_cfa(8))),
            false => Err(CfiError::TooManyInstructions),
        };
        assert_eq!(row, expected);
        assert_eq!(far, expected.map_err(Into::into));
        assert!(steps <= MOST_STEPS && (len > MAX_INSTRUCTIONS || steps >= len), "{steps}");
        assert!(target.reads <= MOST_READS && target.longest <= 320, "{}", target.reads);
    }
}

#[test]
fn more_states_than_there_is_room_for_end_typed() {
    for (count, is_good) in [(8, true), (9, false)] {
        let (frame, header) = object(&[vec![REMEMBER; count]]);
        let row = table(&frame, &header).unwrap().unwrap().find_row(CODE);
        match is_good {
            true => assert_eq!(row, Ok(Some(row_with_cfa(8)))),
            false => assert_eq!(row, Err(CfiError::TooManyRemembered)),
        }
    }
}

fn damaged() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let function = vec(any::<u8>(), 0..600);
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (vec(function, 1..6), changes.clone(), changes).prop_map(|(functions, in_frame, in_header)| {
        let (mut frame, mut header) = object(&functions);
        for (at, value) in in_frame {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        for (at, value) in in_header {
            let at = at.index(header.len());
            header[at] = value;
        }
        (frame, header)
    })
}

/// How many inputs each test makes up.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").map_or(1000, |text| text.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn damaged_information_gives_the_same_answer_in_place_and_in_parts(
        (frame, header) in damaged(),
        offsets in vec(0_u64..0x600, 8),
    ) {
        let Ok(Some(found)) = table(&frame, &header) else { return Ok(()) };
        let mut target = Target::new(&frame, &header);
        let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
        let mut scratch = CfiScratch::new();
        for offset in offsets {
            let pc = CODE - 0x10 + offset;
            let mut row = Ok(None);
            let steps = work_counter::count(|| row = found.find_row(pc));
            prop_assert!(steps <= MOST_STEPS);
            target.reads = 0;
            let far = remote.find_row(&mut target, pc, &mut scratch);
            prop_assert!(target.reads <= MOST_READS && target.longest <= 320);
            match (far, row) {
                (Ok(far), Ok(row)) => prop_assert_eq!(far, row),
                // Where the section ends is not known in parts.
                (_, Err(CfiError::Truncated | CfiError::OutsideSection { .. })) => {}
                // A CIE or an expression that is not kept as a whole.
                (
                    Err(RemoteCfiError::Cfi(CfiError::CieTooLong | CfiError::TooManyInstructions)),
                    _,
                ) => {}
                // Of bytes that are not there nothing more is known in parts.
                (Err(RemoteCfiError::Unreadable { .. }), Err(error)) => {
                    prop_assert!(error.is_fault(), "{}", error);
                }
                (Err(RemoteCfiError::Cfi(far)), Err(error)) => {
                    prop_assert_eq!(far.is_fault(), error.is_fault(), "{} {}", far, error);
                }
                (far, row) => prop_assert!(false, "{:?} against {:?}", far, row),
            }
        }
    }

    #[test]
    fn information_that_changes_at_each_read_gives_an_answer_in_bounded_work(
        (frame, header) in damaged(),
        noise in 1_u8..255,
        offset in 0_u64..0x600,
    ) {
        let mut target = Target::new(&frame, &header);
        let Ok(Some(remote)) = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER) else {
            return Ok(());
        };
        target.reads = 0;
        target.noise = noise;
        _ = remote.find_row(&mut target, CODE + offset, &mut CfiScratch::new());
        prop_assert!(target.reads <= 5 * MOST_READS && target.longest <= 320);
    }

    #[test]
    fn any_bytes_are_a_section(
        bytes in vec(any::<u8>(), 0..400),
        offset in any::<u32>(),
    ) {
        for abi in [CfiAbi::X86_64, CfiAbi::Ia32, CfiAbi::Aarch64Big] {
            for section in [CfiSection::eh_frame(&bytes, FRAME), CfiSection::debug_frame(&bytes)] {
                let mut slots = [IndexEntry::default(); 16];
                let Ok(index) = index(Entries::new(section, abi), &mut slots) else { continue };
                _ = CfiTable::with_index(section, abi, index).find_row(offset.into());
                _ = IndexEntry::find(Entries::new(section, abi), offset.into());
                for entry in index {
                    let table = CfiTable::with_index(section, abi, index);
                    _ = (table.find_row(entry.start()), table.find_exception_data(entry.start()));
                }
            }
        }
    }
}

#[test]
fn u8_an_entry_of_a_search_table_that_is_not_in_order_is_found_in_one_bounded_pass() {
    let starts = |count: u64| (0..count).map(|index| (CODE + 0x10 * index, 0)).collect::<Vec<_>>();
    let find = |header: &[u8]| {
        let mut target = Target::new(&[0; 4], header);
        let remote = RemoteCfi::open(&mut target, CfiAbi::X86_64, HEADER).unwrap().unwrap();
        target.reads = 0;
        let found = remote.find_disorder(&mut target, &mut CfiScratch::new());
        (found, target.reads, target.longest)
    };
    for count in [0, 1, 39, 40, 41, 500] {
        let (found, reads, longest) = find(&header(&starts(count)));
        assert_eq!(found, Ok(None), "{count}");
        assert!(reads <= count.div_ceil(40) && longest <= 320, "{count}: {reads} {longest}");
    }
    // Wherever it is, at the edge of what is read at a time, too.
    for wrong in [1, 39, 40, 41, 80, 499] {
        let mut entries = starts(500);
        entries[wrong].0 = CODE - 1;
        let (found, ..) = find(&header(&entries));
        assert_eq!(found, Ok(Some(u32::try_from(wrong).unwrap())));
    }
    // More entries than there is memory for.
    let mut many = header(&starts(50));
    many[8..12].fill(0xff);
    assert!(matches!(find(&many), (Err(RemoteCfiError::Unreadable { .. }), 1..=3, _)));
}
