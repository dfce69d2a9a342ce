//! Any bytes as a section: the reader accepts, finds and refuses what a plain
//! one does.

use sframe::{Error, Section, Table};

use crate::plain_table::{self, PlainTable, pcs};

/// Where sections are put: low, in the middle of where programs are, and so
/// that their functions wrap round the end of the address space.
const ADDRS: [u64; 3] = [0, 0x40_0000, u64::MAX - 0xfff];

pub(crate) fn run(data: &[u8]) {
    let addr = ADDRS[data.len() % ADDRS.len()];
    compare(data, addr);
    every_table(data, addr);
}

/// Compares all answers with the plain reader's.
pub(crate) fn compare(data: &[u8], addr: u64) {
    let plain = PlainTable::new(data);
    let table = match (Table::parse(data), &plain) {
        (Ok(table), Some(_)) => table.at(addr),
        (Err(error), None) => {
            assert!(error.at().0 <= data.len() as u64, "{error}");
            return;
        }
        (table, _) => panic!("{table:?}, the plain reader {}", plain.is_some()),
    };
    let plain = plain.unwrap();
    look_at_all(&table);
    let functions: Vec<_> = plain.functions().collect();
    let honest = plain.is_honest();
    for pc in pcs(&table) {
        let found = table.find(pc);
        let row = found.and_then(|found| found.map(|found| found.row()).transpose());
        assert_eq!(table.find_row(pc), row, "at {pc:#x}");
        if let Ok(Some(found)) = found {
            assert!(found.fde.range.contains(pc), "at {pc:#x}");
        }
        if let Err(error) = row {
            assert!(error.at().0 <= table.header().len(), "{error}");
        }
        // What a table has that lies about its order may be missed.
        if honest {
            let expected = plain.find(&functions, pc.wrapping_sub(addr) as i64);
            let expected = expected.map(|found| found.map(plain_table::PlainFound::shortened));
            assert_eq!(plain_table::found(found), expected, "at {pc:#x}");
        }
    }
}

/// Decodes every function and every row, as far as they are good.
fn look_at_all(table: &Table<'_>) {
    let header = table.header();
    // Functions may share rows: of a few, all of them.
    let mut budget = 4096_usize;
    for (fde, index) in table.fdes().zip(0..) {
        assert_eq!(table.range(index).is_some(), index < header.num_fdes);
        let Ok(fde) = fde else { continue };
        assert_eq!(table.range(index), Some(fde.range));
        let Ok(rows) = table.fres(&fde) else { continue };
        let mut least = 0;
        for row in rows.take(budget) {
            budget = budget.saturating_sub(1);
            let Ok(row) = row else { break };
            assert!(u64::from(row.start) >= least, "rows ascend");
            least = u64::from(row.start) + 1;
            assert!(row.at.0 < header.len());
            let _ = (row.flex(), fde.row(&row), format!("{row:?}").len());
        }
    }
}

/// The tables that linkers put one after another in a section.
fn every_table(data: &[u8], addr: u64) {
    let sections = Section::new(data).at(addr);
    let tables: Vec<Result<Table<'_>, Error>> = sections.tables().collect();
    let mut next = addr;
    for table in tables.iter().flatten() {
        assert_eq!(table.addr(), next);
        next = next.wrapping_add((table.bytes().len() as u64).next_multiple_of(8));
    }
    assert!(tables.len() <= data.len() / 28 + 1);
    let Some(Ok(last)) = tables.last() else { return };
    for pc in pcs(last).into_iter().take(16) {
        let first = tables.iter().find_map(|table| match table {
            Ok(table) => table.find(pc).transpose(),
            Err(error) => Some(Err(*error)),
        });
        assert_eq!(sections.find(pc), first.transpose(), "at {pc:#x}");
    }
}
