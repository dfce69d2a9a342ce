//! What to say at the end of a reading.

use std::io::{self, Write as _};
use std::path::Path;

use unwind_profile::recording::error::RecordingError;
use unwind_profile::recording::pipeline::Summary;
use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;

use crate::commands::stack::text::row_counts;
use crate::failure::Failure;

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
            "{}: {} merged, {} unmatched, {} not deferred",
            counted(merge.samples, "sample", "samples"),
            merge.merged,
            merge.unmatched(),
            merge.inline
        ),
        format!(
            "{}: {} repeated, {} of no sample",
            counted(merge.records, "stack", "stacks"),
            merge.records_repeated,
            merge.records_unused
        ),
    ];
    let unmatched = |count, why| (count, why, why);
    let details = [
        (
            summary.by_time,
            "sample was joined by time: its stack has no cookie",
            "samples were joined by time: their stacks have no cookies",
        ),
        (merge.merged_late, "sample came after its stack", "samples came after their stack"),
        (
            merge.merged_across_exec,
            "sample from before an exec has the stack after it",
            "samples from before an exec have the stack after it",
        ),
        unmatched(merge.unmatched_exit, "unmatched: the thread ended first"),
        unmatched(merge.unmatched_lost, "unmatched: records were lost"),
        unmatched(merge.unmatched_exec, "unmatched: the thread vanished in an exec"),
        unmatched(merge.unmatched_no_cookie, "unmatched: the call chain has no cookie"),
        unmatched(merge.unmatched_newer_cookie, "unmatched: the thread continued without a stack"),
        unmatched(merge.unmatched_end, "unmatched: the recording ended"),
        (merge.lost, "record lost by the recorder", "records lost by the recorder"),
    ];
    let details = details.iter().filter(|&&(count, ..)| count > 0);
    lines.extend(details.map(|&(count, one, several)| counted(count, one, several).to_string()));
    let rows = summary.rows;
    if rows.hits > 0 || rows.misses > 0 {
        lines.push(row_counts(rows));
    }
    lines
}

/// Tells what the memory limit cost, and what was wrong with the file at `path`.
///
/// # Errors
///
/// [`Failure`] if it was not read to its end.
pub(crate) fn report(summary: Summary, path: &Path) -> Result<(), Failure> {
    for warning in summary.warnings() {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {}: {warning}", escaped(path));
    }
    Ok(summary.end.map_err(|error| RecordingError { path: path.to_owned(), error })?)
}
