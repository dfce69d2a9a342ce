//! All unwinders beside each other: how fast, and how often right.

use std::fmt;
use std::hint::black_box;

use unwind_snapshot::Snapshot;

use crate::corpus::Corpus;
use crate::timing::Effort;
use crate::verdict::judge;
use crate::{Contestant, Reference, Unwinder};

/// What came of it, a column for each corpus.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The names of the corpora.
    pub corpora: Vec<String>,
    /// A line for each unwinder.
    pub lines: Vec<Line>,
}

/// An unwinder, in each corpus.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub name: &'static str,
    /// What it took and how often it was right.
    pub results: Vec<Outcome>,
}

/// An unwinder in a corpus.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Nanoseconds a frame: all stacks in time order, caches kept.
    pub time: f64,
    /// Of a hundred stacks, those that are not known to be wrong or to end early.
    pub right: f64,
}

impl Comparison {
    /// Measures `contestants`, which take turns.
    #[must_use]
    pub fn new(corpora: &[Corpus], contestants: &[Contestant], effort: Effort) -> Self {
        let columns: Vec<_> =
            corpora.iter().map(|corpus| column(corpus, contestants, effort)).collect();
        let lines = contestants.iter().enumerate().map(|(at, contestant)| Line {
            name: contestant.name,
            results: columns.iter().map(|column| column[at]).collect(),
        });
        let names = corpora.iter().map(|corpus| corpus.name.clone());
        Self { corpora: names.collect(), lines: lines.collect() }
    }

    fn table(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        of: fn(&Outcome) -> f64,
    ) -> fmt::Result {
        write!(f, "{title:<24}")?;
        self.corpora.iter().try_for_each(|name| write!(f, " {name:>11}"))?;
        for Line { name, results } in &self.lines {
            write!(f, "\n{name:<24}")?;
            results.iter().try_for_each(|result| write!(f, " {:>11.1}", of(result)))?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.table(f, "nanoseconds a frame", |outcome| outcome.time)?;
        writeln!(f)?;
        self.table(f, "% of stacks right", |outcome| outcome.right)
    }
}

type Walk<'a> = &'a mut dyn FnMut(usize);

fn column(corpus: &Corpus, contestants: &[Contestant], effort: Effort) -> Vec<Outcome> {
    let mut unwinders: Vec<_> = contestants.iter().map(|one| one.open(corpus)).collect();
    let counts: Vec<_> = unwinders.iter_mut().map(|one| count(corpus, &mut **one)).collect();
    let parts: Vec<&[Snapshot<'static>]> = corpus.snapshots.chunks(16).collect();
    let mut walks: Vec<_> = unwinders
        .iter_mut()
        .map(|one| {
            let parts = &parts;
            move |at: usize| {
                for snapshot in parts[at] {
                    black_box(one.walk(black_box(snapshot)));
                }
            }
        })
        .collect();
    let mut walks: Vec<_> = walks.iter_mut().map(|walk| -> Walk<'_> { walk }).collect();
    let times = effort.race_in_parts(parts.len(), &mut walks);
    let stacks = number(corpus.snapshots.len());
    let outcome = |((frames, right), time): ((usize, usize), f64)| Outcome {
        time: time / number(frames),
        right: 100.0 * number(right) / stacks,
    };
    counts.into_iter().zip(times).map(outcome).collect()
}

/// How many frames an unwinder walks, and how many stacks are right.
fn count(corpus: &Corpus, unwinder: &mut dyn Unwinder) -> (usize, usize) {
    let mut reference = Reference::new(corpus);
    corpus.snapshots.iter().fold((0, 0), |(frames, right), snapshot| {
        reference.walk(snapshot);
        let walked = unwinder.walk(snapshot);
        let is_right = !judge(&reference, unwinder).is_wrong();
        (frames + walked, right + usize::from(is_right))
    })
}

/// A count as a number to calculate with.
pub(crate) fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}
