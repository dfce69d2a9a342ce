//! Damaged sections: a typed error that says where, or an answer.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use sframe::{Error, Flags, Table, TableOffset};
use testdata::{malformed_sections, sections};

/// Asks for everything there is, and counts what was looked at.
fn exercise(bytes: &[u8], pcs: &[u64]) -> usize {
    let Ok(table) = Table::parse(bytes) else { return 0 };
    let mut work = 0;
    for fde in table.fdes().flatten() {
        for fre in table.fres(&fde).into_iter().flatten() {
            work += 1;
            let Ok(fre) = fre else { break };
            assert!(fre.at.0 < table.header().len());
        }
    }
    for &pc in pcs {
        let row = table.find(pc).and_then(|found| found.map(|found| found.row()).transpose());
        assert_eq!(table.find_row(pc), row, "at {pc:#x}");
        match table.find(pc) {
            Ok(Some(found)) => {
                assert!(found.fde.range.contains(pc));
                if let Err(error) = found.row() {
                    assert!(error.at().0 <= table.header().len(), "{error}");
                }
            }
            Ok(None) => {}
            Err(error) => assert!(error.at().0 <= table.header().len(), "{error}"),
        }
        work += 1;
    }
    work
}

#[test]
fn f22_every_malformed_section_is_a_typed_error_or_a_bounded_answer() {
    for fixture in malformed_sections() {
        let name = fixture.stem.file_name().unwrap().to_str().unwrap().to_owned();
        let (_, damage) = name.split_once('.').unwrap();
        let bytes = &fixture.bytes;
        let len = u64::try_from(bytes.len()).unwrap();
        let opened = Table::parse(bytes);
        match damage {
            "empty" | "trunc_hdr" => {
                assert_eq!(opened.unwrap_err(), Error::Truncated(TableOffset(0)));
            }
            "bad_magic" => assert_eq!(opened.unwrap_err(), Error::BadMagic([0x34, 0x12])),
            "ver255" => assert_eq!(opened.unwrap_err(), Error::UnsupportedVersion(255)),
            "flag_unknown" => {
                assert_eq!(opened.unwrap_err(), Error::UnknownFlags(bytes[3]));
            }
            "abi_wrong_endian" => {
                assert_eq!(opened.unwrap_err(), Error::WrongByteOrder { abi: 1 });
            }
            "frelen_huge" | "freoff_huge" => {
                assert!(matches!(opened, Err(Error::FresOutside { len: l, .. }) if l == len));
            }
            "fdeoff_huge" | "fdeoff_gt_freoff" | "nfde_huge" | "trunc_fde" => {
                assert!(matches!(opened, Err(Error::FdesOutside { len: l, .. }) if l == len));
            }
            "abi0" => {
                // The table can be listed, but not unwound by.
                let table = opened.unwrap();
                let found =
                    addresses(&table).into_iter().find_map(|pc| table.find(pc).unwrap()).unwrap();
                assert_eq!(found.row(), Err(Error::UnknownAbi(0)));
            }
            "fretype_15" | "mask_rep0" | "numfres_huge" | "numfres_65535" => {
                one_function_only(&opened.unwrap(), &name);
            }
            other => panic!("no expectation for {other}"),
        }
        if let Ok(table) = opened {
            exercise(bytes, &addresses(&table));
        }
    }
}

/// The function whose rows come first is damaged, the others are found.
fn one_function_only(table: &Table<'_>, name: &str) {
    let bad = table.fdes().map(Result::unwrap).find(|fde| fde.fre_offset == 0).unwrap();
    let start = bad.range.start;
    if name.contains("numfres") {
        // The rows run on into those of the next function.
        let rows = table.fres(&bad).unwrap().find_map(Result::err);
        assert!(matches!(rows, Some(Error::UnsortedFres(_))), "{name}: {rows:?}");
        assert!(table.find(start).unwrap().is_some());
        let last = table.find(start + u64::from(bad.range.size) - 1);
        assert!(matches!(last, Err(Error::UnsortedFres(_))), "{name}: {last:?}");
    } else {
        let error = table.find(start).unwrap_err();
        let expected = match name.contains("mask") {
            true => Error::ZeroRepSize(bad.at),
            false => Error::BadFreType { at: bad.at, info: 15 },
        };
        assert_eq!(error, expected, "{name}");
    }
    for fde in table.fdes().map(Result::unwrap).filter(|fde| fde.index != bad.index) {
        assert!(table.fres(&fde).unwrap().all(|fre| fre.is_ok()), "{name}");
        // Starts mean something in linked sections only.
        if table.header().flags.contains(Flags::SORTED) && fde.range.start != start {
            let found = table.find(fde.range.start).unwrap();
            assert!(found.is_some(), "{name} {:#x}", fde.range.start);
        }
    }
}

#[test]
fn every_truncation_is_an_error_with_a_place_inside() {
    for fixture in sections().into_iter().filter(|fixture| fixture.bytes.len() < 700) {
        let whole = Table::parse(&fixture.bytes).unwrap().header().len();
        for len in 0..usize::try_from(whole).unwrap() {
            let error = Table::parse(&fixture.bytes[..len]).unwrap_err();
            assert!(error.at().0 < 28, "{}: {error}", fixture.name());
        }
    }
}

#[test]
fn a_changed_byte_anywhere_gives_an_answer_or_an_error() {
    let mut changed = 0;
    for fixture in sections().into_iter().filter(|fixture| fixture.bytes.len() < 260) {
        let table = Table::parse(&fixture.bytes).unwrap();
        let all = addresses(&table);
        let pcs: Vec<u64> = all.iter().step_by(all.len().div_ceil(16)).copied().collect();
        let mut bytes = fixture.bytes.clone();
        for at in 0..bytes.len() {
            let original = bytes[at];
            for change in [0, 1, 0x10, 0x60, 0xff] {
                bytes[at] = original ^ change;
                let work = exercise(&bytes, &pcs);
                // A row takes two bytes at least, and each function may name
                // all of them.
                let bound = pcs.len() + bytes.len() / 16 * bytes.len() / 2;
                assert!(work <= bound, "{}: {work} at {at}", fixture.name());
                bytes[at] = change;
                exercise(&bytes, &pcs);
            }
            bytes[at] = original;
        }
        changed += 1;
    }
    assert!(changed > 5, "only {changed} sections");
}

#[test]
fn the_bytes_after_the_end_do_not_matter() {
    for fixture in sections() {
        let table = Table::parse(&fixture.bytes).unwrap();
        let mut longer = fixture.bytes.clone();
        longer.extend([0xa5; 59]);
        let other = Table::parse(&longer).unwrap();
        assert_eq!(table.bytes(), other.bytes());
        for pc in addresses(&table).into_iter().step_by(7) {
            assert_eq!(table.find(pc), other.find(pc));
        }
    }
}

/// Every address that a function covers, and some beside them.
fn addresses(table: &Table<'_>) -> Vec<u64> {
    let ranges = (0..table.header().num_fdes).filter_map(|index| table.range(index));
    testdata::addresses(ranges.map(|range| (range.start, range.size)))
}
