//! NMIs: a timer signal of the thread that is the CPU.

use core::{mem, ptr};

/// An NMI at this very point.
pub(crate) fn raise_nmi() {
    // SAFETY: a valid signal, whose handler `NmiTimer::start` has set.
    unsafe { libc::raise(libc::SIGPROF) };
}

/// A timer that interrupts the thread that started it, until dropped.
pub(crate) struct NmiTimer(libc::timer_t);

impl NmiTimer {
    /// Has `handler` run `hertz` times a second.
    pub(crate) fn start(hertz: u32, handler: extern "C" fn(libc::c_int)) -> Self {
        // SAFETY: all zeros are a valid value of this C structure.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a valid signal and action.
        let set = unsafe { libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()) };
        // SAFETY: as above.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        // SAFETY: it has no conditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = ptr::null_mut();
        // SAFETY: the pointers are valid for the call.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        let period = libc::timespec { tv_sec: 0, tv_nsec: i64::from(1_000_000_000 / hertz) };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer was made above.
        let started = unsafe { libc::timer_settime(timer, 0, &times, ptr::null_mut()) };
        assert_eq!((set, made, started), (0, 0, 0), "{}", std::io::Error::last_os_error());
        Self(timer)
    }
}

impl Drop for NmiTimer {
    fn drop(&mut self) {
        // SAFETY: made by `start`, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
