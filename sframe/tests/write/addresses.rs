//! Where functions may be.

use sframe::{Abi, Builder, Format, Function, OmissionReason, Table};

use crate::*;

#[test]
fn of_functions_that_overlap_the_shorter_stays() {
    let rows = [(0, sp(8))];
    let function = |start, size| Function::new(start, size, &rows);
    for (functions, stay, gone) in [
        // The same twice: the first.
        (&[function(0, 8), function(0, 8)][..], &[(0, 8)][..], &[(0, 8, 0)][..]),
        // A bogus one over many.
        (
            &[function(0, 0x1000), function(0x10, 8), function(0x20, 8)],
            &[(0x10, 8), (0x20, 8)],
            &[(0, 0x1000, 0x10)],
        ),
        // Half on another.
        (&[function(4, 8), function(0, 8)], &[(4, 8)], &[(0, 8, 4)]),
        (&[function(4, 9), function(0, 8)], &[(0, 8)], &[(4, 9, 0)]),
        // Side by side.
        (&[function(8, 8), function(0, 8)], &[(0, 8), (8, 8)], &[]),
    ] {
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        for function in functions {
            builder.add(function, none).unwrap();
        }
        let mut lost = Vec::new();
        let bytes = builder
            .finish(0, |range| match range.reason {
                OmissionReason::Overlap { other } => lost.push((range.start, range.size, other)),
                other => panic!("{other}"),
            })
            .unwrap();
        let table = Table::parse(&bytes).unwrap();
        let ranges: Vec<_> =
            table.fdes().map(|fde| fde.unwrap().range).map(|r| (r.start, r.size)).collect();
        assert_eq!((&ranges[..], &lost[..]), (stay, gone));
        // It is reported once.
        assert_eq!(builder.finish(0, none).unwrap(), bytes);
    }
}

#[test]
fn v2_functions_too_far_from_the_section_are_lost() {
    let rows = [(0, sp(8))];
    let addr = 0x7000_0000_0000;
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        let mut builder = Builder::new(format, Abi::Amd64Little).unwrap();
        for start in [addr - 0x1_0000_0000, addr - 0x1000, addr + 0x1000, addr + 0x8000_0000] {
            builder.add(&Function::new(start, 8, &rows), none).unwrap();
        }
        let mut lost = Vec::new();
        let bytes = builder.finish(addr, |range| lost.push((range.start, range.reason))).unwrap();
        let table = Table::parse(&bytes).unwrap().at(addr);
        assert!(table.find(addr - 0x1000).unwrap().is_some());
        assert!(table.find(addr + 0x1007).unwrap().is_some());
        if format == Format::V3 {
            assert_eq!(lost, []);
            assert!(table.find(addr + 0x8000_0000).unwrap().is_some());
            continue;
        }
        let far = [addr - 0x1_0000_0000, addr + 0x8000_0000];
        assert_eq!(lost, far.map(|start| (start, OmissionReason::TooFar)));
        assert_eq!(table.header().num_fdes, 2);
        // From elsewhere it is near.
        let near = builder.finish(addr + 0x7000_0000, |range| assert_eq!(range.start, far[0]));
        assert_eq!(Table::parse(&near.unwrap()).unwrap().header().num_fdes, 3);
    }
}

#[test]
fn a_section_may_be_put_at_any_address() {
    let rows = [(0, sp(8))];
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    builder.add(&Function::new(0x1000, 8, &rows), none).unwrap();
    for addr in [0, 0x1000, u64::MAX - 0xfff, 0xffff_8000_0000_0000] {
        let bytes = builder.finish(addr, none).unwrap();
        let table = Table::parse(&bytes).unwrap().at(addr);
        assert_eq!(table.find(0x1007).unwrap().unwrap().row(), Ok(sp(8)), "{addr:#x}");
    }
}

#[test]
fn functions_on_both_sides_of_the_ends_of_the_address_space_are_found() {
    let rows = [(0, sp(8))];
    // By their distance from a section at 1 MiB, the upper ones come first.
    let starts = [0, 0x200, 0x30_0000, u64::MAX - 0x20_0000, u64::MAX - 0xf];
    for format in [Format::V2, Format::V2Pcrel, Format::V3] {
        for addr in [0x10_0000, u64::MAX - 0xf_ffff] {
            let functions = starts.map(|start| Function::new(start, 16, &rows));
            let bytes = built(format, Abi::Amd64Little, addr, &functions);
            let table = Table::parse(&bytes).unwrap().at(addr);
            table.check().unwrap();
            for start in starts {
                let found = table.find(start + 15).unwrap().unwrap();
                assert_eq!(found.fde.range.start, start, "{format:?} at {addr:#x}");
            }
        }
    }
}

#[test]
fn a_function_that_goes_past_the_end_of_the_address_space_is_lost() {
    let rows = [(0, sp(8))];
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let mut lost = Vec::new();
    for size in [0x10, 0x11, u32::MAX] {
        let function = Function::new(u64::MAX - 0xf, size, &rows);
        builder.add(&function, |range| lost.push((range.size, range.reason))).unwrap();
    }
    assert_eq!(lost, [(0x11, OmissionReason::Wraps), (u32::MAX.into(), OmissionReason::Wraps)]);
    builder.add(&Function::new(0, 8, &rows), none).unwrap();
    let bytes = builder.finish(0x1000, none).unwrap();
    assert_eq!(Table::parse(&bytes).unwrap().check().unwrap().functions, 2);
}

#[test]
fn a_function_is_lost_that_is_half_an_address_space_away_on_both_sides() {
    let (addr, rows) = (0x10_0000, [(0, sp(8))]);
    let middle = addr + (1 << 63);
    let starts = [middle - 0x18, middle - 8, middle + 8];
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    for start in starts {
        builder.add(&Function::new(start, 16, &rows), none).unwrap();
    }
    let mut lost = Vec::new();
    let bytes = builder.finish(addr, |range| lost.push((range.start, range.reason))).unwrap();
    assert_eq!(lost, [(middle - 8, OmissionReason::TooFar)]);
    let table = Table::parse(&bytes).unwrap().at(addr);
    table.check().unwrap();
    for start in [starts[0], starts[2]] {
        for pc in [start, start + 15] {
            assert_eq!(table.find(pc).unwrap().unwrap().fde.range.start, start, "{pc:#x}");
        }
    }
}
