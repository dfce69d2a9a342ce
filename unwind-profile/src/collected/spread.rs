//! By how much the shares of functions differ from recording to recording of one program.
//!
//! Where memory lies, what else the machine does and which way branches are foretold is another
//! matter in each run, and changes what functions take by more than chance in sampling does. How
//! much that is for most functions is told by all of them together; for one alone by its pairs of
//! recordings, where there are several. Few pairs know little of one function, so both are put
//! together: what most do counts as `PRIOR` pairs more (the way of moderated t-tests).
//!
//! A run makes a function that many times slower or faster, so shares are compared by the logarithms
//! of their ratios: 0.05 is about five percent.

use statrs::distribution::{ChiSquared, ContinuousCDF as _, Normal, StudentsT};

use crate::collected::chance::float;

/// As many pairs, beyond the first, does it count as what most functions show. The fewer, the more
/// may functions differ from each other in how steady they are.
const PRIOR: f64 = 4.0;

/// A function with fewer samples a pair says nothing of what most functions do.
const FEW_SAMPLES: f64 = 200.0;

/// If fewer functions tell, it is taken that most differ by as much.
const FEW_FUNCTIONS: usize = 5;
const UNKNOWN: f64 = 0.05;

/// What most functions differ by at most. Where they differ by more in a single pair, the program is
/// another one.
const MOST_OF_PAIR: f64 = 0.1;

/// What functions differ by at least from run to run; in a single pair, which may show by chance that
/// they differ by less; and those of the kernel, which takes interrupts and other work as the machine
/// has it.
const LEAST: f64 = 0.01;
const LEAST_OF_ONE_PAIR: f64 = 0.02;
const LEAST_OF_KERNEL: f64 = 0.2;

/// What pairs of recordings tell of one function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Differences {
    /// How many times its share before that after is, over all pairs, as a logarithm.
    pub(crate) ratio: f64,
    /// Its share before.
    before: f64,
    /// How many samples a pair has in it.
    samples: f64,
    /// The variance that sampling gives the ratio of all, and that of one pair.
    sampling: f64,
    sampling_of_pair: f64,
    /// The variance between pairs, if there are several.
    between: Option<f64>,
}

/// A function's share of all samples before and after, and how many samples that is.
#[derive(Clone, Copy, Debug)]
struct Shares {
    own: [f64; 2],
    all: [f64; 2],
}

impl Shares {
    /// The logarithm of the share after over that before. No sample counts as a half.
    fn ratio(self) -> f64 {
        let [before, after] = self.shares();
        (after / before).ln()
    }

    fn shares(self) -> [f64; 2] {
        let Self { own: [own_before, own_after], all: [before, after] } = self;
        [(own_before + HALF) / before, (own_after + HALF) / after]
    }

    /// The variance that sampling gives the ratio.
    fn variance(self) -> f64 {
        let Self { own: [own_before, own_after], all: [before, after] } = self;
        let of_side = |own: f64, all: f64| ((own + HALF).recip() - all.recip()).max(0.0);
        of_side(own_before, before) + of_side(own_after, after)
    }
}

const HALF: f64 = 0.5;

impl Differences {
    /// Of the samples of a function before and after, by pair, and of all samples, of which each recording
    /// has some. `None` without samples of the function.
    pub(crate) fn new(own: &[[u64; 2]], all: &[[u64; 2]]) -> Option<Self> {
        let pairs = float_of(own.len());
        let [own_sum, all_sum] = [own, all].map(|pairs| sums(pairs).map(float));
        let shares = Shares { own: own_sum, all: all_sum };
        let samples: f64 = shares.own.iter().sum();
        if samples <= 0.0 || all.iter().flatten().any(|&count| count == 0) {
            return None;
        }
        let of_pairs = own.iter().zip(all);
        let of_pairs =
            of_pairs.map(|(own, all)| Shares { own: own.map(float), all: all.map(float) });
        let of_pairs: Vec<Shares> = of_pairs.collect();
        let mean =
            |of: fn(Shares) -> f64| of_pairs.iter().map(|&pair| of(pair)).sum::<f64>() / pairs;
        let middle = mean(Shares::ratio);
        let squares: f64 = of_pairs.iter().map(|pair| (pair.ratio() - middle).powi(2)).sum();
        let [before, _] = shares.shares();
        Some(Self {
            ratio: shares.ratio(),
            before,
            samples: samples / pairs,
            sampling: shares.variance(),
            sampling_of_pair: mean(Shares::variance),
            between: (of_pairs.len() > 1).then(|| squares / (pairs - 1.0)),
        })
    }

    /// By how much the share differs if it does by this ratio, as a logarithm, in the direction in which it
    /// does.
    pub(crate) fn share_of(&self, ratio: f64) -> f64 {
        let other = if self.ratio < 0.0 { -ratio } else { ratio };
        (self.before * other.exp_m1()).abs()
    }
}

