//! Any bytes are refused as a compact table, or have for each address the rule that a plain reader of
//! its words finds.

use sframe::CompactTable;

/// The address space in pages of an image.
const PAGE: u64 = 1 << 16;

/// The most rows of a table that are looked at.
const ROWS: usize = 256;

/// An image as its words: nothing is checked.
struct Plain {
    words: Vec<u32>,
    pages: usize,
    first: u64,
}

impl Plain {
    fn new(image: &[u8]) -> Self {
        let words = image.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let words: Vec<u32> = words.collect();
        let (pages, first) = (words[2] as usize, words[5].into());
        Self { words, pages, first }
    }

    /// The number of the rule of an address.
    fn rule(&self, addr: u64) -> u32 {
        let page = (addr / PAGE).checked_sub(self.first).unwrap_or(u64::MAX);
        if page >= self.pages as u64 {
            return 0;
        }
        let index = &self.words[8..];
        let rows = &index[(self.pages + 2) / 2 * 2..];
        let [start, end] = [0, 1].map(|at| index[page as usize + at] as usize);
        let low = (addr % PAGE) as u32;
        let row = rows[start..end].iter().rfind(|row| *row & 0xffff <= low);
        row.unwrap() >> 16
    }
}

pub(crate) fn run(data: &[u8]) {
    let Ok(table) = CompactTable::parse(data) else { return };
    let plain = Plain::new(data);
    assert_eq!((table.num_pages() as usize, table.num_rules()), (plain.pages, plain.words[3]));
    let mut row_of_rule = std::collections::BTreeMap::new();
    let mut next = plain.first * PAGE;
    // Of many rows the first ones, so that an execution is short.
    for (range, row) in table.rows().take(ROWS) {
        assert!(range.start == next && range.start < range.end);
        next = range.end;
        for addr in [range.start, (range.start + range.end) / 2, range.end - 1] {
            assert_eq!(table.row(addr), row, "at {addr:#x}");
            let rule = plain.rule(addr);
            let loads = table.loads(addr);
            assert_eq!(rule == 0, row.is_none() && loads.is_none(), "at {addr:#x}: {rule}");
            assert!(row.is_none() || loads.is_none(), "at {addr:#x}: {rule}");
            assert_eq!(*row_of_rule.entry(rule).or_insert(row), row, "at {addr:#x}: {rule}");
        }
    }
    let end = (plain.first + plain.pages as u64) * PAGE;
    assert_eq!([end, u64::MAX].map(|addr| table.row(addr)), [None; 2]);
    if let Some(before) = (plain.first * PAGE).checked_sub(1) {
        assert_eq!(table.row(before), None);
    }
    if table.num_rows() as usize <= ROWS {
        assert_eq!((table.rows().count(), next), (table.num_rows() as usize, end));
    }
}
