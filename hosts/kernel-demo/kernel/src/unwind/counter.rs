//! Counters of what happened. Any context.

use core::sync::atomic::{AtomicU64, Ordering};

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
