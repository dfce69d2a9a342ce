//! Validation: each rule has a table that breaks it and nothing else, and what
//! is valid has no lookup that fails.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod places;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sframe::{Diagnostic, Error, Severity, Summary, Table, TableOffset, Violation};
use testdata::{Function, Row, TableBuilder, malformed_sections, sections};

/// All findings, with room to sort `room` functions.
fn findings(bytes: &[u8], room: usize) -> (Vec<Diagnostic>, Summary) {
    let table = Table::parse(bytes).unwrap();
    let mut all = Vec::new();
    let summary = table.validate(&mut vec![0; room], |finding| {
        all.push(finding);
        ControlFlow::<()>::Continue(())
    });
    let summary = summary.continue_value().unwrap();
    for severity in [Severity::Error, Severity::Note] {
        let count = all.iter().filter(|finding| finding.fault.severity() == severity).count();
        let said = if severity == Severity::Error { summary.errors } else { summary.notes };
        assert_eq!(said, u64::try_from(count).unwrap());
    }
    (all, summary)
}

fn faults(table: &TableBuilder) -> Vec<(Option<u32>, Violation)> {
    let (all, _) = findings(&table.build(), 64);
    all.into_iter().map(|finding| (finding.function, finding.fault)).collect()
}

fn ok(start: i64) -> Function {
    Function::new(start, 0x20, vec![Row::sp(0, &[8]), Row::sp(4, &[16, -16])])
}

/// A table of good functions with `bad` in the middle, which has index 1.
fn around(table: TableBuilder, bad: Function) -> TableBuilder {
    table.function(ok(0)).function(bad).function(ok(0x200))
}

fn bad(rows: Vec<Row>) -> Function {
    Function::new(0x100, 0x20, rows)
}

/// Where the entry of function 1 is in V2 and V3.
const FDE_V2: TableOffset = TableOffset(28 + 20);
const FDE_V3: TableOffset = TableOffset(28 + 16);
/// Where the first row of function 1 is in V2: after 3 functions and the rows
/// of one.
const ROW_V2: TableOffset = TableOffset(28 + 60 + 7);
/// The same in V3, with two attributes.
const ROW_V3: TableOffset = TableOffset(28 + 48 + 5 + 7 + 5);

#[test]
fn what_tools_write_has_no_errors() {
    let mut rows = 0;
    let mut notes = BTreeMap::<_, u32>::new();
    for fixture in sections() {
        let (all, summary) = findings(&fixture.bytes, 1000);
        for Diagnostic { fault, .. } in all {
            // In an object all functions start at the same place.
            let unlinked = fixture.name().ends_with(".o");
            let known = fault.severity() == Severity::Note
                || (unlinked && matches!(fault, Violation::Overlap { .. }));
            assert!(known, "{}: {fault}", fixture.name());
            *notes
                .entry(format!("{fault:?}").split(' ').next().unwrap().to_owned())
                .or_default() += 1;
        }
        assert!(summary.overlaps_checked);
        rows += summary.rows;
    }
    println!("{rows} rows, {notes:?}");
    assert!(rows > 500);
}

#[test]
fn good_tables_have_no_findings() {
    for version in [1, 2, 3] {
        for flags in [0, 1] {
            let table = TableBuilder { flags, ..TableBuilder::amd64(version) };
            let table = around(table, bad(vec![Row::sp(0, &[8])]));
            let (all, summary) = findings(&table.build(), 3);
            assert!(all.is_empty(), "{all:?}");
            assert_eq!((summary.functions, summary.rows), (3, 5));
            assert!(summary.overlaps_checked);
            assert_eq!(Table::parse(&table.build()).unwrap().check().unwrap().rows, 5);
        }
    }
}

