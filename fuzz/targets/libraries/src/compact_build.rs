//! A compact table has the rows that lookups find in the section that it is made of, SFrame or call
//! frame information, or says that something is lost.

use core::ops::Range;

use sframe::{CfiAbi, CfiError, CfiSection, CompactBuilder, CompactTable, FuncRange, Section};
use unwind_cfi::{CfiTable, Entries, IndexEntry, index};
use unwind_core::{CfaRule, DwarfReg, RegRule, Row};

use crate::{compact_table, input::Input, plain_table::pcs};

const ADDR: u64 = 0x10_0000;
const ABIS: [CfiAbi; 5] =
    [CfiAbi::X86_64, CfiAbi::Ia32, CfiAbi::Aarch64Little, CfiAbi::Aarch64Big, CfiAbi::S390x];
/// Where code is. Else most tables had rows that are too far apart, or many pages.
const CODE: Range<u64> = 0..1 << 22;
/// The most bytes of a function. One of blocks has rows for each, so that an execution would be long.
const LONGEST: u64 = 1 << 14;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(ABIS.len() + 1) {
        0 => of_section(&Section::new(input.rest()).at(ADDR)),
        abi => of_call_frames(ABIS[abi - 1], input.rest()),
    }
}

/// What a row says, but for the marks that depend on other rows.
fn rules(row: &Row) -> Option<(CfaRule, RegRule, RegRule, [bool; 3])> {
    let marks = [row.is_signal(), row.is_context_only(), row.is_ra_signed()];
    (!row.is_outermost()).then(|| (row.cfa(), row.ra(), row.fp(), marks))
}

/// Where the answers of a table may change.
fn places(table: &CompactTable<'_>) -> impl Iterator<Item = u64> {
    let starts = table.rows().take(256).map(|(range, _)| range.start);
    starts.flat_map(|start| [start.wrapping_sub(1), start, start + 1])
}

fn of_section(section: &Section<'_>) {
    let ranges = section.tables().flatten().flat_map(|table| {
        let count = table.header().num_fdes;
        (0..count).map_while(move |index| table.range(index))
    });
    let ranges: Vec<FuncRange> = ranges.collect();
    let least = ranges.iter().map(|range| range.start).min().unwrap_or_default();
    let is_far =
        |range: &FuncRange| range.start - least > CODE.end || u64::from(range.size) > LONGEST;
    if ranges.iter().any(is_far) {
        return;
    }
    let mut builder = CompactBuilder::new();
    builder.add_section(section).expect("there is memory");
    let Ok((image, omissions)) = builder.finish() else { return };
    compact_table::run(&image);
    let table = CompactTable::parse(&image).expect("what is written is good");
    let others = section.tables().flatten().flat_map(|table| pcs(&table));
    for pc in places(&table).chain(others) {
        let found = section.find(pc).and_then(|found| found.map(|found| found.row()).transpose());
        match (table.row(pc), found) {
            (Some(row), Ok(Some(found))) => assert_eq!(rules(&row), rules(&found), "at {pc:#x}"),
            (None, Ok(None)) => {}
            (None, found) => assert!(!omissions.is_empty(), "at {pc:#x}: {found:?}"),
            (Some(row), found) => panic!("at {pc:#x}: {row:?}, but {found:?}"),
        }
    }
}

fn of_call_frames(abi: CfiAbi, bytes: &[u8]) {
    let section = CfiSection::eh_frame(bytes, ADDR).code(&[CODE]);
    let codes = codes(Entries::new(section, abi));
    if codes.iter().any(|code| code.end - code.start > LONGEST) {
        return;
    }
    let mut builder = CompactBuilder::new();
    let report = builder.add_cfi(section, abi).expect("there is memory");
    assert!(report.unusable <= report.fdes && report.fdes <= bytes.len() as u64 / 4 + 1);
    let (image, omissions) = builder.finish().expect("the code is near");
    compact_table::run(&image);
    let table = CompactTable::parse(&image).expect("what is written is good");
    let mut slots = vec![IndexEntry::default(); bytes.len() / 4 + 1];
    let entries = index(Entries::new(section, abi), &mut slots).expect("there are slots");
    let cfi = CfiTable::with_index(section, abi, entries);
    // Of two that are about the same code they may find another one.
    if codes.windows(2).any(|pair| pair[1].start < pair[0].end) {
        return;
    }
    for pc in places(&table) {
        // In place of an error, or of what the kernel saved for a signal handler.
        if table.loads(pc).is_some() {
            let found = cfi.find_row(pc);
            let is_context = |row: Option<Row>| row.is_some_and(|row| row.is_context_only());
            assert!(found.map_or(true, is_context), "at {pc:#x}");
            continue;
        }
        match (table.row(pc), cfi.find_row(pc)) {
            (Some(row), Ok(Some(found))) => {
                assert_eq!(rules(&row), rules(&found), "at {pc:#x}");
                if let Some(rule) = table.rbx(pc) {
                    let found = cfi.find_register_rules(pc).expect("it has rules");
                    let found = found.map(|found| found.get(DwarfReg(3)));
                    assert_eq!(Some(rule), found, "at {pc:#x}");
                }
            }
            (None, Ok(None)) => {}
            (None, found) => assert!(!omissions.is_empty(), "at {pc:#x}: {found:?}"),
            // A lookup remembers fewer states.
            (Some(_), Err(CfiError::TooManyRemembered)) => {}
            (Some(row), found) => panic!("at {pc:#x}: {row:?}, but {found:?}"),
        }
    }
}

/// The code of each FDE, ascending.
fn codes(mut entries: Entries<'_>) -> Vec<Range<u64>> {
    let all = entries;
    let mut codes = Vec::new();
    loop {
        let fde = match entries.next_fde() {
            Ok(Some(fde)) => fde,
            Ok(None) => break,
            Err(_) => continue,
        };
        let body = all.cie(fde.cie).and_then(|cie| all.body(&fde, &cie));
        codes.extend(body.map(|body| body.start..body.start.saturating_add(body.len)));
    }
    codes.sort_unstable_by_key(|code| (code.start, code.end));
    codes
}
