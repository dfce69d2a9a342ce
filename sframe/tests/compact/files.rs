//! Call frame information of this machine's programs.

use std::collections::BTreeSet;

use sframe::{
    Abi, Builder, CfiAbi, CfiConverter, CompactBuilder, CompactOmissions, CompactTable, Format,
    Section,
};
use unwind_cfi::{CfiTable, Entries, IndexEntry, index};
use unwind_core::Row;

use crate::program::{Program, files};

/// What a row says to a walk, but for what the rows of its function say together.
fn rules(row: &Row) -> impl PartialEq + std::fmt::Debug {
    let rules = (!row.is_outermost()).then(|| (row.cfa(), row.ra(), row.fp(), row.is_signal()));
    (rules, row.is_context_only())
}

/// Everything that is said of the code of a program.
struct Said {
    image: Vec<u8>,
    omissions: CompactOmissions,
    /// The same as an SFrame table, at `addr`.
    table: Vec<u8>,
    addr: u64,
    /// Where a function may return to a handler.
    eh_returns: Vec<std::ops::Range<u64>>,
    /// Where rows of call frame information may change: starts of rows, and ends.
    starts: BTreeSet<u64>,
}

fn said(program: &Program) -> Said {
    let mut compact = CompactBuilder::new();
    compact.add_cfi(program.cfi(), CfiAbi::X86_64).unwrap();
    let (image, omissions) = compact.finish().unwrap();
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let mut converter = CfiConverter::new(program.cfi(), &builder);
    let (mut starts, mut eh_returns) = (BTreeSet::new(), Vec::new());
    let mut lost = Vec::new();
    while converter.next(&mut builder, &mut |range| lost.push(range)).unwrap() {
        starts.extend(converter.code().into_iter().flat_map(|code| [code.start, code.end]));
        eh_returns.extend(converter.eh_returns().iter().cloned());
    }
    starts.extend(lost.iter().flat_map(|range| [range.start, range.start + range.size]));
    let addr = program.addr;
    let table = builder.finish(addr, |lost| panic!("{lost}")).unwrap();
    for table in Section::new(&table).at(addr).tables().map(Result::unwrap) {
        for fde in table.fdes().map(Result::unwrap) {
            let rows = table.fres(&fde).unwrap().map(Result::unwrap);
            let block = u64::from(fde.rep_size).max(1);
            let blocks = if fde.is_mask() { u64::from(fde.range.size).div_ceil(block) } else { 1 };
            for row in rows {
                let starts_of = (0..blocks).map(|at| fde.range.start + at * block);
                starts.extend(starts_of.map(|start| start + u64::from(row.start)));
            }
        }
    }
    Said { image, omissions, table, addr, eh_returns, starts }
}

#[test]
fn every_row_of_a_program_is_the_one_of_its_table_and_of_its_call_frame_information() {
    let (mut from_table, mut from_cfi, mut none, mut eh_returns) = (0_u32, 0_u32, 0_u32, 0_u32);
    let (mut compared, mut omissions) = (Vec::new(), Vec::new());
    let (mut large, mut by_loads) = (0, 0_u32);
    for path in files() {
        let program = Program::read(&path).unwrap();
        let said = said(&program);
        let compact = CompactTable::parse(&said.image).unwrap();
        let bytes = said.image.len() / usize::try_from(compact.num_rows()).unwrap();
        // In a small file most is what is not of a row.
        if compact.num_rows() > 1_000 {
            assert!(bytes < 8, "{}: {bytes} bytes a row", path.display());
            large += 1;
        }
        let section = Section::new(&said.table).at(said.addr);
        let mut slots = vec![IndexEntry::default(); 1 << 20];
        let entries = index(Entries::new(program.cfi(), CfiAbi::X86_64), &mut slots).unwrap();
        let cfi = CfiTable::with_index(program.cfi(), CfiAbi::X86_64, entries);
        let mut lost = 0;
        let ends = said.starts.iter().skip(1).chain([&0]);
        for (&start, end) in said.starts.iter().zip(ends) {
            for pc in [start.wrapping_sub(1), start, start + 1] {
                let place = || format!("{} at {pc:#x}", path.display());
                let row = compact.row(pc);
                let by_table = section.find(pc).unwrap().map(|found| found.row().unwrap());
                if let Some((by_table, row)) = by_table.as_ref().zip(row.as_ref()) {
                    assert_eq!(rules(row), rules(by_table), "{}", place());
                    from_table += 1;
                }
                // Call frame information says more than the table, and takes longer.
                if pc != start {
                    continue;
                }
                let by_cfi = cfi.find_row(pc);
                // Held against rows of frames elsewhere.
                if compact.loads(pc).is_some() {
                    assert!(
                        by_cfi
                            .as_ref()
                            .map_or(true, |row| row.is_some_and(|row| row.is_context_only()))
                    );
                    by_loads += 1;
                    continue;
                }
                let Some(row) = row else {
                    match by_cfi {
                        Ok(None) => {
                            assert_eq!(by_table, None, "{}", place());
                            none += 1;
                        }
                        _ => lost += end - start,
                    }
                    continue;
                };
                let by_cfi = by_cfi.unwrap_or_else(|error| panic!("{}: {error}", place()));
                let by_cfi = by_cfi.unwrap_or_else(|| panic!("{}: {row:?}", place()));
                assert_eq!(rules(&row), rules(&by_cfi), "{}", place());
                from_cfi += 1;
                let is_eh_return = said.eh_returns.iter().any(|range| range.contains(&pc));
                assert_eq!(row.is_eh_return(), is_eh_return, "{}", place());
                eh_returns += u32::from(is_eh_return);
            }
        }
        let counted: u64 = said.omissions.iter().map(|(_, lost)| lost.bytes).sum();
        assert_eq!(lost, counted, "{}: {:?}", path.display(), said.omissions);
        omissions.extend(said.omissions.iter().map(|(reason, lost)| (reason.name(), lost.bytes)));
        compared.push(path);
    }
    println!(
        "{from_table} by tables, {from_cfi} by call frame information, {by_loads} by loads, {none} without a row"
    );
    println!("{eh_returns} may return to a handler; bytes of code without a row: {omissions:?}");
    println!("{compared:?}");
    assert!(large >= 3, "{compared:?}");
    assert!(from_table > 60_000 && from_cfi > 20_000 && none > 100, "{from_table} {from_cfi}");
    assert!(eh_returns > 5, "{eh_returns}");
}
