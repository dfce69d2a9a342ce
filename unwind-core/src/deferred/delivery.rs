//! Handing out what was asked for, on the way back to user code.

use core::fmt;
use core::marker::PhantomData;

use super::client::{Epoch, SlotSet};
use super::client_table::{ClientTable, Running};
use super::counters::Counters;
use super::delivery_state::DeliveryNumber;
use super::sample_outcome::Stack;
use super::unwind_cache::{StackOf, UnwindCache};
use super::word::TaskWord;
use super::{ClientId, Cookie, CookieSource, DeferredUnwind, Host, SampleOutcome, TaskState};
use crate::trace::Trace;

/// To whom a delivery goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recipients {
    /// To the clients that asked.
    #[default]
    Requesters,
    /// To all registered clients if one of them asked. Each compares the
    /// cookie with those it has on record, and ignores a stranger. One that
    /// has not asked counts as served too: if it asks in the same entry it is
    /// told that its delivery was executed.
    AllClients,
}

/// Why there is no stack to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
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
    /// If there is someone to deliver to, `walk` is called once to fill the trace of
    /// `cache`, unless the cache holds the stack of this entry already: a task
    /// that keeps its cache is walked once per entry, also if that finds
    /// nothing. Without a cache the clients are called without a stack.
    ///
    /// What is asked for meanwhile, by an NMI, by the walk or by a client that
    /// is being called, is delivered too. No client is served twice in one entry,
    /// so a client whose own work leads to requests does not keep this from
    /// ending. A delivery that is started within another one of the same task
    /// yields nothing and leaves its work to the outer one. A delivery that has
    /// yielded `None` is over, also while it is in scope.
    #[must_use = "nothing is delivered until the delivery is asked for the next client"]
    pub fn deliver<'a, W: FnOnce(&mut Trace)>(
        &'a self,
        task: &'a H::Task,
        recipients: Recipients,
        cache: Option<&'a mut UnwindCache>,
        walk: W,
    ) -> Delivery<'a, W> {
        self.start(task, recipients, Source::Walk { cache, walk: Some(walk) })
    }

    /// The stack of the kernel entry that `cookie` is of, for whoever needs it apart from the
    /// clients: an event that follows the task, say.
    ///
    /// It is the one in `cache` if that is of this entry, whoever had it walked; else `walk`
    /// fills it, and a delivery that is lent the cache in the same entry does not walk again.
    pub fn stack<'c>(
        &self,
        cookie: Cookie,
        cache: &'c mut UnwindCache,
        walk: impl FnOnce(&mut Trace),
    ) -> &'c Trace {
        cache.stack(StackOf::new(self.clients().instance(), cookie), &mut Some(walk))
    }

    /// Starts to tell those who asked that there is no stack any more.
    #[must_use = "no client is told until the delivery is asked for the next client"]
    pub fn abandon<'a>(&'a self, task: &'a H::Task, reason: LossReason) -> Abandonment<'a> {
        self.start(task, Recipients::Requesters, Source::Lost(reason))
    }

    fn start<'a, W>(
        &'a self,
        task: &'a H::Task,
        recipients: Recipients,
        source: Source<'a, W>,
    ) -> Delivery<'a, W> {
        let cpu = self.host().cpu();
        let task = self.host().state(task);
        let word = task.word();
        let number = if word.is_pending() { task.delivery.start() } else { None };
        // Whoever asked has had it fetched.
        let cookie = number.and_then(|_| task.cookie.get(word.version()));
        let place = Place { clients: self.clients(), counters: self.counters(), task, cpu };
        let of = number.zip(cookie).map(|(number, cookie)| Of { number, cookie });
        Delivery { place, recipients, source, of, round: Round::empty(), own: PhantomData }
    }
}

/// A delivery without a stack.
pub type Abandonment<'a> = Delivery<'a, fn(&mut Trace)>;

