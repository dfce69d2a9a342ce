//! Memory that runs out at one allocation after another: tables are not
//! written, and nothing worse.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::unreachable,
    reason = "tests"
)]

use sframe::{
    Abi, Builder, CfiAbi, CfiSection, CompactBuilder, CompactTable, Format, Function, Section,
    Table, WriteError,
};
use test_support::LimitedAllocator;
use testdata::{CfiBuilder, Cie};
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

#[global_allocator]
static ALLOCATOR: LimitedAllocator = LimitedAllocator;

/// Runs `work` with memory for none, one, two and so on allocations, until it
/// needs no more. Returns how many it takes.
fn exhaust<T>(mut work: impl FnMut() -> Result<T, WriteError>) -> (T, u64) {
    for granted in 0.. {
        let (result, refused) = LimitedAllocator::with(granted, &mut work);
        match result {
            Ok(done) => {
                assert_eq!(refused, 0, "a failed allocation went unnoticed");
                return (done, granted);
            }
            Err(error) => {
                assert_eq!(error, WriteError::OutOfMemory, "after {granted}");
                assert_eq!(refused, 1, "tried again after {granted}");
            }
        }
    }
    unreachable!("work that takes no end of memory")
}

fn rows(count: u32) -> Vec<(u32, Row)> {
    let row = |offset: i32| Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue);
    (0..count).map(|i| (i, row(8 + 8 * i32::try_from(i).unwrap()))).collect()
}

fn build(rows: &[(u32, Row)]) -> Result<Vec<u8>, WriteError> {
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little)?;
    // The last first, so that they have to be sorted.
    for i in (0..40).rev() {
        builder.add(&Function::new(0x1000 + i * 0x100, 0x80, rows), |_| ())?;
    }
    builder.finish(0x8000, |_| ())
}

#[test]
fn a_builder_without_memory_says_so_at_every_allocation() {
    let rows = rows(20);
    let whole = build(&rows).unwrap();
    let (built, allocations) = exhaust(|| build(&rows));
    println!("{allocations} allocations");
    assert!(allocations >= 4);
    assert_eq!(built, whole);
}

#[test]
fn a_function_that_finds_no_memory_is_not_added_and_all_others_are_kept() {
    let rows = rows(30);
    let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
    let mut added = 0;
    for i in 0..200 {
        let function = Function::new(0x1000 + i * 0x100, 0x80, &rows);
        let pieces = if i % 2 == 1 { 0 } else { u64::MAX };
        let (result, _) = LimitedAllocator::with(pieces, || builder.add(&function, |_| ()));
        match result {
            Ok(()) => added += 1,
            Err(error) => assert_eq!((error, i % 2), (WriteError::OutOfMemory, 1)),
        }
    }
    assert!((100..200).contains(&added), "{added}");
    let bytes = builder.finish(0, |lost| panic!("{lost}")).unwrap();
    let table = Table::parse(&bytes).unwrap();
    assert_eq!((table.header().num_fdes, table.check().unwrap().errors), (added, 0));
}

#[test]
fn a_function_in_parts_is_added_whole_or_not_at_all() {
    // Every other row is one that the format cannot say: each of the rest is an
    // entry of its own.
    let rows: Vec<(u32, Row)> = rows(40)
        .into_iter()
        .map(|(at, row)| match at % 2 {
            0 => (at, row),
            _ => (
                at,
                Row::new(
                    CfaRule::AtRegister(BaseReg::Fp, 0),
                    RegRule::Offset(-8),
                    RegRule::SameValue,
                ),
            ),
        })
        .collect();
    let before = Function::new(0x1000, 0x40, &rows[..1]);
    let in_parts = Function::new(0x2000, 40, &rows);
    let build = |functions: &[&Function<'_>]| {
        let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
        functions.iter().for_each(|function| builder.add(function, |_| ()).unwrap());
        builder.finish(0, |_| ()).unwrap()
    };
    let [without, whole] = [build(&[&before]), build(&[&before, &in_parts])];
    let (mut granted, mut failures) = (0, 0);
    loop {
        let (built, _) = LimitedAllocator::with(granted, || {
            let mut builder = Builder::new(Format::V2, Abi::Amd64Little).unwrap();
            builder.add(&before, |_| ()).ok()?;
            let added = builder.add(&in_parts, |_| ());
            Some((builder, added))
        });
        granted += 1;
        let Some((mut builder, added)) = built else { continue };
        let bytes = builder.finish(0, |_| ()).unwrap();
        match added {
            Ok(()) => {
                assert_eq!(bytes, whole);
                break;
            }
            Err(error) => {
                assert_eq!((error, &bytes), (WriteError::OutOfMemory, &without));
                failures += 1;
            }
        }
    }
    assert!(failures >= 3, "{failures}");
}

#[test]
fn copies_of_tables_without_memory_say_so_at_every_allocation() {
    let bytes = build(&rows(20)).unwrap();
    let table = Table::parse(&bytes).unwrap().at(0x8000);
    let (copy, allocations) = exhaust(|| {
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little)?;
        builder.add_table(&table, |fde| Some(fde.range.start), |_| ())?;
        builder.finish(0x8000, |_| ())
    });
    println!("{allocations} allocations");
    assert_eq!(copy, bytes);
}

#[test]
fn call_frame_information_without_memory_says_so_at_every_allocation() {
    let mut cfi = CfiBuilder::eh_frame(0x10_0000);
    let mut cie_of_all = Cie::amd64();
    // States that are remembered, in the CIE and in its FDEs.
    cie_of_all.instructions.extend([0x0a, 0x0a]);
    for i in 0..6 {
        let cie = cfi.cie(&cie_of_all);
        for j in 0..3 {
            let start = 0x1000 + i * 0x1000 + j * 0x100;
            cfi.fde(cie, start, 0x40, &[0x44, 0x0a, 0x0e, 16, 0x44, 0x0b, 0x44, 0x0b]);
        }
    }
    let bytes = cfi.build();
    let convert = || {
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little)?;
        builder.add_cfi(CfiSection::eh_frame(bytes, 0x10_0000), |lost| panic!("{lost}"))?;
        builder.finish(0x10_0000, |_| ())
    };
    let whole = convert().unwrap();
    let (built, allocations) = exhaust(convert);
    println!("{allocations} allocations");
    assert!(allocations >= 8);
    assert_eq!(built, whole);
    assert_eq!(Table::parse(&built).unwrap().header().num_fdes, 18);
}

#[test]
fn compact_tables_without_memory_say_so_at_every_allocation() {
    let bytes = build(&rows(20)).unwrap();
    let section = Section::new(&bytes).at(0x8000);
    let mut cfi = CfiBuilder::eh_frame(0x10_0000);
    let cie = cfi.cie(&Cie::amd64());
    for i in 0..40 {
        cfi.fde(cie, 0x8000 + i * 0x100, 0x40, &[0x44, 0x0e, 16, 0x44, 0x0e, 24, 0x44, 0x0e, 8]);
    }
    let cfi = CfiSection::eh_frame(cfi.build(), 0x10_0000);
    let (built, allocations) = exhaust(|| {
        let mut builder = CompactBuilder::new();
        builder.add_section(&section)?;
        builder.add_cfi(cfi, CfiAbi::X86_64)?;
        builder.finish()
    });
    println!("{allocations} allocations");
    assert!(allocations >= 20);
    let (image, omissions) = built;
    assert!(omissions.is_empty());
    let table = CompactTable::parse(&image).unwrap();
    assert!(table.row(0x1000).is_some() && table.row(0x8000).is_some());
}
