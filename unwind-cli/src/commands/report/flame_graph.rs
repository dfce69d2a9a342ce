//! A flame graph as SVG, by the crate `inferno`.

use std::io::{self, Write};

use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use crate::commands::report::folded;
use crate::commands::report::profile::Profile;

/// Writes the picture, with `summary` under its title.
pub(crate) fn write(
    out: &mut impl Write,
    profile: &Profile,
    title: &str,
    summary: String,
) -> io::Result<()> {
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    options.subtitle = Some(summary);
    "samples".clone_into(&mut options.count_name);
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    let lines: Vec<String> = folded::lines(profile).collect();
    from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(io::Error::other)
}
