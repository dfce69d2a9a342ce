//! Walks, with their caches and tables, ask for no memory.

#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use unwind_benches::corpus::Corpus;
use unwind_benches::{Unwind, Unwinder as _};

/// Counts what the calling thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get().saturating_add(1));
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_walk_of_any_corpus_allocates() {
    for path in Corpus::paths() {
        let corpus = Corpus::open(&path);
        let mut unwind = Unwind::new(&corpus);
        let mut frames = 0_usize;
        let before = ALLOCATIONS.get();
        for snapshot in &corpus.snapshots {
            frames = frames.saturating_add(unwind.walk(snapshot));
        }
        assert_eq!(ALLOCATIONS.get(), before, "{}", corpus.name);
        assert!(frames > 0 && before > 0, "it does count");
    }
}
