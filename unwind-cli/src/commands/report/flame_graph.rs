//! A flame graph as SVG, by the crate `inferno`.

use std::io::{self, Write};

use inferno::flamegraph::{Options, TextTruncateDirection, from_lines, from_reader};

use crate::commands::report::folded;
use crate::commands::report::profile::Profile;
use crate::commands::report::side::Side;

/// Writes the picture, with `summary` under its title. Its stacks, each with all of its frames,
/// take about `room` bytes at most; the others are counted apart.
pub(crate) fn write(
    out: &mut impl Write,
    profile: &Profile,
    title: &str,
    summary: String,
    room: usize,
) -> io::Result<()> {
    let mut options = options(title);
    options.subtitle = Some(summary);
    let lines = folded::lines_within(profile, room);
    from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(io::Error::other)
}

/// Writes the picture of a difference: the stacks as they are after, red where they take more
/// than before, blue where they take less. `pairs` has both counts of each stack.
pub(crate) fn write_diff(
    out: &mut dyn Write,
    pairs: &[u8],
    [before, after]: &[Side<'_>; 2],
) -> io::Result<()> {
    let title = format!("{} after {}", after.title, before.title);
    let mut options = options(&title);
    let (before, after) = (before.ledger.summary(), after.ledger.summary());
    options.subtitle = Some(format!("before: {before}; after: {after}"));
    from_reader(&mut options, pairs, out).map_err(io::Error::other)
}

fn options(title: &str) -> Options<'_> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    "samples".clone_into(&mut options.count_name);
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options
}
