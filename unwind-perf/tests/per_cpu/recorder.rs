//! A core whose answers and calls a test sees.

use std::cell::Cell;

use unwind_core::deferred::{
    CancelError, ClientId, Refusal, RequestOutcome, TooManyClients, relax_while,
};
use unwind_perf::per_cpu::*;

/// A core that counts, fails when told, and says in which order it is called.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) registered: Cell<u64>,
    pub(crate) cancelled: Cell<u64>,
    pub(crate) requested: Cell<u64>,
    pub(crate) full: Cell<bool>,
    pub(crate) cannot_cancel: Cell<Option<CancelError>>,
    pub(crate) delivering: Cell<Option<ClientId>>,
    pub(crate) refusal: Cell<Option<Refusal>>,
    /// What has happened before each cancel.
    pub(crate) at_cancel: Cell<Option<fn(&Self)>>,
    /// What a removal finds each time that it waits.
    pub(crate) at_relax: Cell<Option<fn()>>,
}

impl Deferral for Recorder {
    type Task = ();

    fn register(&self) -> Result<ClientId, TooManyClients> {
        if self.full.get() {
            return Err(TooManyClients);
        }
        self.registered.set(self.registered.get() + 1);
        let number = self.registered.get();
        Ok(ClientId::from_bits(number << 6 | 1 << 5 | (number % 32)))
    }

    fn cancel(&self, _: Option<&()>, client: ClientId) -> Result<(), CancelError> {
        if client.registration() > self.registered.get() {
            return Err(CancelError::UnknownClient);
        }
        if let Some(error) = self.cannot_cancel.get() {
            return Err(error);
        }
        if let Some(hook) = self.at_cancel.get() {
            hook(self);
        }
        self.cancelled.set(self.cancelled.get() + 1);
        Ok(())
    }

    fn is_delivering(&self, (): &(), client: ClientId) -> bool {
        self.delivering.get() == Some(client)
    }

    fn request(&self, (): &(), _: ClientId) -> RequestOutcome {
        self.requested.set(self.requested.get() + 1);
        let cookie = unwind_core::deferred::Cookie::new(7).unwrap();
        match (self.refusal.get(), self.requested.get()) {
            (Some(refusal), _) => RequestOutcome::Refused(refusal),
            (None, 1) => RequestOutcome::Queued(cookie),
            (None, 2) => RequestOutcome::AlreadyPending(cookie),
            (None, _) => RequestOutcome::AlreadyExecuted(cookie),
        }
    }

    fn relax(&self) {
        if let Some(hook) = self.at_relax.get() {
            hook();
        }
        std::thread::yield_now();
    }

    fn wait_while(&self, is_running: impl Fn() -> bool) {
        relax_while(is_running, Self::MAX_RELAXES, || self.relax());
    }
}

impl Recorder {
    /// How often a removal waits before it gives up.
    pub(crate) const MAX_RELAXES: u64 = 100;
}
