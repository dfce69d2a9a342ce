//! The clients of an instance: who is registered, and whose deliveries run.
//!
//! A task's marks are bits, and the owners of their slots are numbers. A generation in each mark would
//! take 32 words a task; taking marks out at a cancellation would take a walk over all tasks, and a
//! way to wait for requests that are under way. Instead registrations are numbered, and a task says up
//! to which number its marks account for the owners of their slots. A mark of a slot that was taken
//! later does not count, and the first request by a later client takes it out.

use core::fmt;

use super::client::{ClientId, Epoch, MAX_CLIENTS, Slot, SlotSet};
use super::registration::{InstanceId, Registrations};
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_unless_loom, fence};

/// Deliveries are counted by CPU, so that they share no cache line up to so
/// many CPUs.
const LANES: usize = if cfg!(loom) { 1 } else { 16 };

/// The registered clients, and how many deliveries run to each.
///
/// Requests, on all CPUs, only read `owners` and `registrations`, which change
/// when a client comes or goes. What deliveries write is in lines of its own.
pub(crate) struct ClientTable {
    owners: Owners,
    lanes: [Lane; LANES],
}

#[repr(align(64))]
struct Owners {
    slots: [AtomicU64; MAX_CLIENTS],
    registrations: Registrations,
}

/// What a slot holds. Only a client's id has [`ClientId::GRANTED`], so no id that
/// is asked about, [`ClientId::NONE`] included, equals another value.
///
/// ```text
///     FREE -> RESERVED -> id -> id without GRANTED -> FREE
///       register              cancel
/// ```
///
/// All accesses to a slot may be relaxed: each decides by the value of this one
/// slot, and what has to be seen besides is ordered by the number of the
/// registration or by the task's word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner(u64);

impl Owner {
    /// No owner.
    const FREE: Self = Self(1);
    /// Registration has taken the slot but has no number yet.
    const RESERVED: Self = Self(2);

    #[inline]
    const fn registered(client: ClientId) -> Self {
        Self(client.to_bits())
    }

    /// No delivery to the client starts any more; some may still run.
    const fn cancelling(client: ClientId) -> Self {
        Self(client.to_bits() & !ClientId::GRANTED)
    }

    /// The client, if it is registered and registered no later than `newest`.
    fn within(self, newest: Epoch) -> Option<ClientId> {
        let client = ClientId::from_bits(self.0);
        (client != ClientId::NONE && newest.includes(client)).then_some(client)
    }

    /// Whether this is a client that registered later than `newest`, or one
    /// that is about to get its number.
    const fn is_after(self, newest: Epoch) -> bool {
        self.0 == Self::RESERVED.0 || !newest.includes(ClientId::from_bits(self.0))
    }
}

/// How many deliveries run to the client of each slot, of those that started
/// on some of the CPUs.
#[repr(align(128))]
struct Lane([AtomicU32; MAX_CLIENTS]);

impl Lane {
    const_unless_loom! {
        fn new() -> Self {
            Self(atomics![AtomicU32::new(0); MAX_CLIENTS])
        }
    }
}

/// A delivery to the client of a slot that runs, and where it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) slot: Slot,
    /// Less than 16.
    pub(crate) lane: u32,
}

