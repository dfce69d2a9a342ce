//! The samples of the last seconds.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use unwind_profile::collected::call_tree::{CallTree, Frame, FrameKind, Total};

/// Samples of one interval, by function and by thread. What takes memory is bounded by the
/// profile that it is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) functions: Vec<(Frame, Total)>,
    /// By the names of threads, as they may be shown.
    pub(crate) threads: Vec<(String, u64)>,
    pub(crate) samples: u64,
    /// Those for whose stacks there was no room.
    pub(crate) not_kept: u64,
    pub(crate) time: Duration,
}

impl Slice {
    pub(crate) fn new(profile: CallTree, threads: Vec<(String, u64)>, time: Duration) -> Self {
        let totals = profile.totals();
        let (samples, not_kept) = (profile.samples(), profile.not_kept);
        let functions = profile.frames.into_iter().zip(totals);
        let functions = functions.filter(|(frame, _)| frame.kind != FrameKind::Note).collect();
        Self { functions, threads, samples, not_kept, time }
    }
}

/// How much time is looked back at.
const TIME: Duration = Duration::from_secs(10);

/// Intervals are a little longer than what was asked for.
const SLACK: Duration = Duration::from_millis(900);

/// The newest intervals: ten seconds, or one interval if that is longer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    slices: VecDeque<Slice>,
}

impl Window {
    /// Takes a new interval in, and lets go of those that are too old.
    pub(crate) fn add(&mut self, slice: Slice) {
        self.slices.push_back(slice);
        while self.slices.len() > 1 && self.time() > TIME.saturating_add(SLACK) {
            self.slices.pop_front();
        }
    }

    pub(crate) fn time(&self) -> Duration {
        self.slices.iter().fold(Duration::ZERO, |sum, slice| sum.saturating_add(slice.time))
    }

    pub(crate) fn samples(&self) -> u64 {
        self.slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.samples))
    }

    /// Samples for whose stacks there was no room.
    pub(crate) fn not_kept(&self) -> u64 {
        self.slices.iter().fold(0, |sum, slice| sum.saturating_add(slice.not_kept))
    }

    /// The functions, those first that most samples were taken in.
    pub(crate) fn functions(&self) -> Vec<(&Frame, Total)> {
        let all = self.slices.iter().flat_map(|slice| &slice.functions);
        let mut sums = summed(all, |sum: &mut Total, new| {
            sum.own = sum.own.saturating_add(new.own);
            sum.all = sum.all.saturating_add(new.all);
        });
        sums.sort_by_key(|&(frame, total)| (Reverse((total.own, total.all)), &frame.name));
        sums
    }

    /// The threads, those first of which most samples are.
    pub(crate) fn threads(&self) -> Vec<(&String, u64)> {
        let all = self.slices.iter().flat_map(|slice| &slice.threads);
        let mut sums = summed(all, |sum: &mut u64, new| *sum = sum.saturating_add(*new));
        sums.sort_by_key(|&(name, count)| (Reverse(count), name));
        sums
    }
}

/// One of each key, with all its values added.
fn summed<'s, K: Eq + Hash, V: Default + 's>(
    all: impl Iterator<Item = &'s (K, V)>,
    add: impl Fn(&mut V, &V),
) -> Vec<(&'s K, V)> {
    let mut sums: HashMap<&K, V> = HashMap::new();
    for (key, value) in all {
        add(sums.entry(key).or_default(), value);
    }
    sums.into_iter().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use unwind_profile::walks::found_by::FoundBy;

    use super::*;

    pub(crate) fn slice(stacks: &[(&[&str], u64)], seconds: u64) -> Slice {
        let mut profile = CallTree::with_room(usize::MAX);
        for (stack, count) in stacks {
            let frames: Vec<_> = stack
                .iter()
                .map(|name| Frame::new(Some(&(*name).into()), None, false))
                .map(|frame| (profile.frame(frame), FoundBy::Nothing))
                .collect();
            profile.add(frames, *count);
        }
        let threads = vec![("a".to_owned(), 1), ("b".to_owned(), 2)];
        Slice::new(profile, threads, Duration::from_secs(seconds))
    }

    #[test]
    fn d14_a_window_has_the_sums_of_its_intervals_and_lets_go_of_old_ones() {
        let mut window = Window::default();
        window.add(slice(&[(&["old"], 100)], 6));
        window.add(slice(&[(&["main", "f"], 3), (&["main"], 1)], 4));
        let names = |window: &Window| {
            let functions = window.functions();
            let of = |(frame, total): &(&Frame, Total)| (frame.name.clone(), total.own, total.all);
            functions.iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(names(&window)[0], ("old".to_owned(), 100, 100));
        window.add(slice(&[(&["main", "f"], 2)], 2));
        assert_eq!(names(&window), [("f".to_owned(), 5, 5), ("main".to_owned(), 1, 6)]);
        assert_eq!((window.samples(), window.time()), (6, Duration::from_secs(6)));
        assert_eq!(window.threads(), [(&"b".to_owned(), 4), (&"a".to_owned(), 2)]);
    }

    #[test]
    fn d14_an_interval_that_is_longer_than_the_window_is_shown_all_the_same() {
        let mut window = Window::default();
        for _ in 0..3 {
            window.add(slice(&[(&["f"], 1)], 60));
            assert_eq!(window.samples(), 1);
        }
    }
}
