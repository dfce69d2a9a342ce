//! Memory that runs out for one thread.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

/// The system's allocator, which gives a thread as many pieces of memory as
/// [`with`](Self::with) says: the global one of a test that shows what code does
/// without memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct LimitedAllocator;

thread_local! {
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

impl LimitedAllocator {
    /// Does some work for which the calling thread gets `pieces` further pieces of memory,
    /// and says how many more it asked for.
    pub fn with<T>(pieces: u64, work: impl FnOnce() -> T) -> (T, u64) {
        REFUSED.set(0);
        LEFT.set(Some(pieces));
        let done = work();
        LEFT.set(None);
        (done, REFUSED.get())
    }

    fn grants() -> bool {
        match LEFT.get() {
            None => true,
            Some(0) => {
                REFUSED.set(REFUSED.get() + 1);
                false
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                true
            }
        }
    }
}

// SAFETY: the system's allocator does the work; null says that there is no memory.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Self::grants() {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !Self::grants() {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}
