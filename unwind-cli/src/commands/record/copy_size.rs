//! How much of a stack is copied: little at first, and more where that makes stacks complete.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes of copies of stacks, and which of them is worth its price.
///
/// Each byte that is copied takes time of the program. So copies are small at first. Where these
/// turn out to be too short, some samples have the largest copies, and each of them tells which
/// size it needs. The size is chosen whose bytes are worth the stacks that they make complete. A
/// program changes: the same is done again from time to time.
#[derive(Clone, Debug)]
pub(crate) struct CopySize(Arc<Mutex<State>>);

/// How many bytes may be copied for each stack more that is complete.
const BYTES_PER_STACK: u64 = 512 << 10;

/// How many samples are looked at before a size is chosen.
const LOOK: u32 = 128;

/// As many stacks that are cut say before it that copies are too short.
const MANY_CUT: u32 = 8;

/// How many samples are passed until larger copies are tried again: at first, and at most. It is
/// doubled each time.
const PASSED: u32 = 2_048;
const PASSED_AT_MOST: u32 = 32_768;

/// Of samples with larger copies one of this many is looked at, which takes more walks.
const ONE_OF: u32 = 8;

#[derive(Debug)]
struct State {
    /// In bytes, ascending; at least one.
    sizes: Vec<u32>,
    /// The place of the size that is wanted.
    wanted: usize,
    /// That of the size which samples have, and since when, by their clock.
    in_force: usize,
    since: u64,
    /// The largest size is tried.
    is_trial: bool,
    look: Look,
    /// Samples until larger copies are tried again.
    left: u32,
    passed: u32,
}

/// What samples of one size have shown.
#[derive(Clone, Debug, Default)]
struct Look {
    samples: u32,
    /// How many copies were too short.
    cut: u32,
    /// For how many each of the smaller sizes would have been enough.
    enough: Vec<u32>,
    /// Samples that were passed since the last one.
    passed: u32,
}

/// A copy that was walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkedCopy {
    /// When it was made, in nanoseconds of the samples' clock.
    pub(crate) time: u64,
    /// Bytes that were copied.
    pub(crate) len: usize,
    /// The stack is deeper.
    pub(crate) is_cut: bool,
}

