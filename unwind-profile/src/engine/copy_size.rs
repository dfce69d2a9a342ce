//! How much of a stack is copied: little at first, more where that makes stacks complete, and less
//! where less is enough.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::depths::{Shown, WalkedCopy};
use crate::engine::sampling::CopySizes;

/// Sizes of copies of stacks, and which of them is worth its price.
///
/// Each byte that is copied takes time of the program. So copies are small at first, and tell
/// whether still smaller ones are enough. Where they turn out to be too short, a trial has the largest
/// copies, each of which tells which size it needs, and what each size would take. The size is chosen
/// whose price is worth the stacks that it makes complete. A program changes: the same is done again
/// from time to time, with the largest copies only where more complete stacks would be worth them.
#[derive(Clone, Debug)]
pub struct CopySize(Arc<Mutex<State>>);

/// How many bytes a second may be copied if that makes all stacks complete, and a part of it for a
/// part of them. A KiB takes 0.1 us where all is in the caches, and three times as much in a program
/// that needs these for itself: to copy as many takes some 10 % of the program's time.
const BYTES_FOR_ALL: u64 = 1 << 29;

/// At rates above this one, half as many: there the samples take more than a few percent of the time
/// themselves.
const LOW_RATE: u32 = 1_500;

/// How many samples a trial has.
const TRIAL: u32 = 128;

/// Among as many samples, or fewer, cut stacks say that copies are too short.
const LOOK: u32 = 128;

/// As many stacks that are cut say so.
const MANY_CUT: u32 = 4;

/// How many samples are passed until the next trial: after the first one, and at most. It is four
/// times as many each time.
const PASSED: u32 = 256;
const PASSED_AT_MOST: u32 = 4_096;

#[derive(Debug)]
struct State {
    sizes: CopySizes,
    /// How many bytes may be copied for each stack more that is complete.
    bytes_per_stack: u64,
    /// The place of the size that is wanted.
    wanted: usize,
    /// That of the size which samples have, and since when, by their clock.
    in_force: usize,
    since: u64,
    /// Whether a trial is under way: of copies as they were before it, or of the largest.
    is_trial: bool,
    /// What trials have shown, the earlier ones with less weight: a program has phases.
    shown: Shown,
    /// Samples of the trial, or without one of the size in force since the last look, and how many of
    /// them were cut.
    samples: u32,
    cut: u32,
    /// Samples until the next trial.
    left: u32,
    passed: u32,
}

impl CopySize {
    /// Copies of one of these sizes: of the first one until there is a better one. A second of CPU
    /// time has `rate` of them.
    #[must_use]
    pub fn new(sizes: CopySizes, rate: u32) -> Self {
        let for_all = if rate > LOW_RATE { BYTES_FOR_ALL / 2 } else { BYTES_FOR_ALL };
        Self(Arc::new(Mutex::new(State {
            bytes_per_stack: for_all.checked_div(rate.into()).unwrap_or(for_all),
            wanted: sizes.first,
            in_force: sizes.first,
            since: 0,
            is_trial: true,
            shown: Shown::new(&sizes),
            sizes,
            samples: 0,
            cut: 0,
            left: 0,
            passed: PASSED,
        })))
    }

    /// The place of the size that samples are to have, if it is another one than they have.
    pub(crate) fn change(&self) -> Option<usize> {
        let state = self.state();
        (state.wanted != state.in_force).then_some(state.wanted)
    }

    /// Takes note that samples have copies of the size at this place from `time` on, by their
    /// clock.
    pub(crate) fn is_in_force(&self, size: usize, time: u64) {
        let mut state = self.state();
        (state.in_force, state.since) = (size, time);
    }

    /// Learns from a copy. `is_enough` says whether a number of bytes, less than it has, is enough
    /// for the same walk.
    pub(crate) fn learn(&self, copy: WalkedCopy, mut is_enough: impl FnMut(usize) -> bool) {
        let Some(sizes) = self.state().asks(copy) else { return };
        // Walks take long: meanwhile others may learn.
        let enough = sizes.iter().map(|&size| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            !copy.is_cut && (copy.len <= size || is_enough(size))
        });
        let enough: Vec<bool> = enough.collect();
        self.state().take(copy, &enough);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the copy is one of the size that samples have now.
    const fn is_current(&self, copy: WalkedCopy) -> bool {
        self.wanted == self.in_force && copy.time >= self.since
    }

