//! Two recordings beside each other: which functions take another share of the time, and
//! which differences samples cannot tell from chance.

use std::io::{self, Write};

use inferno::differential;

use crate::commands::report::comparison::{CHANCE, Change, Compared, Comparison};
use crate::commands::report::format::Format;
use crate::commands::report::html::difference;
use crate::commands::report::profile::FrameKind;
use crate::commands::report::side::Side;
use crate::commands::report::{flame_graph, folded};
use crate::counted::counted;

/// Writes the difference: as a table of at most `top` functions, as stacks with both counts or
/// as a picture, both in about `room` bytes, or as a page.
///
/// # Errors
///
/// Those of `out`, and that there is no such format.
pub(crate) fn write(
    out: &mut dyn Write,
    format: Format,
    sides: &[Side<'_>; 2],
    top: usize,
    room: usize,
) -> io::Result<()> {
    match format {
        Format::Text => table(out, sides, top)?,
        Format::Folded => out.write_all(&folded_pair(sides, room)?)?,
        Format::Svg => flame_graph::write_diff(out, &folded_pair(sides, room)?, sides)?,
        Format::Html => difference::write(out, sides)?,
        _ => return Err(io::Error::other("a difference is text, folded, svg or html")),
    }
    out.flush()
}

/// Stacks with their counts before and after, the former as if there were as many samples of
/// all as there are after. Each take about `room` bytes at most.
fn folded_pair(sides: &[Side<'_>; 2], room: usize) -> io::Result<Vec<u8>> {
    let [before, after] = sides.map(|side| {
        let mut lines = folded::lines_within(side.profile, room).join("\n");
        lines.push('\n');
        lines
    });
    let options = differential::Options { normalize: true, ..Default::default() };
    let mut pairs = Vec::new();
    differential::from_readers(options, before.as_bytes(), after.as_bytes(), &mut pairs)
        .map_err(io::Error::other)?;
    Ok(pairs)
}

/// Writes the table, the functions that take more first.
fn table(out: &mut dyn Write, sides: &[Side<'_>; 2], top: usize) -> io::Result<()> {
    let [before, after] = sides;
    let comparison = Comparison::new(sides);
    let Comparison { rows, samples, tests, .. } = &comparison;
    for (word, side, samples) in [("before", before, samples[0]), ("after", after, samples[1])] {
        writeln!(out, "{word:>6}: {}, {}", side.title, counted(samples, "sample", "samples"))?;
    }
    let functions = counted(u64::try_from(*tests).unwrap_or(u64::MAX), "function", "functions");
    writeln!(
        out,
        "{} of {functions} above the bound: of as many, chance alone brings one above it in {} of \
         100 such pairs.\n",
        comparison.above(),
        CHANCE * 100.0
    )?;
    writeln!(
        out,
        "        self: change   bound    before    after   total: before    after  function"
    )?;
    for row in rows.iter().take(top) {
        write_row(out, row, &comparison)?;
    }
    if let more @ 1.. = rows.len().saturating_sub(top) {
        writeln!(out, "{:>8}  {more} more; see --top", "")?;
    }
    for (word, side) in [("before", before), ("after", after)] {
        write!(out, "\n{word}: {}", side.ledger)?;
    }
    Ok(())
}

fn write_row(
    out: &mut dyn Write,
    row: &Compared<'_>,
    comparison: &Comparison<'_>,
) -> io::Result<()> {
    let hundred = |part: f64| 100.0 * part;
    let mark = match comparison.change(row) {
        Change::More => "more",
        Change::Less => "less",
        Change::Within => "",
    };
    let [before, after] = comparison.shares(row.own).map(hundred);
    let [all_before, all_after] = comparison.shares(row.all).map(hundred);
    let bound = hundred(comparison.bound(row));
    let file = match (&row.frame.file, row.frame.kind) {
        (_, FrameKind::Kernel) => " (kernel)".to_owned(),
        (Some(file), _) => format!(" ({file})"),
        (None, _) => String::new(),
    };
    writeln!(
        out,
        "{mark:>4} {:>+13.2} % {bound:>5.2} % {before:>7.2} % {after:>6.2} % {all_before:>13.2} % \
         {all_after:>6.2} %  {}{file}",
        hundred(comparison.difference(row)),
        row.frame.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::record::ledger::Ledger;
    use crate::commands::report::found_by::FoundBy;
    use crate::commands::report::profile::{Frame, Profile};
    use crate::untrusted::Untrusted;

    /// Functions with as many samples in each as is told, called by `main`.
    fn profile(samples: &[u64]) -> Profile {
        let mut profile = Profile::with_room(usize::MAX);
        let mut frame = |name: &str| {
            let name = Untrusted::from(name);
            (profile.frame(Frame::new(Some(&name), None, false)), FoundBy::Sampled)
        };
        let stacks: Vec<_> = samples
            .iter()
            .enumerate()
            .map(|(at, &count)| ([frame("main"), frame(&format!("f{at}"))], count))
            .collect();
        for (stack, count) in stacks {
            profile.add(stack, count);
        }
        // What is lost says nothing of functions.
        let lost = profile.frame(Frame::note("[lost in a ring]"));
        profile.add([(lost, FoundBy::Nothing)], samples.iter().sum());
        profile
    }

    fn compare(before: &Profile, after: &Profile, format: Format) -> String {
        let ledger = Ledger::new();
        let side = |profile| Side { title: "a", profile, ledger: &ledger };
        let mut out = Vec::new();
        write(&mut out, format, &[side(before), side(after)], 5, usize::MAX).unwrap();
        Untrusted::from(out).to_string().replace("\\n", "\n")
    }

    /// Samples of functions that take these parts of the time.
    fn drawn(parts: &[u64], samples: u64, seed: u64) -> Profile {
        let mut state = seed;
        let ends: Vec<u64> = parts
            .iter()
            .scan(0_u64, |sum, part| {
                *sum = sum.saturating_add(*part);
                Some(*sum)
            })
            .collect();
        let all = ends.last().copied().unwrap();
        let mut drawn: Vec<usize> = Vec::new();
        for _ in 0..samples {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33).checked_rem(all).unwrap();
            drawn.push(ends.partition_point(|&end| end <= at));
        }
        let count = |at| drawn.iter().filter(|&&drawn| drawn == at).count();
        let counts: Vec<u64> =
            (0..parts.len()).map(|at| u64::try_from(count(at)).unwrap()).collect();
        profile(&counts)
    }

    #[test]
    fn d16_two_recordings_of_one_program_show_nothing_above_the_bound() {
        let parts: Vec<u64> = (1..=60).map(|at| 6_000 / at).collect();
        for seed in 1..=20 {
            // Of other lengths, too.
            let (before, after) = (drawn(&parts, 30_000, seed), drawn(&parts, 9_000, 99 * seed));
            let text = compare(&before, &after, Format::Text);
            assert!(text.contains("\n0 of 60 functions above the bound"), "{text}");
        }
    }

    #[test]
    fn d16_a_function_that_takes_a_tenth_longer_comes_first() {
        let parts: Vec<u64> = (1..=60).map(|at| 6_000 / at).collect();
        for slow in 0..3 {
            let mut slower = parts.clone();
            slower[slow] += slower[slow] / 10;
            let samples = 60_000 << slow;
            let (before, after) = (drawn(&parts, samples, 3), drawn(&slower, 2 * samples, 5));
            let text = compare(&before, &after, Format::Text);
            let (_, rows) = text.split_once("function\n").unwrap();
            let first = rows.lines().next().unwrap();
            let name = format!("  f{slow}");
            assert!(first.starts_with("more ") && first.ends_with(&name), "{text}");
        }
    }

    #[test]
    fn d16_stacks_and_pictures_have_both_counts() {
        let (before, after) = (profile(&[100, 100]), profile(&[100, 300]));
        let folded = compare(&before, &after, Format::Folded);
        // There are twice as many after.
        assert!(folded.contains("main;f1 200 300") && folded.contains("main;f0 200 100"));
        let svg = compare(&before, &after, Format::Svg);
        assert!(svg.contains("f1 (300 samples, 37.50%; +12.50%)"), "{svg}");
    }
}
