//! The rows of an FDE, one after the other.

use unwind_core::{CfaLoads, CfaRule, RegRule, Row};

use crate::{
    entry::{Body, Cie, Entries},
    error::CfiError,
    execute::{Changed, Run, Stop},
    plain_rules::PlainRules,
    rules::{Leaving, NoRow, Rules},
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
        if let Some((rules, ra)) = PlainRules::of_cie(self, &entries.registers) {
            return Ok(rules.rules(ra));
        }
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

/// What has changed where a row begins to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// The rule of the CFA alone, to this one, which is by far what changes most. A row that
    /// says nothing or that there is no caller is still that.
    Cfa(CfaRule),
    /// Anything: [`Rows::row`] has what holds.
    Any,
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
    /// Why the run ended early.
    stop: Option<Stop>,
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
        Self { run, size, at: Some(0), stop: None }
    }

    /// Runs to where the next [row](Self::row) begins to hold, and gives that offset and what is
    /// new; `None` at the end.
    #[inline]
    pub fn next(&mut self) -> Option<(u32, RowChange)> {
        loop {
            let at = self.at?;
            let next = match self.run.next() {
                Ok(next) => next,
                Err(stop) => {
                    // What holds before the last location that was reached is good.
                    (self.at, self.stop) = (None, Some(stop));
                    return Some((at, RowChange::Any));
                }
            };
            // LLVM's last location is often the end.
            let size = self.size;
            self.at = next.and_then(|next| u32::try_from(next).ok()).filter(|&next| next < size);
            self.run.at = self.at.map_or(0, u64::from);
            match core::mem::replace(&mut self.run.changed, Changed::Nothing) {
                Changed::Nothing => {}
                Changed::Cfa => {
                    let cfa = self.run.rules.only_cfa(&self.run.entries.registers);
                    return Some((at, cfa.map_or(RowChange::Any, RowChange::Cfa)));
                }
                Changed::All => return Some((at, RowChange::Any)),
            }
        }
    }

    /// The row that was run to; `None` if no row says what [holds](Self::no_row).
    ///
    /// There is none of what a row can say and no row of a table: a CFA that is
    /// [a word of memory and an addend](CfaRule::AtRegisterPlus).
    ///
    /// It does not say whether the function [may return to where an exception is
    /// caught](Self::is_eh_return), which depends on the rows after it.
    #[inline]
    #[must_use]
    pub fn row(&self) -> Option<Row> {
        let Run { entries, cie, rules, .. } = &self.run;
        let has_row = self.stop.is_none() && !rules.adds_to_load();
        if has_row { rules.row(&entries.registers, cie.ra) } else { None }
    }

    /// What a [lookup](crate::CfiTable::find_row) of an address finds there: also what rows can say and
    /// no row of a table. Of a frame pointer that no row can tell it says that it is undefined. Like
    /// [`row`](Self::row), it has no mark of a function that may return to where an exception is caught.
    ///
    /// # Errors
    ///
    /// What holds there in place of a row.
    pub fn found(&self) -> Result<Row, NoRow> {
        let Run { entries, cie, rules, .. } = &self.run;
        if let Some(stop) = self.stop {
            return Err(NoRow::Error(self.run.reason(stop)));
        }
        let marked = |row: Row| if cie.is_signal() { row.with_signal() } else { row };
        if let Some(row) = rules.row_with_lost_fp(&entries.registers, cie.ra) {
            return Ok(marked(row));
        }
        let rules = rules.with_lost_fp();
        match rules.no_row(&entries.registers, cie.ra, entries.section().addr) {
            // The kernel saved all registers for a signal handler.
            NoRow::Error(_) if cie.is_signal() => Ok(Row::signal_context()),
            NoRow::Blocks(before, after, step) => {
                Err(NoRow::Blocks(marked(before), marked(after), step))
            }
            error @ NoRow::Error(_) => Err(error),
        }
    }

    /// Where the CFA is found by loads that no row says: how, and what holds there else, as
    /// [`found`](Self::found) says it, with any CFA.
    #[must_use]
    pub fn by_loads(&self) -> Option<(Row, CfaLoads)> {
        let Run { entries, cie, rules, .. } = &self.run;
        let rules = self.stop.is_none().then(|| rules.with_lost_fp())?;
        let (row, loads) = rules.by_loads(entries, cie.ra)?;
        Some((if cie.is_signal() { row.with_signal() } else { row }, loads))
    }

    /// The rule of the frame pointer, or of the register that is [kept](Entries::keeping) in its place. One
    /// that no rule can tell has lost its value.
    #[must_use]
    pub fn kept_rule(&self) -> RegRule {
        self.stop.map_or_else(|| self.run.rules.kept_rule(), |_| RegRule::Undefined)
    }

    /// Whether registers are saved there as only a function does that may return to where an
    /// exception is caught: see [`Row::with_eh_return`]. It is not on its way to there if, in the order
    /// of addresses, it [leaves](Self::leaving) to its caller first.
    #[inline]
    #[must_use]
    pub const fn is_eh_return(&self) -> bool {
        self.run.rules.is_eh_return(&self.run.entries.registers)
    }

    /// Where the function goes from the last row that was run to, if nothing is left of its frame there.
    #[must_use]
    pub fn leaving(&self) -> Option<Leaving> {
        self.run.rules.leaving(&self.run.entries.registers)
    }

    /// What holds there in place of a row.
    #[cold]
    #[must_use]
    pub fn no_row(&self) -> NoRow {
        let Run { entries, cie, rules, .. } = &self.run;
        match self.stop {
            Some(stop) => NoRow::Error(self.run.reason(stop)),
            None => rules.no_row(&entries.registers, cie.ra, entries.section().addr),
        }
    }
}