    /// The sizes to try a copy of a trial with.
    fn asks(&mut self, copy: WalkedCopy) -> Option<Vec<u32>> {
        if self.sizes.is_one() || !self.is_current(copy) {
            return None;
        }
        if self.is_trial {
            return Some(self.sizes.bytes.clone());
        }
        self.left = self.left.saturating_sub(1);
        self.samples = self.samples.saturating_add(1);
        self.cut = self.cut.saturating_add(copy.is_cut.into());
        let is_over = self.samples >= LOOK;
        if is_over && self.shown.differs(self.in_force, self.cut, LOOK) {
            self.forget();
        }
        let is_due = self.left == 0 && (is_over || self.cut >= MANY_CUT);
        if is_due && self.may_gain() {
            self.begin_trial(self.largest());
        } else if is_due && self.in_force > 0 {
            // Whether smaller ones would do is seen by trials alone.
            self.begin_trial(self.in_force);
        } else if is_over {
            (self.samples, self.cut) = (0, 0);
        }
        None
    }

    /// The place of the largest size.
    fn largest(&self) -> usize {
        self.sizes.bytes.len().saturating_sub(1)
    }

    /// What was shown tells nothing of what the program does now.
    fn forget(&mut self) {
        self.shown.clear();
        (self.left, self.passed) = (0, PASSED);
    }

    /// Begins a trial of the size at this place.
    fn begin_trial(&mut self, size: usize) {
        self.wanted = size;
        self.is_trial = true;
        (self.samples, self.cut) = (0, 0);
        self.shown.halve();
    }

    /// Takes note of a copy of a trial, and for which sizes it would have been enough. Whether a larger
    /// copy than it is would be, it does not tell.
    fn take(&mut self, copy: WalkedCopy, enough: &[bool]) {
        // The trial may be over since it was asked for.
        if !self.is_trial || !self.is_current(copy) {
            return;
        }
        self.shown.add(copy, self.in_force, &self.sizes.bytes, enough);
        self.samples = self.samples.saturating_add(1);
        self.cut = self.cut.saturating_add(copy.is_cut.into());
        if self.cut >= MANY_CUT && self.may_gain() {
            // What those that are cut need, it does not tell.
            self.shown.clear();
            self.begin_trial(self.largest());
        } else if self.samples >= TRIAL {
            self.is_trial = false;
            self.wanted = self.shown.best(self.bytes_per_stack).unwrap_or(self.sizes.first);
            (self.samples, self.cut) = (0, 0);
            self.left = self.passed;
            self.passed = self.passed.saturating_mul(4).min(PASSED_AT_MOST);
        }
    }

