//! Indices of the SFrame tables of a file whose functions are in no order.
//!
//! Linkers that join the tables of their inputs leave them so. There a lookup looks at one
//! function after another, and an index, for which the functions have to be sorted, has paid for itself
//! after some ninety lookups: so it is made at the hundredth. In a table whose functions ascend it
//! takes thousands, each of another address, and is not made: see the example `index_pays` of
//! `unwind-sframe`.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use sframe::{Flags, IndexShape, Table, Tables};
use unwind_core::Row;

/// A look at each of so few functions takes no longer than a search.
const FEW: u32 = 32;

/// How many lookups there are before an index is made.
const LOOKUPS: u32 = 100;

/// What speeds lookups up once there have been many.
#[derive(Debug, Default)]
pub(super) struct TableIndices {
    lookups: AtomicU32,
    made: OnceLock<Indices>,
}

/// The words of each index, by the number of the table in its section.
#[derive(Debug, Default)]
pub(super) struct Indices(BTreeMap<usize, (Vec<u32>, IndexShape)>);

/// It has seen no lookup.
impl Clone for TableIndices {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What lookups have left is no part of what a section is.
impl PartialEq for TableIndices {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TableIndices {}

impl TableIndices {
    /// Counts a lookup in the tables of a section. The indices, if there have been many.
    pub(super) fn at_lookup<'t>(&self, tables: impl FnOnce() -> Tables<'t>) -> Option<&Indices> {
        if let Some(made) = self.made.get() {
            return Some(made);
        }
        // A count that several threads raise at once may pass the limit by some.
        let before = self.lookups.fetch_add(1, Ordering::Relaxed);
        (before >= LOOKUPS).then(|| self.made.get_or_init(|| Indices::of(tables())))
    }
}

impl Indices {
    /// Of those tables that are found faster with one.
    fn of(tables: Tables<'_>) -> Self {
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
        let indices = Indices::of(section.tables().tables());
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
        assert!(section.indices.made.get().is_some());
    }

    #[test]
    fn a_few_lookups_make_no_index() {
        let section = SframeSection::new(0x40_0000, table(0, 100));
        for _ in 0..LOOKUPS {
            section.row(0, 0x3f_8000).unwrap();
        }
        assert!(section.indices.made.get().is_none());
        let row = section.row(0, 0x3f_8000).unwrap();
        assert!(row.is_some() && section.indices.made.get().is_some());
        assert!(section.clone() == section && section.clone().indices.made.get().is_none());
    }
}
