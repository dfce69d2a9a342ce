//! A flame graph as SVG, by the crate `inferno`.

use std::io::{self, Write};

use inferno::flamegraph::{Options, TextTruncateDirection, from_lines, from_reader};

use crate::collected::call_tree::CallTree;
use crate::collected::side::Side;
use crate::formats::folded;

/// Writes the picture, with `summary` under its title. Its stacks, each with all of its frames,
/// take about `room` bytes at most; the others are counted apart.
pub(crate) fn write(
    out: &mut impl Write,
    profile: &CallTree,
    title: &str,
    summary: String,
    room: usize,
) -> io::Result<()> {
    let lines = folded::lines_within(profile, room);
    if lines.is_empty() {
        return write_empty(out, title, &summary);
    }
    let mut options = options(title);
    options.subtitle = Some(summary);
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
    let (before, after) = (before.ledger.summary(), after.ledger.summary());
    let summary = format!("before: {before}; after: {after}");
    if pairs.is_empty() {
        return write_empty(out, &title, &summary);
    }
    let mut options = options(&title);
    options.subtitle = Some(summary);
    from_reader(&mut options, pairs, out).map_err(io::Error::other)
}

/// Writes a picture without stacks, of which the crate makes an error.
fn write_empty(mut out: impl Write, title: &str, summary: &str) -> io::Result<()> {
    let (title, summary) = (markup(title), markup(summary));
    writeln!(
        out,
        r#"<?xml version="1.0" standalone="no"?>
<svg version="1.1" width="1200" height="90" viewBox="0 0 1200 90" xmlns="http://www.w3.org/2000/svg">
<rect width="100%" height="100%" fill="white"/>
<g font-family="monospace" font-size="12" text-anchor="middle">
<text x="600" y="24" font-size="17">{title}</text>
<text x="600" y="48">{summary}</text>
<text x="600" y="72">There are no samples, so there is nothing to show.</text>
</g>
</svg>"#
    )
}

/// A text in which nothing is markup.
fn markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn options(title: &str) -> Options<'_> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    "samples".clone_into(&mut options.count_name);
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options
}
