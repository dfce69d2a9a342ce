//! The functions of two recordings: what share of the time each takes before and after, and
//! which differences samples cannot tell from chance.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use crate::commands::report::chance::{Counts, LogFactorials, bound, float};
use crate::commands::report::profile::{Frame, FrameKind, Total};
use crate::commands::report::side::Side;

/// How probable it may be that chance alone brings any function above the bound.
pub(crate) const CHANCE: f64 = 0.01;

/// A function in both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared<'r> {
    pub(crate) frame: &'r Frame,
    /// Samples in it, before and after.
    pub(crate) own: [u64; 2],
    pub(crate) all: [u64; 2],
    /// How probable so large a difference is if there is none, of one function.
    chance: f64,
}

/// Whether a function takes another share than before, in the order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    More,
    Less,
    /// Chance may make as much of a difference.
    Within,
}

/// The functions of two recordings.
#[derive(Clone, Debug)]
pub(crate) struct Comparison<'r> {
    /// Those that take more first, the largest difference first, then those that take less, then all
    /// others.
    pub(crate) rows: Vec<Compared<'r>>,
    /// Samples that end in a function, before and after.
    pub(crate) samples: [u64; 2],
    /// How many functions have samples of their own.
    pub(crate) tests: usize,
    /// How probable a difference of one function may be.
    limit: f64,
}

/// A count as a part of another.
fn share(count: Option<&u64>, all: Option<&u64>) -> f64 {
    match (count, all) {
        (Some(&count), Some(&all)) if all > 0 => float(count) / float(all),
        _ => 0.0,
    }
}

/// The functions of both, without what stands for threads or what is missing.
fn functions<'r>(sides: &[Side<'r>; 2]) -> Vec<Compared<'r>> {
    let mut rows: HashMap<&Frame, [Total; 2]> = HashMap::new();
    for (at, side) in sides.iter().enumerate() {
        for (frame, total) in side.profile.frames.iter().zip(side.profile.totals()) {
            let is_function = frame.kind != FrameKind::Note && total.all > 0;
            let totals = is_function.then(|| rows.entry(frame).or_default());
            if let Some(place) = totals.and_then(|totals| totals.get_mut(at)) {
                *place = total;
            }
        }
    }
    let row = |(frame, totals): (&'r Frame, [Total; 2])| {
        let (own, all) = (totals.map(|total| total.own), totals.map(|total| total.all));
        Compared { frame, own, all, chance: 1.0 }
    };
    rows.into_iter().map(row).collect()
}

impl<'r> Comparison<'r> {
    pub(crate) fn new(sides: &[Side<'r>; 2]) -> Self {
        let mut rows = functions(sides);
        let sum = |side: fn(&[u64; 2]) -> u64| {
            rows.iter().fold(0, |sum: u64, row| sum.saturating_add(side(&row.own)))
        };
        // Of what ends in no function, such as lost samples, nothing can be compared.
        let samples = [sum(|[before, _]| *before), sum(|[_, after]| *after)];
        let logs = LogFactorials::up_to(samples.iter().fold(0, |a, &b| b.saturating_add(a)));
        for row in &mut rows {
            row.chance = Counts { own: row.own, samples }.chance(&logs);
        }
        // Those that no sample was taken in are not asked about.
        let tests = rows.iter().filter(|row| row.own != [0, 0]).count().max(1);
        let limit = CHANCE / float(u64::try_from(tests).unwrap_or(u64::MAX));
        let mut comparison = Self { rows: Vec::new(), samples, tests, limit };
        rows.sort_by(|a, b| comparison.order(a, b));
        comparison.rows = rows;
        comparison
    }

    /// Of those above the bound the larger difference comes first: a small one may be the less probable
    /// of two where there were few samples before, and is not what a program takes longer by.
    fn order(&self, a: &Compared<'_>, b: &Compared<'_>) -> Ordering {
        let (change, size) = (self.change(a), self.difference(b).abs());
        let by_size = size.total_cmp(&self.difference(a).abs());
        let by_chance = a.chance.total_cmp(&b.chance);
        change
            .cmp(&self.change(b))
            .then(if change == Change::Within { by_chance } else { by_size })
            .then(by_size)
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

    /// About how much the share would have to differ.
    pub(crate) fn bound(&self, row: &Compared<'_>) -> f64 {
        bound(Counts { own: row.own, samples: self.samples }, self.limit)
    }

    pub(crate) fn change(&self, row: &Compared<'_>) -> Change {
        match row.chance < self.limit {
            true if self.difference(row) > 0.0 => Change::More,
            true => Change::Less,
            false => Change::Within,
        }
    }

    /// How many functions are above the bound.
    pub(crate) fn above(&self) -> usize {
        self.rows.iter().filter(|row| self.change(row) != Change::Within).count()
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
        let row = |at: usize, own, chance| Compared { frame: &frames[at], own, all: own, chance };
        let mut rows = [
            row(3, [0, 900], 0.3),
            row(2, [90, 0], 0.0),
            row(0, [0, 40], 0.0),
            row(1, [2000, 2400], 1e-9),
        ];
        let of = Comparison { rows: Vec::new(), samples: [9000; 2], tests: 4, limit: 0.0025 };
        rows.sort_by(|a, b| of.order(a, b));
        let names = rows.map(|row| row.frame.name.as_str());
        assert_eq!(names, ["large", "small", "gone", "large but within"]);
    }
}
