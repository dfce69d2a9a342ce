//! The registry with its words apart.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// A twin that has the link, the back pointer and the processing mark in
/// separate words, as in the first proposal.
#[derive(Debug)]
pub(crate) struct Apart {
    linked: AtomicU32,
    back: AtomicU32,
    processing: AtomicU32,
    /// The remover has begun to wait.
    waiting: AtomicU32,
    freed: AtomicU32,
}

/// When the remover clears the back pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Clears {
    BeforeTheWait,
    AfterTheWait,
}

impl Apart {
    pub(crate) fn new() -> Self {
        Self {
            linked: AtomicU32::new(1),
            back: AtomicU32::new(1),
            processing: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            freed: AtomicU32::new(0),
        }
    }

    pub(crate) fn remove(&self, clears: Clears) {
        self.linked.store(0, Ordering::Relaxed);
        if clears == Clears::BeforeTheWait {
            self.back.store(0, Ordering::Relaxed);
        }
        loom::sync::atomic::fence(Ordering::SeqCst);
        self.waiting.store(1, Ordering::Release);
        while self.processing.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        if clears == Clears::AfterTheWait {
            self.back.store(0, Ordering::Relaxed);
        }
        self.freed.store(1, Ordering::Relaxed);
    }

    /// A look at the back pointer. Returns whether it picked an event of which
    /// it could know that its remover waits.
    pub(crate) fn picks_dying(&self) -> (bool, bool) {
        let waiting = self.waiting.load(Ordering::Acquire) != 0;
        let picked = self.back.load(Ordering::Relaxed) != 0;
        (picked, picked && waiting)
    }

    pub(crate) fn deliver(&self) -> bool {
        self.processing.store(1, Ordering::Relaxed);
        loom::sync::atomic::fence(Ordering::SeqCst);
        let mut dying = false;
        if self.linked.load(Ordering::Relaxed) != 0 {
            let picked;
            (picked, dying) = self.picks_dying();
            assert!(!picked || self.freed.load(Ordering::Relaxed) == 0, "a freed event is used");
        }
        self.processing.store(0, Ordering::Release);
        dying
    }
}
