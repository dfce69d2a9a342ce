//! What a kernel has from its machine: NMIs, which are signals of a thread to
//! itself, and a spin lock.

use core::cell::UnsafeCell;
use core::mem;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Has `handler` run for each `SIGPROF`.
pub(crate) fn handle_nmis(handler: extern "C" fn(libc::c_int)) {
    // SAFETY: all zeros is a valid value of this C structure.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a valid signal and action.
    let set = unsafe { libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()) };
    assert_eq!(set, 0, "sigaction");
}

/// An NMI at this very point.
pub(crate) fn raise_nmi() {
    // SAFETY: a valid signal.
    unsafe { libc::raise(libc::SIGPROF) };
}

/// A timer that sends NMIs to the thread that started it, until dropped.
pub(crate) struct NmiTimer(libc::timer_t);

impl NmiTimer {
    pub(crate) fn start(hertz: u32) -> Self {
        // SAFETY: all zeros is a valid value of this C structure.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        // SAFETY: no arguments.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = ptr::null_mut();
        // SAFETY: the pointers are valid for the call.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        assert_eq!(made, 0, "timer_create");
        let period = libc::timespec { tv_sec: 0, tv_nsec: i64::from(1_000_000_000 / hertz) };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer was made above.
        let started = unsafe { libc::timer_settime(timer, 0, &times, ptr::null_mut()) };
        assert_eq!(started, 0, "timer_settime");
        Self(timer)
    }
}

impl Drop for NmiTimer {
    fn drop(&mut self) {
        // SAFETY: made by `start`, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// A lock that is compiled with this program, so that `ThreadSanitizer` sees
/// what it orders.
#[derive(Default)]
pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time gets at the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        while self.taken.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        Guard(self)
    }
}

pub(crate) struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: whoever has the guard has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: whoever has the guard has the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