/// The sums of both sides.
pub(super) fn sums<'p>(pairs: impl IntoIterator<Item = &'p [u64; 2]>) -> [u64; 2] {
    pairs.into_iter().fold([0; 2], |[before, after], pair| {
        [before.saturating_add(pair[0]), after.saturating_add(pair[1])]
    })
}

/// By how much most functions differ from run to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// The standard deviation of the difference in a pair of recordings.
    pub(crate) typical: f64,
    pub(crate) told: Told,
    /// How many pairs there are, and how many of the same length would tell as much of the mean.
    pairs: f64,
    effective_pairs: f64,
}

/// What tells by how much most functions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Most of them.
    Most,
    /// Nothing: too few have enough samples.
    Nothing,
    /// They differ by more, in a single pair.
    Limit,
}

impl Told {
    /// What it is, for a sentence about the spread.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Most => "as most do",
            Self::Nothing => "too few have enough samples to tell",
            Self::Limit => "most differ by more, which one pair does not prove",
        }
    }
}

impl Spread {
    /// What these functions show, which are of the kernel or of programs. `all` are the samples of
    /// pairs.
    pub(crate) fn new(functions: &[Differences], all: &[[u64; 2]], is_kernel: bool) -> Self {
        let pairs = float_of(all.len()).max(1.0);
        // A long recording beside short ones has most of the samples.
        let squares: Vec<[u64; 2]> =
            all.iter().map(|pair| pair.map(|count| count.saturating_mul(count))).collect();
        let [before, after] = sums(all).map(float).map(|sum| sum * sum);
        let [squares_before, squares_after] = sums(&squares).map(float);
        let least = match (is_kernel, all.len()) {
            (true, _) => LEAST_OF_KERNEL,
            (false, 1) => LEAST_OF_ONE_PAIR,
            (false, _) => LEAST,
        };
        let told: Vec<&Differences> =
            functions.iter().filter(|at| at.samples >= FEW_SAMPLES).collect();
        let (typical, told) = match told.len() {
            ..FEW_FUNCTIONS => (UNKNOWN, Told::Nothing),
            _ => (fitted(&told, pairs), Told::Most),
        };
        let is_too_much = all.len() == 1 && typical > MOST_OF_PAIR;
        let (typical, told) =
            if is_too_much { (MOST_OF_PAIR, Told::Limit) } else { (typical, told) };
        Self {
            typical: typical.max(least),
            told,
            pairs,
            effective_pairs: (before / squares_before).min(after / squares_after).max(1.0),
        }
    }

    /// How the ratio of a function differs by chance, and from run to run.
    pub(crate) fn noise(&self, of: &Differences) -> Noise {
        let own_pairs = self.pairs - 1.0;
        let beyond_sampling = of.between.map_or(0.0, |all| (all - of.sampling_of_pair).max(0.0));
        let degrees = PRIOR + own_pairs;
        let variance = PRIOR.mul_add(self.typical.powi(2), own_pairs * beyond_sampling) / degrees;
        Noise { sampling: of.sampling, runs: variance / self.effective_pairs, degrees }
    }
}

/// How the ratio of a function's shares differs, as a logarithm, where the program is the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noise {
    /// The variance by chance in sampling.
    sampling: f64,
    /// That from run to run, and how many independent differences tell it.
    runs: f64,
    degrees: f64,
}

impl Noise {
    /// The standard deviation.
    pub(crate) fn deviation(self) -> f64 {
        (self.sampling + self.runs).sqrt()
    }

    /// The ratio from which on a function differs by more, but for about this probability, on both
    /// sides.
    pub(crate) fn bound(self, limit: f64) -> f64 {
        let by_sampling = quantile(limit).powi(2) * self.sampling;
        let by_runs = quantile_of_few(limit, self.degrees).powi(2) * self.runs;
        (by_sampling + by_runs).sqrt()
    }
}

/// The spread with which the median function differs as it does: in a single pair from what is
/// common to all, in several from its own mean.
fn fitted(functions: &[&Differences], pairs: f64) -> f64 {
    let middle = median(functions.iter().map(|at| at.ratio).collect());
    // The median of the variance that few numbers show, if it is one.
    let degrees = (pairs - 1.0).max(1.0);
    let expected = ChiSquared::new(degrees).map_or(1.0, |chi| chi.inverse_cdf(0.5) / degrees);
    let is_wider = |variance: f64| {
        let parts = functions.iter().map(|at| match at.between {
            Some(between) => between / (at.sampling_of_pair + variance),
            None => (at.ratio - middle).powi(2) / (at.sampling_of_pair + variance),
        });
        median(parts.collect()) > expected
    };
    // Up to some times as much, and as little.
    let (mut low, mut high) = (0.0_f64, 4.0);
    if !is_wider(low) {
        return 0.0;
    }
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if is_wider(middle) { low = middle } else { high = middle }
    }
    low.sqrt()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let upper = numbers.len() / 2;
    let lower = numbers.len().saturating_sub(1) / 2;
    let at = |place: usize| numbers.get(place).copied().unwrap_or(0.0);
    f64::midpoint(at(lower), at(upper))
}

