//! Who asks for stacks.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::deferred::ClientId;

/// The clients that ask for stacks. Each has one registration, and its own
/// event in the records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// The NMI.
    Profiler,
    /// The system-call tracer.
    Tracer,
}

static IDS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

impl Client {
    pub(super) const ALL: [Self; 2] = [Self::Profiler, Self::Tracer];

    /// The number of its event in the records.
    pub(crate) const fn event(self) -> u64 {
        match self {
            Self::Profiler => demo_format::PROFILER,
            Self::Tracer => demo_format::TRACER,
        }
    }

    /// Its registration. Before [`register`](super::register) it is one that is refused.
    pub(crate) fn id(self) -> ClientId {
        ClientId::from_bits(IDS[self as usize].load(Ordering::Relaxed))
    }

    /// It has this registration from now on.
    pub(super) fn set_id(self, id: ClientId) {
        IDS[self as usize].store(id.to_bits(), Ordering::Relaxed);
    }

    /// Whose registration `id` is.
    pub(crate) fn from_id(id: ClientId) -> Option<Self> {
        Self::ALL.into_iter().find(|client| client.id() == id)
    }
}