impl ClientTable {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            let slots = atomics![AtomicU64::new(Owner::FREE.0); MAX_CLIENTS];
            let owners = Owners { slots, registrations: Registrations::new() };
            Self { owners, lanes: atomics![Lane::new(); LANES] }
        }
    }

    /// Takes a slot, or `None` if all are taken.
    ///
    /// The slot is taken before the registration has its number: a thread that sees
    /// the number as the newest sees that the slot's last owner is gone. The id
    /// is published last.
    pub(crate) fn register(&self) -> Option<ClientId> {
        for (slot, owner) in Slot::all().zip(&self.owners.slots) {
            if Self::replace(owner, Owner::FREE, Owner::RESERVED) {
                let number = self.owners.registrations.next();
                let client = number.map(|number| ClientId::new(slot, number));
                let now = client.map_or(Owner::FREE, Owner::registered);
                owner.store(now.0, Ordering::Relaxed);
                return client;
            }
        }
        None
    }

    /// Lets no delivery to `client` start any more; `false` if it is not
    /// registered.
    pub(crate) fn start_cancel(&self, client: ClientId) -> bool {
        // `is_running` begins with a fence.
        let (registered, cancelling) = (Owner::registered(client), Owner::cancelling(client));
        self.owner(client.slot()).is_some_and(|owner| Self::replace(owner, registered, cancelling))
    }

    /// Frees the slot of a client whose cancellation has started and to which
    /// no delivery runs any more.
    pub(crate) fn finish_cancel(&self, client: ClientId) {
        self.set_cancelling(client, Owner::FREE);
    }

    /// Takes back that the cancellation of a client has started.
    pub(crate) fn undo_cancel(&self, client: ClientId) {
        self.set_cancelling(client, Owner::registered(client));
    }

    fn set_cancelling(&self, client: ClientId, owner: Owner) {
        if let Some(slot) = self.owner(client.slot()) {
            slot.store(owner.0, Ordering::Relaxed);
        }
    }

    /// Whether a delivery runs to the client of a slot whose cancellation has
    /// started.
    ///
    /// A delivery stays in its lane, and none starts: once a lane is empty it
    /// remains so while the others are looked at.
    pub(crate) fn is_running(&self, client: ClientId) -> bool {
        // Pairs with the fence in `enter`: either the delivery sees that the
        // client is gone, or this sees the delivery.
        fence(Ordering::SeqCst);
        let counts = self.lanes.iter().filter_map(|lane| lane.0.get(client.slot().index()));
        counts.into_iter().any(|count| count.load(Ordering::Acquire) != 0)
    }

    #[inline]
    pub(crate) fn is_registered(&self, client: ClientId) -> bool {
        self.holds(client.slot(), Owner::registered(client))
    }

    /// Whether a slot to which a delivery runs is that of `client`, which may be
    /// cancelled meanwhile.
    pub(crate) fn runs_to(&self, client: ClientId) -> bool {
        self.is_registered(client) || self.holds(client.slot(), Owner::cancelling(client))
    }

    /// The newest registration that has its number.
    pub(crate) fn newest(&self) -> Epoch {
        Epoch::registration(self.owners.registrations.newest())
    }

    /// Tells this instance from all others.
    pub(crate) fn instance(&self) -> InstanceId {
        self.owners.registrations.instance()
    }

    /// Whether the slot has a client, which registered no later than `newest`.
    pub(crate) fn has_owner(&self, slot: Slot, newest: Epoch) -> bool {
        self.owner(slot).is_some_and(|owner| Self::load(owner).within(newest).is_some())
    }

    /// The slots whose clients registered no later than `newest`.
    pub(crate) fn owned_within(&self, newest: Epoch) -> SlotSet {
        self.slots_where(|owner| owner.within(newest).is_some())
    }

    /// The slots whose clients registered later than `newest`, or are about to
    /// get their number.
    #[inline]
    pub(crate) fn taken_after(&self, newest: Epoch) -> SlotSet {
        self.slots_where(|owner| owner.is_after(newest))
    }

    #[inline]
    fn slots_where(&self, holds: impl Fn(Owner) -> bool) -> SlotSet {
        let slots = Slot::all().zip(&self.owners.slots);
        slots
            .filter(|(_, owner)| holds(Self::load(owner)))
            .fold(SlotSet::NONE, |set, (slot, _)| set.union(slot.set()))
    }

    /// Starts a delivery to the client of `slot`, if it registered no later
    /// than `newest` and is not cancelled.
    pub(crate) fn enter(&self, slot: Slot, newest: Epoch, cpu: u32) -> Option<(ClientId, Running)> {
        let lanes = u32::try_from(LANES).unwrap_or(1);
        let running = Running { slot, lane: cpu & lanes.wrapping_sub(1) };
        // The fence orders this with what follows.
        self.count(running)?.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let client = Self::load(self.owner(slot)?).within(newest);
        if client.is_none() {
            self.leave(running);
        }
        Some((client?, running))
    }

    /// Ends a delivery. What it did is seen by a thread that sees that it has ended.
    pub(crate) fn leave(&self, running: Running) {
        if let Some(count) = self.count(running) {
            count.fetch_sub(1, Ordering::Release);
        }
    }

    fn count(&self, running: Running) -> Option<&AtomicU32> {
        let lane = self.lanes.get(usize::try_from(running.lane).unwrap_or(0))?;
        lane.0.get(running.slot.index())
    }

    #[inline]
    fn owner(&self, slot: Slot) -> Option<&AtomicU64> {
        self.owners.slots.get(slot.index())
    }

    #[inline]
    fn load(owner: &AtomicU64) -> Owner {
        Owner(owner.load(Ordering::Relaxed))
    }

    #[inline]
    fn holds(&self, slot: Slot, expected: Owner) -> bool {
        self.owner(slot).is_some_and(|owner| Self::load(owner) == expected)
    }

    fn replace(owner: &AtomicU64, old: Owner, new: Owner) -> bool {
        owner.compare_exchange(old.0, new.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl fmt::Debug for ClientTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners = self.owners.slots.iter().map(|owner| ClientId::from_bits(Self::load(owner).0));
        f.debug_set().entries(owners.filter(|&owner| owner != ClientId::NONE)).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_is_not_there_counts_for_no_client() {
        let table = ClientTable::new();
        let client = table.register().unwrap();
        for lane in [LANES, 1000] {
            let lane = u32::try_from(lane).unwrap();
            table.leave(Running { slot: client.slot(), lane });
        }
        assert!(table.start_cancel(client) && !table.is_running(client));
    }

    #[test]
    fn a_new_lane_runs_nothing() {
        assert!(Lane::new().0.iter().all(|count| count.load(Ordering::Relaxed) == 0));
    }
}
