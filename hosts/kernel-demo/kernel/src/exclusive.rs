//! State with one user at a time, and state that is made anew.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::cpu;
use crate::each_cpu::online;
use crate::memory::shootdown;

/// A value that is lent to one user at a time. A second user, such as an NMI
/// that interrupts the first, is refused.
pub(crate) struct Exclusive<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `try_with` gives out one reference at a time, whichever context asks.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `f` with the value, or returns `None` if it is in use. Any
    /// context; `f` may be interrupted, and may sleep.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: it was this call that made `busy` true, and it stays true for
        // as long as the reference lives: no other call gets one.
        let value = unsafe { &mut *self.value.get() };
        let result = f(value);
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// Calls `f` with the value, interrupts off. Not in NMIs, and `f` does not
    /// sleep: so the value can be in use by another CPU only, and that is waited for.
    #[track_caller]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        /// Some minutes. On one CPU there is nothing to wait for.
        const TRIES: u64 = 1 << 32;
        let interrupts = cpu::disable_interrupts();
        let mut tries = 0;
        while self.busy.swap(true, Ordering::Acquire) {
            assert!(online() > 1 && tries < TRIES, "state is in use");
            tries += 1;
            // The other one may wait for this CPU.
            shootdown::answer();
            core::hint::spin_loop();
        }
        // SAFETY: as in `try_with`.
        let result = f(unsafe { &mut *self.value.get() });
        self.busy.store(false, Ordering::Release);
        cpu::restore_interrupts(interrupts);
        result
    }
}

/// A value that all code may look at, and that is made anew when its place gets
/// a new owner.
pub(crate) struct Renewed<T>(UnsafeCell<T>);

// SAFETY: only shared references are given out, except in `renew`, whose caller
// guarantees that there are no others.
unsafe impl<T: Sync + Send> Sync for Renewed<T> {}

impl<T> Renewed<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: the value does not change while there are references.
        unsafe { &*self.0.get() }
    }

    /// Replaces the value.
    ///
    /// # Safety
    ///
    /// There is no reference to the old value.
    pub(crate) unsafe fn renew(&self, value: T) {
        // SAFETY: the caller's.
        unsafe { *self.0.get() = value }
    }
}
