//! Sections that GNU and LLVM tools wrote: the same rows as their own readers
//! find.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use core::fmt::Write;
use std::collections::BTreeMap;

use sframe::{Flags, Fre, PcType, Table, Version};
use testdata::{Fixture, sections};

/// A row as the `.lookup.txt` files print it.
fn print(fre: Option<&Fre>) -> String {
    let Some(fre) = fre else { return "none".into() };
    let mut line = format!("info={:02x} start={} words=", fre.info.0, fre.start);
    for (index, word) in fre.words().iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(line, "{comma}{word}").unwrap();
    }
    line
}

/// The address ranges of a `.lookup.txt`, end exclusive, and their rows.
fn lookups(fixture: &Fixture) -> Option<Vec<(u64, u64, String)>> {
    let text = fixture.text(".lookup.txt")?;
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    Some(
        text.lines()
            .map(|line| {
                let (range, row) = line.split_once(' ').unwrap();
                let (start, end) = range.split_once('-').unwrap();
                (hex(start), hex(end), row.to_owned())
            })
            .collect(),
    )
}

/// Why the reader that made the `.lookup.txt` is known to be wrong at `pc`.
fn known_fault(table: &Table<'_>, pc: u64) -> Option<&'static str> {
    let before = table.fdes().flatten().filter(|fde| fde.range.start <= pc);
    let last = before.max_by_key(|fde| (fde.range.start, fde.range.size))?;
    let version = table.header().version;
    match (version, last.is_mask(), last.range.contains(pc)) {
        (Version::V1, true, true) => Some("libsframe 2.40 takes blocks for 256 bytes long"),
        (Version::V2, true, true) => {
            Some("libsframe 2.44 finds a row for the first byte of a block only")
        }
        (Version::V2, true, false) => {
            Some("libsframe 2.44 finds rows after the end of a function of blocks")
        }
        (_, false, true) => {
            let hidden = table
                .fdes()
                .flatten()
                .any(|other| other.range.size == 0 && other.range.start == last.range.start);
            hidden.then_some("libsframe finds a function of size zero instead of its neighbour")
        }
        _ => None,
    }
}

#[test]
fn every_lookup_finds_the_row_that_libsframe_finds() {
    let mut compared = 0;
    let mut faults = BTreeMap::<_, u32>::new();
    for fixture in sections() {
        let Some(lookups) = lookups(&fixture) else { continue };
        let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
        for (start, end, expected) in lookups {
            for pc in start..end {
                let found = table.find(pc).unwrap();
                let row = print(found.and_then(|found| found.fre).as_ref());
                compared += 1;
                if row == expected {
                    continue;
                }
                let fault = known_fault(&table, pc);
                let name = fixture.name();
                let fault = fault.unwrap_or_else(|| {
                    panic!("{name} at {pc:#x}: {row}, but libsframe finds {expected}")
                });
                *faults.entry(fault).or_default() += 1;
            }
        }
    }
    for (fault, count) in &faults {
        println!("{count} of {compared} addresses: {fault}");
    }
    assert!(compared > 5000, "only {compared} addresses compared");
    // All faults in blocks are in the fixtures, so each of them has to be named.
    assert!(faults.len() >= 3, "{faults:?}");
}

#[test]
fn a_search_finds_what_a_plain_scan_finds() {
    for fixture in sections() {
        let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
        // In a relocatable object all functions start at the same place.
        let relocatable = fixture.name().ends_with(".o");
        let pcs = addresses(&table);
        assert!(!pcs.is_empty());
        for pc in pcs {
            let mut covering =
                table.fdes().map(Result::unwrap).filter(|fde| fde.range.contains(pc));
            let Some(fde) = covering.next() else {
                assert_eq!(table.find(pc), Ok(None), "{} at {pc:#x}", fixture.name());
                continue;
            };
            let mut offset = pc - fde.range.start;
            if let PcType::Mask(rep_size) = fde.pc_type().unwrap() {
                offset %= u64::from(rep_size.get());
            }
            let rows: Vec<Fre> = table.fres(&fde).unwrap().map(Result::unwrap).collect();
            assert_eq!(rows.len(), usize::try_from(fde.num_fres).unwrap());
            let expected = rows.into_iter().rfind(|fre| u64::from(fre.start) <= offset);
            let found = table.find(pc).unwrap();
            let row = found.map(|found| found.row().unwrap());
            assert_eq!(table.find_row(pc), Ok(row), "{} at {pc:#x}", fixture.name());
            if !relocatable {
                assert_eq!(found.map(|found| found.fde), expected.map(|_| fde));
            }
            assert_eq!(found.and_then(|found| found.fre), expected, "{} {pc:#x}", fixture.name());
        }
    }
}

#[test]
fn every_row_of_every_tool_has_a_meaning() {
    let mut rows = 0;
    for fixture in sections() {
        let table = Table::parse(&fixture.bytes).unwrap().at(fixture.addr);
        let mut count = 0;
        for fde in table.fdes().map(Result::unwrap) {
            assert_eq!(fde.abi(), table.header().abi);
            for fre in table.fres(&fde).unwrap().map(Result::unwrap) {
                count += 1;
                if fre.start < fde.range.size {
                    let pc = fde.range.start + u64::from(fre.start);
                    assert!(table.find(pc).unwrap().unwrap().row().is_ok());
                }
            }
        }
        assert_eq!(table.header().num_fres, count, "{}", fixture.name());
        rows += count;
    }
    assert!(rows > 500, "only {rows} rows");
}

#[test]
fn starts_relative_to_their_field_find_the_same_as_those_relative_to_the_section() {
    let all = sections();
    let mut pairs = 0;
    for pcrel in all.iter().filter(|fixture| fixture.is_in("v2e1_derived")) {
        let twin = pcrel.name().replace("v2e1_derived", "v2");
        let Some(plain) = all.iter().find(|fixture| fixture.name() == twin) else { continue };
        pairs += 1;
        let pcrel = Table::parse(&pcrel.bytes).unwrap().at(pcrel.addr);
        let plain = Table::parse(&plain.bytes).unwrap().at(plain.addr);
        assert!(
            pcrel.header().flags.contains(Flags::PCREL)
                && !plain.header().flags.contains(Flags::PCREL)
        );
        for pc in addresses(&plain) {
            let [a, b] = [&pcrel, &plain].map(|table| table.find(pc).unwrap());
            let [range_a, range_b] = [a, b].map(|found| found.map(|found| found.fde.range));
            assert_eq!(range_a, range_b, "{twin} at {pc:#x}");
            let [fre_a, fre_b] =
                [a, b].map(|found| print(found.and_then(|found| found.fre).as_ref()));
            assert_eq!(fre_a, fre_b, "{twin} at {pc:#x}");
        }
    }
    assert!(pairs >= 3, "only {pairs} pairs");
}

/// Every address that a function covers, and some beside them.
fn addresses(table: &Table<'_>) -> Vec<u64> {
    let ranges = (0..table.header().num_fdes).filter_map(|index| table.range(index));
    testdata::addresses(ranges.map(|range| (range.start, range.size)))
}