/// The clients to be called, one after the other.
///
/// If it is dropped before it has yielded `None`, those who were not called
/// stay pending. If it is not at its end when the task continues, by
/// [`user_return`](DeferredUnwind::user_return) or
/// [`close`](DeferredUnwind::close), it ends there and yields nothing more.
///
/// It is the task's own: it cannot be sent to another thread.
#[must_use]
pub struct Delivery<'a, W> {
    place: Place<'a>,
    recipients: Recipients,
    source: Source<'a, W>,
    /// `None` if there was nothing to deliver, or it is over.
    of: Option<Of>,
    round: Round,
    own: PhantomData<*const ()>,
}

/// Where a delivery is made.
#[derive(Clone, Copy)]
struct Place<'a> {
    clients: &'a ClientTable,
    counters: &'a Counters,
    task: &'a TaskState,
    cpu: u32,
}

/// Which delivery it is, and of which entry.
#[derive(Clone, Copy)]
struct Of {
    number: DeliveryNumber,
    cookie: Cookie,
}

/// One look at the task's marks.
#[derive(Clone, Copy)]
struct Round {
    /// Who is still to be called.
    todo: SlotSet,
    asked: SlotSet,
    epoch: Epoch,
}

impl Round {
    const fn empty() -> Self {
        Self { todo: SlotSet::NONE, asked: SlotSet::NONE, epoch: Epoch::NONE }
    }
}

enum Source<'a, W> {
    Walk { cache: Option<&'a mut UnwindCache>, walk: Option<W> },
    Lost(LossReason),
}

impl<W: FnOnce(&mut Trace)> Source<'_, W> {
    /// The stack of an entry, walked if it is not yet.
    fn stack(&mut self, of: StackOf) -> (Stack, Option<&Trace>) {
        let (cache, walk) = match self {
            Self::Walk { cache, walk } => (cache, walk),
            Self::Lost(LossReason::TaskGone) => return (Stack::TaskGone, None),
            Self::Lost(LossReason::Exec) => return (Stack::Exec, None),
        };
        let Some(cache) = cache else { return (Stack::NoCache, None) };
        let trace = cache.stack(of, walk);
        let stack = match trace.len() {
            0 => Stack::NoFrames,
            _ if trace.is_complete() => Stack::Whole,
            _ => Stack::Partial,
        };
        (stack, Some(trace))
    }
}

impl<W: FnOnce(&mut Trace)> Delivery<'_, W> {
    /// Returns the next client to be called, or `None` if all were: then the
    /// delivery is over, and what is asked for from here on is another one's.
    pub fn next(&mut self) -> Option<DeliveryGuard<'_>> {
        let Of { number, cookie } = self.of?;
        let Place { clients, counters, task, .. } = self.place;
        if task.delivery.end_call(number, clients) {
            counters.leaked_call();
        }
        let called = if task.delivery.is_at(number) { self.enter_next() } else { None };
        let Some((client, running)) = called else {
            self.of = None;
            task.delivery.end(number, clients);
            return None;
        };
        task.delivery.call(number, running);
        // If the walk panics, the client is still to be called.
        let (stack, trace) = self.source.stack(StackOf::new(clients.instance(), cookie));
        self.round.todo = self.round.todo.difference(running.slot.set());
        // Those that did not ask: first they count as having asked, so that a
        // request in between is told that it will be served, which is so.
        if !self.round.asked.contains(running.slot) {
            task.set_flags(TaskWord::answered(running.slot));
        }
        task.serve(running.slot);
        counters.delivered(stack);
        let outcome = stack.outcome();
        Some(DeliveryGuard {
            clients,
            task,
            number,
            client,
            cookie,
            trace,
            outcome,
            own: PhantomData,
        })
    }
}

