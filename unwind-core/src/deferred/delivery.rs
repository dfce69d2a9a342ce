//! Handing out what was asked for, on the way back to user code.

use core::convert::Infallible;
use core::fmt;

use super::client::{Newest, SlotSet};
use super::client_table::{ClientTable, Running};
use super::counters::Counters;
use super::sample_end::Stack;
use super::word::Word;
use super::{ClientId, Cookie, CookieSource, DeferredUnwind, Host, SampleEnd, TaskState};
use crate::{TableError, UnwindCache};

/// To whom a delivery goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Audience {
    /// To the clients that asked.
    #[default]
    Asked,
    /// To all registered clients if one of them asked. Each compares the
    /// cookie with those it has on record, and ignores a stranger. One that
    /// has not asked counts as served too: if it asks in the same entry it is
    /// told that its delivery was executed.
    Everyone,
}

/// Why there is no stack to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The task ended, and its memory with it.
    TaskGone,
    /// The task executed another program.
    Exec,
}

/// # Task context
///
/// Deliveries are made by the task itself, on its way to user code, where it
/// may fault and sleep.
impl<H: Host, C: CookieSource> DeferredUnwind<H, C> {
    /// Starts to deliver what was asked for in this entry.
    ///
    /// If there is someone to deliver to, `walk` is called once to fill
    /// `cache`, unless the cache holds the stack of this entry already: a task
    /// that keeps its cache is walked once per entry, also if that finds
    /// nothing. Without a cache the clients are called without a stack.
    ///
    /// What is asked for meanwhile, by an NMI, by the walk or by a client that
    /// is being called, is delivered too. Nobody is served twice in one entry,
    /// so a client whose own work leads to requests does not keep this from
    /// ending. A delivery that is started within another one of the same task
    /// yields nothing and leaves its work to the outer one.
    #[must_use = "nothing is delivered until the delivery is asked for the next client"]
    pub fn deliver<'a, W, const N: usize, E>(
        &'a self,
        task: &'a H::Task,
        audience: Audience,
        cache: Option<&'a mut UnwindCache<N, E>>,
        walk: W,
    ) -> Delivery<'a, W, N, E>
    where
        W: FnOnce(&mut UnwindCache<N, E>),
        E: TableError,
    {
        self.start(task, audience, Source::Walk { cache, walk: Some(walk) })
    }

    /// Starts to tell those who asked that there is no stack any more.
    #[must_use = "nobody is told until the delivery is asked for the next client"]
    pub fn abandon<'a>(&'a self, task: &'a H::Task, lost: Lost) -> Abandonment<'a> {
        self.start(task, Audience::Asked, Source::Lost(lost))
    }

    fn start<'a, W, const N: usize, E>(
        &'a self,
        task: &'a H::Task,
        audience: Audience,
        source: Source<'a, W, N, E>,
    ) -> Delivery<'a, W, N, E> {
        let (clients, counters, cpu) = (self.clients(), self.counters(), self.host().cpu());
        let task = self.host().state(task);
        let word = task.word();
        let mut cookie = None;
        if word.is_pending() && task.start_delivery() {
            // Whoever asked has had it fetched.
            cookie = task.cookie.get_fetched::<C>(word.entry());
        }
        let round = Round::nobody();
        Delivery { clients, counters, cpu, task, audience, source, cookie, round }
    }
}

/// A delivery without a stack.
pub type Abandonment<'a> = Delivery<'a, fn(&mut UnwindCache<0, Infallible>), 0, Infallible>;

/// The clients to be called, one after the other.
///
/// If it is dropped before it has yielded `None`, those who were not called
/// stay pending.
#[must_use]
pub struct Delivery<'a, W, const N: usize, E> {
    clients: &'a ClientTable,
    counters: &'a Counters,
    cpu: u32,
    task: &'a TaskState,
    audience: Audience,
    source: Source<'a, W, N, E>,
    /// `None` if there was nothing to deliver.
    cookie: Option<Cookie>,
    round: Round,
}

/// One look at the task's marks.
#[derive(Clone, Copy)]
struct Round {
    /// Who is still to be called.
    todo: SlotSet,
    asked: SlotSet,
    accounted: Newest,
}

impl Round {
    const fn nobody() -> Self {
        Self { todo: SlotSet::NONE, asked: SlotSet::NONE, accounted: Newest::NONE }
    }
}

enum Source<'a, W, const N: usize, E> {
    Walk { cache: Option<&'a mut UnwindCache<N, E>>, walk: Option<W> },
    Lost(Lost),
}

