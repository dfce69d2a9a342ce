//! A request to another thread, and its answer, which a signal handler writes.
//!
//! A letter is one thread's at a time: of who asks until it is sent, then of the handler that
//! takes it, then of who asks again. Its word says whose, and which request it is, so that a
//! handler or a requester that comes too late finds another one.

use super::sync::{AtomicI32, AtomicU32, Ordering, UnsafeCell};

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

/// A letter, with room for an answer.
pub(crate) struct Letter<A> {
    word: AtomicU32,
    /// The thread that is to answer: what it was when the word became [`SENT`].
    thread: AtomicI32,
    answer: UnsafeCell<A>,
}

// SAFETY: the word says who alone may use the answer.
unsafe impl<A: Send> Sync for Letter<A> {}

/// Which request a letter is: a word of it, without whose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request(u32);

impl Request {
    const fn whose(self, whose: u32) -> u32 {
        self.0 | whose
    }

    /// A word that is free, for the next request.
    const fn next(self) -> u32 {
        self.0.wrapping_add(REQUEST) | FREE
    }
}

impl<A> Letter<A> {
    /// One that is free: both numbers are zero.
    pub(crate) const fn new(word: AtomicU32, thread: AtomicI32, answer: UnsafeCell<A>) -> Self {
        Self { word, thread, answer }
    }

    /// Takes it, if it is free.
    pub(crate) fn take(&self) -> Option<Request> {
        let word = self.word.load(Ordering::Relaxed);
        let request = Request(word & !WHOSE);
        (word & WHOSE == FREE && self.exchange(word, request.whose(TAKEN), Ordering::Acquire))
            .then_some(request)
    }

    /// Gives it to the handler of a thread.
    pub(crate) fn send(&self, request: Request, thread: i32) {
        self.thread.store(thread, Ordering::Relaxed);
        self.word.store(request.whose(SENT), Ordering::Release);
    }

    /// Takes it back after it was sent, or leaves it to the handler that has it; `false` if the
    /// answer has come.
    pub(crate) fn take_back(&self, request: Request) -> bool {
        let exchange =
            |from, to| self.exchange(request.whose(from), request.whose(to), Ordering::Acquire);
        exchange(SENT, TAKEN) || exchange(RUNNING, LEFT)
    }

    /// Looks at the answer, if it has come.
    ///
    /// # Errors
    ///
    /// The word, which changes when it comes.
    pub(crate) fn read<R>(&self, request: Request, read: impl FnOnce(&A) -> R) -> Result<R, u32> {
        let word = self.word.load(Ordering::Acquire);
        if word != request.whose(ANSWERED) {
            return Err(word);
        }
        // SAFETY: it is who asks's again, until it is given back.
        Ok(self.answer.with(|answer| read(unsafe { &*answer })))
    }

    /// Frees it, unless it was left.
    pub(crate) fn give_back(&self, request: Request) {
        let word = self.word.load(Ordering::Relaxed);
        // What was left is the handler's, and may be someone else's by now.
        if word == request.whose(TAKEN) || word == request.whose(ANSWERED) {
            self.word.store(request.next(), Ordering::Release);
        }
    }

    /// Answers it if it was sent to this thread; `true` if someone waits for that.
    pub(crate) fn answer(&self, this: i32, tell: impl FnOnce(&mut A)) -> bool {
        let sent = self.word.load(Ordering::Acquire);
        let request = Request(sent & !WHOSE);
        let is_for_this = sent & WHOSE == SENT && self.thread.load(Ordering::Relaxed) == this;
        if !is_for_this || !self.exchange(sent, request.whose(RUNNING), Ordering::Acquire) {
            return false;
        }
        // SAFETY: it is this handler's.
        self.answer.with_mut(|answer| tell(unsafe { &mut *answer }));
        let (running, answered) = (request.whose(RUNNING), request.whose(ANSWERED));
        let is_awaited = self.exchange(running, answered, Ordering::Release);
        if !is_awaited {
            self.word.store(request.next(), Ordering::Release);
        }
        is_awaited
    }

    /// The word, which who waits looks at.
    pub(crate) const fn word(&self) -> &AtomicU32 {
        &self.word
    }

    fn exchange(&self, from: u32, to: u32, order: Ordering) -> bool {
        self.word.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }
}