#[test]
fn each_malformed_function_is_one_finding() {
    let v2 = TableBuilder::amd64(2);
    let v3 = TableBuilder::amd64(3);
    let good = || bad(vec![Row::sp(0, &[8])]);
    let mut unknown = good();
    unknown.info2 = 2;
    for (table, expected) in [
        (around(v2.clone(), good().with_info(0x0f)), Error::BadFreType { at: FDE_V2, info: 0x0f }),
        (around(v2.clone(), good().blocks(0)), Error::ZeroRepSize(FDE_V2)),
        (around(v3.clone(), unknown), Error::UnknownFdeType { at: FDE_V3, info2: 2 }),
        (
            around(v2.clone(), bad(vec![Row { start: 0, info: 0x60, words: vec![] }])),
            Error::BadWordSize { at: ROW_V2, info: 0x60 },
        ),
        (
            around(v2, bad(vec![Row::sp(4, &[8]), Row::sp(4, &[8])])),
            // After one row of 3 bytes.
            Error::UnsortedFres(TableOffset(ROW_V2.0 + 3)),
        ),
        (
            around(v3.clone(), bad(vec![Row::fp(0, &[0x39, 8, 2])]).flexible()),
            Error::BadWordCount { at: ROW_V3, count: 3 },
        ),
        (around(v3, bad(vec![Row::fp(0, &[2, 8])]).flexible()), Error::CfaWithoutRegister(ROW_V3)),
    ] {
        let all = faults(&table);
        let errors: Vec<_> =
            all.iter().filter(|(_, fault)| fault.severity() == Severity::Error).collect();
        assert_eq!(errors, [&(Some(1), Violation::Malformed(expected))], "{all:?}");
        let bytes = table.build();
        let first = Table::parse(&bytes).unwrap().check().unwrap_err();
        assert_eq!(first.fault, Violation::Malformed(expected));
    }
}

#[test]
fn rows_of_v1_and_s390x_have_rules_of_their_own() {
    let table = TableBuilder::amd64(1).function(bad(vec![Row::fp(0, &[])]));
    let at = TableOffset(28 + 17);
    let error = Error::BadWordCount { at, count: 0 };
    assert_eq!(faults(&table), [(Some(0), Violation::Malformed(error))]);
    let table = TableBuilder::s390x(2).function(bad(vec![Row::sp(0, &[i32::MAX])]));
    let at = TableOffset(28 + 20);
    assert_eq!(faults(&table), [(Some(0), Violation::Malformed(Error::CfaOffsetOverflow(at)))]);
}

#[test]
fn a_return_address_where_no_call_leaves_one_is_an_error() {
    let v3 = TableBuilder::amd64(3);
    let at = TableOffset(28 + 16 + 5);
    let rsp = |offset| vec![Row::fp(0, &[0x39, 16, 0x39, offset])];
    for (table, at) in [
        // RA = rsp, rsp+8, CFA-8
        (v3.clone().function(bad(rsp(0)).flexible()), at),
        (v3.clone().function(bad(rsp(8)).flexible()), at),
        (v3.function(bad(vec![Row::fp(0, &[0x39, 16, 0x04, -8])]).flexible()), at),
        // Register 31 of AArch64 and 15 of s390x, which V2 has odd words for
        (
            TableBuilder::aarch64(3, true)
                .function(bad(vec![Row::fp(0, &[0xf9, 16, 0xf9, 0])]).flexible()),
            at,
        ),
        (
            TableBuilder::s390x(2).function(bad(vec![Row::sp(0, &[0, 15 << 1 | 1])])),
            TableOffset(28 + 20),
        ),
        // No register of x86-64 has it when no place is said.
        (
            TableBuilder { fixed_ra: 0, ..TableBuilder::amd64(2) }
                .function(bad(vec![Row::sp(0, &[8])])),
            TableOffset(28 + 20),
        ),
        (
            TableBuilder { fixed_ra: 0, ..TableBuilder::amd64(2) }
                .function(bad(vec![Row::sp(0, &[8, 0, -16])])),
            TableOffset(28 + 20),
        ),
    ] {
        assert_eq!(faults(&table), [(Some(0), Violation::ImpossibleRa(at))], "{table:?}");
        let bytes = table.build();
        let first = Table::parse(&bytes).unwrap().check().unwrap_err();
        assert_eq!(first.fault, Violation::ImpossibleRa(at));
    }
}

