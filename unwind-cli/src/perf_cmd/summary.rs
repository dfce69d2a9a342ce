//! What to say at the end of a reading.

use std::io::{self, Write as _};
use std::path::Path;

use crate::error::Error;
use crate::perf_cmd::pipeline::Summary;
use crate::untrusted::escaped;

/// How much may be held.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Memory {
    /// How much to hold at most to put records in order and to wait for
    /// stacks, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
}

impl Memory {
    pub(crate) const fn of_mib(memory: u32) -> Self {
        Self { memory }
    }

    pub(crate) fn bytes(self) -> usize {
        usize::try_from(self.memory).unwrap_or(usize::MAX).saturating_mul(1 << 20)
    }
}

/// The counts, for a reader.
pub(crate) fn stats_lines(summary: &Summary) -> Vec<String> {
    let merge = &summary.merge;
    let mut lines = vec![
        format!(
            "{} samples: {} merged, {} unmatched, {} not deferred",
            merge.samples,
            merge.merged,
            merge.unmatched(),
            merge.inline
        ),
        format!(
            "{} stacks: {} repeated, {} of no sample",
            merge.records, merge.records_repeated, merge.records_unused
        ),
    ];
    let details = [
        (merge.merged_late, "samples came after their stack"),
        (merge.merged_across_exec, "samples from before an exec have the stack after it"),
        (merge.unmatched_exit, "unmatched: the thread ended first"),
        (merge.unmatched_lost, "unmatched: records were lost"),
        (merge.unmatched_exec, "unmatched: the thread vanished in an exec"),
        (merge.unmatched_no_cookie, "unmatched: the call chain had no room for the cookie"),
        (merge.unmatched_newer_cookie, "unmatched: the thread went on without a stack"),
        (merge.unmatched_end, "unmatched: the recording ended"),
        (merge.lost, "records lost by the recorder"),
    ];
    let details = details.iter().filter(|(count, _)| *count > 0);
    lines.extend(details.map(|(count, what)| format!("{count} {what}")));
    lines
}

/// Warns of what the memory limit cost, and returns what was wrong with the
/// file at `path`.
pub(crate) fn report(summary: Summary, path: &Path) -> Result<(), Error> {
    let merge = &summary.merge;
    let warnings = [
        (summary.reorder.disordered, "records came too late to be put in order"),
        (merge.unmatched_evicted, "samples could not wait for their stack"),
        (merge.records_conflicting, "stacks disagree with an earlier one of their cookie"),
    ];
    for (count, what) in warnings.iter().filter(|(count, _)| *count > 0) {
        // With standard error gone there is nobody left to tell.
        let _ = writeln!(io::stderr(), "unwind: {}: {count} {what}", escaped(path));
    }
    summary.end.map_err(|error| Error::Perf { path: path.to_owned(), error })
}
