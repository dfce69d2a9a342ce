//! Data beside the atomics of a model.

#![allow(dead_code, unreachable_pub, reason = "each model uses a part of it")]

use loom::cell::UnsafeCell;
use loom::thread;

/// Data that is not atomic, and that the protocol of a model is to guard. loom
/// reports two accesses of which one writes and that nothing orders.
#[derive(Debug)]
pub struct Guarded(UnsafeCell<u32>);

impl Guarded {
    pub fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    pub fn read(&self) {
        // SAFETY: loom checks that no thread writes meanwhile.
        self.0.with(|data| {
            let _: u32 = unsafe { *data };
        });
    }

    /// Reads for so long that others get a turn.
    pub fn read_slowly(&self) {
        self.0.with(|data| {
            thread::yield_now();
            // SAFETY: loom checks that no thread writes meanwhile.
            let _: u32 = unsafe { *data };
        });
    }

    pub fn write(&self) {
        // SAFETY: loom checks that no thread reads or writes meanwhile.
        self.0.with_mut(|data| unsafe { *data = (*data).wrapping_add(1) });
    }
}

// SAFETY: loom checks every access.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}
