//! One instance: its clients, its source of cookies, its counters.

use core::fmt;

use super::client_table::ClientTable;
use super::counters::Counters;
use super::{ClientId, CookieSource, DropCounts, Host, SerialCookies};
use crate::sync::const_unless_loom;

/// Stacks that are asked for where they cannot be walked, and delivered where
/// they can.
///
/// A kernel has one, in a static. Instances share nothing, so there may be
/// more: a hypervisor may have one for each VM. The tasks of an instance are
/// its own: a [`TaskState`](super::TaskState) is used with one instance only.
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
    /// [`TableFull`] if [`MAX_CLIENTS`](super::MAX_CLIENTS) are registered, or
    /// are being cancelled.
    pub fn register(&self) -> Result<ClientId, TableFull> {
        self.clients.register().ok_or(TableFull)
    }

    /// Removes a client. When this returns, no delivery to it runs and none
    /// will start, and its requests are refused.
    ///
    /// Waits, by [`Host::relax`], for the deliveries to this client that run
    /// on other tasks, and for nothing else. `current` is the task that calls,
    /// if it is one of this instance's.
    ///
    /// Deliveries to two clients that each cancel the other wait for each
    /// other: a delivery may cancel another client only if nothing that is
    /// delivered to that one cancels in turn.
    ///
    /// # Errors
    ///
    /// [`CancelError`]; nothing has changed then.
    pub fn cancel(&self, current: Option<&H::Task>, client: ClientId) -> Result<(), CancelError> {
        let own = current.is_some_and(|task| self.host.state(task).is_delivering_to(client));
        if own && self.clients.is_registered(client) {
            return Err(CancelError::OwnDelivery);
        }
        if !self.clients.start_cancel(client) {
            return Err(CancelError::UnknownClient);
        }
        while self.clients.is_running(client) {
            self.host.relax();
        }
        self.clients.finish_cancel(client);
        Ok(())
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
pub struct TableFull;

impl fmt::Display for TableFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client table is full")
    }
}

impl core::error::Error for TableFull {}

/// Why a client was not cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelError {
    /// The client is not registered, or someone else cancels it.
    UnknownClient,
    /// The task that calls is in a delivery to this very client, and would
    /// wait for itself.
    OwnDelivery,
}

impl fmt::Display for CancelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownClient => "the client is not registered",
            Self::OwnDelivery => "a client cannot be cancelled by its own delivery",
        })
    }
}

impl core::error::Error for CancelError {}
