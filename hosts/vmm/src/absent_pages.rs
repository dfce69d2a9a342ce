//! A guest of which pages are absent: after a snapshot is restored each comes when it is touched first, and the host
//! takes some away later.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress};

use crate::ram::{GuestRam, PAGE};
use crate::raw::{self, Userfault};

/// How long a page takes, as one that comes from a disk or over a network.
const DELAY: Duration = Duration::from_micros(200);
/// The stacks of a vCPU are put away before each delivery of this number.
const EVERY: u64 = 8;

/// What has the content of absent pages.
#[derive(Debug)]
pub(crate) struct AbsentPages {
    userfault: Userfault,
    /// What absent pages hold.
    snapshot: Mutex<Vec<u8>>,
    deliveries: AtomicU64,
    /// How many pages were brought in.
    pub(crate) brought: AtomicU64,
    /// How many of them a walk in the thread of a vCPU has waited for.
    pub(crate) waits: AtomicU64,
}

impl AbsentPages {
    /// Takes a snapshot of the whole memory, and puts it away.
    ///
    /// # Errors
    ///
    /// If this process may not handle faults of its own.
    pub(crate) fn new(ram: &GuestRam) -> io::Result<Self> {
        let (start, len) = ram.host_range();
        let mut snapshot = vec![0; len as usize];
        ram.memory().read_slice(&mut snapshot, GuestAddress(0)).expect("all of it");
        // From here on who touches an absent page waits.
        let userfault = Userfault::new(start, len)?;
        for page in (0..len).step_by(PAGE as usize) {
            ram.set_resident(page, false);
        }
        raw::discard(start, len);
        let counters = [const { AtomicU64::new(0) }; 3];
        let [deliveries, brought, waits] = counters;
        Ok(Self { userfault, snapshot: Mutex::new(snapshot), deliveries, brought, waits })
    }

    /// Puts the stacks of a vCPU away that stands, each eighth time.
    pub(crate) fn put_away(&self, ram: &GuestRam, vcpu: u64) {
        if !self.deliveries.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            return;
        }
        let mut snapshot = self.snapshot.lock().expect("no thread panics with it");
        for page in GuestRam::stack_pages(vcpu).filter(|&page| ram.is_resident(page)) {
            let at = page as usize;
            let place = &mut snapshot[at..at + PAGE as usize];
            ram.memory().read_slice(place, GuestAddress(page)).expect("it is resident");
            ram.set_resident(page, false);
            raw::discard(ram.host_range().0 + page, PAGE);
        }
    }

    /// Brings pages in that are touched, until `is_done`. `is_walking` says whether a thread is one of a vCPU, and walks.
    pub(crate) fn serve(
        &self,
        ram: &GuestRam,
        is_walking: impl Fn(u32) -> bool,
        is_done: impl Fn() -> bool,
    ) {
        let (start, _) = ram.host_range();
        while !is_done() {
            let fault = self.userfault.wait(Duration::from_millis(5));
            let Some((addr, thread)) = fault else { continue };
            if is_walking(thread) {
                self.waits.fetch_add(1, Ordering::Relaxed);
            }
            thread::sleep(DELAY);
            let page = (addr - start) / PAGE * PAGE;
            let content = {
                let snapshot = self.snapshot.lock().expect("no thread panics with it");
                snapshot[page as usize..][..PAGE as usize].to_vec()
            };
            if self.userfault.fill(start + page, &content) {
                self.brought.fetch_add(1, Ordering::Relaxed);
                ram.set_resident(page, true);
            }
        }
    }
}
