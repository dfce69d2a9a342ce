//! Which delivery of a task runs, and at which client it is.

use super::client::{ClientId, Slot};
use super::client_table::{ClientTable, Running};
use crate::sync::{AtomicU64, Ordering, const_unless_loom};

/// The delivery that a task makes.
///
/// | bits | meaning |
/// |---|---|
/// | 0-5 | the slot of the client that is being called, 32 to 63, or zero |
/// | 6-9 | the lane in which that call is counted |
/// | 10 | a delivery runs |
/// | 11-63 | how many deliveries there were |
///
/// Whoever makes a delivery has its number. A guard that was lost, or is still
/// there when its task continues, does nothing to a later one.
///
/// Only the task itself uses this, and its scheduler orders one CPU after the
/// other: relaxed accesses, and no exchanges, will do.
#[derive(Debug)]
pub(crate) struct DeliveryState(AtomicU64);

const CLIENT: u64 = (1 << 10) - 1;
const LANE_AT: u32 = 6;
const RUNS: u64 = 1 << 10;
const ONE: u64 = 1 << 11;

/// A delivery of a task: no other one has its number for 285 years of a million
/// a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeliveryNumber(u64);

impl DeliveryState {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn store(&self, state: u64) {
        self.0.store(state, Ordering::Relaxed);
    }

    /// Notes that a delivery starts; `None` if one runs.
    pub(crate) fn start(&self) -> Option<DeliveryNumber> {
        let state = self.load();
        if state & RUNS != 0 {
            return None;
        }
        let number = DeliveryNumber((state.wrapping_add(ONE) & !CLIENT) | RUNS);
        self.store(number.0);
        Some(number)
    }

    /// Whether any delivery runs.
    pub(crate) fn runs(&self) -> bool {
        self.load() & RUNS != 0
    }

    /// Whether the delivery runs.
    pub(crate) fn is_at(&self, delivery: DeliveryNumber) -> bool {
        self.load() & !CLIENT == delivery.0
    }

    /// Notes that the delivery calls a client.
    pub(crate) fn call(&self, delivery: DeliveryNumber, running: Running) {
        self.store(delivery.0 | running.slot.bits() | (u64::from(running.lane) << LANE_AT));
    }

    /// Ends the call of a client, if the delivery is at one; returns whether.
    pub(crate) fn end_call(&self, delivery: DeliveryNumber, clients: &ClientTable) -> bool {
        let running = self.is_at(delivery).then(|| self.running()).flatten();
        if let Some(running) = running {
            self.store(delivery.0);
            clients.leave(running);
        }
        running.is_some()
    }

    /// Ends the delivery if it runs, and the call of a client that it is at;
    /// returns whether it was at one.
    pub(crate) fn end(&self, delivery: DeliveryNumber, clients: &ClientTable) -> bool {
        self.is_at(delivery) && self.end_any(clients).flatten().is_some()
    }

    /// Ends whatever delivery runs; returns whether one did, and whether it was
    /// at a client.
    pub(crate) fn end_any(&self, clients: &ClientTable) -> Option<Option<Running>> {
        let (state, running) = (self.load(), self.running());
        if state & RUNS == 0 {
            return None;
        }
        self.store(state & !CLIENT & !RUNS);
        if let Some(running) = running {
            clients.leave(running);
        }
        Some(running)
    }

    /// Whether the delivery is at `client`.
    pub(crate) fn is_calling(&self, client: ClientId, clients: &ClientTable) -> bool {
        // While this runs the slot gets no other owner.
        self.running().is_some_and(|it| it.slot == client.slot()) && clients.runs_to(client)
    }

    fn running(&self) -> Option<Running> {
        let state = self.load();
        let slot = Slot::from_word(state)?;
        let lane = u32::try_from((state >> LANE_AT) & 0xf).ok()?;
        Some(Running { slot, lane })
    }
}
