//! Counts what a thread allocates, and how much it has at most.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

/// The system's allocator, which counts: the global one of a test that shows
/// that code allocates nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// What the thread has asked for and given back, in bytes. Others may give back
    /// what it asked for.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

impl CountingAllocator {
    /// How often the calling thread has asked for memory.
    #[must_use]
    pub fn allocations() -> u64 {
        ALLOCATIONS.get()
    }

    /// Does some work, and says how many bytes of memory the calling thread had for
    /// it at most.
    pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let before = HELD.get();
        PEAK.set(before);
        let done = work();
        (done, u64::try_from(PEAK.get().saturating_sub(before)).unwrap_or(0))
    }

    fn took(layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get().saturating_add(1));
        let held = HELD.get().saturating_add(i64::try_from(layout.size()).unwrap_or(i64::MAX));
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::took(layout);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::took(layout);
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let size = i64::try_from(layout.size()).unwrap_or(i64::MAX);
        HELD.set(HELD.get().saturating_sub(size));
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}
