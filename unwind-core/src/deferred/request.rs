//! Asking for a stack, from any context.

use core::fmt;

use super::word::{TaskWord, Version};
use super::{
    ClientId, Cookie, CookieSource, DeferredUnwind, Host, RequestContext, SampleOutcome, TaskKind,
    TaskState,
};

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
    /// A number for records and other languages, which stays the same in later versions.
    ///
    /// | code | outcome |
    /// |---|---|
    /// | 1 | [`Queued`](Self::Queued) |
    /// | 2 | [`AlreadyPending`](Self::AlreadyPending) |
    /// | 3 | [`AlreadyExecuted`](Self::AlreadyExecuted) |
    /// | 17 to 24 | [`Refused`](Self::Refused): 16 more than the refusal's [code](Refusal::code) |
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Queued(_) => 1,
            Self::AlreadyPending(_) => 2,
            Self::AlreadyExecuted(_) => 3,
            Self::Refused(refusal) => 0x10 | refusal.code(),
        }
    }

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
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::Queued(_) | Self::AlreadyPending(_))
    }

    /// How the sample ends, if that is known at once.
    #[must_use]
    pub const fn sample_outcome(self) -> Option<SampleOutcome> {
        if matches!(self, Self::Refused(_)) { Some(SampleOutcome::Inline) } else { None }
    }
}

