//! The row of one pc: an FDE's instructions, run up to there.

use unwind_core::{Origin, Row};

use crate::{
    abi::RegisterNumbers,
    entry::{Body, Cie, Entries},
    error::CfiError,
    execute::{Run, Stop},
    reader::Reader,
    rules::{NoRow, Rules},
    states::States,
};

/// The most bytes of instructions that one lookup runs: of a CIE and of an FDE each.
///
/// The largest of compilers have a few thousand.
pub const MAX_INSTRUCTIONS: usize = 1 << 16;

/// The most states that the FDE of a lookup may remember at a time.
pub const MAX_REMEMBERED: usize = 8;

/// Where a run of an FDE is, and its rules there.
#[derive(Debug)]
pub(crate) struct Evaluation {
    initial: Rules,
    rules: Rules,
    /// Where the rules begin to hold, in bytes from the start of the code.
    at: u64,
    /// The place whose row is asked for.
    target: u64,
}

impl Evaluation {
    /// At the start of an FDE of this CIE, for the row `target` bytes after the start of
    /// the code.
    #[inline(always)]
    pub(crate) fn new(
        entries: &Entries<'_>,
        cie: &Cie<'_>,
        remembered: &mut States<'_>,
        target: u64,
    ) -> Result<Self, CfiError> {
        if cie.instructions.len() > MAX_INSTRUCTIONS {
            return Err(CfiError::TooManyInstructions);
        }
        let initial = cie.initial_rules(entries, remembered)?;
        Ok(Self { initial, rules: initial, at: 0, target })
    }

    /// Runs the instructions of `body`. True says that these reach the place, false that
    /// they end before it: with the last one, the rules hold up to the end of the code.
    ///
    /// An error comes with the instructions from the one on that it is about: those can
    /// be run again where they end inside of it and there are more.
    pub(crate) fn run<'a>(
        &mut self,
        entries: &Entries<'a>,
        cie: &Cie<'_>,
        body: &Body<'a>,
        remembered: &mut States<'_>,
    ) -> Result<bool, (CfiError, Option<Reader<'a>>)> {
        let run = Run::new(entries, cie, &self.initial, remembered, body);
        let mut run = Run { rules: self.rules, at: self.at, ..run };
        let reached = run.run_to(self.target);
        (self.rules, self.at) = (run.rules, run.at);
        reached.map_err(|(stop, before)| {
            (run.reason(stop), (stop == Stop::Truncated).then_some(before))
        })
    }

    /// The rules that it has reached.
    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }
}

/// The rules at one pc, and what of its entries their row depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PcRules {
    pub(crate) rules: Rules,
    /// The column of the return address.
    pub(crate) column: u64,
    pub(crate) is_signal: bool,
    /// As the section counts.
    pub(crate) pc: u64,
}

impl PcRules {
    /// The rules that an entry of this CIE has at `pc`.
    pub(crate) const fn new(rules: &Rules, cie: &Cie<'_>, pc: u64) -> Self {
        Self { rules: *rules, column: cie.ra, is_signal: cie.is_signal, pc }
    }

    /// The row that they come to, of a section at this address.
    #[inline(never)]
    pub(crate) fn row(&self, registers: &RegisterNumbers, section: u64) -> Result<Row, CfiError> {
        // The caller is known without its frame pointer.
        let row = match self.rules.row_with_lost_fp(registers, self.column) {
            Some(row) => row,
            None => self.rare_row(registers, section)?,
        };
        Ok(self.marked(row, registers))
    }

    /// The row where the rules as they are come to none.
    #[cold]
    #[inline(never)]
    fn rare_row(&self, registers: &RegisterNumbers, section: u64) -> Result<Row, CfiError> {
        match self.rules.with_lost_fp().no_row(registers, self.column, section) {
            NoRow::Blocks(_, after, step) if step.is_reached_at(self.pc) => Ok(after),
            NoRow::Blocks(before, ..) => Ok(before),
            // The kernel saved all registers for a signal handler.
            NoRow::Error(_) if self.is_signal => Ok(Row::signal_context()),
            NoRow::Error(error) => Err(error),
        }
    }

    /// The row, marked as one of these rules.
    pub(crate) const fn marked(&self, row: Row, registers: &RegisterNumbers) -> Row {
        let row = row.with_origin(Origin::CallFrames);
        let row = if self.rules.is_eh_return(registers) { row.with_eh_return() } else { row };
        if self.is_signal { row.with_signal() } else { row }
    }
}
