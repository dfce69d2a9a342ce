//! The functions of recordings before and after: what share of the time each takes, and which
//! differences are more than recordings of one program have.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use unwind_target::counted::counted;

use crate::collected::call_tree::{Frame, FrameKind, Total};
use crate::collected::chance::{Counts, LogFactorials, float};
use crate::collected::side::Side;
use crate::collected::spread::{Differences, Spread, sums};

/// How probable it may be that any function is above the bound if there is no difference.
pub(crate) const CHANCE: f64 = 0.01;

/// Of functions with fewer samples it is not asked whether they differ.
const FEW_SAMPLES: u64 = 20;

/// Changes by less of the time are not told: what the machine does beside a program comes in
/// bursts, which few samples of a function show as changes.
const LEAST_CHANGE: f64 = 0.001;

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
    /// By how much it differs in recordings of one program, as a standard deviation, if that can be
    /// told.
    usual: Option<f64>,
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
    /// Where pairs tell how steady a function is, that counts for the order of the others, too.
    pub(crate) rows: Vec<Compared<'r>>,
    /// Samples that end in a function, before and after.
    pub(crate) samples: [u64; 2],
    /// Of how many functions it was asked whether they differ.
    pub(crate) tests: usize,
    /// How many pairs of recordings there are.
    pub(crate) pairs: usize,
    /// By how much functions of programs are taken to differ from run to run.
    pub(crate) spread: Spread,
    /// Whether the text names options of the command.
    names_options: bool,
}

/// A function, and what pairs of recordings tell of it.
struct Row<'r> {
    compared: Compared<'r>,
    /// The samples that end in it, by pair.
    pairs: Vec<[u64; 2]>,
    /// How its share differs, if that is asked.
    differences: Option<Differences>,
}

impl Row<'_> {
    fn is_kernel(&self) -> bool {
        self.compared.frame.kind == FrameKind::Kernel
    }
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
        let compared =
            Compared { frame, own, all, bound: None, usual: None, change: Change::Within };
        Row { compared, pairs, differences: None }
    };
    rows.into_iter().map(row).collect()
}

impl<'r> Comparison<'r> {
    pub(crate) fn new(sides: &[Side<'r>; 2]) -> Self {
        let pairs = sides.iter().map(|side| side.recordings.len()).min().unwrap_or(0);
        let mut rows = functions(sides, pairs);
        // Of what ends in no function, such as lost samples, nothing can be compared.
        let samples = sums(rows.iter().map(|row| &row.compared.own));
        let of_pairs = leave_empty_pairs_out(&mut rows, pairs);
        for row in &mut rows {
            let [before, after] = sums(&row.pairs);
            let is_asked = before.saturating_add(after) >= FEW_SAMPLES;
            row.differences = is_asked.then(|| Differences::new(&row.pairs, &of_pairs)).flatten();
        }
        let bounds = Bounds::new(&rows, &of_pairs);
        rows.iter_mut().for_each(|row| bounds.judge(row));
        let mut comparison = Self {
            rows: Vec::new(),
            samples,
            tests: bounds.tests,
            pairs: of_pairs.len(),
            spread: bounds.of_programs,
            names_options: sides[0].names_options,
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
            .then_with(|| self.certain(b).total_cmp(&self.certain(a)))
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

    /// Of a difference within the bound, by how much it is larger than what most runs make of the
    /// function, if there are several pairs to tell that. Above the bound all are certain.
    fn certain(&self, row: &Compared<'_>) -> f64 {
        if row.change != Change::Within || self.pairs < 2 {
            return 0.0;
        }
        (self.difference(row).abs() - row.usual.unwrap_or(f64::INFINITY)).max(0.0)
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
                "Beside chance in sampling, functions are taken to differ by {:.1} % of their share in \
                 {pairs}: {}",
                self.spread.typical * 100.0,
                self.spread.told.words()
            ),
        ];
        if self.pairs < MANY_PAIRS {
            let how = match self.names_options {
                true => "and give --diff BEFORE AFTER for each pair",
                false => "several times, and compare all recordings of each",
            };
            sentences.push(format!("To see smaller changes record both in turn, {how}"));
        }
        sentences
    }

    /// The rows to show if there is room for as many: those above the bound, and of the others as many
    /// that may take more as those that may take less.
    pub(crate) fn largest(&self, room: usize) -> Vec<Compared<'r>> {
        let (above, within): (Vec<_>, Vec<_>) =
            self.rows.iter().copied().partition(|row| row.change != Change::Within);
        let (less, more): (Vec<_>, Vec<_>) =
            within.into_iter().partition(|row| self.difference(row) < 0.0);
        let left = room.saturating_sub(above.len());
        let for_less = less.len().min((left / 2).max(left.saturating_sub(more.len())));
        let for_more = left.saturating_sub(for_less);
        let within = more.into_iter().take(for_more).chain(less.into_iter().take(for_less));
        above.into_iter().take(room).chain(within).collect()
    }

    /// How many functions are above the bound.
    pub(crate) fn above(&self) -> usize {
        self.rows.iter().filter(|row| row.change != Change::Within).count()
    }
}