#[test]
fn a_return_address_in_a_register_or_said_by_the_row_is_none() {
    let fixed = TableBuilder { fixed_ra: 0, ..TableBuilder::amd64(2) };
    for table in [
        // RA = rdi, *(rsp+8), *(CFA-24)
        TableBuilder::amd64(3).function(bad(vec![Row::fp(0, &[0x39, 16, 0x29, 0])]).flexible()),
        TableBuilder::amd64(3).function(bad(vec![Row::fp(0, &[0x39, 16, 0x3b, 8])]).flexible()),
        TableBuilder::amd64(3).function(bad(vec![Row::fp(0, &[0x39, 16, 0x02, -24])]).flexible()),
        fixed.clone().function(bad(vec![Row::sp(0, &[16, -8])])),
        fixed.function(bad(vec![Row::sp(0, &[])])),
        // In the link register; in f0.
        TableBuilder::aarch64(2, false).function(bad(vec![Row::sp(0, &[16])])),
        TableBuilder::s390x(2).function(bad(vec![Row::sp(0, &[0, 16 << 1 | 1])])),
    ] {
        assert_eq!(faults(&table), [], "{table:?}");
    }
}

#[test]
fn truncated_rows_are_found_where_they_are_cut() {
    let table = TableBuilder::amd64(2).function(bad(vec![Row::sp(0, &[8]), Row::sp(4, &[300])]));
    let whole = table.build();
    // 3 and 4 bytes of rows.
    for (cut, at) in [(1, 3), (2, 3), (3, 3), (4, 0), (5, 0), (6, 0), (7, 0)] {
        let mut bytes = whole.clone();
        bytes.truncate(whole.len() - cut);
        bytes[0x10] -= u8::try_from(cut).unwrap();
        let (all, _) = findings(&bytes, 0);
        let [Diagnostic { fault: Violation::Malformed(Error::Truncated(found)), .. }] = all[..]
        else {
            panic!("{cut}: {all:?}");
        };
        let row = 28 + 20 + at;
        assert!((row..row + 4).contains(&found.0), "{cut}: {found}");
    }
}

#[test]
fn rows_outside_the_section_are_found() {
    for (version, field) in [(1, 8), (2, 8), (3, 12)] {
        let table = TableBuilder::amd64(version).function(ok(0)).function(ok(0x100));
        let mut bytes = table.build();
        let entry = 28 + table.fde_size();
        bytes[entry + field..][..4].fill(0xff);
        let at = TableOffset(u64::try_from(entry).unwrap());
        let error = Error::RowsOutside { at, fre_offset: u32::MAX };
        let (all, _) = findings(&bytes, 0);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].fault, Violation::Malformed(error));
    }
}

#[test]
fn totals_are_compared_with_the_header() {
    let table = TableBuilder::amd64(2).function(ok(0)).function(ok(0x100));
    let mut bytes = table.build();
    bytes[0x0c] = 5;
    let (all, _) = findings(&bytes, 0);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].fault, Violation::FreCount { header: 5, found: 4 });
    let mut bytes = table.build();
    bytes.extend([0; 3]);
    bytes[0x10] += 3;
    let (all, _) = findings(&bytes, 0);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].fault, Violation::FreBytes { header: 17, found: 14 });
    assert_eq!(all[0].fault.severity(), Severity::Note);
}

