//! Asking for a stack, from any context.

use core::fmt;
use core::num::NonZeroU64;

use super::cookie::cookie_of;
use super::word::Entry;
use super::{
    ClientId, Context, Cookie, CookieSource, DeferredUnwind, Host, SampleEnd, TaskKind, TaskState,
};
use crate::sync::Ordering;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum RequestOutcome {
    /// A delivery to the client will follow.
    Queued(Cookie),
    /// The client has asked in this entry before, and the delivery is still to
    /// come: one for both requests.
    AlreadyPending(Cookie),
    /// The delivery to the client has gone out in this entry. It had this
    /// cookie, so the stack is known; there will be no other.
    AlreadyExecuted(Cookie),
    /// There will be no delivery. The sampler may walk the stack at once, as
    /// far as its context lets it.
    Refused(Refusal),
}

impl RequestOutcome {
    /// The cookie to be recorded with the sample, unless refused.
    #[must_use]
    pub const fn cookie(self) -> Option<Cookie> {
        match self {
            Self::Queued(cookie) | Self::AlreadyPending(cookie) | Self::AlreadyExecuted(cookie) => {
                Some(cookie)
            }
            Self::Refused(_) => None,
        }
    }

    /// Whether a delivery to the client is still to come.
    #[must_use]
    pub const fn will_be_called(self) -> bool {
        matches!(self, Self::Queued(_) | Self::AlreadyPending(_))
    }

    /// How the sample ends, if that is known at once.
    #[must_use]
    pub const fn end(self) -> Option<SampleEnd> {
        if matches!(self, Self::Refused(_)) { Some(SampleEnd::Inline) } else { None }
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The task has no user code: a kernel thread.
    KernelThread,
    /// The task never returns to user code: an I/O worker.
    UserWorker,
    /// The task will not return to the user code that was interrupted: it
    /// exits, or is past the point of no return of an exec.
    Exiting,
    /// The task has no saved user registers.
    NoUserRegisters,
    /// In an NMI, on a CPU whose compare-exchange is not safe there.
    NmiUnsafe,
    /// The client is not registered, or no longer.
    UnknownClient,
    /// The host could not schedule a delivery.
    ScheduleFailed,
    /// The source of cookies has none for this CPU.
    NoCookie,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelThread => "the task is a kernel thread",
            Self::UserWorker => "the task never returns to user code",
            Self::Exiting => "the task is leaving its user code",
            Self::NoUserRegisters => "the task has no saved user registers",
            Self::NmiUnsafe => "no safe compare-exchange in an nmi",
            Self::UnknownClient => "the client is not registered",
            Self::ScheduleFailed => "no delivery could be scheduled",
            Self::NoCookie => "no cookie for this cpu",
        })
    }
}

impl core::error::Error for Refusal {}

/// # Any context
///
/// These methods may be called in a task, an interrupt or an NMI, at any
/// point, also of another of these methods on the same task. They neither
/// lock, allocate nor fault. They try again if an interrupt or another CPU
/// changes the task's marks in between, which each client can do once per
/// entry.
impl<H: Host, C: CookieSource> DeferredUnwind<H, C> {
    /// Asks for the task's user stack, to be delivered to `client` before the
    /// task returns to user code.
    ///
    /// `task` is the one that runs on this CPU. A request for another one is
    /// safe too; whether its stack is of any use is for the host to know.
    #[inline]
    pub fn request(&self, task: &H::Task, client: ClientId) -> RequestOutcome {
        self.ask(task, client).unwrap_or_else(|refusal| {
            self.counters().refused(refusal);
            RequestOutcome::Refused(refusal)
        })
    }

    /// Returns the cookie of the kernel entry that the task is in, as
    /// [`request`](Self::request) would, without asking for a stack.
    ///
    /// # Errors
    ///
    /// [`Refusal`], as for a request.
    pub fn cookie(&self, task: &H::Task) -> Result<Cookie, Refusal> {
        self.find_cookie(task).inspect_err(|&refusal| self.counters().refused(refusal))
    }

