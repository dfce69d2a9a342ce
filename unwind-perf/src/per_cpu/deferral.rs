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

    /// How often a removal calls [`relax`](Self::relax) before it gives up with
    /// [`StillRunning`](super::RemoveError::StillRunning): see
    /// [`Host::MAX_RELAXES`].
    const MAX_RELAXES: u64 = 1 << 28;

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

    /// Called repeatedly during a wait: spins, yields or sleeps. Task context.
    fn relax(&self);
}

impl<H: Host, C: CookieSource> Deferral for DeferredUnwind<H, C> {
    type Task = H::Task;

    const MAX_RELAXES: u64 = H::MAX_RELAXES;

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
}