#[test]
fn unusual_rows_are_notes() {
    let v2 = TableBuilder::amd64(2);
    let aarch64 = TableBuilder::aarch64(2, false);
    let at = TableOffset(28 + 20);
    let at_3 = TableOffset(at.0 + 3);
    for (table, expected) in [
        (
            v2.clone().function(bad(vec![Row::sp(0, &[8]), Row::sp(0x20, &[16])])),
            Violation::RowPastEnd { at: at_3, start: 0x20 },
        ),
        (
            v2.clone().function(bad(vec![Row::sp(0, &[8]), Row::sp(16, &[16])]).blocks(16)),
            Violation::RowPastEnd { at: at_3, start: 16 },
        ),
        (
            v2.clone().function(bad(vec![Row::sp(3, &[8])])),
            Violation::LateFirstRow { at, start: 3 },
        ),
        // After the end, which says more than that it is late.
        (
            v2.clone().function(bad(vec![Row::sp(0x20, &[8])])),
            Violation::RowPastEnd { at, start: 0x20 },
        ),
        (v2.clone().function(bad(vec![])), Violation::NoRows(TableOffset(28))),
        (
            v2.clone().function(bad(vec![Row::sp(0, &[8, -16, 0])])),
            Violation::SurplusWords { at, count: 3 },
        ),
        (
            aarch64.clone().function(bad(vec![Row::sp(0, &[8, -8, -16, 0])])),
            Violation::SurplusWords { at, count: 4 },
        ),
        (
            // Zeros in place of the RA's and the FP's rule.
            TableBuilder::amd64(3).function(bad(vec![Row::fp(0, &[0x39, 16, 0, 0])]).flexible()),
            Violation::SurplusWords { at: TableOffset(28 + 16 + 5), count: 4 },
        ),
        (v2.clone().function(bad(vec![Row::new(0, 0x81, &[8])])), Violation::SignedRa(at)),
        (
            // RA = rbp
            TableBuilder::amd64(3).function(bad(vec![Row::fp(0, &[0x39, 16, 0x31, 0])]).flexible()),
            Violation::RaInFp(TableOffset(28 + 16 + 5)),
        ),
        (
            v2.clone().function(bad(vec![Row::sp(0, &[8])]).with_info(0x40)),
            Violation::ReservedBits(TableOffset(28)),
        ),
        (
            v2.clone().function(bad(vec![Row::sp(0, &[8])]).with_info(0x80)),
            Violation::ReservedBits(TableOffset(28)),
        ),
        (
            v2.function(bad(vec![Row::sp(0, &[8])]).with_info(0x20)),
            Violation::ReservedBits(TableOffset(28)),
        ),
    ] {
        assert_eq!(faults(&table), [(Some(0), expected)], "{table:?}");
        assert_eq!(expected.severity(), Severity::Note);
        assert!(Table::parse(&table.build()).unwrap().check().is_ok());
    }
    // What is unusual on one CPU is not on another.
    let signed = bad(vec![Row::new(0, 0x81, &[8, -8, -16])]).with_info(0x20);
    assert_eq!(faults(&aarch64.function(signed)), []);
    let signal = TableBuilder::amd64(3).function(bad(vec![]).signal());
    assert_eq!(faults(&signal), []);
}

#[test]
fn rows_of_an_unknown_abi_are_checked_but_for_their_meaning() {
    let table = TableBuilder { abi: 7, ..TableBuilder::amd64(2) }.function(ok(0));
    assert_eq!(faults(&table), [(None, Violation::UnknownAbi(7))]);
}

