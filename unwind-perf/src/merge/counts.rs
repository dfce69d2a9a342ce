//! How the samples and records of a stream ended.

use super::outcome::Unmatched;

/// How many samples and records ended in which way.
///
/// `samples` equals the sum of `inline`, `merged`, all of the `unmatched_…`
/// fields, and those still waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeCounts {
    /// Samples that came in.
    pub samples: u64,
    /// Samples whose user part was not deferred.
    pub inline: u64,
    /// Samples that got their stack.
    pub merged: u64,
    /// Of these, samples that came after their record.
    pub merged_late: u64,
    /// Of these, samples from before an exec with a stack from after it.
    pub merged_across_exec: u64,
    /// Samples with a mark and no cookie.
    pub unmatched_no_cookie: u64,
    /// Samples of threads that ended before their return to user mode.
    pub unmatched_exit: u64,
    /// Samples during whose wait records were lost.
    pub unmatched_lost: u64,
    /// Samples of threads that vanished in an exec.
    pub unmatched_exec: u64,
    /// Samples whose thread moved to another cookie, with no loss reported.
    pub unmatched_newer_cookie: u64,
    /// Samples that still waited at the end of the input.
    pub unmatched_end: u64,
    /// Samples dropped to keep the memory limit.
    pub unmatched_evicted: u64,
    /// Records that came in.
    pub records: u64,
    /// Of these, repetitions of a record, as several events with
    /// `defer_output` make them.
    pub records_repeated: u64,
    /// Of these, records that disagree with an earlier one of their cookie.
    /// The earlier one is used.
    pub records_conflicting: u64,
    /// Records that no sample was merged with.
    pub records_unused: u64,
    /// Stacks dropped to keep the memory limit, used or not.
    pub records_evicted: u64,
    /// Records that the recorder reported as lost, samples and stacks alike.
    pub lost: u64,
}

impl MergeCounts {
    /// No samples and no records.
    pub(super) const NONE: Self = Self {
        samples: 0,
        inline: 0,
        merged: 0,
        merged_late: 0,
        merged_across_exec: 0,
        unmatched_no_cookie: 0,
        unmatched_exit: 0,
        unmatched_lost: 0,
        unmatched_exec: 0,
        unmatched_newer_cookie: 0,
        unmatched_end: 0,
        unmatched_evicted: 0,
        records: 0,
        records_repeated: 0,
        records_conflicting: 0,
        records_unused: 0,
        records_evicted: 0,
        lost: 0,
    };

    /// How many samples ended without their stack.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        [
            self.unmatched_no_cookie,
            self.unmatched_exit,
            self.unmatched_lost,
            self.unmatched_exec,
            self.unmatched_newer_cookie,
            self.unmatched_end,
            self.unmatched_evicted,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    pub(super) fn unmatched_by(&mut self, reason: Unmatched) -> &mut u64 {
        match reason {
            Unmatched::NoCookie => &mut self.unmatched_no_cookie,
            Unmatched::Exit => &mut self.unmatched_exit,
            Unmatched::Lost => &mut self.unmatched_lost,
            Unmatched::Exec => &mut self.unmatched_exec,
            Unmatched::NewerCookie => &mut self.unmatched_newer_cookie,
            Unmatched::End => &mut self.unmatched_end,
            Unmatched::Evicted => &mut self.unmatched_evicted,
        }
    }
}

/// Counts one more.
pub(super) const fn bump(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}
