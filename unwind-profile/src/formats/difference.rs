//! Recordings before and after beside each other: which functions take another share of the time,
//! and which differences are no more than recordings of one program have.

use std::io::{self, Write};

#[cfg(feature = "svg")]
use inferno::differential;
use unwind_target::counted::counted;

use crate::collected::comparison::{Change, Compared, Comparison};
use crate::collected::side::Side;
use crate::formats::format::Format;
#[cfg(feature = "html")]
use crate::formats::html::difference;
#[cfg(feature = "svg")]
use crate::formats::{flame_graph, folded};

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
        #[cfg(feature = "svg")]
        Format::Folded => out.write_all(&folded_pair(sides, room)?)?,
        #[cfg(feature = "svg")]
        Format::Svg => flame_graph::write_diff(out, &folded_pair(sides, room)?, sides)?,
        #[cfg(feature = "html")]
        Format::Html => difference::write(out, sides)?,
        _ => return Err(io::Error::other("a difference is text, folded, svg or html")),
    }
    out.flush()
}

/// Stacks with their counts before and after, the former as if there were as many samples of
/// all as there are after. Each take about `room` bytes at most.
#[cfg(feature = "svg")]
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
    let Comparison { rows, samples, .. } = &comparison;
    let shown = comparison.largest(top);
    for (word, side, samples) in [("before", before, samples[0]), ("after", after, samples[1])] {
        writeln!(out, "{word:>6}: {}, {}", side.title, counted(samples, "sample", "samples"))?;
    }
    writeln!(out, "{}.\n", comparison.summary().join(".\n"))?;
    writeln!(
        out,
        "        self: change   bound    before    after   total: before    after  function"
    )?;
    for row in &shown {
        write_row(out, row, &comparison)?;
    }
    if let more @ 1.. = rows.len().saturating_sub(shown.len()) {
        let hint = if before.names_options { "; see --top" } else { "" };
        writeln!(out, "{:>8}  {more} more{hint}", "")?;
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
    let mark = match row.change {
        Change::More => "more",
        Change::Less => "less",
        Change::Within => "",
    };
    let [before, after] = comparison.shares(row.own).map(hundred);
    let [all_before, all_after] = comparison.shares(row.all).map(hundred);
    let bound = row.bound.map_or("-".to_owned(), |bound| format!("{:.2}", hundred(bound)));
    let file = row.frame.place();
    writeln!(
        out,
        "{mark:>4} {:>+13.2} % {bound:>5} % {before:>7.2} % {after:>6.2} % {all_before:>13.2} % \
         {all_after:>6.2} %  {}{file}",
        hundred(comparison.difference(row)),
        row.frame.name
    )
}

#[cfg(test)]
mod tests {
    use unwind_target::Untrusted;

    use super::*;
    use crate::collected::call_tree::{CallTree, Frame};
    use crate::collected::chance::{Counts, LogFactorials};
    use crate::session::ledger::Ledger;
    use crate::walks::found_by::FoundBy;

    /// Functions with as many samples in each as is told, called by `main`.
    fn profile(samples: &[u64]) -> CallTree {
        let mut profile = CallTree::with_room(usize::MAX);
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

    /// Compares recordings of which each has as many samples in each function.
    fn compare(before: &[Vec<u64>], after: &[Vec<u64>], format: Format) -> String {
        let ledger = Ledger::new();
        let sides = [before, after].map(|recordings| {
            let sum = |at: usize| recordings.iter().map(|counts| counts[at]).sum();
            let sums: Vec<u64> = (0..recordings[0].len()).map(sum).collect();
            let own =
                |counts: &Vec<u64>| profile(counts).nodes.iter().map(|node| node.own).collect();
            (profile(&sums), recordings.iter().map(own).collect::<Vec<Vec<u64>>>())
        });
        let counts = sides
            .each_ref()
            .map(|(_, recordings)| recordings.iter().map(Vec::as_slice).collect::<Vec<&[u64]>>());
        let side = |at: usize| {
            let (profile, recordings): (&CallTree, _) = (&sides[at].0, &counts[at][..]);
            Side { title: "a", profile, ledger: &ledger, recordings, names_options: true }
        };
        let sides = [side(0), side(1)];
        let mut out = Vec::new();
        write(&mut out, format, &sides, usize::MAX, usize::MAX).unwrap();
        Untrusted::from(out).to_string().replace("\\n", "\n")
    }

    /// Numbers that look like chance.
    struct Numbers(u64);

    impl Numbers {
        /// The next one below a limit.
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33).checked_rem(limit).unwrap()
        }

        /// About the number: by a normal distribution that has this standard deviation, in percent.
        fn about(&mut self, number: u64, percent: u64) -> u64 {
            let sum: u64 = (0..12).map(|_| self.below(1_001)).sum();
            let more = percent.saturating_mul(sum).saturating_add(100_000);
            let of_100_000 = more.saturating_sub(percent.saturating_mul(6_000));
            number.saturating_mul(of_100_000).checked_div(100_000).unwrap()
        }

        /// Samples of functions that take these parts of the time.
        fn drawn(&mut self, parts: &[u64], samples: u64) -> Vec<u64> {
            let ends: Vec<u64> = parts
                .iter()
                .scan(0_u64, |sum, part| {
                    *sum = sum.saturating_add(*part);
                    Some(*sum)
                })
                .collect();
            let all = ends.last().copied().unwrap();
            let mut counts = vec![0_u64; parts.len()];
            for _ in 0..samples {
                let at = self.below(all);
                let count = &mut counts[ends.partition_point(|&end| end <= at)];
                *count = count.saturating_add(1);
            }
            counts
        }