impl<W, const N: usize, E> Source<'_, W, N, E>
where
    W: FnOnce(&mut UnwindCache<N, E>),
    E: TableError,
{
    /// The stack of the entry that has `cookie`, walked if it is not yet.
    fn stack(&mut self, cookie: Cookie) -> (Stack, Option<&UnwindCache<N, E>>) {
        let (cache, walk) = match self {
            Self::Walk { cache, walk } => (cache, walk),
            Self::Lost(Lost::TaskGone) => return (Stack::TaskGone, None),
            Self::Lost(Lost::Exec) => return (Stack::Exec, None),
        };
        let Some(cache) = cache else { return (Stack::NoCache, None) };
        if cache.cookie() != Some(cookie) {
            cache.clear();
            if let Some(walk) = walk.take() {
                walk(cache);
            }
            cache.set_cookie(cookie);
        }
        let stack = match cache.len() {
            0 => Stack::NoFrames,
            _ if cache.is_complete() => Stack::Whole,
            _ => Stack::Partial,
        };
        (stack, Some(cache))
    }
}

impl<W, const N: usize, E> Delivery<'_, W, N, E>
where
    W: FnOnce(&mut UnwindCache<N, E>),
    E: TableError,
{
    /// Returns the next client to be called, or `None` if all were.
    pub fn next(&mut self) -> Option<Serving<'_, N, E>> {
        let cookie = self.cookie?;
        let running = self.next_running()?;
        let client = running.client();
        self.task.set_delivering_to(Some(client));
        let (stack, trace) = self.source.stack(cookie);
        // Those that did not ask: first they count as having asked, so that a
        // request in between is told that it will be served, which is so.
        if !self.round.asked.contains(client.slot()) {
            self.task.set_flags(Word::answered(client.slot()));
        }
        self.task.serve(client.slot());
        self.counters.delivered(stack);
        Some(Serving { task: self.task, running, cookie, trace, end: stack.end() })
    }
}

impl<'a, W, const N: usize, E> Delivery<'a, W, N, E> {
    fn next_running(&mut self) -> Option<Running<'a>> {
        loop {
            let Some(slot) = self.round.todo.pop() else {
                self.round = self.take_round()?;
                continue;
            };
            if let Some(running) = self.clients.enter(slot, self.round.accounted, self.cpu) {
                return Some(running);
            }
            if self.task.drop_request(slot, self.clients) {
                self.counters.cancelled(1);
            }
        }
    }

    /// Takes over what is pending, or `None` if nothing is.
    fn take_round(&self) -> Option<Round> {
        if self.audience == Audience::Everyone {
            self.account_for_everyone();
        }
        loop {
            let word = self.task.word();
            if !word.is_pending() {
                return None;
            }
            // Read between two looks at the same word, so that the marks and
            // what they account for belong together.
            let (accounted, served) = (self.task.accounted(), self.task.served().slots());
            if self.task.replace_word(word, word.taken_over()) {
                let asked = word.asked();
                let called = match self.audience {
                    Audience::Asked => asked,
                    Audience::Everyone => asked.union(self.clients.owned_within(accounted)),
                };
                // Without a request a served mark is from an entry before.
                let todo = called.difference(asked.intersection(served));
                return Some(Round { todo, asked, accounted });
            }
        }
    }

    /// Makes the marks account for all clients that are registered by now.
    fn account_for_everyone(&self) {
        let newest = self.clients.newest();
        loop {
            let word = self.task.word();
            if self.task.accounted() >= newest {
                return;
            }
            self.counters.cancelled(self.task.account(word, self.clients));
        }
    }
}

impl<W, const N: usize, E> Drop for Delivery<'_, W, N, E> {
    fn drop(&mut self) {
        if self.cookie.is_none() {
            return;
        }
        if !self.round.todo.is_empty() {
            self.task.set_flags(Word::PENDING);
        }
        self.task.end_delivery();
    }
}

impl<W, const N: usize, E> fmt::Debug for Delivery<'_, W, N, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("cookie", &self.cookie)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

/// A client that is being called. Cancelling it waits until this is dropped.
#[must_use = "the client counts as served"]
pub struct Serving<'d, const N: usize, E> {
    task: &'d TaskState,
    running: Running<'d>,
    cookie: Cookie,
    trace: Option<&'d UnwindCache<N, E>>,
    end: SampleEnd,
}

impl<'d, const N: usize, E> Serving<'d, N, E> {
    /// Who is to be called.
    #[must_use]
    pub const fn client(&self) -> ClientId {
        self.running.client()
    }

    /// The cookie of the samples that this stack belongs to.
    #[must_use]
    pub const fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// The stack and why it ends where it does; `None` if none was walked.
    #[must_use]
    pub const fn trace(&self) -> Option<&'d UnwindCache<N, E>> {
        self.trace
    }

    /// How the samples with this cookie end.
    #[must_use]
    pub const fn end(&self) -> SampleEnd {
        self.end
    }
}

impl<const N: usize, E> Drop for Serving<'_, N, E> {
    fn drop(&mut self) {
        self.task.set_delivering_to(None);
    }
}

impl<const N: usize, E> fmt::Debug for Serving<'_, N, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("client", &self.running.client())
            .field("cookie", &self.cookie)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
