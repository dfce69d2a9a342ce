//! The letters by which threads ask each other for backtraces, and the signal's handler, which
//! answers them.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::time::Duration;

use unwind_core::End;

use super::letter::{Letter, Request};
use super::sync::{AtomicI32, AtomicU32, UnsafeCell};
use super::syscall;
use crate::addresses::Backtrace;
use crate::backtrace::{MAX_FRAMES, backtrace_of};
use crate::thread_error::ThreadError;

/// How many there are.
pub(crate) const LETTERS: usize = 8;

/// What a thread has told.
#[derive(Debug)]
pub(crate) struct Answer {
    addresses: [usize; MAX_FRAMES],
    found: Backtrace,
}

impl Answer {
    pub(crate) fn addresses(&self) -> &[usize] {
        self.addresses.get(..self.found.len).unwrap_or(&[])
    }

    pub(crate) const fn found(&self) -> Backtrace {
        self.found
    }
}

static PLACES: [Letter<Answer>; LETTERS] = [const {
    Letter::new(
        AtomicU32::new(0),
        AtomicI32::new(0),
        UnsafeCell::new(Answer {
            addresses: [0; MAX_FRAMES],
            found: Backtrace { len: 0, end: End::NotWalkable, is_complete: false },
        }),
    )
}; LETTERS];

/// A letter that is this thread's until it is dropped, or left to a handler.
pub(crate) struct OwnLetter {
    letter: &'static Letter<Answer>,
    request: Request,
}

impl OwnLetter {
    /// The first one that is free.
    pub(crate) fn take() -> Option<Self> {
        // Made only then: one that is dropped is given back.
        PLACES.iter().find_map(|letter| letter.take().map(|request| Self { letter, request }))
    }

    /// Sends it, waits for the answer, and returns what `read` makes of it.
    pub(crate) fn send<R>(
        &self,
        signal: c_int,
        thread: libc::pid_t,
        wait: Duration,
        mut read: impl FnMut(&Answer) -> R,
    ) -> Result<R, ThreadError> {
        let Self { letter, request } = *self;
        letter.send(request, thread);
        // Where one waits already, that one's handler finds this letter, too.
        if let Err(error) = syscall::send_signal(thread, signal) {
            letter.take_back(request);
            return Err(match error {
                libc::ESRCH => ThreadError::NoSuchThread,
                _ => ThreadError::NotSent,
            });
        }
        let end = syscall::now().saturating_add(wait);
        loop {
            let word = match letter.read(request, &mut read) {
                Ok(read) => return Ok(read),
                Err(word) => word,
            };
            let left = end.saturating_sub(syscall::now());
            if left.is_zero() && letter.take_back(request) {
                return Err(ThreadError::NoAnswer);
            }
            if !left.is_zero() {
                syscall::wait_while(letter.word(), word, left);
            }
        }
    }
}

impl Drop for OwnLetter {
    fn drop(&mut self) {
        self.letter.give_back(self.request);
    }
}

/// Installs the handler; `false` if there is one, or can be none.
///
/// # Safety
///
/// No one else uses the signal.
pub(crate) unsafe fn install(signal: c_int) -> bool {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the result has room.
    if unsafe { libc::sigaction(signal, null_mut(), old.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: it has been filled.
    let old = unsafe { old.assume_init() };
    let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = answer;
    #[expect(clippy::as_conversions, reason = "a function's address")]
    let function = function as libc::sighandler_t;
    if old.sa_sigaction == function {
        return true;
    }
    if old.sa_sigaction != libc::SIG_DFL && old.sa_sigaction != libc::SIG_IGN {
        return false;
    }
    // SAFETY: all zeroes is a value of it.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = function;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe, and the caller allows it for this signal.
    unsafe { libc::sigaction(signal, &raw const new, null_mut()) == 0 }
}

/// Answers all letters to this thread: by where it was interrupted.
extern "C" fn answer(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as the kernel passes it.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_ref() }) else { return };
    let this = syscall::thread_id();
    for letter in &PLACES {
        let is_awaited = letter.answer(this, |answer| {
            // SAFETY: the kernel gave it to this handler.
            answer.found = unsafe { backtrace_of(context, &mut answer.addresses) };
        });
        if is_awaited {
            syscall::wake(letter.word());
        }
    }
}
