//! How much of a stack is copied: little at first, and more if stacks turn out to be deeper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::commands::perf::stack_end::STACK_COPY_TOO_SHORT;
use crate::commands::perf::tally::Tally;

/// Whether copies are too small, told from the thread that has stacks walked to the one
/// that takes samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopySize {
    is_too_small: Arc<AtomicBool>,
}

/// Larger copies are worth their price if more than one of this many stacks is cut.
const TOLERATED: u64 = 256;

/// Fewer cut stacks than this say nothing.
const FEW: u64 = 4;

impl CopySize {
    /// Takes note of what became of samples so far.
    pub(crate) fn judge(&self, tally: &Tally) {
        let cut = tally.incomplete.get(STACK_COPY_TOO_SHORT).copied().unwrap_or(0);
        if cut >= FEW && cut.saturating_mul(TOLERATED) > tally.walked() {
            self.is_too_small.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_too_small(&self) -> bool {
        self.is_too_small.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_copies_are_too_small_if_more_than_a_few_stacks_are_cut() {
        let is_too_small = |complete, cut| {
            let mut tally = Tally { complete, ..Tally::default() };
            tally.incomplete.insert(STACK_COPY_TOO_SHORT, cut);
            tally.incomplete.insert("no-row", 1_000);
            let size = CopySize::default();
            size.judge(&tally);
            size.is_too_small()
        };
        assert!(!is_too_small(0, 3));
        assert!(is_too_small(0, 4));
        assert!(!is_too_small(1_000_000, 100));
        assert!(is_too_small(10_000, 100));
    }
}
