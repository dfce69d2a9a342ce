//! What a recording says of the stacks of its samples, if these were walked when it was made: its samples have
//! addresses alone.

use std::collections::HashMap;
use std::rc::Rc;

use crate::recording::error::PerfError;
use crate::recording::held::Held;
use crate::recording::reader::PerfReader;
use crate::session::ledger_section::LedgerSection;
use crate::walks::found_frames::FoundFrames;

/// Which stacks are not complete, how their frames were found, and which calls of interpreters these execute.
#[derive(Debug, Default)]
pub struct RecordedStacks {
    /// Why stacks are not complete, by the time and the thread of the sample.
    incomplete: HashMap<(u64, u32), String>,
    others_are_complete: bool,
    found: Option<Rc<FoundFrames>>,
}

impl RecordedStacks {
    /// What a recording says, whose ledger is `told` if it has one. Also why something of it cannot be read; the rest
    /// is there.
    pub fn read(
        reader: &mut PerfReader,
        told: Option<&LedgerSection>,
    ) -> (Self, Option<PerfError>) {
        let (found, error) = match FoundFrames::read(reader) {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error)),
        };
        let marks = told.iter().flat_map(|told| &told.incomplete);
        let marks = marks.map(|(time, thread, reason)| ((*time, *thread), reason.clone()));
        let stacks = Self {
            incomplete: marks.collect(),
            others_are_complete: told.is_some_and(LedgerSection::others_are_complete),
            found: found.map(Rc::new),
        };
        (stacks, error)
    }

    /// Why the stack of a sample is not complete, if that is said of it: a word, which may be shown as it is. It is
    /// said once.
    pub fn take_reason(&mut self, sample: &Held) -> Option<String> {
        self.incomplete.remove(&(sample.time, sample.task.tid))
    }

    /// Whether the stacks of which nothing is said are complete. If not, it is not known of them.
    #[must_use]
    pub const fn others_are_complete(&self) -> bool {
        self.others_are_complete
    }

    /// How frames were found, and calls of interpreters.
    #[must_use]
    pub fn found(&self) -> Option<Rc<FoundFrames>> {
        self.found.clone()
    }
}
