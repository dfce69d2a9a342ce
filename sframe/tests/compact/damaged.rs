//! Damaged images: an error, or a table in which each lookup ends.

use proptest::{collection::vec, prelude::*};
use sframe::CompactTable;

use crate::{image, sp};

fn good() -> Vec<u8> {
    let rows = (0..60_i32).map(|at| {
        let start = 0xf800 + u64::try_from(at).unwrap() * 0x40;
        (start, start + 0x30, sp(8 + at % 7 * 8))
    });
    let (image, _) = image(&rows.collect::<Vec<_>>());
    image
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_image_is_refused_or_has_an_answer_for_each_address(
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        in_header in vec((0_usize..48, any::<u8>()), 0..2),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let mut bytes = good();
        let places = damage.into_iter().map(|(at, byte)| (at.index(bytes.len()), byte));
        for (at, byte) in places.chain(in_header).collect::<Vec<_>>() {
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let Ok(table) = CompactTable::parse(&bytes) else { return Ok(()) };
        let mut end = None;
        let mut count = 0;
        for (range, row) in table.rows() {
            prop_assert!(range.start < range.end && end.is_none_or(|end| end == range.start));
            for pc in [range.start, range.end - 1] {
                prop_assert_eq!(table.row(pc), row, "at {:#x}", pc);
            }
            end = Some(range.end);
            count += 1;
        }
        prop_assert_eq!(count, table.num_rows());
        _ = [0, 1 << 47, u64::MAX].map(|pc| table.row(pc));
    }
}