/// How many standard deviations from its middle a normal distribution has this probability outside,
/// on both sides.
pub(crate) fn quantile(outside: f64) -> f64 {
    Normal::standard().inverse_cdf(outside / 2.0).abs()
}

/// The same of Student's distribution with as many degrees of freedom.
fn quantile_of_few(outside: f64, degrees: f64) -> f64 {
    StudentsT::new(0.0, 1.0, degrees)
        .map_or(f64::INFINITY, |student| student.inverse_cdf(outside / 2.0).abs())
}

fn float_of(len: usize) -> f64 {
    float(u64::try_from(len).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d16_quantiles_are_those_of_tables() {
        assert!((quantile(0.05) - 1.960).abs() < 0.001);
        for (degrees, expected) in [(3.0, 3.182), (4.0, 2.776), (10.0, 2.228)] {
            assert!((quantile_of_few(0.05, degrees) - expected).abs() < 0.001);
        }
        // A thousandth, on each side the half.
        assert!((quantile_of_few(0.001, 3.0) - 12.924).abs() < 0.001);
    }

    #[test]
    fn d16_the_spread_is_that_of_most_functions_whatever_a_few_do() {
        // Functions differ by the quantiles of a normal distribution with 5 percent.
        let normal = Normal::standard();
        let at = |place: u32| normal.inverse_cdf((f64::from(place) + 0.5) / 40.0);
        let functions = (0..40_u32).map(|place| {
            let ratio = if place.is_multiple_of(10) { 1.5 } else { 0.05 * at(place) };
            let sampling = 0.001_f64.powi(2);
            Differences {
                ratio,
                before: 0.02,
                samples: 2_000.0,
                sampling,
                sampling_of_pair: sampling,
                between: None,
            }
        });
        let functions: Vec<Differences> = functions.collect();
        let spread = Spread::new(&functions, &[[100_000; 2]], false);
        assert!((0.045..0.065).contains(&spread.typical), "{}", spread.typical);
        // Few functions, or functions of few samples, tell nothing.
        let spread = Spread::new(&functions[1..4], &[[100_000; 2]], false);
        assert!((spread.typical - UNKNOWN).abs() < 1e-9);
        let few = functions.iter().map(|of| Differences { samples: 20.0, ..*of });
        let spread = Spread::new(&few.collect::<Vec<_>>(), &[[1_000; 2]], false);
        assert!((spread.typical - UNKNOWN).abs() < 1e-9);
    }

    #[test]
    fn d16_runs_may_differ_by_more_than_one_pair_shows() {
        let typical = |pairs: usize| {
            let (own, all) = (vec![[1_000; 2]; pairs], vec![[10_000; 2]; pairs]);
            let of = Differences::new(&own, &all).unwrap();
            Spread::new(&[of; 6], &all, false).typical
        };
        assert!((typical(1) - 0.02).abs() < 1e-9 && (typical(2) - 0.01).abs() < 1e-9);
    }

    #[test]
    fn d16_bounds_become_narrower_with_pairs_and_not_by_sampling_alone() {
        let bound = |pairs: usize, samples: u64| {
            let all = vec![[samples; 2]; pairs];
            // Each pair has a tenth more, or less.
            let own = (0..pairs).map(|pair| {
                [samples / 10, samples / 10 + samples / 100 * u64::from(pair % 2 == 0)]
            });
            let own: Vec<[u64; 2]> = own.collect();
            let of = Differences::new(&own, &all).unwrap();
            Spread::new(&[of; 8], &all, false).noise(&of).bound(0.001)
        };
        assert!(bound(2, 20_000) > 1.5 * bound(4, 20_000));
        assert!(bound(4, 20_000) > 1.5 * bound(10, 20_000));
        // Runs differ by the same, however many samples they have.
        assert!(bound(10, 20_000) < 1.2 * bound(10, 2_000_000));
    }

    #[test]
    fn d16_any_counts_have_a_bound_or_none() {
        for all in [[0, 0], [1, u64::MAX], [u64::MAX; 2], [5, 5]] {
            for own in [[0, 0], [1, 0], [u64::MAX; 2], [0, u64::MAX]] {
                for pairs in 1..4 {
                    let (own, all) = (vec![own; pairs], vec![all; pairs]);
                    let Some(of) = Differences::new(&own, &all) else { continue };
                    let bound = Spread::new(&[of; 6], &all, false).noise(&of).bound(0.001);
                    assert!(bound >= 0.0 && bound.is_finite(), "{own:?} {all:?} {bound}");
                }
            }
        }
        assert!(Differences::new(&[], &[]).is_none());
    }
}
