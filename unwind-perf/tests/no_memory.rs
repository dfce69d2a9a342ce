//! Memory that runs out where the perf side allocates at run time: a registry
//! whose number of CPUs is known late.
//!
//! A merge allocates too, but by maps that have no way to report it: there the
//! limit on what is held is the protection.
#![cfg(not(loom))]
#![cfg(test)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

use unwind_perf::per_cpu::{AddError, HeapRegistry, Policy};

/// An allocator that has no memory for the calling thread while told so.
struct Limited;

thread_local! {
    static NONE_LEFT: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the system's allocator does the work; null says that there is no
// memory.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if NONE_LEFT.get() {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

#[test]
fn a_registry_without_memory_is_not_made_and_says_so() {
    NONE_LEFT.set(true);
    let none = HeapRegistry::<4>::try_with_cpus(Policy::FirstLive, 64);
    let of_no_cpus = HeapRegistry::<4>::try_with_cpus(Policy::FirstLive, 0);
    NONE_LEFT.set(false);
    assert_eq!(none.unwrap_err(), AddError::NoMemory);
    assert!(of_no_cpus.is_ok(), "which takes none");
    assert!(HeapRegistry::<4>::try_with_cpus(Policy::FirstLive, 64).is_ok());
    // More than there can be.
    let all = HeapRegistry::<4>::try_with_cpus(Policy::FirstLive, usize::MAX);
    assert_eq!(all.unwrap_err(), AddError::NoMemory);
}
