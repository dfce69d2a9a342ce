//! The profilers: the client that each has, and on how many CPUs it has events.

use unwind_core::deferred::{ClientId, MAX_CLIENTS};

use super::GroupLeader;
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_unless_loom};

/// The profilers that have events. Each has a client, so there are never more.
///
/// Changed under the lock only, and rarely. The lock is held for a few steps,
/// never during a wait for a delivery.
#[derive(Debug)]
pub(super) struct Owners {
    locked: AtomicU32,
    owners: [Owner; MAX_CLIENTS],
}

#[derive(Debug)]
pub(super) struct Owner {
    /// The client, or zero: the place is free.
    client: AtomicU64,
    leader: AtomicU64,
    /// On how many CPUs it has events. Zero while the last one goes away.
    occupied: AtomicU32,
}

impl Owners {
    const_unless_loom! {
        pub(super) fn new() -> Self {
            let owners = atomics![Owner::new(); MAX_CLIENTS];
            Self { locked: AtomicU32::new(0), owners }
        }
    }

    /// Keeps events from being added and removed until the guard is dropped.
    pub(super) fn lock(&self, mut relax: impl FnMut()) -> Locked<'_> {
        let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
        while self.locked.compare_exchange(0, 1, taken, failed).is_err() {
            relax();
        }
        Locked(self)
    }

    /// Whether `client` is that of a profiler.
    pub(super) fn has(&self, client: ClientId) -> bool {
        self.owners.iter().any(|owner| owner.is(client))
    }

    /// Gives up a profiler that has no events, when its client is cancelled.
    ///
    /// This needs no lock and releases nothing: the next profiler takes the
    /// place after it has seen that it is free, and no reader sees it taken
    /// before that.
    pub(super) fn free(&self, client: ClientId) {
        if let Some(owner) = self.owners.iter().find(|owner| owner.is(client)) {
            owner.client.store(0, Ordering::Relaxed);
        }
    }

    /// The client of a profiler that has events, and on how many CPUs it has
    /// some. Without the lock the answer was right at some moment during the
    /// call.
    pub(super) fn find(&self, leader: GroupLeader) -> Option<(ClientId, u32)> {
        self.owners.iter().find_map(|owner| owner.read_if_led_by(leader))
    }
}

impl Owner {
    const_unless_loom! {
        fn new() -> Self {
            let (client, leader) = (AtomicU64::new(0), AtomicU64::new(0));
            Self { client, leader, occupied: AtomicU32::new(0) }
        }
    }

    fn is_free(&self) -> bool {
        self.client.load(Ordering::Relaxed) == 0
    }

    fn is(&self, client: ClientId) -> bool {
        // Zero is no client's: it says that the place is free.
        client.to_bits() != 0 && self.client.load(Ordering::Relaxed) == client.to_bits()
    }

    /// The client and the number of CPUs, if there are some and they are
    /// those of `leader`.
    ///
    /// The place may pass to another profiler between the loads. A reader that
    /// sees a value of the next profiler then sees a different client, and no
    /// client ever comes back.
    fn read_if_led_by(&self, leader: GroupLeader) -> Option<(ClientId, u32)> {
        let client = self.client.load(Ordering::Acquire);
        let is_led = self.leader.load(Ordering::Acquire) == leader.0;
        let cpus = self.occupied.load(Ordering::Acquire);
        let is_same = self.client.load(Ordering::Relaxed) == client;
        let found = client != 0 && is_led && cpus != 0 && is_same;
        found.then_some((ClientId::from_bits(client), cpus))
    }
}

/// The profilers, locked: only the holder changes them.
#[derive(Debug)]
pub(super) struct Locked<'a>(&'a Owners);

impl Locked<'_> {
    /// The client of a profiler that has events.
    pub(super) fn find(&self, leader: GroupLeader) -> Option<ClientId> {
        self.0.find(leader).map(|(client, _)| client)
    }

    /// A place for a profiler that is to be added, if there is one.
    pub(super) fn vacancy(&self) -> Option<Vacancy<'_>> {
        self.0.owners.iter().find(|owner| owner.is_free()).map(Vacancy)
    }

    /// The profiler has events on one CPU more.
    pub(super) fn occupy(&self, client: ClientId) {
        self.update(client, |cpus| cpus.saturating_add(1));
    }

    /// The profiler has events on one CPU less. Returns whether that was the
    /// last: then no search finds the profiler any more, until it is freed.
    pub(super) fn vacate(&self, client: ClientId) -> bool {
        self.update(client, |cpus| cpus.saturating_sub(1)) == 0
    }

    fn update(&self, client: ClientId, change: impl Fn(u32) -> u32) -> u32 {
        let Some(owner) = self.0.owners.iter().find(|owner| owner.is(client)) else { return 0 };
        let cpus = change(owner.occupied.load(Ordering::Relaxed));
        owner.occupied.store(cpus, Ordering::Release);
        cpus
    }
}

/// A place that no profiler has.
#[derive(Debug)]
pub(super) struct Vacancy<'a>(&'a Owner);

impl Vacancy<'_> {
    /// Adds a profiler, with events on one CPU.
    pub(super) fn fill(self, leader: GroupLeader, client: ClientId) {
        let Self(owner) = self;
        owner.leader.store(leader.0, Ordering::Release);
        // Relaxed: the last profiler had events on one CPU once, too.
        owner.occupied.store(1, Ordering::Relaxed);
        owner.client.store(client.to_bits(), Ordering::Release);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.locked.store(0, Ordering::Release);
    }
}
