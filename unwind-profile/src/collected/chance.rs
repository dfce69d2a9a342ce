//! How probable a difference of two counts is if there is none.
//!
//! Of `n1` and `n2` samples `c1` and `c2` were taken in a function. If its share is the same
//! in both, each way to part the `c1 + c2` samples on the two recordings is as probable as
//! another, so `c2` is distributed hypergeometrically, whatever the share (Fisher's exact test).

/// Samples of a function and of all, before and after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) own: [u64; 2],
    pub(crate) samples: [u64; 2],
}

/// Logarithms of factorials.
///
/// Below a limit they are sums, above it they come from Stirling's series, whose error is
/// less than that of a float there.
#[derive(Debug)]
pub(crate) struct LogFactorials(Vec<f64>);

const SUMS: u64 = 1 << 12;

/// How many terms of a sum are taken.
const MAX_TERMS: usize = 1 << 20;

impl LogFactorials {
    /// For numbers up to `most`.
    pub(crate) fn up_to(most: u64) -> Self {
        let mut logs = vec![0.0];
        let mut sum = 0.0;
        for number in 1..=most.min(SUMS) {
            sum += float(number).ln();
            logs.push(sum);
        }
        Self(logs)
    }

    fn of(&self, number: u64) -> f64 {
        let kept = usize::try_from(number).ok().and_then(|at| self.0.get(at));
        kept.copied().unwrap_or_else(|| {
            let n = float(number);
            let root = (std::f64::consts::TAU * n).ln() / 2.0;
            n * n.ln() - n + root + 1.0 / (12.0 * n) - 1.0 / (360.0 * n.powi(3))
        })
    }

    /// Of a binomial coefficient.
    fn choose(&self, all: u64, part: u64) -> f64 {
        self.of(all) - self.of(part) - self.of(all.saturating_sub(part))
    }
}

impl Counts {
    /// How probable a difference as large or larger is if there is none, on either side.
    pub(crate) fn chance(&self, logs: &LogFactorials) -> f64 {
        let [c1, c2] = self.own;
        let [n1, n2] = self.samples;
        let own = c1.saturating_add(c2);
        let all = n1.saturating_add(n2);
        if own == 0 || n1 == 0 || n2 == 0 || c1 > n1 || c2 > n2 {
            return 1.0;
        }
        // The tail that has fewer samples than expected on one side.
        let is_more_after = float(c2) * float(n1) > float(c1) * float(n2);
        let (few, n_few, n_other) = if is_more_after { (c1, n1, n2) } else { (c2, n2, n1) };
        let log = logs.choose(n_few, few) + logs.choose(n_other, own.saturating_sub(few))
            - logs.choose(all, own);
        let (mut term, mut sum) = (1.0, 0.0);
        let mut at = few;
        // Some standard deviations; where there are more samples, the chance is told too low.
        for _ in 0..MAX_TERMS {
            sum += term;
            let other = own.saturating_sub(at);
            if at == 0 || other >= n_other || term < sum * 1e-12 {
                break;
            }
            // From `at` of the one side to one less.
            term *= float(at) / float(n_few.saturating_sub(at).saturating_add(1));
            term *= float(n_other.saturating_sub(other)) / float(other.saturating_add(1));
            at = at.saturating_sub(1);
        }
        (2.0 * sum * log.exp()).min(1.0)
    }
}

/// About the same number.
#[expect(clippy::as_conversions, reason = "counts have fewer digits than a float")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collected::spread::quantile;

    fn chance(own: [u64; 2], samples: [u64; 2]) -> f64 {
        Counts { own, samples }.chance(&LogFactorials::up_to(SUMS))
    }

    #[test]
    fn d16_chances_are_those_of_the_exact_test() {
        // Twice the smaller tail, by hand: 1 of 10 and 11 of 15 (C(25, 12) = 5,200,300).
        let tail = f64::from(10 * 1_365 + 455) / 5_200_300.0;
        assert!((chance([1, 11], [10, 15]) - 2.0 * tail).abs() < 1e-9);
        assert!((chance([11, 1], [15, 10]) - 2.0 * tail).abs() < 1e-9);
        // As probable as can be.
        assert!((chance([5, 5], [10, 10]) - 1.0).abs() < 1e-9);
        assert!((chance([0, 0], [10, 10]) - 1.0).abs() < 1e-9);
        // All on one side: C(10, 3) / C(20, 3).
        assert!((chance([0, 3], [10, 10]) - 240.0 / 1_140.0).abs() < 1e-9);
    }

    #[test]
    fn d16_large_counts_come_near_the_normal_distribution() {
        for (own, samples) in
            [([20_000, 20_500], [100_000, 100_000]), ([1_000, 2_250], [50_000, 100_000])]
        {
            let [c1, c2] = own.map(float);
            let [n1, n2] = samples.map(float);
            let share = (c1 + c2) / (n1 + n2);
            let deviation = (share * (1.0 - share) * (1.0 / n1 + 1.0 / n2)).sqrt();
            let deviations = (c2 / n2 - c1 / n1).abs() / deviation;
            let told = quantile(chance(own, samples));
            assert!((told - deviations).abs() < 0.03, "{told} {deviations}");
        }
    }

    #[test]
    fn d16_any_counts_have_a_chance() {
        for own in [[0, u64::MAX], [u64::MAX, 0], [u64::MAX, u64::MAX], [1 << 40, 1]] {
            for samples in [[0, 0], [1, u64::MAX], [u64::MAX, u64::MAX], [1 << 40, 1 << 20]] {
                let chance = chance(own, samples);
                assert!((0.0..=1.0).contains(&chance), "{own:?} {samples:?} {chance}");
            }
        }
    }
}