    /// Whether the stacks that are cut would be worth the next size, if there is one, were it enough for
    /// all.
    fn may_gain(&self) -> bool {
        let bytes = |place: usize| self.sizes.bytes.get(place).copied().map(u64::from);
        let next = self.in_force.checked_add(1).and_then(bytes);
        let (Some(now), Some(next)) = (bytes(self.in_force), next) else { return false };
        let price = u64::from(self.samples).saturating_mul(next.saturating_sub(now));
        u64::from(self.cut).saturating_mul(self.bytes_per_stack) > price
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::engine::sampling::Whom;

    impl State {
        fn bytes_in_force(&self) -> u32 {
            self.sizes.bytes[self.in_force]
        }
    }

    const SIZES: [u32; 3] = [16_384, 32_768, 65_528];

    /// A stack is worth half a MiB of copies.
    const RATE: u32 = 1_024;

    fn copies(first: usize, rate: u32) -> CopySize {
        CopySize::new(CopySizes { bytes: SIZES.to_vec(), first }, rate)
    }

    /// A stack of which a walk needs the first bytes, and which ends after as many or more.
    #[derive(Clone, Copy)]
    struct Stack {
        need: usize,
        len: usize,
    }

    /// Takes samples of stacks of which walks need as many bytes, in turn, with more above them than any
    /// copy takes. Each has a copy of the size in force. Returns that of each.
    fn sizes_of(copies: &CopySize, needs: &[usize], samples: usize) -> Vec<u32> {
        let stacks: Vec<Stack> = needs.iter().map(|&need| Stack { need, len: 1 << 20 }).collect();
        sizes_of_stacks(copies, &stacks, samples)
    }

    fn sizes_of_stacks(copies: &CopySize, stacks: &[Stack], samples: usize) -> Vec<u32> {
        let mut sizes = Vec::new();
        let begin = copies.state().since;
        let times = (begin..).skip(1);
        for (time, &Stack { need, len }) in times.zip(stacks.iter().cycle()).take(samples) {
            let size = copies.state().bytes_in_force();
            sizes.push(size);
            let size = usize::try_from(size).unwrap();
            let copy = WalkedCopy { time, len: size.min(len), is_cut: need > size };
            copies.learn(copy, |shorter| need <= shorter);
            if let Some(place) = copies.change() {
                copies.is_in_force(place, time);
            }
        }
        sizes
    }

    fn last_of(depths: &[usize], samples: usize) -> u32 {
        *sizes_of(&copies(0, RATE), depths, samples).last().unwrap()
    }

    #[test]
    fn d14_copies_are_as_large_as_most_stacks_need() {
        assert_eq!(last_of(&[10_000], 10_000), 16_384);
        assert_eq!(last_of(&[20_000], 1_000), 32_768);
        assert_eq!(last_of(&[40_000], 1_000), 65_528);
        assert_eq!(last_of(&[10_000, 20_000, 40_000], 1_000), 65_528);
        // One of 50 is not worth twice the bytes.
        let mut depths = [10_000; 50];
        depths[49] = 20_000;
        assert_eq!(last_of(&depths, 10_000), 16_384);
    }

    #[test]
    fn d14_copies_become_smaller_at_once_where_less_is_enough() {
        let trial = usize::try_from(TRIAL).unwrap();
        let copies = || copies(1, RATE);
        let sizes = sizes_of(&copies(), &[10_000], 1_000);
        assert!(sizes[..trial].iter().all(|&size| size == SIZES[1]));
        assert!(sizes[trial..].iter().all(|&size| size != SIZES[1]) && sizes.contains(&SIZES[0]));
        // Where they are too short, it is seen before.
        let sizes = sizes_of(&copies(), &[10_000, 20_000, 40_000], 1_000);
        assert!(sizes[20..].iter().all(|&size| size == SIZES[2]), "{sizes:?}");
        // Deep recursion says nothing of what comes after it.
        assert_eq!(sizes_of(&copies(), &[100_000], 300).last(), Some(&SIZES[1]));
        // And kept where they are what is needed.
        assert_eq!(sizes_of(&copies(), &[20_000], 100), [SIZES[1]; 100]);
        assert_eq!(sizes_of(&copies(), &[20_000], 10_000).last(), Some(&SIZES[1]));
    }

    #[test]
    fn d14_copies_that_make_no_stack_complete_are_given_up() {
        let copies = copies(0, RATE);
        let sizes = sizes_of(&copies, &[10_000, 100_000], 20_000);
        let count = |size| sizes.iter().filter(|&&at| at == size).count();
        assert_eq!(count(SIZES[1]), 0);
        // They are tried again after 256 samples, 1,024, and then each 4,096.
        let trial = usize::try_from(TRIAL).unwrap();
        assert_eq!(count(SIZES[2]), 7 * trial);
        assert_eq!(sizes.last(), Some(&SIZES[0]));
    }

    #[test]
    fn d14_sizes_follow_a_program_that_changes() {
        let copies = copies(0, RATE);
        assert_eq!(sizes_of(&copies, &[1_000], 5_000).last(), Some(&SIZES[0]));
        assert_eq!(sizes_of(&copies, &[50_000], 1_000).last(), Some(&SIZES[2]));
        assert_eq!(sizes_of(&copies, &[100_000], 10_000).last(), Some(&SIZES[0]));
        // Half of them are not cut any more: that tells at once.
        assert_eq!(sizes_of(&copies, &[10_000, 20_000], 500).last(), Some(&SIZES[1]));
        assert_eq!(sizes_of(&copies, &[100_000], 10_000).last(), Some(&SIZES[0]));
        // All were cut, and all are: what would do is seen by trials alone.
        assert_eq!(sizes_of(&copies, &[20_000], 40_000).last(), Some(&SIZES[1]));
        assert_eq!(sizes_of(&copies, &[1_000], 40_000).last(), Some(&SIZES[0]));
    }

    #[test]
    fn d14_a_few_stacks_that_become_deeper_are_seen_at_once() {
        let mut depths = [20_000; 10];
        depths[9] = 50_000;
        for passed in [20_000, 21_000, 22_000, 23_000] {
            let copies = copies(0, RATE);
            assert_eq!(sizes_of(&copies, &[20_000], passed).last(), Some(&SIZES[1]));
            // The next trial would be after up to 4,096.
            assert_eq!(sizes_of(&copies, &depths, 600).last(), Some(&SIZES[2]), "{passed}");
        }
    }

    #[test]
    fn d14_copies_of_an_earlier_size_say_nothing_of_the_new_one() {
        let copies = copies(0, RATE);
        let cut = |time| WalkedCopy { time, len: 16_384, is_cut: true };
        for time in 0..u64::from(MANY_CUT) {
            copies.learn(cut(time), |_| false);
        }
        assert_eq!(copies.change(), Some(2));
        for time in 0..1_000 {
            copies.learn(cut(time), |_| false);
        }
        copies.is_in_force(2, 500);
        assert_eq!(copies.change(), None);
        for time in 0..500 {
            copies.learn(cut(time), |_| false);
        }
        assert_eq!(copies.state().shown.samples, 0);
    }

    #[test]
    fn d14_larger_copies_are_for_lower_rates() {
        // One of 50 needs more.
        let mut depths = [10_000; 50];
        depths[49] = 20_000;
        for (rate, size) in [(249, SIZES[1]), (4_999, SIZES[0])] {
            let copies = copies(0, rate);
            assert_eq!(sizes_of(&copies, &depths, 10_000).last(), Some(&size), "{rate}");
        }
    }

    #[test]
    fn d14_the_largest_copies_are_tried_only_where_they_may_gain() {
        // None is cut by 32 KiB, and 16 are not enough.
        let sizes = sizes_of(&copies(1, RATE), &[10_000, 20_000, 30_000], 20_000);
        assert!(sizes.iter().all(|&size| size == SIZES[1]));
        // By trials of the same size it is seen that less is enough, in the end.
        let copies = copies(1, RATE);
        assert_eq!(sizes_of(&copies, &[20_000], 2_000).last(), Some(&SIZES[1]));
        let sizes = sizes_of(&copies, &[10_000], 40_000);
        assert!(!sizes.contains(&SIZES[2]));
        assert_eq!(sizes.last(), Some(&SIZES[0]));
    }

    #[test]
    fn d14_the_sizes_of_a_recording_follow_what_stacks_need() {
        let sizes = CopySizes::several(&Whom::All, 1, false);
        let last_of = |needs: &[(usize, usize)], rate| {
            let depths = needs.iter().flat_map(|&(count, depth)| iter::repeat_n(depth, count));
            let depths: Vec<usize> = depths.collect();
            let copies = CopySize::new(sizes.clone(), rate);
            sizes_of(&copies, &depths, 10_000).last().copied()
        };
        for rate in [999, 4_999, 19_999] {
            assert_eq!(last_of(&[(1, 5_000)], rate), Some(8_192));
            // As recursion of a random depth needs.
            assert_eq!(last_of(&[(6, 8_000), (4, 11_000)], rate), Some(12_288));
            assert_eq!(last_of(&[(2, 8_000), (4, 12_000), (4, 16_000)], rate), Some(16_384));
        }
        // One of a hundred is worth a third more bytes at a low rate alone.
        let compiler = [(87, 8_000), (12, 12_000), (1, 16_000)];
        assert_eq!(last_of(&compiler, 999), Some(16_384));
        assert_eq!(last_of(&compiler, 4_999), Some(12_288));
        // So are twelve of a hundred four times as many.
        let deep = [(48, 16_000), (12, 50_000), (40, 100_000)];
        assert_eq!(last_of(&deep, 999), Some(65_528));
        assert_eq!(last_of(&deep, 4_999), Some(16_384));
    }

    #[test]
    fn d14_sizes_are_chosen_by_where_stacks_end_too() {
        // The size of most copies: of others there are trials.
        let usual_of = |needs: &[(usize, usize)], above: Option<usize>| {
            let stack = |need| Stack { need, len: above.map_or(1 << 20, |above| need + above) };
            let stacks = needs.iter().flat_map(|&(count, need)| iter::repeat_n(stack(need), count));
            let stacks: Vec<Stack> = stacks.collect();
            let copies = CopySize::new(CopySizes::several(&Whom::All, 1, false), 4_999);
            let mut sizes = sizes_of_stacks(&copies, &stacks, 10_000);
            sizes.sort_unstable();
            sizes[sizes.len() / 2]
        };
        // That nearly all copies find the end is more than ten of a hundred stacks are worth.
        let flat = [(90, 7_000), (10, 11_000)];
        assert_eq!(usual_of(&flat, None), 12_288);
        assert_eq!(usual_of(&flat, Some(2_000)), 8_192);
        // A copy takes no more than there is: so thirty are worth the largest.
        let deep = [(70, 16_000), (30, 40_000)];
        assert_eq!(usual_of(&deep, None), 16_384);
        assert_eq!(usual_of(&deep, Some(2_000)), 65_528);
    }

    #[test]
    fn d14_one_size_stays() {
        let copies = CopySize::new(CopySizes::one(8), RATE);
        for time in 0..1_000 {
            copies.learn(WalkedCopy { time, len: 8, is_cut: true }, |_| false);
        }
        assert_eq!(copies.change(), None);
    }
}
