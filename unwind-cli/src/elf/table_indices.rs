//! Indices of the SFrame tables of a file whose functions are in no order.
//!
//! Linkers that join the tables of their inputs leave them so. There a lookup looks at one
//! function after another, and an index has paid for itself after a dozen to a hundred of them. In a table whose
//! functions ascend it takes thousands, each of another address: see the example `index_pays` of
//! `unwind-sframe`.

use std::collections::BTreeMap;

use sframe::{Flags, IndexShape, Table, Tables};
use unwind_core::Row;

/// A look at each of so few functions takes no longer than a search.
const FEW: u32 = 32;

/// The words of each index, by the number of the table in its section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableIndices(BTreeMap<usize, (Vec<u32>, IndexShape)>);

impl TableIndices {
    /// Of those tables that are found faster with one.
    pub(super) fn of(tables: Tables<'_>) -> Self {
        let tables = tables.map_while(Result::ok).enumerate();
        Self(tables.filter_map(|(number, table)| Some((number, index(&table)?))).collect())
    }

    /// As [`Table::find_row`], in the table of this number.
    ///
    /// # Errors
    ///
    /// As that.
    pub(super) fn find_row(
        &self,
        number: usize,
        table: &Table<'_>,
        pc: u64,
    ) -> Result<Option<Row>, sframe::Error> {
        match self.0.get(&number) {
            Some((words, shape)) => table.with_index(words, *shape).find_row(pc),
            None => table.find_row(pc),
        }
    }
}

fn index(table: &Table<'_>) -> Option<(Vec<u32>, IndexShape)> {
    let header = table.header();
    if header.flags.contains(Flags::SORTED) || header.num_fdes <= FEW {
        return None;
    }
    let mut words = vec![0; table.index_len()];
    let shape = table.fill_index(&mut words);
    shape.is_indexed().then_some((words, shape))
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use testdata::{Function, Row, TableBuilder};

    use super::*;
    use crate::elf::sframe_section::SframeSection;

    fn table(flags: u8, functions: i64) -> Vec<u8> {
        let rows = || vec![Row::sp(0, &[8]), Row::sp(4, &[16])];
        let functions = (0..functions).map(|at| Function::new(at * 0x40 - 0x8000, 0x30, rows()));
        let mut table =
            TableBuilder { flags, functions: functions.collect(), ..TableBuilder::amd64(2) };
        if flags & TableBuilder::SORTED == 0 {
            table.functions.reverse();
        }
        table.build()
    }

    #[test]
    fn functions_in_no_order_are_found_by_an_index_as_without_one() {
        // As a linker leaves them that joins sections.
        let bytes = [table(0, 100), table(TableBuilder::SORTED, 100), table(0, 3)].concat();
        let section = SframeSection::new(0x40_0000, bytes);
        let indices = TableIndices::of(section.tables().tables());
        assert_eq!(indices.0.keys().collect::<Vec<_>>(), [&0]);
        let mut found = 0;
        for bias in [0, 0x7f00_0000_0000] {
            for addr in (0x3f_7f00..0x3f_9a00).step_by(3) {
                let row = section.row(bias, bias + addr).unwrap();
                let mut tables = section.tables().tables();
                let plain = tables.find_map(|table| table.unwrap().find_row(addr).unwrap());
                assert_eq!(row, plain, "{addr:#x}");
                found += u32::from(row.is_some());
            }
        }
        assert!(found > 2_000, "{found}");
    }
}
