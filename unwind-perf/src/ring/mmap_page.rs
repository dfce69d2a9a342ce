//! The first page of a mapped event: `struct perf_event_mmap_page`.

use super::clock::Clock;
use super::error::RingError;
use crate::sync::{AtomicU64, Ordering, fence};

/// The first page of the mapping of an event, in the byte order of the machine.
///
/// Fields have the names of Linux's header. They are read one by one: only those of
/// [`clock`](Self::clock) belong together.
#[derive(Clone, Copy, Debug)]
pub struct MmapPage<'m> {
    words: &'m [AtomicU64],
}

/// Where fields are, in bytes.
mod at {
    pub(super) const VERSION: usize = 0;
    pub(super) const COMPAT_VERSION: usize = 4;
    pub(super) const LOCK: usize = 8;
    pub(super) const TIME_ENABLED: usize = 24;
    pub(super) const TIME_RUNNING: usize = 32;
    pub(super) const CAPABILITIES: usize = 40;
    pub(super) const TIME_SHIFT: usize = 50;
    pub(super) const TIME_MULT: usize = 52;
    pub(super) const TIME_OFFSET: usize = 56;
    pub(super) const TIME_ZERO: usize = 64;
    pub(super) const SIZE: usize = 72;
    pub(super) const TIME_CYCLES: usize = 80;
    pub(super) const TIME_MASK: usize = 88;
    pub(super) const DATA_HEAD: usize = 1024;
    pub(super) const DATA_TAIL: usize = 1032;
    pub(super) const DATA_OFFSET: usize = 1040;
    pub(super) const DATA_SIZE: usize = 1048;
    pub(super) const AUX_HEAD: usize = 1056;
    pub(super) const AUX_TAIL: usize = 1064;
    pub(super) const AUX_OFFSET: usize = 1072;
    pub(super) const AUX_SIZE: usize = 1080;
    pub(super) const END: usize = 1088;
}

/// How many bytes in front of the reserved ones this structure has.
const KNOWN: u32 = 96;

