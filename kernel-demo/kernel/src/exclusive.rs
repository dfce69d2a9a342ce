//! State with one user at a time, and state that is made anew.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::cpu;

/// A value that is lent to one user at a time. Whoever comes second, such as
/// an NMI that interrupts the first, is sent away.
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

    /// Calls `f` with the value, or returns `None` if someone has it. Any
    /// context; `f` may be interrupted, and may sleep.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: it was this call that made `busy` true, and it stays true for
        // as long as the reference lives: nobody else gets one.
        let value = unsafe { &mut *self.value.get() };
        let result = f(value);
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// Calls `f` with the value, interrupts off. Not in NMIs, and `f` does not
    /// sleep: so nobody can have the value.
    #[track_caller]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let interrupts = cpu::disable_interrupts();
        let Some(result) = self.try_with(f) else { panic!("state is in use") };
        cpu::restore_interrupts(interrupts);
        result
    }
}

/// A value that everyone may look at, and that is made anew when its place is
/// given to someone else.
pub(crate) struct Renewed<T>(UnsafeCell<T>);

// SAFETY: shared references alone are given out, but for `renew`, whose caller
// says that there are none.
unsafe impl<T: Sync + Send> Sync for Renewed<T> {}

impl<T> Renewed<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: nobody changes it while there are references.
        unsafe { &*self.0.get() }
    }

    /// Replaces the value.
    ///
    /// # Safety
    ///
    /// Nobody has a reference to the old one.
    pub(crate) unsafe fn renew(&self, value: T) {
        // SAFETY: the caller's.
        unsafe { *self.0.get() = value }
    }
}
