//! One instance: its clients, its source of cookies, its counters.

use core::cell::Cell;
use core::fmt;

use super::client_table::ClientTable;
use super::counters::Counters;
use super::{ClientId, CookieSource, DropCounts, Host, SerialCookies};
use crate::sync::const_unless_loom;

/// Takes requests for stacks where these cannot be walked, and delivers the stacks where they can.
///
/// A sampler calls [`request`](Self::request), in an NMI if need be, and
/// records the [`Cookie`](super::Cookie) it gets. On its way back to user code
/// the task [`deliver`](Self::deliver)s: its user stack is walked once, and
/// each client that asked gets it with the same cookie. Then
/// [`user_return`](Self::user_return) ends the kernel entry and its cookie.
///
/// A kernel has one instance, in a static. Instances share nothing but a count
/// that keeps their ids apart, so there may be more: a hypervisor may have one
/// for each VM. An id of one is refused by the others, and a trace of one is not
/// taken for a stack of another. The tasks of an instance are its own: a
/// [`TaskState`](super::TaskState) is used with one instance only. `docs/embedding.md` says which hook of a kernel calls what.
///
/// # Example
///
/// ```
/// use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
/// use unwind_core::deferred::*;
/// use unwind_core::*;
///
/// #[derive(Default)]
/// struct Task { unwind: TaskState, work: AtomicBool }
///
/// struct Kernel;
/// impl Host for Kernel {
///     type Task = Task;
///     fn state<'t>(&self, task: &'t Task) -> &'t TaskState { &task.unwind }
///     fn task_kind(&self, _: &Task) -> TaskKind { TaskKind::User }
///     fn in_nmi(&self) -> bool { false }
///     fn cpu(&self) -> u32 { 0 }
///     fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
///         task.work.store(true, Relaxed);
///         Ok(())
///     }
///     fn clock(&self) -> u64 { 0 }
///     fn relax(&self) {}
/// }
///
/// static UNWIND: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());
///
/// let tracer = UNWIND.register()?;
/// let current = Task::default();
///
/// // In the NMI: two samples in one kernel entry have one cookie.
/// let sample = UNWIND.request(&current, tracer);
/// assert!(sample.is_pending() && current.work.load(Relaxed));
/// assert_eq!(UNWIND.request(&current, tracer).cookie(), sample.cookie());
///
/// // On the way to user code. The walk, left out here, fills the trace.
/// let mut cache = UnwindCache::<[_; 510]>::new();
/// let walk = |trace: &mut Trace| trace.clear();
/// let mut delivery = UNWIND.deliver(&current, Recipients::Requesters, Some(&mut cache), walk);
/// while let Some(guard) = delivery.next() {
///     assert_eq!(guard.client(), tracer);
///     assert_eq!(Some(guard.cookie()), sample.cookie());
///     assert_eq!(guard.outcome(), SampleOutcome::StackLost);
/// }
/// drop(delivery);
/// assert_eq!(UNWIND.user_return(&current), UserReturn::Ready);
/// # Ok::<(), TooManyClients>(())
/// ```
pub struct DeferredUnwind<H, C = SerialCookies> {
    host: H,
    cookies: C,
    clients: ClientTable,
    counters: Counters,
}

impl<H: Host, C: CookieSource> DeferredUnwind<H, C> {
    const_unless_loom! {
        /// An instance without clients.
        #[must_use]
        pub fn new(host: H, cookies: C) -> Self {
            Self { host, cookies, clients: ClientTable::new(), counters: Counters::new() }
        }
    }

    /// The host that it was made with.
    #[inline]
    pub const fn host(&self) -> &H {
        &self.host
    }

    /// How many samples and stacks were lost so far, by reason.
    pub fn drops(&self) -> DropCounts {
        self.counters.read()
    }

    /// Adds a client. Task or interrupt context; does not wait.
    ///
    /// # Errors
    ///
    /// [`TooManyClients`] if [`MAX_CLIENTS`](super::MAX_CLIENTS) are registered, or
    /// are being cancelled; also if no number is left that was never given out,
    /// which takes 9,000 years of a million registrations a second.
    pub fn register(&self) -> Result<ClientId, TooManyClients> {
        self.clients.register().ok_or(TooManyClients)
    }

    /// Removes a client. When this returns, no delivery to it runs and none
    /// will start, and its requests are refused.
    ///
    /// Waits, by [`Host::wait_while`], for the deliveries to this client that run
    /// on other tasks, and for nothing else. `current` is the task that calls,
    /// if it is one of this instance's.
    ///
    /// That hook gives up at some time, by itself after [`Host::MAX_RELAXES`] calls
    /// of `relax`: what it waits for may never end. A delivery that calls this without its task
    /// waits for itself, deliveries to two clients that each cancel the other
    /// wait for each other, and a guard may have been leaked in a task that
    /// never continues.
    ///
    /// # Errors
    ///
    /// [`CancelError`]; the client is registered as before, if it was. After
    /// [`CancelError::StillRunning`] call again to wait longer.
    pub fn cancel(&self, current: Option<&H::Task>, client: ClientId) -> Result<(), CancelError> {
        let own = current.is_some_and(|task| self.is_delivering(task, client));
        if own && self.clients.is_registered(client) {
            return Err(CancelError::OwnDelivery);
        }
        if !self.clients.start_cancel(client) {
            return Err(CancelError::UnknownClient);
        }
        // One look without a delivery is enough: later ones may see those that find the client gone.
        let has_ended = Cell::new(false);
        let is_running = || {
            let runs = self.clients.is_running(client);
            has_ended.set(has_ended.get() || !runs);
            runs
        };
        self.host.wait_while(is_running);
        if !has_ended.get() && is_running() {
            self.clients.undo_cancel(client);
            return Err(CancelError::StillRunning);
        }
        self.clients.finish_cancel(client);
        Ok(())
    }

    /// Whether `current`, the task that calls, is in a delivery to `client`:
    /// then it cannot wait for the deliveries to that client to end.
    #[must_use]
    pub fn is_delivering(&self, current: &H::Task, client: ClientId) -> bool {
        self.host.state(current).delivery.is_calling(client, &self.clients)
    }

    #[inline]
    pub(crate) const fn cookies(&self) -> &C {
        &self.cookies
    }

    #[inline]
    pub(crate) const fn clients(&self) -> &ClientTable {
        &self.clients
    }

    #[inline]
    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl<H, C> fmt::Debug for DeferredUnwind<H, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredUnwind")
            .field("clients", &self.clients)
            .field("drops", &self.counters.read())
            .finish_non_exhaustive()
    }
}

/// There are as many clients as there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TooManyClients;

impl fmt::Display for TooManyClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client table is full")
    }
}

impl core::error::Error for TooManyClients {}

/// Why a client was not cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelError {
    /// The client is not registered, or someone else cancels it.
    UnknownClient,
    /// The task that calls is in a delivery to this very client, and would
    /// wait for itself.
    OwnDelivery,
    /// A delivery to the client has not ended in all the time that
    /// [`Host::wait_while`] waits. The client is registered as before; what it
    /// asked for meanwhile was refused, and of what it had asked for before a
    /// part may be lost, which is counted.
    StillRunning,
}

impl fmt::Display for CancelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownClient => "the client is not registered",
            Self::OwnDelivery => "a client cannot be cancelled by its own delivery",
            Self::StillRunning => "a delivery to the client does not end",
        })
    }
}

impl core::error::Error for CancelError {}
