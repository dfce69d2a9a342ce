//! Where functions are: their order, overlaps, and functions of no bytes.

use super::*;

#[test]
fn functions_of_a_sorted_table_have_to_ascend() {
    let table = TableBuilder::amd64(2).function(ok(0x100)).function(ok(0x40)).function(ok(0x200));
    assert_eq!(faults(&table)[0], (Some(1), Violation::UnsortedFde(FDE_V2)));
    let unsorted = TableBuilder { flags: 0, ..table };
    assert_eq!(faults(&unsorted), []);
}

#[test]
fn overlaps_are_found_in_any_order() {
    let starts = [(0x100, 0x40), (0x140, 0x10), (0x148, 0x100), (0x160, 8), (0x200, 0x20)];
    let functions: Vec<Function> =
        starts.map(|(start, size)| Function::new(start, size, vec![Row::sp(0, &[8])])).into();
    let sorted = TableBuilder { functions: functions.clone(), ..TableBuilder::amd64(2) };
    let overlap = |index: u32, other| {
        let at = TableOffset(28 + 20 * u64::from(index));
        (Some(index), Violation::Overlap { at, other })
    };
    assert_eq!(faults(&sorted), [overlap(2, 1), overlap(3, 2), overlap(4, 2)]);

    let mut unsorted = TableBuilder { flags: 0, ..sorted };
    unsorted.functions.rotate_left(2);
    let rotated = |index: u32| (index + 3) % 5;
    let expected =
        [(2, 1), (3, 2), (4, 2)].map(|(index, other)| overlap(rotated(index), rotated(other)));
    assert_eq!(faults(&unsorted), expected);
    // Without room for all functions none is looked at.
    let (all, summary) = findings(&unsorted.build(), 4);
    assert!(all.is_empty() && !summary.overlaps_checked);
    let (_, summary) = findings(&unsorted.build(), 5);
    assert!(summary.overlaps_checked);
}

#[test]
fn functions_at_the_end_of_all_distances_overlap_too() {
    let last = || Function::new(i64::MAX, 1, vec![Row::sp(0, &[8])]);
    let table = TableBuilder { flags: 1, ..TableBuilder::amd64(3) };
    // No distance can say where they end.
    let one = table.function(ok(0)).function(last());
    assert_eq!(faults(&one), []);
    let at = TableOffset(28 + 2 * 16);
    assert_eq!(faults(&one.function(last())), [(Some(2), Violation::Overlap { at, other: 1 })]);
}

#[test]
fn functions_of_size_zero_at_others_are_notes() {
    let empty = |start| Function::new(start, 0, vec![Row::sp(0, &[8])]);
    for functions in [
        vec![ok(0x100), empty(0x100)],
        vec![empty(0x100), ok(0x100)],
        vec![ok(0x100), empty(0x110)],
    ] {
        let zero = functions.iter().position(|function| function.size == 0).unwrap();
        let zero = u32::try_from(zero).unwrap();
        let table = TableBuilder { functions, ..TableBuilder::amd64(2) };
        let at = TableOffset(28 + 20 * u64::from(zero));
        let all = faults(&table);
        assert!(
            all.contains(&(Some(zero), Violation::EmptyNeighbour { at, other: 1 - zero })),
            "{all:?}"
        );
        // Its row is past its end, of course.
        assert!(all.iter().all(|(_, fault)| fault.severity() == Severity::Note));
    }
    // The other is the one that reaches furthest, or the last at the same start.
    let sized = |start, size| Function::new(start, size, vec![Row::sp(0, &[8])]);
    for (functions, other) in [
        (vec![sized(0x100, 0x100), sized(0x110, 8), empty(0x150)], 0),
        (vec![sized(0x100, 0x20), sized(0x130, 0), empty(0x130)], 1),
        (vec![sized(0x100, 0x20), sized(0x120, 0), empty(0x120)], 1),
    ] {
        let all = faults(&TableBuilder { functions, ..TableBuilder::amd64(2) });
        let at = TableOffset(28 + 2 * 20);
        assert!(all.contains(&(Some(2), Violation::EmptyNeighbour { at, other })), "{all:?}");
    }
    // At the end of another, or alone, it is nothing.
    let after =
        TableBuilder::amd64(3).function(ok(0x100)).function(Function::new(0x120, 0, vec![]));
    assert_eq!(faults(&after), []);
    let alone = TableBuilder::amd64(2).function(Function::new(0x90, 0, vec![])).function(ok(0x100));
    assert_eq!(faults(&alone), [(Some(0), Violation::NoRows(TableOffset(28)))]);
}