/// Leaves out pairs of which a recording has no samples. Returns the samples of all functions, by pair.
fn leave_empty_pairs_out(rows: &mut [Row<'_>], pairs: usize) -> Vec<[u64; 2]> {
    let of_pair = |at: usize| sums(rows.iter().filter_map(|row| row.pairs.get(at)));
    let of_pairs: Vec<[u64; 2]> = (0..pairs).map(of_pair).collect();
    let with_samples = |pairs: &[[u64; 2]]| -> Vec<[u64; 2]> {
        let pairs = pairs.iter().zip(&of_pairs).filter(|(_, all)| !all.contains(&0));
        pairs.map(|(&pair, _)| pair).collect()
    };
    rows.iter_mut().for_each(|row| row.pairs = with_samples(&row.pairs));
    with_samples(&of_pairs)
}

/// What functions have to pass to be told.
struct Bounds {
    /// How many functions are asked about.
    tests: usize,
    /// How probable it may be that one of them passes if there is no difference.
    limit: f64,
    of_programs: Spread,
    of_kernel: Spread,
    /// The samples of all functions, before and after.
    samples: [u64; 2],
    logs: LogFactorials,
}

impl Bounds {
    fn new(rows: &[Row<'_>], of_pairs: &[[u64; 2]]) -> Self {
        let spread = |is_kernel: bool| {
            let of_kind = rows.iter().filter(|row| row.is_kernel() == is_kernel);
            let differences: Vec<Differences> = of_kind.filter_map(|row| row.differences).collect();
            Spread::new(&differences, of_pairs, is_kernel)
        };
        let tests = rows.iter().filter(|row| row.differences.is_some()).count();
        let samples = sums(of_pairs);
        Self {
            tests,
            limit: CHANCE / float(u64::try_from(tests.max(1)).unwrap_or(u64::MAX)),
            of_programs: spread(false),
            of_kernel: spread(true),
            samples,
            logs: LogFactorials::up_to(samples[0].saturating_add(samples[1])),
        }
    }

    fn judge(&self, row: &mut Row<'_>) {
        let Some(differences) = row.differences else { return };
        let spread = if row.is_kernel() { self.of_kernel } else { self.of_programs };
        let noise = spread.noise(&differences);
        let bound = noise.bound(self.limit);
        row.compared.usual = Some(differences.share_of(noise.deviation()));
        row.compared.bound = Some(differences.share_of(bound).max(LEAST_CHANGE));
        // What few samples can tell, the exact test knows better.
        let counts = Counts { own: sums(&row.pairs), samples: self.samples };
        let is_large = differences.share_of(differences.ratio.abs()) > LEAST_CHANGE;
        if is_large && differences.ratio.abs() > bound && counts.chance(&self.logs) < self.limit {
            let is_more = differences.ratio > 0.0;
            row.compared.change = if is_more { Change::More } else { Change::Less };
        }
    }
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
            usual: None,
            change,
        };
        let mut rows = [
            row(3, [0, 900], Change::Within),
            row(2, [90, 0], Change::Less),
            row(0, [0, 40], Change::More),
            row(1, [2000, 2400], Change::More),
        ];
        let spread = Spread::new(&[], &[[9000; 2]], false);
        let of = Comparison {
            rows: Vec::new(),
            samples: [9000; 2],
            tests: 4,
            pairs: 1,
            spread,
            names_options: true,
        };
        rows.sort_by(|a, b| of.order(a, b));
        let names = rows.map(|row| row.frame.name.as_str());
        assert_eq!(names, ["large", "small", "gone", "large but within"]);
    }

    #[test]
    fn d16_within_the_bound_a_steady_function_comes_before_one_that_differs_from_run_to_run() {
        let frames = ["noisy", "steady", "few samples"].map(|name| Frame {
            name: name.to_owned(),
            file: None,
            kind: FrameKind::User,
        });
        let row = |at: usize, after, usual| Compared {
            frame: &frames[at],
            own: [1000, after],
            all: [1000, after],
            bound: None,
            usual,
            change: Change::Within,
        };
        // Shares of 10,000 samples.
        let rows = [row(0, 1200, Some(0.018)), row(1, 1100, Some(0.002)), row(2, 1300, None)];
        let order = |pairs| {
            let spread = Spread::new(&[], &[[10_000; 2]], false);
            let of = Comparison {
                rows: Vec::new(),
                samples: [10_000; 2],
                tests: 3,
                pairs,
                spread,
                names_options: true,
            };
            let mut rows = rows;
            rows.sort_by(|a, b| of.order(a, b));
            rows.map(|row| row.frame.name.as_str())
        };
        assert_eq!(order(4), ["steady", "noisy", "few samples"]);
        // One pair does not tell which is which.
        assert_eq!(order(1), ["few samples", "noisy", "steady"]);
    }

    #[test]
    fn d16_with_little_room_those_that_take_less_are_shown_too() {
        let frame = Frame { name: "f".to_owned(), file: None, kind: FrameKind::User };
        let row = |own: [u64; 2], change| Compared {
            frame: &frame,
            own,
            all: own,
            bound: None,
            usual: None,
            change,
        };
        let more = (1..6).rev().map(|by| row([500, 500 + by], Change::Within));
        let less = (1..6).rev().map(|by| row([500, 500 - by], Change::Within));
        let above = [row([100, 900], Change::More), row([900, 100], Change::Less)];
        let rows: Vec<_> = above.into_iter().chain(more).chain(less).collect();
        let spread = Spread::new(&[], &[[9000; 2]], false);
        let of = Comparison {
            rows,
            samples: [9000; 2],
            tests: 4,
            pairs: 1,
            spread,
            names_options: true,
        };
        let after =
            |room: usize| -> Vec<u64> { of.largest(room).iter().map(|row| row.own[1]).collect() };
        assert_eq!(after(6), [900, 100, 505, 504, 495, 496]);
        assert_eq!(after(11), [900, 100, 505, 504, 503, 502, 501, 495, 496, 497, 498]);
        assert_eq!((after(1), after(0), after(99).len()), (vec![900], vec![], 12));
    }
}