impl CopySize {
    /// Copies of one of these sizes in bytes, ascending: of the first one until stacks turn out to
    /// be deeper.
    pub(crate) fn new(sizes: Vec<u32>) -> Self {
        Self(Arc::new(Mutex::new(State {
            sizes,
            wanted: 0,
            in_force: 0,
            since: 0,
            is_trial: false,
            look: Look::default(),
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
        let Some(shorter) = self.state().asks(copy) else { return };
        // Walks take long: meanwhile others may learn.
        let enough = shorter.iter().map(|&size| {
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

    /// The smaller sizes to try a copy with, if it is to be looked at.
    fn asks(&mut self, copy: WalkedCopy) -> Option<Vec<u32>> {
        if self.sizes.len() < 2 || !self.is_current(copy) {
            return None;
        }
        self.look.passed = self.look.passed.saturating_add(1);
        self.left = self.left.saturating_sub(1);
        if self.in_force > 0 && !self.is_trial && self.look.passed < ONE_OF {
            return None;
        }
        self.look.passed = 0;
        Some(self.sizes.get(..self.in_force)?.to_vec())
    }

    fn take(&mut self, copy: WalkedCopy, enough: &[bool]) {
        // The size may have changed since it was asked for.
        if !self.is_current(copy) || enough.len() != self.in_force {
            return;
        }
        let look = &mut self.look;
        look.samples = look.samples.saturating_add(1);
        look.cut = look.cut.saturating_add(copy.is_cut.into());
        look.enough.resize(enough.len(), 0);
        for (count, &is_enough) in look.enough.iter_mut().zip(enough) {
            *count = count.saturating_add(is_enough.into());
        }
        let is_over = look.samples >= LOOK;
        if self.left == 0 && (is_over || self.look.cut >= MANY_CUT) && self.may_gain() {
            return self.try_largest();
        }
        if is_over {
            let best = self.best();
            if self.is_trial {
                self.is_trial = false;
                self.left = self.passed;
                self.passed = self.passed.saturating_mul(2).min(PASSED_AT_MOST);
            }
            self.wanted = best;
            self.look = Look::default();
        }
    }

    /// Whether the stacks that are cut would be worth the next size, were it enough for all.
    fn may_gain(&self) -> bool {
        let bytes = |place: usize| self.sizes.get(place).copied().map(u64::from);
        let next = self.in_force.checked_add(1).and_then(bytes);
        let (Some(now), Some(next)) = (bytes(self.in_force), next) else { return false };
        let price = u64::from(self.look.samples).saturating_mul(next.saturating_sub(now));
        u64::from(self.look.cut).saturating_mul(BYTES_PER_STACK) > price
    }

    fn try_largest(&mut self) {
        self.wanted = self.sizes.len().saturating_sub(1);
        self.is_trial = true;
        self.look = Look::default();
    }

    /// The place of the size that is worth most, of that in force and the smaller ones.
    fn best(&self) -> usize {
        let samples = self.look.samples;
        let whole = samples.saturating_sub(self.look.cut);
        let enough = self.look.enough.iter().copied().chain([whole]);
        let worth = |(enough, &bytes): (u32, &u32)| {
            let price = i128::from(samples).saturating_mul(bytes.into());
            i128::from(enough).saturating_mul(BYTES_PER_STACK.into()).saturating_sub(price)
        };
        let worths = enough.zip(&self.sizes).map(worth).enumerate();
        // Of equals the first, which is the smallest.
        worths.min_by_key(|&(_, worth)| Reverse(worth)).map_or(0, |(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u32; 3] = [16_384, 32_768, 65_528];

    /// Takes samples of stacks of these depths in turn, each with a copy of the size in force.
    /// Returns that of each.
    fn sizes_of(copies: &CopySize, depths: &[usize], samples: u64) -> Vec<u32> {
        let mut sizes = Vec::new();
        for (time, &depth) in (1..=samples).zip(depths.iter().cycle()) {
            let size = SIZES[copies.state().in_force];
            sizes.push(size);
            let size = usize::try_from(size).unwrap();
            let copy = WalkedCopy { time, len: size.min(depth), is_cut: depth > size };
            copies.learn(copy, |shorter| depth <= shorter);
            if let Some(place) = copies.change() {
                copies.is_in_force(place, time);
            }
        }
        sizes
    }

    fn last_of(depths: &[usize], samples: u64) -> u32 {
        *sizes_of(&CopySize::new(SIZES.to_vec()), depths, samples).last().unwrap()
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
    fn d14_copies_that_make_no_stack_complete_are_given_up() {
        let copies = CopySize::new(SIZES.to_vec());
        let sizes = sizes_of(&copies, &[10_000, 100_000], 20_000);
        let count = |size| sizes.iter().filter(|&&at| at == size).count();
        assert_eq!(count(SIZES[1]), 0);
        // They are tried again after 2,048 samples, 4,096 and 8,192.
        let look = usize::try_from(LOOK).unwrap();
        assert_eq!(count(SIZES[2]), 4 * look);
        assert_eq!(sizes.last(), Some(&SIZES[0]));
    }

    #[test]
    fn d14_sizes_follow_a_program_that_changes() {
        let copies = CopySize::new(SIZES.to_vec());
        assert_eq!(sizes_of(&copies, &[1_000], 5_000).last(), Some(&SIZES[0]));
        assert_eq!(sizes_of(&copies, &[50_000], 1_000).last(), Some(&SIZES[2]));
        assert_eq!(sizes_of(&copies, &[20_000], 10_000).last(), Some(&SIZES[1]));
        assert_eq!(sizes_of(&copies, &[1_000], 10_000).last(), Some(&SIZES[0]));
    }

    #[test]
    fn d14_copies_of_an_earlier_size_say_nothing_of_the_new_one() {
        let copies = CopySize::new(SIZES.to_vec());
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
        assert_eq!(copies.state().look.samples, 0);
    }

    #[test]
    fn d14_one_size_stays() {
        let copies = CopySize::new(vec![8]);
        for time in 0..1_000 {
            copies.learn(WalkedCopy { time, len: 8, is_cut: true }, |_| false);
        }
        assert_eq!(copies.change(), None);
    }
}
