//! What copies of stacks in trials have shown of each size: for how many stacks it is enough, and what it
//! takes.

use std::cmp::Reverse;

use crate::engine::sampling::CopySizes;

/// How many bytes could be copied in the time that the kernel takes for the end of a stack, where a copy
/// does not fit: it finds it by a page fault, which takes 1.2 us.
const END: u64 = 6 << 10;

/// If the stacks that are cut differ from what trials have shown by more than this number of standard
/// deviations, which by chance they seldom do, the program does something else.
const CHANGED: u64 = 4;

/// One of as many stacks has to be complete with the largest copies to say which size is best.
const KNOWN: u32 = 4;

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

impl WalkedCopy {
    /// What a copy of `size` bytes of the same stack would take, in bytes, if this one has
    /// `size_of_this`. Where this one fits, what a larger one finds above it is not known: as if there
    /// were enough.
    fn price(self, size: u32, size_of_this: u32) -> u64 {
        let len = u64::try_from(self.len).unwrap_or(u64::MAX);
        let size = u64::from(size);
        if len < u64::from(size_of_this) && len < size { len.saturating_add(END) } else { size }
    }
}

/// What samples of trials have shown.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(super) samples: u32,
    /// What each size would have made of them.
    sizes: Vec<OfSize>,
}

/// What copies of a size would have made of some samples.
#[derive(Clone, Debug, Default)]
struct OfSize {
    /// For how many they would have been enough.
    enough: u32,
    /// What they would have taken, in bytes.
    price: u64,
}

impl Shown {
    pub(crate) fn new(sizes: &CopySizes) -> Self {
        Self { samples: 0, sizes: vec![OfSize::default(); sizes.bytes.len()] }
    }

    pub(crate) fn clear(&mut self) {
        self.samples = 0;
        self.sizes.fill(OfSize::default());
    }

    /// Later samples count twice as much as those until now.
    pub(crate) fn halve(&mut self) {
        self.samples /= 2;
        for size in &mut self.sizes {
            size.enough /= 2;
            size.price /= 2;
        }
    }

    /// Adds a copy that has the size at this place of `sizes`, and for which of them it would have been
    /// `enough`.
    pub(crate) fn add(&mut self, copy: WalkedCopy, at: usize, sizes: &[u32], enough: &[bool]) {
        self.samples = self.samples.saturating_add(1);
        let size_of_copy = sizes.get(at).copied().unwrap_or(0);
        for ((shown, &size), &is_enough) in self.sizes.iter_mut().zip(sizes).zip(enough) {
            shown.enough = shown.enough.saturating_add(is_enough.into());
            shown.price = shown.price.saturating_add(copy.price(size, size_of_copy));
        }
    }

    /// Whether the program does something else, and it is not chance, if `cut` of `of` samples with the size
    /// at this place are cut.
    pub(crate) fn differs(&self, size: usize, cut: u32, of: u32) -> bool {
        let Some(&OfSize { enough, .. }) = self.sizes.get(size) else { return false };
        let shown = u64::from(self.samples.saturating_sub(enough));
        let expected = |of: u64| of.saturating_mul(shown).checked_div(u64::from(self.samples));
        let Some(expected_cut) = expected(of.into()) else { return false };
        let difference = expected_cut.abs_diff(cut.into());
        // That of a binomial distribution, and a stack, as what is expected is an estimate.
        let variance =
            expected_cut.saturating_sub(expected(expected_cut).unwrap_or(0)).saturating_add(1);
        difference.saturating_pow(2) > variance.saturating_mul(CHANGED.saturating_pow(2))
    }

    /// The place of the size that is worth most, if a complete stack is worth as many bytes.
    /// `None` where nearly all are deeper than any copy: which size those need that come next is not
    /// known.
    pub(crate) fn best(&self, bytes_per_stack: u64) -> Option<usize> {
        let complete = self.sizes.last().map_or(0, |size| size.enough);
        if complete < self.samples / KNOWN {
            return None;
        }
        let worth = |size: &OfSize| {
            let enough = i128::from(size.enough).saturating_mul(bytes_per_stack.into());
            enough.saturating_sub(size.price.into())
        };
        let worths = self.sizes.iter().map(worth).enumerate();
        // Of equals the first, which is the smallest.
        worths.min_by_key(|&(_, worth)| Reverse(worth)).map(|(place, _)| place)
    }
}
