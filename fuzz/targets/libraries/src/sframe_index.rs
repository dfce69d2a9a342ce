//! A lookup by an index has the answers of one without, in any memory.

use sframe::Table;

use crate::{input::Input, plain_table::pcs};

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (words, addr) = (usize::from(input.u8()), u64::from(input.u8()) << 12);
    let Ok(table) = Table::parse(input.rest()) else { return };
    let table = table.at(addr);
    let full = table.index_len();
    assert!(full <= data.len() + 2, "{full} words for {} bytes", data.len());
    for words in [words, full] {
        let mut memory = vec![0xdead_beef; words];
        let indexed = table.index(&mut memory);
        for pc in pcs(&table) {
            let expected = table.find(pc);
            assert_eq!(indexed.find(pc), expected, "{words} words, {pc:#x}");
            let row = expected.and_then(|found| found.map(|found| found.row()).transpose());
            assert_eq!(indexed.find_row(pc), row, "{words} words, {pc:#x}");
        }
    }
}
