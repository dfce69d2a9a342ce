//! The functions of recordings before and after: what share of the time each takes, and which
//! differences are more than recordings of one program have.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use crate::commands::report::chance::{Counts, LogFactorials, float};
use crate::commands::report::profile::{Frame, FrameKind, Total};
use crate::commands::report::side::Side;
use crate::commands::report::spread::{Differences, Spread};
use crate::counted::counted;

/// How probable it may be that any function is above the bound if there is no difference.
pub(crate) const CHANCE: f64 = 0.01;

/// Of functions with fewer samples it is not asked whether they differ.
const FEW_SAMPLES: u64 = 20;

/// With as many pairs of recordings more of them narrow the bound little.
const MANY_PAIRS: usize = 8;

/// A function in both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared<'r> {
    pub(crate) frame: &'r Frame,
    /// Samples in it, before and after.
    pub(crate) own: [u64; 2],
    pub(crate) all: [u64; 2],
    /// By how much its share of own samples would have to differ, if that can be told.
    pub(crate) bound: Option<f64>,
    pub(crate) change: Change,
}

/// Whether a function takes another share than before, in the order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    More,
    Less,
    /// Recordings of one program may differ by as much.
    Within,
}

/// The functions of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Comparison<'r> {
    /// Those that take more first, then those that take less, then all others; of each the largest
    /// difference first, and of the others those that may take more before those that may take less.
    pub(crate) rows: Vec<Compared<'r>>,
    /// Samples that end in a function, before and after.
    pub(crate) samples: [u64; 2],
    /// Of how many functions it was asked whether they differ.
    pub(crate) tests: usize,
    /// How many pairs of recordings there are.
    pub(crate) pairs: usize,
    /// The standard deviation of the difference in a pair by which most functions of programs differ, as
    /// a part of their shares.
    pub(crate) spread: f64,
}

/// A function, and the samples that end in it by pair of recordings.
struct Row<'r> {
    compared: Compared<'r>,
    pairs: Vec<[u64; 2]>,
}

/// A count as a part of another.
fn share(count: Option<&u64>, all: Option<&u64>) -> f64 {
    match (count, all) {
        (Some(&count), Some(&all)) if all > 0 => float(count) / float(all),
        _ => 0.0,
    }
}

/// The functions of both, without what stands for threads or what is missing.
fn functions<'r>(sides: &[Side<'r>; 2], pairs: usize) -> Vec<Row<'r>> {
    let mut rows: HashMap<&Frame, ([Total; 2], Vec<[u64; 2]>)> = HashMap::new();
    for (at, side) in sides.iter().enumerate() {
        let recordings = side.recordings.iter().take(pairs);
        let own: Vec<Vec<u64>> = recordings.map(|nodes| side.profile.own_of(nodes)).collect();
        let frames = side.profile.frames.iter().zip(side.profile.totals()).enumerate();
        let functions =
            frames.filter(|(_, (frame, total))| frame.kind != FrameKind::Note && total.all > 0);
        for (place, (frame, total)) in functions {
            let (totals, counts) =
                rows.entry(frame).or_insert_with(|| (<[Total; 2]>::default(), vec![[0; 2]; pairs]));
            totals.get_mut(at).into_iter().for_each(|of_side| *of_side = total);
            for (pair, own) in counts.iter_mut().zip(&own) {
                let count = own.get(place).copied().unwrap_or(0);
                pair.get_mut(at).into_iter().for_each(|of_side| *of_side = count);
            }
        }
    }
    let row = |(frame, (totals, pairs)): (&'r Frame, ([Total; 2], Vec<[u64; 2]>))| {
        let (own, all) = (totals.map(|total| total.own), totals.map(|total| total.all));
        let compared = Compared { frame, own, all, bound: None, change: Change::Within };
        Row { compared, pairs }
    };
    rows.into_iter().map(row).collect()
}

/// The sums of both sides.
fn sums<'p>(pairs: impl IntoIterator<Item = &'p [u64; 2]>) -> [u64; 2] {
    pairs.into_iter().fold([0; 2], |[before, after], pair| {
        [before.saturating_add(pair[0]), after.saturating_add(pair[1])]
    })
}

