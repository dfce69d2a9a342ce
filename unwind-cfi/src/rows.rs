//! The rows of an FDE, one after the other.

use unwind_core::Row;

use crate::{
    entry::{Body, Cie, Entries},
    error::CfiError,
    execute::{Changed, Run},
    rules::{NoRow, Rules},
    states::States,
};

impl Cie<'_> {
    /// The rules that the FDEs of this CIE start from. The states that they may restore
    /// are left in `remembered`.
    ///
    /// # Errors
    ///
    /// What is wrong with the instructions.
    #[inline(never)]
    pub fn initial_rules(
        &self,
        entries: &Entries<'_>,
        remembered: &mut States<'_>,
    ) -> Result<Rules, CfiError> {
        remembered.set(&[]);
        let mut run = Run {
            entries,
            cie: self,
            initial: None,
            remembered,
            rules: Rules::UNSET,
            changed: Changed::Nothing,
            instructions: self.instructions,
            start: 0,
            at: 0,
        };
        loop {
            match run.next() {
                // Where a CIE's code is has no meaning.
                Ok(Some(at)) => run.at = at,
                Ok(None) => return Ok(run.rules),
                Err(stop) => return Err(run.reason(stop)),
            }
        }
    }
}

/// Runs an FDE and gives its row wherever that changes.
///
/// Offsets count from the start of the FDE's code, in bytes, and ascend.
#[derive(Debug)]
pub struct Rows<'r, 's, 'a> {
    run: Run<'r, 's, 'a>,
    size: u32,
    /// Where the rules begin to hold; `None` after the last one.
    at: Option<u32>,
    /// The row there, if it has rules.
    last: Option<Row>,
}

impl<'r, 's, 'a> Rows<'r, 's, 'a> {
    /// The rows of an FDE about `size` bytes of code, which starts from the
    /// [rules](Cie::initial_rules) of its CIE.
    #[must_use]
    pub const fn new(
        entries: &'r Entries<'a>,
        cie: &'r Cie<'a>,
        initial: &'r Rules,
        body: &Body<'a>,
        size: u32,
        remembered: &'r mut States<'s>,
    ) -> Self {
        let run = Run::new(entries, cie, initial, remembered, body);
        Self { run, size, at: Some(0), last: None }
    }

    /// The next row, or why there is none, and the offset from which on that holds;
    /// `None` at the end.
    #[inline]
    pub fn next(&mut self) -> Option<(u32, Result<Row, NoRow>)> {
        loop {
            let at = self.at?;
            let next = match self.run.next() {
                Ok(next) => next,
                Err(stop) => {
                    // What holds before the last location that was reached is good.
                    self.at = None;
                    return Some((at, Err(NoRow::Error(self.run.reason(stop)))));
                }
            };
            // LLVM's last location is often the end.
            let size = self.size;
            self.at = next.and_then(|next| u32::try_from(next).ok()).filter(|&next| next < size);
            self.run.at = self.at.map_or(0, u64::from);
            let changed = core::mem::replace(&mut self.run.changed, Changed::Nothing);
            if changed != Changed::Nothing {
                return Some((at, self.row(changed)));
            }
        }
    }

    #[inline]
    fn row(&mut self, changed: Changed) -> Result<Row, NoRow> {
        let Run { entries, cie, rules, .. } = &self.run;
        let registers = &entries.registers;
        let cfa = if changed == Changed::Cfa { rules.only_cfa(registers) } else { None };
        let row = match (cfa, self.last) {
            (Some(cfa), Some(last)) => Some(last.with_cfa(cfa)),
            _ => rules.row(registers, cie.ra),
        };
        // Of an outermost row no rule means anything.
        self.last = row.filter(|row| !row.is_outermost());
        row.ok_or_else(|| rules.no_row(registers, cie.ra))
    }
}
