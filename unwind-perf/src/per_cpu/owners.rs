//! The profilers: the client that each has, and on how many CPUs it has events.

use unwind_core::{ClientId, MAX_CLIENTS};

use super::Leader;
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_unless_loom};

/// The profilers that have events. Each has a client, so there are never more.
///
/// Changed under the lock only, and hardly ever; the lock is held for a few
/// steps, never while anybody waits for a delivery.
#[derive(Debug)]
pub(super) struct Owners {
    locked: AtomicU32,
    owners: [Owner; MAX_CLIENTS],
}

#[derive(Debug)]
pub(super) struct Owner {
    /// The client, or zero: nobody is here.
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

    /// Keeps events from coming and going until the guard is dropped.
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
    pub(super) fn free(&self, client: ClientId) {
        if let Some(owner) = self.owners.iter().find(|owner| owner.is(client)) {
            owner.client.store(0, Ordering::Release);
        }
    }

    /// On how many CPUs a profiler has events, and its client.
    pub(super) fn find(&self, leader: Leader) -> Option<(ClientId, u32)> {
        let owner = self.owners.iter().find(|owner| owner.is_led_by(leader))?;
        let client = ClientId::from_bits(owner.client.load(Ordering::Acquire));
        Some((client, owner.occupied.load(Ordering::Relaxed)))
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
        self.client.load(Ordering::Acquire) == 0
    }

    fn is(&self, client: ClientId) -> bool {
        self.client.load(Ordering::Acquire) == client.to_bits()
    }

    fn is_led_by(&self, leader: Leader) -> bool {
        !self.is_free()
            && self.occupied.load(Ordering::Relaxed) != 0
            && self.leader.load(Ordering::Relaxed) == leader.0
    }
}

/// The profilers, and nobody else who changes them.
#[derive(Debug)]
pub(super) struct Locked<'a>(&'a Owners);

impl Locked<'_> {
    /// The client of a profiler that has events.
    pub(super) fn find(&self, leader: Leader) -> Option<ClientId> {
        self.0.find(leader).map(|(client, _)| client)
    }

    /// Adds a profiler, with events on one CPU. `false` if there is no room.
    pub(super) fn add(&self, leader: Leader, client: ClientId) -> bool {
        let Some(owner) = self.0.owners.iter().find(|owner| owner.is_free()) else { return false };
        owner.leader.store(leader.0, Ordering::Relaxed);
        owner.occupied.store(1, Ordering::Relaxed);
        owner.client.store(client.to_bits(), Ordering::Release);
        true
    }

    /// The profiler has events on one CPU more.
    pub(super) fn occupy(&self, client: ClientId) {
        self.update(client, |cpus| cpus.saturating_add(1));
    }

    /// The profiler has events on one CPU less. Returns whether that was the
    /// last: then nobody finds it any more, until it is freed.
    pub(super) fn vacate(&self, client: ClientId) -> bool {
        self.update(client, |cpus| cpus.saturating_sub(1)) == 0
    }

    fn update(&self, client: ClientId, change: impl Fn(u32) -> u32) -> u32 {
        let Some(owner) = self.0.owners.iter().find(|owner| owner.is(client)) else { return 0 };
        let cpus = change(owner.occupied.load(Ordering::Relaxed));
        owner.occupied.store(cpus, Ordering::Relaxed);
        cpus
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.locked.store(0, Ordering::Release);
    }
}