/// A word whose first four bytes are a number.
const fn first_half(number: u32) -> u64 {
    let [a, b, c, d] = number.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

/// How often a reader looks at fields that are being written. A model has no time for more
/// than one.
const TRIES: u32 = if cfg!(loom) { 1 } else { 64 };

impl<'m> MmapPage<'m> {
    /// How many words of the page there have to be at least.
    pub const WORDS: usize = at::END / 8;

    /// A page in `words`, from its start.
    ///
    /// # Errors
    ///
    /// [`RingError::ShortPage`] if there are fewer than [`WORDS`](Self::WORDS).
    pub const fn new(words: &'m [AtomicU64]) -> Result<Self, RingError> {
        if words.len() < Self::WORDS {
            return Err(RingError::ShortPage { words: words.len() });
        }
        Ok(Self { words })
    }

    /// The version of the structure.
    #[must_use]
    pub fn version(self) -> u32 {
        u32::from_ne_bytes(self.bytes(at::VERSION))
    }

    /// The lowest version that this one is compatible with.
    #[must_use]
    pub fn compat_version(self) -> u32 {
        u32::from_ne_bytes(self.bytes(at::COMPAT_VERSION))
    }

    /// How long the event was enabled, in nanoseconds.
    #[must_use]
    pub fn time_enabled(self) -> u64 {
        self.load(at::TIME_ENABLED)
    }

    /// How long the event counted, in nanoseconds.
    #[must_use]
    pub fn time_running(self) -> u64 {
        self.load(at::TIME_RUNNING)
    }

    /// How many bytes in front of the reserved ones the kernel knows.
    #[must_use]
    pub fn size(self) -> u32 {
        u32::from_ne_bytes(self.bytes(at::SIZE))
    }

    /// How the cycles of the CPU become times of the event. `None` if the kernel does not
    /// say, or writes the fields all the time.
    #[must_use]
    pub fn clock(self) -> Option<Clock> {
        let lock = self.word(at::LOCK)?;
        let count = |word: u64| {
            let [a, b, c, d, ..] = word.to_ne_bytes();
            u32::from_ne_bytes([a, b, c, d])
        };
        for _ in 0..TRIES {
            let before = count(lock.load(Ordering::Acquire));
            let clock = Clock {
                capabilities: self.load(at::CAPABILITIES),
                shift: u16::from_ne_bytes(self.bytes(at::TIME_SHIFT)),
                mult: u32::from_ne_bytes(self.bytes(at::TIME_MULT)),
                offset: self.load(at::TIME_OFFSET),
                zero: self.load(at::TIME_ZERO),
                cycles: self.load(at::TIME_CYCLES),
                mask: self.load(at::TIME_MASK),
            };
            fence(Ordering::Acquire);
            // It is odd while the kernel writes.
            if before & 1 == 0 && count(lock.load(Ordering::Relaxed)) == before {
                return Some(clock).filter(|clock| clock.is_known());
            }
        }
        None
    }

    /// Where the records begin, in bytes from the start of the mapping; 0 before Linux 4.1,
    /// where it is one page.
    #[must_use]
    pub fn data_offset(self) -> u64 {
        self.load(at::DATA_OFFSET)
    }

    /// How many bytes the ring has; 0 before Linux 4.1.
    #[must_use]
    pub fn data_size(self) -> u64 {
        self.load(at::DATA_SIZE)
    }

    /// Up to where records are written. What is before it may be read.
    pub(super) fn data_head(self) -> u64 {
        self.word(at::DATA_HEAD).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn publish_data_head(self, head: u64) {
        if let Some(word) = self.word(at::DATA_HEAD) {
            word.store(head, Ordering::Release);
        }
    }

    /// Up to where records were read. What is before it may be written.
    pub(super) fn data_tail(self) -> u64 {
        self.word(at::DATA_TAIL).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn publish_data_tail(self, tail: u64) {
        if let Some(word) = self.word(at::DATA_TAIL) {
            word.store(tail, Ordering::Release);
        }
    }

    pub(super) fn aux_head(self) -> u64 {
        self.word(at::AUX_HEAD).map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(super) fn aux_tail(self) -> u64 {
        self.word(at::AUX_TAIL).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    pub(super) fn publish_aux_tail(self, tail: u64) {
        if let Some(word) = self.word(at::AUX_TAIL) {
            word.store(tail, Ordering::Release);
        }
    }

    /// Tells the kernel where the AUX area is to be, in bytes from the start of the mapping,
    /// and how long it is, before it is mapped there.
    pub fn ask_for_aux(self, offset: u64, size: u64) {
        for (at, value) in [(at::AUX_OFFSET, offset), (at::AUX_SIZE, size)] {
            if let Some(word) = self.word(at) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Where the AUX area is, in bytes from the start of the mapping, and how long; zeros if
    /// there is none.
    #[must_use]
    pub fn aux_place(self) -> (u64, u64) {
        (self.load(at::AUX_OFFSET), self.load(at::AUX_SIZE))
    }

    /// Fills the fields of a new page that a reader needs to find the records: for a kernel,
    /// before it lends the page to anyone.
    pub fn init(self, data_offset: u64, data_size: u64) {
        // The version is 0. Bit 1 of the capabilities says that bit 0 is not used.
        let fields = [
            (at::CAPABILITIES, 1 << 1),
            (at::SIZE, first_half(KNOWN)),
            (at::DATA_OFFSET, data_offset),
            (at::DATA_SIZE, data_size),
        ];
        for (at, value) in fields {
            if let Some(word) = self.word(at) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    fn word(self, at: usize) -> Option<&'m AtomicU64> {
        self.words.get(at >> 3)
    }

    fn load(self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The bytes of a field that is a part of a word.
    fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        let word = self.load(at).to_ne_bytes();
        let field = word.get(at & 7..).and_then(<[u8]>::first_chunk);
        field.copied().unwrap_or([0; N])
    }
}