    #[inline]
    fn ask(&self, task: &H::Task, client: ClientId) -> Result<RequestOutcome, Refusal> {
        self.check_task(task)?;
        let state = self.host().state(task);
        loop {
            // First of all: what is found out below holds if the word is
            // still the same in the end.
            let word = state.word();
            if word.is_closed() {
                return Err(Refusal::Exiting);
            }
            if !self.clients().is_registered(client) {
                return Err(Refusal::UnknownClient);
            }
            if !state.accounted().includes(client) {
                self.counters().cancelled(state.account(word, self.clients()));
                continue;
            }
            let cookie = self.cookie_in(state, word.entry())?;
            if word.asked().contains(client.slot()) {
                let served = state.served().within(word.entry()).contains(client.slot());
                if state.word().entry() != word.entry() {
                    continue;
                }
                return Ok(if served {
                    RequestOutcome::AlreadyExecuted(cookie)
                } else {
                    RequestOutcome::AlreadyPending(cookie)
                });
            }
            // Before the mark: if it fails there is nothing to take back, and
            // nobody else can have relied on it.
            if !word.is_pending() {
                self.schedule(task)?;
            }
            if state.replace_word(word, word.ask(client.slot())) {
                return Ok(RequestOutcome::Queued(cookie));
            }
        }
    }

    fn find_cookie(&self, task: &H::Task) -> Result<Cookie, Refusal> {
        self.check_task(task)?;
        let state = self.host().state(task);
        loop {
            let word = state.word();
            if word.is_closed() {
                return Err(Refusal::Exiting);
            }
            let cookie = self.cookie_in(state, word.entry())?;
            // Without the mark the entry would not be reset on the way out,
            // and the next one would have the same cookie. The reset may be
            // over already, so the task has to come by there again.
            if !word.is_used() {
                self.schedule(task)?;
            }
            if state.replace_word(word, word.used()) {
                return Ok(cookie);
            }
        }
    }

    #[inline]
    fn check_task(&self, task: &H::Task) -> Result<(), Refusal> {
        match self.host().task_kind(task) {
            TaskKind::User => {}
            TaskKind::KernelThread => return Err(Refusal::KernelThread),
            TaskKind::UserWorker => return Err(Refusal::UserWorker),
            TaskKind::Exiting => return Err(Refusal::Exiting),
            TaskKind::NoUserRegisters => return Err(Refusal::NoUserRegisters),
        }
        if !H::NMI_SAFE_COMPARE_EXCHANGE && self.host().in_nmi() {
            return Err(Refusal::NmiUnsafe);
        }
        Ok(())
    }

    #[inline]
    fn schedule(&self, task: &H::Task) -> Result<(), Refusal> {
        let context = if self.host().in_nmi() { Context::Nmi } else { Context::Normal };
        self.host().schedule(task, context).map_err(|_| Refusal::ScheduleFailed)
    }

    /// The cookie of an entry. It is the entry's if the task is still in it
    /// afterwards.
    #[inline]
    pub(crate) fn cookie_in(&self, state: &TaskState, entry: Entry) -> Result<Cookie, Refusal> {
        let base = state.base(entry, C::BLOCK_LOG2).load(Ordering::Acquire);
        let base = match NonZeroU64::new(base) {
            Some(base) => base,
            None => self.fetch_base(state, entry)?,
        };
        Ok(cookie_of::<C>(base, entry))
    }

    /// Fetches the number of a block of entries. Whoever stores it first has
    /// chosen it for all.
    #[cold]
    fn fetch_base(&self, state: &TaskState, entry: Entry) -> Result<NonZeroU64, Refusal> {
        let fresh = self.cookies().fresh(self.host()).ok_or(Refusal::NoCookie)?;
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let base = state.base(entry, C::BLOCK_LOG2);
        match base.compare_exchange(0, fresh.get(), stored, failed) {
            Ok(_) => Ok(fresh),
            Err(chosen) => Ok(NonZeroU64::new(chosen).unwrap_or(fresh)),
        }
    }
}
