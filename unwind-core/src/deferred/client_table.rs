//! The clients of an instance: who is registered, and whose deliveries run.

use core::fmt;

use super::client::{ClientId, MAX_CLIENTS, Newest, Slot, SlotSet};
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics, const_unless_loom, fence};

/// Deliveries are counted by CPU, so that they share no cache line up to so
/// many CPUs.
const LANES: usize = if cfg!(loom) { 1 } else { 16 };

/// What a slot holds: the id of a registered client, or one of the three
/// smaller numbers.
///
/// ```text
///     FREE -> RESERVED -> id -> CANCELLING -> FREE
///       register              cancel
/// ```
const FREE: u64 = 0;
/// Registration has taken the slot but has no number yet.
const RESERVED: u64 = 1;
/// No delivery to the last client starts any more; some may still run.
const CANCELLING: u64 = 2;

/// The registered clients, and how many deliveries run to each.
///
/// Requests, on all CPUs, only read `owners` and `newest`, which change when a
/// client comes or goes. What deliveries write is in lines of its own.
pub(crate) struct ClientTable {
    owners: Owners,
    lanes: [Lane; LANES],
}

#[repr(align(64))]
struct Owners {
    slots: [AtomicU64; MAX_CLIENTS],
    /// How many registrations there have been.
    newest: AtomicU64,
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

impl ClientTable {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            let slots = atomics![AtomicU64::new(FREE); MAX_CLIENTS];
            let owners = Owners { slots, newest: AtomicU64::new(0) };
            Self { owners, lanes: atomics![Lane::new(); LANES] }
        }
    }

    /// Takes a slot, or `None` if all are taken.
    ///
    /// The slot is taken before the registration has its number: whoever sees
    /// the number in `newest` sees that the slot's last owner is gone. The id
    /// is published last.
    pub(crate) fn register(&self) -> Option<ClientId> {
        for (slot, owner) in Slot::all().zip(&self.owners.slots) {
            let (taken, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            if owner.compare_exchange(FREE, RESERVED, taken, failed).is_ok() {
                let earlier = self.owners.newest.fetch_add(1, Ordering::AcqRel);
                let client = ClientId::new(slot, earlier.wrapping_add(1));
                owner.store(client.to_bits(), Ordering::Release);
                return Some(client);
            }
        }
        None
    }

    /// Lets no delivery to `client` start any more; `false` if it is not
    /// registered.
    pub(crate) fn start_cancel(&self, client: ClientId) -> bool {
        let (taken, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.owner(client.slot()).is_some_and(|owner| {
            owner.compare_exchange(client.to_bits(), CANCELLING, taken, failed).is_ok()
        })
    }

    /// Frees the slot of a client whose cancellation has started and to which
    /// no delivery runs any more.
    pub(crate) fn finish_cancel(&self, client: ClientId) {
        if let Some(owner) = self.owner(client.slot()) {
            owner.store(FREE, Ordering::Release);
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
        self.owner(client.slot())
            .is_some_and(|owner| owner.load(Ordering::Acquire) == client.to_bits())
    }

    /// The newest registration that has its number.
    pub(crate) fn newest(&self) -> Newest {
        Newest::registration(self.owners.newest.load(Ordering::Acquire))
    }

    /// Whether the slot has a client, which registered no later than `newest`.
    pub(crate) fn has_owner(&self, slot: Slot, newest: Newest) -> bool {
        self.owner(slot).is_some_and(|owner| is_within(owner.load(Ordering::Acquire), newest))
    }

    /// The slots whose clients registered no later than `newest`.
    pub(crate) fn owned_within(&self, newest: Newest) -> SlotSet {
        self.slots_where(|owner| is_within(owner, newest))
    }

    /// The slots whose clients registered later than `newest`, or are about to
    /// get their number.
    pub(crate) fn taken_after(&self, newest: Newest) -> SlotSet {
        self.slots_where(|owner| owner == RESERVED || !newest.includes(ClientId::from_bits(owner)))
    }

    fn slots_where(&self, holds: impl Fn(u64) -> bool) -> SlotSet {
        let slots = Slot::all().zip(&self.owners.slots);
        slots
            .filter(|(_, owner)| holds(owner.load(Ordering::Acquire)))
            .fold(SlotSet::NONE, |set, (slot, _)| set.union(slot.set()))
    }

    /// Starts a delivery to the client of `slot`, if it registered no later
    /// than `newest` and is not cancelled.
    pub(crate) fn enter(&self, slot: Slot, newest: Newest, cpu: u32) -> Option<Running<'_>> {
        let lane = usize::try_from(cpu).unwrap_or(0) & (LANES - 1);
        let count = self.lanes.get(lane)?.0.get(slot.index())?;
        count.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let owner = self.owner(slot)?.load(Ordering::Acquire);
        if !is_within(owner, newest) {
            count.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(Running { count, client: ClientId::from_bits(owner) })
    }

    #[inline]
    fn owner(&self, slot: Slot) -> Option<&AtomicU64> {
        self.owners.slots.get(slot.index())
    }
}

/// Whether a slot holds a client, which registered no later than `newest`.
const fn is_within(owner: u64, newest: Newest) -> bool {
    owner > CANCELLING && newest.includes(ClientId::from_bits(owner))
}

impl fmt::Debug for ClientTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners = self.owners.slots.iter().map(|owner| owner.load(Ordering::Relaxed));
        f.debug_set()
            .entries(owners.filter(|&owner| owner > CANCELLING).map(ClientId::from_bits))
            .finish()
    }
}

/// A delivery to one client that runs. Cancelling the client waits for it.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    count: &'a AtomicU32,
    client: ClientId,
}

impl Running<'_> {
    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Release);
    }
}