/// Why a request was refused.
// As wide as a cookie, so that an outcome travels in two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u64)]
pub enum Refusal {
    /// The task has no user code: a kernel thread.
    KernelThread = 1,
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

impl Refusal {
    /// A number for records and other languages, which stays the same in later versions:
    /// 1 to 8 in the order of the variants.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::KernelThread => 1,
            Self::UserWorker => 2,
            Self::Exiting => 3,
            Self::NoUserRegisters => 4,
            Self::NmiUnsafe => 5,
            Self::UnknownClient => 6,
            Self::ScheduleFailed => 7,
            Self::NoCookie => 8,
        }
    }
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
        let state = self.host().state(task);
        // First of all: what is found out below holds if the word is still
        // the same in the end.
        let word = state.word();
        if word.is_open() && self.counts(state, client) {
            if !word.has_asked(client.slot()) {
                if let Some(outcome) = self.ask(task, word, client) {
                    return outcome;
                }
            } else if let Some(cookie) = Self::cookie_if_still(state, word) {
                return RequestOutcome::AlreadyPending(cookie);
            }
        }
        self.request_slow(task, client)
    }

    /// Returns the cookie of the kernel entry that the task is in, as
    /// [`request`](Self::request) would, without asking for a stack.
    ///
    /// # Errors
    ///
    /// [`Refusal`], as for a request.
    pub fn cookie(&self, task: &H::Task) -> Result<Cookie, Refusal> {
        self.find_cookie(task).inspect_err(|&refusal| self.count_refusal(refusal))
    }

    /// Whether a mark of the client's slot is the client's.
    #[inline]
    fn counts(&self, state: &TaskState, client: ClientId) -> bool {
        self.clients().is_registered(client) && state.epoch().includes(client)
    }

    /// The cookie of an entry in which someone has asked, if it still is as
    /// `word` says.
    #[inline]
    fn cookie_if_still(state: &TaskState, word: TaskWord) -> Option<Cookie> {
        let cookie = state.cookie.get(word.version())?;
        (state.word() == word).then_some(cookie)
    }

    /// The first request of a client in an entry, without repairing anything.
    /// `None` if something has to be repaired first or came between.
    #[inline]
    fn ask(&self, task: &H::Task, word: TaskWord, client: ClientId) -> Option<RequestOutcome> {
        let state = self.host().state(task);
        let slot = client.slot();
        if let Err(refusal) = self.check_task(task, word) {
            return Some(self.refuse(refusal));
        }
        let cookie = state.cookie.get(word.version())?;
        if state.served().has(slot) {
            return None;
        }
        // Before the mark: if it fails there is nothing to take back, and
        // no one else can have relied on it.
        if !word.is_pending() && self.schedule(task).is_err() {
            return Some(self.refuse(Refusal::ScheduleFailed));
        }
        state.replace_word(word, word.ask(slot)).then_some(RequestOutcome::Queued(cookie))
    }

    /// A request in whatever state the task is: tries again, and refuses it or
    /// repairs what keeps it from its end.
    ///
    /// Stack is short where requests are made: the parts are out of line, so
    /// that only one of them at a time has a frame.
    #[cold]
    fn request_slow(&self, task: &H::Task, client: ClientId) -> RequestOutcome {
        loop {
            if let Some(outcome) = self.attempt(task, client) {
                return outcome;
            }
            if let Some(outcome) = self.repair(task, client) {
                return outcome;
            }
        }
    }

    /// Refuses a request, or takes one thing out of the way that keeps it from
    /// its end. `None` if it is to be tried again.
    #[inline(never)]
    fn repair(&self, task: &H::Task, client: ClientId) -> Option<RequestOutcome> {
        let state = self.host().state(task);
        let word = state.word();
        if let Err(refusal) = self.check(task, word, client) {
            return Some(self.refuse(refusal));
        }
        if !state.epoch().includes(client) {
            self.counters().cancelled(state.account(word, self.clients()));
            return None;
        }
        if state.take_out_served(client.slot()) || state.cookie.get(word.version()).is_some() {
            return None;
        }
        // In this order: if nothing can be scheduled, no number is left for a
        // later entry.
        match self.schedule(task).and_then(|()| self.fetch_cookie(state, word.version())) {
            Ok(cookie) => state
                .replace_word(word, word.ask(client.slot()))
                .then_some(RequestOutcome::Queued(cookie)),
            Err(refusal) => Some(self.refuse(refusal)),
        }
    }

    /// Whether the request of a client has to be refused.
    fn check(&self, task: &H::Task, word: TaskWord, client: ClientId) -> Result<(), Refusal> {
        if self.is_unsafe_nmi() {
            return Err(Refusal::NmiUnsafe);
        }
        if word.is_closed() {
            return Err(Refusal::Exiting);
        }
        if !self.clients().is_registered(client) {
            return Err(Refusal::UnknownClient);
        }
        self.check_task(task, word)
    }

    /// Tries once, as [`ask`](Self::ask) does.
    #[inline(never)]
    fn attempt(&self, task: &H::Task, client: ClientId) -> Option<RequestOutcome> {
        let state = self.host().state(task);
        let word = state.word();
        if word.is_closed() || !self.counts(state, client) {
            return None;
        }
        if !word.has_asked(client.slot()) {
            return self.ask(task, word, client);
        }
        // Whoever made the request's mark saw that there was none of an earlier
        // entry, so this one is of the delivery to come or under way.
        let is_served = state.served().has(client.slot());
        let cookie = Self::cookie_if_still(state, word)?;
        // Each is made here: chosen as functions they would be called by an address.
        Some(match is_served {
            true => RequestOutcome::AlreadyExecuted(cookie),
            false => RequestOutcome::AlreadyPending(cookie),
        })
    }

    #[cold]
    fn refuse(&self, refusal: Refusal) -> RequestOutcome {
        self.count_refusal(refusal);
        RequestOutcome::Refused(refusal)
    }

    fn count_refusal(&self, refusal: Refusal) {
        self.counters().refused(refusal, self.host().cpu());
    }

    fn find_cookie(&self, task: &H::Task) -> Result<Cookie, Refusal> {
        let state = self.host().state(task);
        loop {
            let word = state.word();
            self.check_task(task, word)?;
            // Without the mark the entry would not be reset on the way out,
            // and the next one would have the same cookie. The reset may be
            // over already, so the task has to pass it again. That is
            // arranged first: a thread that sees the mark relies on it.
            if !word.is_used() {
                self.schedule(task)?;
            }
            let cookie = match state.cookie.get(word.version()) {
                Some(cookie) => cookie,
                None => self.fetch_cookie(state, word.version())?,
            };
            if state.replace_word(word, word.used()) {
                return Ok(cookie);
            }
        }
    }

    #[inline]
    fn check_task(&self, task: &H::Task, word: TaskWord) -> Result<(), Refusal> {
        if self.is_unsafe_nmi() {
            return Err(Refusal::NmiUnsafe);
        }
        if word.is_closed() {
            return Err(Refusal::Exiting);
        }
        match self.host().task_kind(task) {
            TaskKind::User => Ok(()),
            TaskKind::KernelThread => Err(Refusal::KernelThread),
            TaskKind::UserWorker => Err(Refusal::UserWorker),
            TaskKind::Exiting => Err(Refusal::Exiting),
            TaskKind::NoUserRegisters => Err(Refusal::NoUserRegisters),
        }
    }

    #[inline]
    fn schedule(&self, task: &H::Task) -> Result<(), Refusal> {
        let context =
            if self.host().in_nmi() { RequestContext::Nmi } else { RequestContext::Normal };
        self.host().schedule(task, context).map_err(|_| Refusal::ScheduleFailed)
    }

    /// Whether this is an NMI in which nothing can be exchanged.
    #[inline]
    fn is_unsafe_nmi(&self) -> bool {
        !H::NMI_SAFE_COMPARE_EXCHANGE && self.host().in_nmi()
    }

    /// Fetches the number of an entry that has none, after a delivery was
    /// scheduled. The cookie is the entry's if the task is still in it
    /// afterwards.
    #[cold]
    #[inline(never)]
    fn fetch_cookie(&self, state: &TaskState, entry: Version) -> Result<Cookie, Refusal> {
        let fresh = self.cookies().fresh(self.host()).ok_or(Refusal::NoCookie)?;
        state.cookie.store(entry, fresh).ok_or(Refusal::NoCookie)
    }
}