impl<W> Delivery<'_, W> {
    /// Starts to call the next client. It stays in the round until it is called.
    fn enter_next(&mut self) -> Option<(ClientId, Running)> {
        let Place { clients, counters, task, cpu } = self.place;
        loop {
            let Some(slot) = self.round.todo.first() else {
                self.round = self.take_round()?;
                continue;
            };
            let called = clients.enter(slot, self.round.epoch, cpu);
            if called.is_some() {
                return called;
            }
            self.round.todo = self.round.todo.difference(slot.set());
            if task.drop_request(slot, clients) {
                counters.cancelled(1);
            }
        }
    }

    /// Takes over what is pending, or `None` if nothing is.
    fn take_round(&self) -> Option<Round> {
        if self.recipients == Recipients::AllClients {
            self.account_for_all_clients();
        }
        let Place { clients, task, .. } = self.place;
        loop {
            let word = task.word();
            if !word.is_pending() {
                return None;
            }
            // Read between two looks at the same word, so that the marks and
            // what they account for belong together.
            let (epoch, served) = (task.epoch(), task.served().slots());
            if task.replace_word(word, word.taken_over()) {
                let asked = word.asked();
                let called = match self.recipients {
                    Recipients::Requesters => asked,
                    Recipients::AllClients => asked.union(clients.owned_within(epoch)),
                };
                // Without a request a served mark is from an entry before.
                let todo = called.difference(asked.intersection(served));
                return Some(Round { todo, asked, epoch });
            }
        }
    }

    /// Makes the marks account for all clients that are registered by now.
    fn account_for_all_clients(&self) {
        let Place { clients, counters, task, .. } = self.place;
        let newest = clients.newest();
        loop {
            let word = task.word();
            if task.epoch() >= newest {
                return;
            }
            counters.cancelled(task.account(word, clients));
        }
    }
}

impl<W> Drop for Delivery<'_, W> {
    fn drop(&mut self) {
        let Place { clients, counters, task, .. } = self.place;
        let Some(Of { number, .. }) = self.of.filter(|of| task.delivery.is_at(of.number)) else {
            return;
        };
        // Only the task itself delivers and returns to user code, so it does not
        // matter which of the two comes first.
        if !self.round.todo.is_empty() {
            task.set_flags(TaskWord::PENDING);
        }
        if task.delivery.end(number, clients) {
            counters.leaked_call();
        }
    }
}

impl<W> fmt::Debug for Delivery<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("cookie", &self.of.map(|of| of.cookie))
            .field("task", &self.place.task)
            .finish_non_exhaustive()
    }
}

/// A client that is being called. Cancelling it waits until this is dropped.
///
/// One that is leaked ends with its delivery, or where the task continues, and is
/// [counted](super::DropCounts::leaked_calls). As its delivery, it cannot be
/// sent to another thread.
#[must_use = "the client counts as served"]
pub struct DeliveryGuard<'d> {
    clients: &'d ClientTable,
    task: &'d TaskState,
    number: DeliveryNumber,
    client: ClientId,
    cookie: Cookie,
    trace: Option<&'d Trace>,
    outcome: SampleOutcome,
    own: PhantomData<*const ()>,
}

impl<'d> DeliveryGuard<'d> {
    /// Who is to be called.
    #[must_use]
    pub const fn client(&self) -> ClientId {
        self.client
    }

    /// The cookie of the samples that this stack belongs to.
    #[must_use]
    pub const fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// The stack and why it ends where it does; `None` if none was walked.
    #[must_use]
    pub const fn trace(&self) -> Option<&'d Trace> {
        self.trace
    }

    /// How the samples with this cookie end.
    #[must_use]
    pub const fn outcome(&self) -> SampleOutcome {
        self.outcome
    }
}

impl Drop for DeliveryGuard<'_> {
    fn drop(&mut self) {
        self.task.delivery.end_call(self.number, self.clients);
    }
}

impl fmt::Debug for DeliveryGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryGuard")
            .field("client", &self.client)
            .field("cookie", &self.cookie)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
