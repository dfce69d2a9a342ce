//! Clients that come and go, and the check that a cancellation means it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use unwind_core::deferred::{ClientId, DeferredUnwind, Host, MAX_CLIENTS};

use crate::machine::SpinLock;
use crate::random::Random;

/// How many threads register and cancel. Each has its own places in the table.
pub(crate) const CHURNERS: usize = 2;

/// The clients that requests choose from: ids, or zero. NMIs read it.
static TABLE: [AtomicU64; MAX_CLIENTS] = [const { AtomicU64::new(0) }; MAX_CLIENTS];

/// One client, as long as anyone may have a sample of it.
#[derive(Default)]
pub(crate) struct Client {
    running: AtomicU32,
    cancelled: AtomicBool,
}

/// All clients that ever were.
#[derive(Default)]
pub(crate) struct Clients(SpinLock<HashMap<ClientId, Arc<Client>>>);

impl Clients {
    fn get(&self, id: ClientId) -> Arc<Client> {
        Arc::clone(&self.0.lock()[&id])
    }

    /// Whether the client is cancelled, so that its samples may have no stack.
    pub(crate) fn is_cancelled(&self, id: ClientId) -> bool {
        self.get(id).cancelled.load(Ordering::SeqCst)
    }

    /// Runs `callback` as a delivery to the client does. The client's owner
    /// would free its data after the cancellation.
    pub(crate) fn call(&self, id: ClientId, callback: impl FnOnce()) {
        let client = self.get(id);
        client.running.fetch_add(1, Ordering::SeqCst);
        callback();
        client.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Registers and cancels until the end.
    pub(crate) fn churn<H: Host>(
        &self,
        unwind: &DeferredUnwind<H>,
        number: usize,
        stop: &AtomicBool,
    ) -> u64 {
        let mut random = Random::new(number as u64);
        let places = || TABLE.iter().skip(number).step_by(CHURNERS);
        let mut changes = 0;
        while !stop.load(Ordering::Relaxed) {
            let some = random.below(MAX_CLIENTS / CHURNERS);
            let place = places().nth(some).expect("as many as that");
            match place.load(Ordering::SeqCst) {
                0 => self.register(unwind, place),
                // Clients stay longer than it takes to return to this point.
                bits if random.below(3) == 0 => {
                    self.cancel(unwind, place, ClientId::from_bits(bits))
                }
                _ => {}
            }
            changes += 1;
            for _ in 0..random.below(20_000) {
                core::hint::spin_loop();
            }
            if random.below(50) == 0 {
                thread::yield_now();
            }
        }
        for place in places() {
            match place.load(Ordering::SeqCst) {
                0 => {}
                bits => self.cancel(unwind, place, ClientId::from_bits(bits)),
            }
        }
        changes
    }

    fn register<H: Host>(&self, unwind: &DeferredUnwind<H>, place: &AtomicU64) {
        let mut clients = self.0.lock();
        let id = unwind.register().expect("there are as many places as slots");
        let known = clients.insert(id, Arc::default());
        assert!(known.is_none(), "{id:?} was given before");
        place.store(id.to_bits(), Ordering::SeqCst);
    }

    fn cancel<H: Host>(&self, unwind: &DeferredUnwind<H>, place: &AtomicU64, id: ClientId) {
        let client = self.get(id);
        place.store(0, Ordering::SeqCst);
        // From here on samples may stay without a stack.
        client.cancelled.store(true, Ordering::SeqCst);
        unwind.cancel(None, id).expect("it is registered");
        assert_eq!(client.running.load(Ordering::SeqCst), 0, "a delivery to {id:?} still runs");
        // And for a while none starts: `call` would find it.
        for _ in 0..100 {
            assert_eq!(client.running.load(Ordering::SeqCst), 0, "a delivery to {id:?} started");
        }
    }
}

/// Some client that was registered a moment ago.
pub(crate) fn any_client(random: &mut Random) -> Option<ClientId> {
    match TABLE[random.below(MAX_CLIENTS)].load(Ordering::Relaxed) {
        0 => None,
        bits => Some(ClientId::from_bits(bits)),
    }
}
