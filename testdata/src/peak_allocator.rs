//! Measures how much memory a program has at most.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

/// The system's allocator, which keeps count of the bytes of all threads: the global one
/// of a fuzz target that bounds them.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakAllocator;

/// Bytes that are allocated now, and the most that were since the last start.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

impl PeakAllocator {
    /// Runs `body`. Returns how many bytes there were at most, beside those before.
    pub fn peak_of(body: impl FnOnce()) -> usize {
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        body();
        PEAK.load(Ordering::Relaxed).saturating_sub(before)
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = NOW.fetch_add(layout.size(), Ordering::Relaxed);
        PEAK.fetch_max(before.wrapping_add(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}
