//! Requests to other threads, and their answers: written in a signal handler.
//!
//! A letter is one thread's at a time: of who asks until it is sent, then of the handler that
//! takes it, then of who asks again. Its word says whose, and which request it is, so that a
//! handler or a requester that comes too late finds another one.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;

use unwind_core::End;

use super::syscall;
use crate::backtrace::{Backtrace, MAX_FRAMES, backtrace_of};
use crate::thread_error::ThreadError;

/// How many there are.
pub(crate) const LETTERS: usize = 8;

/// Whose it is.
const FREE: u32 = 0;
/// Of who asks.
const TAKEN: u32 = 1;
/// Of the handler that gets to it first.
const SENT: u32 = 2;
/// Of a handler.
const RUNNING: u32 = 3;
/// Of who asks, with the answer.
const ANSWERED: u32 = 4;
/// Of a handler, whose answer is dropped.
const LEFT: u32 = 5;

/// The bits of a word that say whose; the others count requests.
const WHOSE: u32 = 7;
const REQUEST: u32 = 8;

struct Place {
    word: AtomicU32,
    /// The thread that is to answer: what it was when the word became [`SENT`].
    thread: AtomicI32,
    answer: UnsafeCell<Answer>,
}

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

// SAFETY: the word says who alone may use the answer.
unsafe impl Sync for Place {}

static PLACES: [Place; LETTERS] = [const {
    Place {
        word: AtomicU32::new(FREE),
        thread: AtomicI32::new(0),
        answer: UnsafeCell::new(Answer {
            addresses: [0; MAX_FRAMES],
            found: Backtrace { len: 0, end: End::NotWalkable, is_complete: false },
        }),
    }
}; LETTERS];

/// A request that is this thread's: [`TAKEN`] or [`ANSWERED`] until it is dropped, or sent and
/// taken back.
pub(crate) struct Letter {
    place: &'static Place,
    /// The word as it was when it was taken.
    word: u32,
}

impl Letter {
    /// The first one that is free.
    pub(crate) fn take() -> Option<Self> {
        PLACES.iter().find_map(|place| {
            let word = place.word.load(Ordering::Relaxed);
            let taken = (word | WHOSE) ^ WHOSE | TAKEN;
            let is_taken = word & WHOSE == FREE
                && place
                    .word
                    .compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            // Made only then: one that is dropped is given back.
            is_taken.then(|| Self { place, word: taken })
        })
    }

    /// The word for this request.
    const fn whose(&self, whose: u32) -> u32 {
        self.word & !WHOSE | whose
    }

    /// Sends it, and waits for the answer.
    pub(crate) fn send(
        &self,
        signal: c_int,
        thread: libc::pid_t,
        wait: Duration,
    ) -> Result<&Answer, ThreadError> {
        self.place.thread.store(thread, Ordering::Relaxed);
        self.place.word.store(self.whose(SENT), Ordering::Release);
        // Where one waits already, that one's handler finds this letter, too.
        if let Err(error) = syscall::send_signal(thread, signal) {
            self.take_back();
            return Err(match error {
                libc::ESRCH => ThreadError::NoSuchThread,
                _ => ThreadError::NotSent,
            });
        }
        let end = syscall::now().saturating_add(wait);
        loop {
            let word = self.place.word.load(Ordering::Acquire);
            if word == self.whose(ANSWERED) {
                // SAFETY: it is this thread's again, until it is dropped.
                return Ok(unsafe { &*self.place.answer.get() });
            }
            let left = end.saturating_sub(syscall::now());
            if left.is_zero() && self.take_back() {
                return Err(ThreadError::NoAnswer);
            }
            if !left.is_zero() {
                syscall::wait_while(&self.place.word, word, left);
            }
        }
    }

    /// Takes a letter back that was sent, or leaves it to the handler that has it; `false` if
    /// the answer has come.
    fn take_back(&self) -> bool {
        let exchange = |from, to| {
            let (from, to) = (self.whose(from), self.whose(to));
            self.place.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        exchange(SENT, TAKEN) || exchange(RUNNING, LEFT)
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        let word = self.place.word.load(Ordering::Relaxed);
        // What was left is the handler's, and may be someone else's by now.
        if word == self.whose(TAKEN) || word == self.whose(ANSWERED) {
            self.place.word.store(next(word), Ordering::Release);
        }
    }
}

/// A word that is free, for the next request.
const fn next(word: u32) -> u32 {
    (word & !WHOSE).wrapping_add(REQUEST) | FREE
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
    for place in &PLACES {
        let sent = place.word.load(Ordering::Acquire);
        let running = sent & !WHOSE | RUNNING;
        let is_for_this = sent & WHOSE == SENT && place.thread.load(Ordering::Relaxed) == this;
        let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if !is_for_this || place.word.compare_exchange(sent, running, taken, failed).is_err() {
            continue;
        }
        // SAFETY: it is this handler's.
        let answer = unsafe { &mut *place.answer.get() };
        // SAFETY: the kernel gave it to this handler.
        answer.found = unsafe { backtrace_of(context, &mut answer.addresses) };
        let (told, failed) = (Ordering::Release, Ordering::Relaxed);
        if place.word.compare_exchange(running, sent & !WHOSE | ANSWERED, told, failed).is_ok() {
            syscall::wake(&place.word);
        } else {
            place.word.store(next(sent), Ordering::Release);
        }
    }
}
