//! What the registry asks of the deferral core.

use unwind_core::deferred::{
    CancelError, ClientId, CookieSource, DeferredUnwind, Host, RequestOutcome, TooManyClients,
};

/// The deferral core, as far as the registry needs it.
///
/// [`DeferredUnwind`] is one. A host whose tracers share a client puts its own
/// dispatcher here.
pub trait Deferral {
    /// A task.
    type Task: ?Sized;

    /// See [`DeferredUnwind::register`]. Does not wait: a registry calls it with
    /// its lock taken.
    ///
    /// # Errors
    ///
    /// [`TooManyClients`] if there is no place for another client.
    fn register(&self) -> Result<ClientId, TooManyClients>;

    /// See [`DeferredUnwind::cancel`].
    ///
    /// # Errors
    ///
    /// [`CancelError`]; nothing has changed then.
    fn cancel(&self, current: Option<&Self::Task>, client: ClientId) -> Result<(), CancelError>;

    /// See [`DeferredUnwind::is_delivering`].
    fn is_delivering(&self, task: &Self::Task, client: ClientId) -> bool;

    /// See [`DeferredUnwind::request`]. Any context.
    fn request(&self, task: &Self::Task, client: ClientId) -> RequestOutcome;

    /// Called repeatedly during a wait for a lock of the registry: spins, yields or
    /// sleeps. Task context.
    fn relax(&self);

    /// Waits while a delivery runs to an event that is being removed, or gives up:
    /// see [`Host::wait_while`]. Task context.
    fn wait_while(&self, is_running: impl Fn() -> bool);
}

impl<H: Host, C: CookieSource> Deferral for DeferredUnwind<H, C> {
    type Task = H::Task;

    fn register(&self) -> Result<ClientId, TooManyClients> {
        self.register()
    }

    fn cancel(&self, current: Option<&H::Task>, client: ClientId) -> Result<(), CancelError> {
        self.cancel(current, client)
    }

    fn is_delivering(&self, task: &H::Task, client: ClientId) -> bool {
        self.is_delivering(task, client)
    }

    #[inline]
    fn request(&self, task: &H::Task, client: ClientId) -> RequestOutcome {
        self.request(task, client)
    }

    fn relax(&self) {
        self.host().relax();
    }

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        self.host().wait_while(is_running);
    }
}
