//! Times that can be compared on a machine that does other things too.

use std::time::{Duration, Instant};

/// How long a measurement may take.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    budget: Duration,
}

impl Effort {
    /// Once, as a test.
    pub const ONCE: Self = Self { budget: Duration::ZERO };

    /// As long as figures need: a second or so each.
    pub const FULL: Self = Self { budget: Duration::from_millis(1500) };

    /// What the arguments of a bench ask for: `cargo bench` says `--bench`, and
    /// `cargo test` does not.
    #[must_use]
    pub fn of_arguments() -> Self {
        if std::env::args().any(|argument| argument == "--bench") { Self::FULL } else { Self::ONCE }
    }

    /// Whether nothing is measured.
    #[must_use]
    pub const fn is_test(self) -> bool {
        self.budget.is_zero()
    }

    /// The shortest time that each contestant takes, in nanoseconds: all of
    /// them in turn, again and again, so that what else the machine does
    /// befalls none more than the others. Of a test, no number.
    pub fn race(self, contestants: &mut [&mut dyn FnMut()]) -> Vec<f64> {
        type Part<'a> = &'a mut dyn FnMut(usize);
        let mut whole: Vec<_> = contestants.iter_mut().map(|all| |_| all()).collect();
        let mut whole: Vec<_> = whole.iter_mut().map(|all| -> Part<'_> { all }).collect();
        self.race_in_parts(1, &mut whole)
    }

    /// The same of work in `parts` parts, which each contestant does in order:
    /// the sum of the shortest times of each part. Work of more than a few
    /// milliseconds is hardly ever done without something else in between.
    pub fn race_in_parts(
        self,
        parts: usize,
        contestants: &mut [&mut dyn FnMut(usize)],
    ) -> Vec<f64> {
        const LEAST_ROUNDS: u32 = 5;
        let start = Instant::now();
        let mut shortest = vec![vec![Duration::MAX; parts]; contestants.len()];
        let mut rounds = 0;
        while rounds == 0
            || !self.is_test() && (rounds < LEAST_ROUNDS || start.elapsed() < self.budget)
        {
            for (contestant, shortest) in contestants.iter_mut().zip(&mut shortest) {
                for (part, shortest) in shortest.iter_mut().enumerate() {
                    let start = Instant::now();
                    contestant(part);
                    *shortest = start.elapsed().min(*shortest);
                }
            }
            rounds += 1;
        }
        let nanoseconds = |parts: Vec<Duration>| match self.is_test() {
            true => f64::NAN,
            false => parts.into_iter().sum::<Duration>().as_secs_f64() * 1e9,
        };
        shortest.into_iter().map(nanoseconds).collect()
    }

    /// The same for two of them.
    pub fn duel(self, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> (f64, f64) {
        let times = self.race(&mut [&mut ours, &mut theirs]);
        (times[0], times[1])
    }
}

/// Whether the arguments name this part of a bench, or none.
#[must_use]
pub fn wants(part: &str) -> bool {
    let mut asked = std::env::args().skip(1).filter(|name| !name.starts_with('-')).peekable();
    asked.peek().is_none() || asked.any(|name| name == part)
}
