//! Rows that functions share, which are read a bounded number of times.

use sframe::{Fde, Fre, Table, Violation};

/// How many rows of a table are still to be read.
#[derive(Debug)]
pub(crate) struct RowsLeft(u64);

impl RowsLeft {
    /// Of all functions of a table, to be counted.
    pub(crate) fn counted(table: &Table<'_>) -> Self {
        Self(table.max_rows())
    }

    /// Of all functions of a table, to be printed: one for each byte of rows, and
    /// 65,536 in any case. Where functions share no rows there are half as many at
    /// most.
    pub(crate) fn printed(table: &Table<'_>) -> Self {
        Self(u64::from(table.header().fre_len).max(0x1_0000))
    }

    /// The rows of a function. Where none are left the last item says so.
    pub(crate) fn of(
        &mut self,
        table: &Table<'_>,
        fde: &Fde,
    ) -> Result<impl Iterator<Item = Result<Fre, Violation>>, Violation> {
        let rows = table.fres(fde).map_err(Violation::Malformed)?;
        let at = fde.at;
        Ok(rows.map(move |row| {
            self.0 = self.0.checked_sub(1).ok_or(Violation::TooManyRows(at))?;
            row.map_err(Violation::Malformed)
        }))
    }
}
