//! Backtraces of other threads of the process, which walk their stacks in a signal handler.

use core::ffi::c_int;
use core::fmt;
use core::time::Duration;

use crate::addresses::Backtrace;
use crate::raw::mailbox::{self, OwnLetter};
use crate::thread_error::ThreadError;

/// A signal in whose handler the threads of this process walk their own stacks for others.
///
/// ```
/// use std::time::Duration;
/// use unwind_local::ThreadSignal;
///
/// // SAFETY: no other part of this program uses the signal.
/// let signal = unsafe { ThreadSignal::install(libc::SIGUSR2) }.expect("a handler");
/// # let tid = unsafe { libc::gettid() };
/// let mut frames = [0; 64];
/// let found = signal.backtrace(tid, Duration::from_millis(100), &mut frames).expect("an answer");
/// println!("thread {tid}: {:x?}", &frames[..found.len]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSignal(c_int);

/// A signal's handler cannot be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSignal(pub c_int);

impl fmt::Display for BadSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "signal {} has a handler already, or can have none", self.0)
    }
}

impl core::error::Error for BadSignal {}

impl ThreadSignal {
    /// How many requests can wait for answers at a time.
    pub const MOST_AT_A_TIME: usize = mailbox::LETTERS;

    /// Installs the handler, which answers requests and ignores the signal otherwise. It runs on
    /// the stack that the thread is on, and restarts system calls that it has interrupted.
    ///
    /// # Errors
    ///
    /// [`BadSignal`] if the signal has a handler already, or can have none.
    ///
    /// # Safety
    ///
    /// No other part of the program uses the signal from now on.
    #[expect(unsafe_code, reason = "the caller knows who uses the signal")]
    pub unsafe fn install(signal: c_int) -> Result<Self, BadSignal> {
        // SAFETY: as the caller promises.
        if unsafe { mailbox::install(signal) } { Ok(Self(signal)) } else { Err(BadSignal(signal)) }
    }

    /// Writes the address at which a thread of this process stands and the return addresses of
    /// its callers. `thread` is its number as `gettid` returns it; it may be the own one.
    ///
    /// The thread is interrupted, and is asked once: an answer after `wait` is dropped.
    ///
    /// # Errors
    ///
    /// See [`ThreadError`].
    pub fn backtrace(
        self,
        thread: libc::pid_t,
        wait: Duration,
        out: &mut [usize],
    ) -> Result<Backtrace, ThreadError> {
        let letter = OwnLetter::take().ok_or(ThreadError::Busy)?;
        letter.send(self.0, thread, wait, |answer| {
            let shown = answer.addresses();
            for (slot, addr) in out.iter_mut().zip(shown) {
                *slot = *addr;
            }
            if shown.len() <= out.len() {
                return answer.found();
            }
            Backtrace { len: out.len(), end: unwind_core::End::FrameLimit, is_complete: false }
        })
    }
}
