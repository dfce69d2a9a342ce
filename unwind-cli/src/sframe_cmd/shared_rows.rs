//! Rows that functions share, which are shown a bounded number of times.

use sframe::{Fault, Fde, Fre, Section};

/// How many rows of a table are still to be shown.
#[derive(Debug)]
pub(crate) struct RowsLeft(u64);

impl RowsLeft {
    /// For all functions of a table.
    pub(crate) fn new(table: &Section<'_>) -> Self {
        Self(table.max_rows())
    }

    /// The rows of a function. Where none are left the last item says so.
    pub(crate) fn of(
        &mut self,
        table: &Section<'_>,
        fde: &Fde,
    ) -> Result<impl Iterator<Item = Result<Fre, Fault>>, Fault> {
        let rows = table.fres(fde).map_err(Fault::Malformed)?;
        let at = fde.at;
        Ok(rows.map(move |row| {
            self.0 = self.0.checked_sub(1).ok_or(Fault::TooManyRows(at))?;
            row.map_err(Fault::Malformed)
        }))
    }
}