#[test]
fn the_visitor_can_stop_at_any_finding() {
    let late = || Function::new(0, 8, vec![Row::sp(1, &[8])]);
    let table = TableBuilder { flags: 0, ..TableBuilder::amd64(2) };
    let bytes = table.function(late()).function(late()).function(late()).build();
    let table = Table::parse(&bytes).unwrap();
    for stop in 1..=3 {
        let mut seen = 0;
        let result = table.validate(&mut [], |finding| {
            seen += 1;
            if seen == stop { ControlFlow::Break(finding) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(result.break_value().unwrap().function, Some(stop - 1));
        assert_eq!(seen, stop);
    }
}

#[test]
fn functions_that_all_share_many_rows_take_bounded_time() {
    // 40 functions, each of all rows: were each looked at, it would be 40
    // times all rows.
    let rows: Vec<Row> = (0..20_000).map(|start| Row::sp(start, &[8])).collect();
    let mut table = TableBuilder::amd64(2);
    for i in 0..40 {
        table = table.function(Function::new(i * 0x1_0000, 0x8000, rows.clone()));
    }
    let mut bytes = table.build();
    let one = bytes.len();
    for i in 0..40 {
        bytes[28 + 20 * i + 8..][..4].fill(0);
    }
    // Rows of one function, in bytes: 2 for the start, then info and a word.
    let fre_len = 4 * 20_000_u32;
    bytes.truncate(one - usize::try_from(fre_len * 39).unwrap());
    bytes[0x10..0x14].copy_from_slice(&fre_len.to_le_bytes());
    let (all, summary) = findings(&bytes, 0);
    // All of these are allowed: 16 rows a byte.
    assert_eq!(summary.rows, 800_000, "{all:?}");
    // Here are fewer bytes, and as many rows said.
    for i in 0..40 {
        bytes[28 + 20 * i + 12..][..4].copy_from_slice(&50_000_u32.to_le_bytes());
    }
    let (_, summary) = findings(&bytes, 0);
    assert!(summary.rows <= 16 * u64::from(fre_len));
}

#[test]
fn a_function_may_say_as_many_rows_as_are_looked_at_and_no_more() {
    let mut bytes = TableBuilder::amd64(2).function(ok(0)).build();
    let max_rows = u32::try_from(Table::parse(&bytes).unwrap().max_rows()).unwrap();
    let too_many = Violation::TooManyRows(TableOffset(28));
    for (rows, is_too_many) in [(max_rows, false), (max_rows + 1, true)] {
        bytes[28 + 12..][..4].copy_from_slice(&rows.to_le_bytes());
        let (all, _) = findings(&bytes, 0);
        assert_eq!(all.iter().any(|finding| finding.fault == too_many), is_too_many, "{all:?}");
    }
}

#[test]
fn every_malformed_section_has_an_error() {
    let mut opened = 0;
    for fixture in malformed_sections() {
        let Ok(table) = Table::parse(&fixture.bytes) else { continue };
        opened += 1;
        let finding = table.check().unwrap_err();
        assert!(finding.fault.at().0 < table.header().len(), "{}", fixture.name());
    }
    assert!(opened >= 12, "only {opened} could be opened");
}

#[test]
fn in_a_valid_table_no_lookup_fails() {
    let mut valid = 0;
    let mut invalid = 0;
    for fixture in sections().into_iter().filter(|fixture| fixture.bytes.len() < 300) {
        let mut bytes = fixture.bytes.clone();
        for at in 28..bytes.len() {
            let original = bytes[at];
            for change in [0x01, 0x10, 0x60, 0x80] {
                bytes[at] = original ^ change;
                let table = Table::parse(&bytes).unwrap();
                let (all, _) = findings(&bytes, 0);
                let blamed = |index| {
                    all.iter().any(|finding| {
                        finding.function == Some(index)
                            && finding.fault.severity() == Severity::Error
                    })
                };
                match table.check() {
                    Ok(_) => valid += 1,
                    Err(_) => invalid += 1,
                }
                for index in 0..table.header().num_fdes {
                    let range = table.range(index).unwrap();
                    for offset in
                        [0, 5, u64::from(range.size / 2), u64::from(range.size).saturating_sub(1)]
                    {
                        let pc = range.start.wrapping_add(offset);
                        let row = table.find(pc).and_then(|found| {
                            let found = found.map(|found| (found.fde.index, found.row()));
                            found.map(|(index, row)| row.map(|_| index)).transpose()
                        });
                        if row.is_err() {
                            // Whichever function it is, it is one of those here.
                            let here = (0..table.header().num_fdes)
                                .filter(|&other| table.range(other).unwrap().contains(pc));
                            assert!(here.into_iter().any(blamed), "{row:?} {all:?}");
                        }
                    }
                }
            }
            bytes[at] = original;
        }
    }
    println!("{valid} valid, {invalid} not");
    assert!(valid > 500 && invalid > 500, "{valid} {invalid}");
}

#[test]
fn findings_say_which_function_and_where() {
    let table = around(TableBuilder::amd64(2), bad(vec![Row::sp(3, &[8])]));
    let (all, _) = findings(&table.build(), 0);
    assert_eq!(all[0].to_string(), "function 1: .sframe+0x5f: the first row starts at +0x3");
    // What is about the whole table names none.
    let (all, _) = findings(&TableBuilder { abi: 9, ..TableBuilder::amd64(2) }.build(), 0);
    assert_eq!(all[0].to_string(), ".sframe+0x4: no unwinder knows the rows of abi 9");
}
