//! What became of samples whose stacks are walked, in figures.

use std::collections::BTreeMap;

use unwind_perf::record::{Attr, UserState};

use crate::commands::perf::held::Held;
use crate::commands::perf::walk::WalkedStack;

/// How many samples there were of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) complete: u64,
    /// By the reason why frames may be missing, in a word.
    pub(crate) incomplete: BTreeMap<&'static str, u64>,
    /// Samples of threads without a user part.
    pub(crate) kernel_only: u64,
    /// Samples that were left out since their fields cannot be told apart.
    pub(crate) damaged: u64,
    /// The samples that are not complete, if they are to be kept.
    pub(crate) marks: Option<Vec<Mark>>,
}

/// Which sample is not complete, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// In nanoseconds.
    pub(crate) time: u64,
    pub(crate) thread: u32,
    pub(crate) reason: &'static str,
}

impl Tally {
    /// One that keeps which samples are not complete.
    pub(crate) fn with_marks() -> Self {
        Self { marks: Some(Vec::new()), ..Self::default() }
    }

    /// Counts a sample. `is_cut` says that its chain is longer than a record can be.
    pub(crate) fn count(
        &mut self,
        held: &Held,
        attr: &Attr,
        walked: Option<&WalkedStack>,
        is_cut: bool,
    ) {
        let reason = match walked {
            Some(_) if is_cut => Some("record-limit"),
            Some(walked) => walked.incomplete(),
            None => {
                let record = held.record();
                let state = record.map(|record| UserState::decode(&record, attr));
                match state {
                    Some(Ok(None)) => return self.kernel_only = self.kernel_only.saturating_add(1),
                    Some(Ok(Some(_))) => Some("not-walked"),
                    Some(Err(_)) | None => return self.count_damaged(),
                }
            }
        };
        match reason {
            None => self.complete = self.complete.saturating_add(1),
            Some(reason) => {
                let count = self.incomplete.entry(reason).or_default();
                *count = count.saturating_add(1);
                if let Some(marks) = &mut self.marks {
                    marks.push(Mark { time: held.time, thread: held.task.tid, reason });
                }
            }
        }
    }

    pub(crate) fn count_damaged(&mut self) {
        self.damaged = self.damaged.saturating_add(1);
    }

    /// How many stacks were walked.
    pub(crate) fn walked(&self) -> u64 {
        self.complete.saturating_add(self.all_incomplete())
    }

    /// How many of these are not complete.
    pub(crate) fn all_incomplete(&self) -> u64 {
        self.incomplete.values().fold(0, |sum, &count| sum.saturating_add(count))
    }
}