        /// Recordings of a program whose functions take these parts of the time, and in each run
        /// some percent more or less.
        fn recordings(&mut self, parts: &[u64], percent: u64, count: usize) -> Vec<Vec<u64>> {
            let mut recording = || {
                let parts: Vec<u64> = parts.iter().map(|&part| self.about(part, percent)).collect();
                self.drawn(&parts, 30_000)
            };
            (0..count).map(|_| recording()).collect()
        }
    }

    fn parts() -> Vec<u64> {
        (1..=60).map(|at| 600_000_u64.checked_div(at).unwrap()).collect()
    }

    #[test]
    fn d16_two_recordings_of_one_program_show_nothing_above_the_bound() {
        for seed in 1..=20 {
            // Of other lengths, too.
            let before = Numbers(seed).drawn(&parts(), 30_000);
            let after = Numbers(99 * seed).drawn(&parts(), 9_000);
            let text = compare(&[before], &[after], Format::Text);
            assert!(text.contains("\n0 of 60 functions above the bound"), "{text}");
        }
    }

    #[test]
    fn d16_runs_that_differ_by_more_than_chance_show_nothing_above_the_bound() {
        let (mut by_chance, mut above) = (0, 0);
        for seed in 1..=20 {
            for count in [1, 3] {
                let mut numbers = Numbers(seed);
                let [before, after] = [0, 1].map(|_| numbers.recordings(&parts(), 8, count));
                let own = [before[0][0], after[0][0]];
                let counts = Counts { own, samples: [30_000; 2] };
                by_chance += usize::from(counts.chance(&LogFactorials::up_to(60_000)) < 1e-4);
                let text = compare(&before, &after, Format::Text);
                above += usize::from(!text.contains("\n0 of 60 functions above the bound"));
            }
        }
        // Chance in sampling alone would not make as much of a difference.
        assert!(by_chance > 10, "{by_chance}");
        // Of 400 single pairs one has something above the bound.
        assert!(above <= 1, "{above}");
    }

    #[test]
    fn d16_a_function_that_takes_a_tenth_longer_comes_first() {
        for slow in 0..3 {
            let mut slower = parts();
            slower[slow] += slower[slow] / 10;
            // Of a single pair, whether or not it can be told from what runs may differ by.
            let before = Numbers(3).drawn(&parts(), 200_000);
            let after = Numbers(5).drawn(&slower, 400_000);
            assert_first(&compare(&[before], &[after], Format::Text), "", slow);
            // Runs that differ by two percent, recorded in turn.
            let before = Numbers(7).recordings(&parts(), 2, 8);
            let after = Numbers(8).recordings(&slower, 2, 8);
            assert_first(&compare(&before, &after, Format::Text), "more ", slow);
        }
    }

    fn assert_first(text: &str, mark: &str, slow: usize) {
        let (_, rows) = text.split_once("function\n").unwrap();
        let first = rows.lines().next().unwrap();
        assert!(first.starts_with(mark) && first.ends_with(&format!("  f{slow}")), "{text}");
    }

    #[test]
    fn d16_a_function_that_is_not_steady_has_a_wide_bound_of_its_own() {
        let mut numbers = Numbers(11);
        let unsteady = |numbers: &mut Numbers| {
            let mut parts = parts();
            parts[3] = numbers.about(parts[3], 30);
            numbers.recordings(&parts, 1, 1).remove(0)
        };
        let [before, after]: [Vec<Vec<u64>>; 2] =
            [0, 1].map(|_| (0..5).map(|_| unsteady(&mut numbers)).collect());
        let text = compare(&before, &after, Format::Text);
        let bound = |name: &str| {
            let row = text.lines().find(|line| line.ends_with(name)).unwrap();
            let share = |at: usize| row.split_whitespace().nth(at).unwrap().parse::<f64>().unwrap();
            let bound = usize::from(row.starts_with(' '));
            share(3 - bound) / share(5 - bound)
        };
        assert!(bound("  f3") > 5.0 * bound("  f2"), "{text}");
    }

    #[test]
    fn d16_functions_with_few_samples_or_small_changes_are_not_told() {
        let [mut before, mut after] = [vec![10_000; 8], vec![10_000; 8]];
        (before[2], after[2]) = (0, 19);
        (before[5], after[5]) = (0, 100);
        // Less than a thousandth of the time.
        (before[7], after[7]) = (1, 40);
        let text = compare(&[before], &[after], Format::Text);
        assert!(text.contains("\n1 of 7 functions above the bound"), "{text}");
        let first = text.lines().find(|line| line.starts_with("more ")).unwrap();
        assert!(first.ends_with("  f5"), "{text}");
    }

    #[cfg(feature = "svg")]
    #[test]
    fn d16_stacks_and_pictures_have_both_counts() {
        let (before, after) = ([vec![100, 100]], [vec![100, 300]]);
        let folded = compare(&before, &after, Format::Folded);
        // There are twice as many after.
        assert!(folded.contains("main;f1 200 300") && folded.contains("main;f0 200 100"));
        let svg = compare(&before, &after, Format::Svg);
        assert!(svg.contains("f1 (300 samples, 37.50%; +12.50%)"), "{svg}");
    }
}
