//! Ranges that overlap, and pages.

use proptest::{collection::vec, prelude::*};
use sframe::{CompactTable, WriteError};

use crate::{image, sp};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_ranges_that_overlap_the_one_that_was_added_first_holds(
        ranges in vec((0_u64..64, 0_u64..32, 1_i32..4), 0..24),
        unit in prop_oneof![Just(1_u64), Just(0x1000), Just(0x1_0000), Just(0x5555)],
    ) {
        let rows = ranges.iter().map(|&(start, len, row)| {
            (0x7_0000 + start * unit, 0x7_0000 + (start + len) * unit, sp(8 * row))
        });
        let rows: Vec<_> = rows.collect();
        let (image, omissions) = image(&rows);
        prop_assert!(omissions.is_empty());
        let table = CompactTable::parse(&image).unwrap();
        let mut last = None;
        for pc in (0..100).map(|at| 0x7_0000 + at * unit) {
            for pc in [pc - 1, pc, pc + 1] {
                let first = rows.iter().find(|(start, end, _)| (*start..*end).contains(&pc));
                prop_assert_eq!(table.row(pc), first.map(|(.., row)| *row), "at {:#x}", pc);
            }
        }
        for (range, row) in table.rows() {
            prop_assert!(range.start < range.end);
            let is_new_page = range.start % 0x1_0000 == 0;
            if let Some((end, before)) = last {
                prop_assert!(end == range.start && (before != row || is_new_page));
            }
            last = Some((range.end, row));
        }
    }
}

#[test]
fn code_that_is_too_far_apart_is_an_error() {
    let far = |pages: u64| {
        let mut builder = sframe::CompactBuilder::new();
        builder.add(0x1_fff0..0x1_fff1, &sp(8)).unwrap();
        builder.add((pages << 16)..(pages << 16) + 0x1_0000, &sp(8)).unwrap();
        builder.finish().map(|(image, _)| image)
    };
    let image = far(1 << 20).unwrap();
    let table = CompactTable::parse(&image).unwrap();
    assert_eq!(table.num_pages(), 1 << 20);
    assert_eq!(
        [0x1_fff0, 0x1_fff1, 1 << 36].map(|pc| table.row(pc).is_some()),
        [true, false, true]
    );
    let error = far((1 << 20) + 1).unwrap_err();
    assert_eq!(error, WriteError::TooFarApart { pages: (1 << 20) + 1 });
}
