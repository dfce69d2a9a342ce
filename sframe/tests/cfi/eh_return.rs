//! Functions that may return to where an exception is caught.

use sframe::{Builder, CfiConverter, CfiSection, Format};
use testdata::{CfiBuilder, Cie};
use unwind_cfi::{CfiAbi, CfiTable, Entries, IndexEntry, index};

use crate::{ADDR, AMD64, One};

const START: u64 = 0x1000;
/// Bytes of code from a row to the next.
const STEP: u64 = 4;

/// What parts of a function say: libgcc's `_Unwind_RaiseException` has all of them.
const PARTS: [&[u8]; 8] = [
    // A frame, and the registers that pass data to the handler.
    &[0x44, 0x0c, 6, 16, 0x86, 2],
    &[0x44, 0x80, 9, 0x81, 8],
    // The return to the caller, and the rows before it.
    &[0x44, 0x0a, 0x0c, 7, 8],
    &[0x44, 0x0b],
    // The way to the handler.
    &[0x44, 0x0c, 2, 8, 0xc6],
    &[0x44, 0x0c, 7, 0],
    // The third register, too; one alone.
    &[0x44, 0x82, 7],
    &[0x44, 0xc1],
];

/// The rows of a table, and where the converter marks them, against those that come straight
/// from the call frame information.
fn check(parts: &[usize]) -> (usize, usize) {
    let instructions: Vec<u8> = parts.iter().flat_map(|&part| PARTS[part].to_vec()).collect();
    let size = STEP * u64::try_from(parts.len() + 1).unwrap();
    let mut cfi = CfiBuilder::eh_frame(ADDR);
    let cie = cfi.cie(&Cie::amd64());
    cfi.fde(cie, START, size, &instructions);
    let section = CfiSection::eh_frame(cfi.build(), ADDR);

    let mut slots = [IndexEntry::default()];
    let index = index(Entries::new(section, CfiAbi::X86_64), &mut slots).unwrap();
    let direct = CfiTable::with_index(section, CfiAbi::X86_64, index);

    let mut builder = Builder::new(Format::V3, AMD64).unwrap();
    let mut converter = CfiConverter::new(section, &builder);
    assert!(converter.next(&mut builder, &mut |_| {}).unwrap());
    let marked = converter.eh_returns().to_vec();
    assert!(marked.is_sorted_by(|a, b| a.end <= b.start), "{parts:?}: {marked:x?}");
    assert!(marked.iter().all(|range| !range.is_empty()), "{parts:?}: {marked:x?}");
    let one = One::of(AMD64, Format::V3, section);

    let (mut rows, mut marks) = (0, 0);
    for pc in START..START + size {
        let Ok(expected) = direct.find_row(pc) else { continue };
        let is_marked = marked.iter().any(|range| range.contains(&pc));
        let expected = expected.unwrap();
        assert_eq!(is_marked, expected.is_eh_return(), "{parts:?} at {pc:#x}: {marked:x?}");
        if let Some(row) = one.row(pc) {
            let row = if is_marked { row.with_eh_return() } else { row };
            assert_eq!(row.with_origin(expected.origin()), expected, "{parts:?} at {pc:#x}");
            rows += 1;
        }
        marks += usize::from(is_marked);
    }
    (rows, marks)
}

#[test]
fn u5_k10_a_table_has_the_rows_of_functions_that_may_return_to_a_handler() {
    let whole = [0, 1, 2, 3, 4, 5];
    let size = usize::try_from(STEP).unwrap() * (whole.len() + 1);
    assert_eq!(check(&whole), (size, 4 * 4), "all rows, and marks after the ordinary return");
}

#[test]
fn u5_k10_rows_are_marked_wherever_call_frame_information_has_the_mark() {
    // Some orders of six parts.
    let (mut rows, mut marks) = (0, 0);
    for number in (0..8_usize.pow(6)).step_by(83) {
        let parts: Vec<_> = (0..6).map(|at| number >> (3 * at) & 7).collect();
        // What is restored has to be remembered, one state at a time, which is not what this is about.
        let depths = parts.iter().scan(0_i32, |depth, part| {
            *depth += i32::from(*part == 2) - i32::from(*part == 3);
            Some(*depth)
        });
        if depths.into_iter().any(|depth| !(0..=1).contains(&depth)) {
            continue;
        }
        let (more_rows, more_marks) = check(&parts);
        rows += more_rows;
        marks += more_marks;
    }
    assert!(rows > 10_000 && marks > 1_000, "{rows} rows, {marks} marks");
}
