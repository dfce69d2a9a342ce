//! What became of samples whose stacks are walked, in figures.

use std::collections::BTreeMap;

use unwind_perf::merge::Outcome;
use unwind_perf::record::{Attr, UserState};

use crate::recording::held::Held;
use crate::walks::marks::{Mark, Marks};
use crate::walks::walked_stack::WalkedStack;

/// How many samples there were of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub(crate) complete: u64,
    /// Of these, stacks with a call that may be one of the functions that are inlined in it.
    pub(crate) inlined_calls: u64,
    /// By the reason why frames may be missing, in a word.
    pub(crate) incomplete: BTreeMap<&'static str, u64>,
    /// Samples of threads without a user part.
    pub(crate) kernel_only: u64,
    /// Samples whose user part the kernel has walked, along frame pointers.
    pub(crate) unchecked: u64,
    /// Samples that were left out since their fields cannot be told apart.
    pub(crate) damaged: u64,
    /// The samples that are not complete, if they are to be kept.
    pub(crate) marks: Option<Marks>,
    /// Samples whose user part did not come.
    pub(crate) unmatched: u64,
    /// The same of each event, if there are several.
    pub(crate) events: Vec<Tally>,
}

/// Why a sample is marked whose user part did not come.
pub(crate) const UNMATCHED: &str = "unmatched";

impl Tally {
    /// One that keeps which samples are not complete.
    pub(crate) fn with_marks() -> Self {
        Self { marks: Some(Marks::default()), ..Self::default() }
    }

    /// The same that counts each of this number of events, too.
    pub(crate) fn of_events(self, count: usize) -> Self {
        Self { events: vec![Self::default(); count], ..self }
    }

    /// Counts a sample. `is_cut` says that its chain is longer than a record can be.
    pub fn count(&mut self, held: &Held, attr: &Attr, walked: Option<&WalkedStack>, is_cut: bool) {
        if let Some(of_event) = self.events.get_mut(held.event) {
            of_event.count(held, attr, walked, is_cut);
        }
        let reason = match walked {
            Some(_) if is_cut => Some("record-limit"),
            Some(walked) => walked.incomplete(),
            None => {
                let record = held.record();
                let state = record.map(|record| UserState::decode(&record, attr));
                match state {
                    Some(Ok(None)) => return self.kernel_only = self.kernel_only.saturating_add(1),
                    Some(Ok(Some(_))) => Some("not-walked"),
                    Some(Err(_)) | None => {
                        return self.damaged = self.damaged.saturating_add(1);
                    }
                }
            }
        };
        match reason {
            None => {
                self.complete = self.complete.saturating_add(1);
                let is_one_of = walked.is_some_and(WalkedStack::has_call_of_several);
                self.inlined_calls = self.inlined_calls.saturating_add(u64::from(is_one_of));
            }
            Some(reason) => {
                let count = self.incomplete.entry(reason).or_default();
                *count = count.saturating_add(1);
                self.mark(held, reason);
            }
        }
    }

    /// Counts a sample that has no stack to walk: the kernel has walked it. Those whose user
    /// part did not come are the merge's to count.
    pub(crate) fn count_kernels(&mut self, held: &Held, outcome: &Outcome) {
        if let Some(of_event) = self.events.get_mut(held.event) {
            of_event.count_kernels(held, outcome);
        }
        match outcome {
            Outcome::Merged(_) => self.unchecked = self.unchecked.saturating_add(1),
            Outcome::Unmatched { .. } => {
                self.unmatched = self.unmatched.saturating_add(1);
                self.mark(held, UNMATCHED);
            }
            Outcome::Inline if held.has_user_part() => {
                self.unchecked = self.unchecked.saturating_add(1);
            }
            Outcome::Inline => self.kernel_only = self.kernel_only.saturating_add(1),
        }
    }

    fn mark(&mut self, held: &Held, reason: &'static str) {
        if let Some(marks) = &mut self.marks {
            marks.add(Mark { time: held.time, thread: held.task.tid, reason });
        }
    }

    pub fn count_damaged(&mut self, held: &Held) {
        if let Some(of_event) = self.events.get_mut(held.event) {
            of_event.count_damaged(held);
        }
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

#[cfg(test)]
mod tests {
    use unwind_perf::merge::{Merged, Unmatched};
    use unwind_perf::record::{
        Context, DeferredLayout, Endian, EventFormat, Misc, RecordType, SampleType,
    };

    use super::*;

    /// A sample at an address of the kernel or of user code, with this chain.
    fn sample(mode: Misc, chain: &[u64]) -> Held {
        let count = u64::try_from(chain.len()).unwrap();
        let words = [7, 9, count].into_iter().chain(chain.iter().copied());
        let body: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut bytes = RecordType::SAMPLE.0.to_le_bytes().to_vec();
        bytes.extend(mode.0.to_le_bytes());
        bytes.extend(u16::try_from(body.len().checked_add(8).unwrap()).unwrap().to_le_bytes());
        bytes.extend(body);
        let sample_type = SampleType::IP | SampleType::TIME | SampleType::CALLCHAIN;
        let format = EventFormat { sample_type, ..EventFormat::default() };
        Held::new(bytes.into(), Endian::Little, 0, format, DeferredLayout::Cookie).unwrap()
    }

    #[test]
    fn d14_stacks_that_the_kernel_has_walked_are_unchecked_unmatched_or_its_own() {
        let (user, kernel) = (Context::User.word(), Context::Kernel.word());
        let mut tally = Tally::with_marks();
        let whole = sample(Misc::KERNEL, &[kernel, 1, user, 2]);
        let kernels = sample(Misc::KERNEL, &[kernel, 1]);
        let interrupted = sample(Misc::USER, &[]);
        tally.count_kernels(&whole, &Outcome::Inline);
        tally.count_kernels(&kernels, &Outcome::Inline);
        tally.count_kernels(&interrupted, &Outcome::Inline);
        tally.count_kernels(
            &kernels,
            &Outcome::Merged(Merged { stack: [2].into(), across_exec: false, late: false }),
        );
        let lost = Outcome::Unmatched { cookie: None, reason: Unmatched::End };
        tally.count_kernels(&kernels, &lost);
        assert_eq!((tally.unchecked, tally.kernel_only, tally.walked()), (3, 1, 0));
        let marks = tally.marks.unwrap().listed;
        assert_eq!(marks, [Mark { time: 9, thread: 0, reason: "unmatched" }]);
    }
}