impl<'r> Comparison<'r> {
    pub(crate) fn new(sides: &[Side<'r>; 2]) -> Self {
        let pairs = sides.iter().map(|side| side.recordings.len()).min().unwrap_or(0);
        let mut rows = functions(sides, pairs);
        // Of what ends in no function, such as lost samples, nothing can be compared.
        let samples = sums(rows.iter().map(|row| &row.compared.own));
        let of_pair = |at: usize| sums(rows.iter().filter_map(|row| row.pairs.get(at)));
        let of_pairs: Vec<[u64; 2]> = (0..pairs).map(of_pair).collect();
        // In recordings without samples there is nothing to compare.
        let has_samples = |pair: &[u64; 2]| !pair.contains(&0);
        let kept: Vec<bool> = of_pairs.iter().map(has_samples).collect();
        let of_pairs = kept_of(&of_pairs, &kept);
        let differences = rows.iter_mut().map(|row| {
            row.pairs = kept_of(&row.pairs, &kept);
            let [before, after] = sums(&row.pairs);
            let is_asked = before.saturating_add(after) >= FEW_SAMPLES;
            is_asked.then(|| Differences::new(&row.pairs, &of_pairs)).flatten()
        });
        let differences: Vec<Option<Differences>> = differences.collect();
        let tests = differences.iter().flatten().count();
        let limit = CHANCE / float(u64::try_from(tests.max(1)).unwrap_or(u64::MAX));
        let spread_of = |is_kernel: bool| {
            let of_kind = rows.iter().zip(&differences).filter_map(|(row, differences)| {
                let is_of_kind = (row.compared.frame.kind == FrameKind::Kernel) == is_kernel;
                differences.filter(|_| is_of_kind)
            });
            Spread::new(&of_kind.collect::<Vec<_>>(), &of_pairs, is_kernel)
        };
        let [spread, of_kernel] = [false, true].map(spread_of);
        let compared_samples = sums(&of_pairs);
        let logs =
            LogFactorials::up_to(compared_samples.iter().fold(0, |a, &b| b.saturating_add(a)));
        for (row, differences) in rows.iter_mut().zip(&differences) {
            let Some(differences) = differences else { continue };
            let compared = &mut row.compared;
            let is_kernel = compared.frame.kind == FrameKind::Kernel;
            let bound = if is_kernel { of_kernel } else { spread }.bound(differences, limit);
            let own = sums(&row.pairs);
            let [before, after] =
                [0, 1].map(|side| share(own.get(side), compared_samples.get(side)));
            compared.bound = Some(differences.share_of(bound));
            // What few samples can tell the exact test knows better.
            let counts = Counts { own, samples: compared_samples };
            if differences.ratio.abs() > bound && counts.chance(&logs) < limit {
                compared.change = if after > before { Change::More } else { Change::Less };
            }
        }
        let mut comparison = Self {
            rows: Vec::new(),
            samples,
            tests,
            pairs: of_pairs.len(),
            spread: spread.typical,
        };
        let mut rows: Vec<Compared<'_>> = rows.into_iter().map(|row| row.compared).collect();
        rows.sort_by(|a, b| comparison.order(a, b));
        comparison.rows = rows;
        comparison
    }

    fn order(&self, a: &Compared<'_>, b: &Compared<'_>) -> Ordering {
        let [of_a, of_b] = [a, b].map(|row| self.difference(row));
        let is_less = |difference: f64| difference < 0.0;
        a.change
            .cmp(&b.change)
            .then_with(|| is_less(of_a).cmp(&is_less(of_b)))
            .then_with(|| of_b.abs().total_cmp(&of_a.abs()))
            .then_with(|| Reverse(a.all).cmp(&Reverse(b.all)))
            .then_with(|| (&a.frame.name, &a.frame.file).cmp(&(&b.frame.name, &b.frame.file)))
    }

    /// How much of all samples these are, before and after.
    pub(crate) fn shares(&self, count: [u64; 2]) -> [f64; 2] {
        [0, 1].map(|side| share(count.get(side), self.samples.get(side)))
    }

    /// By how much the share of a function's own samples differs.
    pub(crate) fn difference(&self, row: &Compared<'_>) -> f64 {
        let [before, after] = self.shares(row.own);
        after - before
    }

    /// What was found, and how far that can see, in sentences.
    pub(crate) fn summary(&self) -> Vec<String> {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let functions = counted(count(self.tests), "function", "functions");
        let pairs = match self.pairs {
            1 => "this pair".to_owned(),
            pairs => counted(count(pairs), "pair", "pairs").to_string(),
        };
        let mut sentences = vec![
            format!(
                "{} of {functions} above the bound: recordings of one program have one above it in {} \
                 of 100 comparisons",
                self.above(),
                CHANCE * 100.0
            ),
            format!(
                "Beside chance in sampling most functions differ by {:.1} % of their share in {pairs}",
                self.spread * 100.0
            ),
        ];
        if self.pairs < MANY_PAIRS {
            sentences.push(
                "To see smaller changes record both in turn, and give --diff BEFORE AFTER for each pair"
                    .to_owned(),
            );
        }
        sentences
    }

    /// How many functions are above the bound.
    pub(crate) fn above(&self) -> usize {
        self.rows.iter().filter(|row| row.change != Change::Within).count()
    }
}

/// Those of the pairs that are kept.
fn kept_of(pairs: &[[u64; 2]], kept: &[bool]) -> Vec<[u64; 2]> {
    pairs.iter().zip(kept).filter(|(_, is_kept)| **is_kept).map(|(&pair, _)| pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d16_of_the_functions_above_the_bound_the_largest_change_is_first() {
        let frames = ["small", "large", "gone", "large but within"].map(|name| Frame {
            name: name.to_owned(),
            file: None,
            kind: FrameKind::User,
        });
        let row = |at: usize, own, change| Compared {
            frame: &frames[at],
            own,
            all: own,
            bound: None,
            change,
        };
        let mut rows = [
            row(3, [0, 900], Change::Within),
            row(2, [90, 0], Change::Less),
            row(0, [0, 40], Change::More),
            row(1, [2000, 2400], Change::More),
        ];
        let of =
            Comparison { rows: Vec::new(), samples: [9000; 2], tests: 4, pairs: 1, spread: 0.0 };
        rows.sort_by(|a, b| of.order(a, b));
        let names = rows.map(|row| row.frame.name.as_str());
        assert_eq!(names, ["large", "small", "gone", "large but within"]);
    }
}
