//! Memory for walks, in places that are taken without waiting.
//!
//! Places, not threads, have caches: a thread-local of the size of a cache would be allocated in a
//! handler. The first threads that walk have a place each, which they alone use. Taking it is a plain
//! store, as only a handler on the same thread can come in between, and that gives the place back
//! before it returns. Other threads, and handlers that interrupt a walk, take one of some more by an
//! exchange, which costs a third of a short walk.

use core::cell::UnsafeCell;
use core::fmt;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use unwind_core::RowCache;

use super::syscall;
use super::thread::{control_block, thread_words};

/// The most frames of a walk.
pub const MAX_FRAMES: usize = 1024;

/// How many rows a place keeps.
pub(crate) const ROWS: usize = 2048;

/// How many threads can have a place of their own.
const OWN: usize = 16;

/// How many places there are for the others, and for handlers that interrupt a walk.
const SHARED: usize = 16;

/// What walks keep for later ones.
struct Place {
    /// The control block of the thread that alone uses it; zero if none does. It stays that
    /// thread's, and later that of a thread with the same control block.
    owner: AtomicU64,
    is_taken: AtomicBool,
    rows: UnsafeCell<RowCache<ROWS>>,
}

/// Whole pages, which a child process finds zeroed: all zeroes is the beginning.
#[repr(C, align(4096))]
struct Pool {
    /// The process's number; zero if it has to be asked for.
    process: AtomicU64,
    own: [Place; OWN],
    shared: [Place; SHARED],
}

// SAFETY: `is_taken` says who alone may use the rows.
unsafe impl Sync for Pool {}

impl Place {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            is_taken: AtomicBool::new(false),
            rows: UnsafeCell::new(RowCache::new()),
        }
    }
}

static POOL: Pool = Pool {
    process: AtomicU64::new(0),
    own: [const { Place::new() }; OWN],
    shared: [const { Place::new() }; SHARED],
};

/// A place that is this walk's until it is dropped.
pub(crate) struct Taken(&'static Place);

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").finish_non_exhaustive()
    }
}

impl Taken {
    /// The thread's own place, or another one if a walk of the thread was interrupted, or all
    /// are other threads'.
    #[inline]
    pub(crate) fn take() -> Option<Self> {
        let number = thread_words().place.load(Ordering::Relaxed);
        let own = usize::try_from(number).ok().and_then(|number| POOL.own.get(number));
        own.and_then(|own| Self::take_own(own, control_block())).or_else(Self::take_other)
    }

    /// Takes a place, if it is this thread's and no walk that a handler has interrupted has
    /// it.
    #[inline]
    fn take_own(place: &'static Place, thread: u64) -> Option<Self> {
        // No exchange is needed: in between, only a handler on this thread can take the place,
        // and it gives it back before this continues.
        if place.owner.load(Ordering::Relaxed) != thread || place.is_taken.load(Ordering::Relaxed) {
            return None;
        }
        place.is_taken.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Some(Self(place))
    }

    #[cold]
    #[inline(never)]
    fn take_other() -> Option<Self> {
        let thread = control_block();
        for (number, place) in (0..).zip(rarely(&POOL.own)) {
            // One of this thread, or of one that has ended. Else a free one, of which there
            // are none before.
            let order = Ordering::Relaxed;
            let owner = place.owner.compare_exchange(0, thread, order, order);
            if owner.is_ok() || owner == Err(thread) {
                thread_words().place.store(number, order);
                if let Some(own) = Self::take_own(place, thread) {
                    return Some(own);
                }
                break;
            }
        }
        rarely(&POOL.shared).iter().find_map(Self::take_shared)
    }

    fn take_shared(place: &'static Place) -> Option<Self> {
        let is_taken = &place.is_taken;
        let taken = is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Made only then: one that is dropped is given back.
        taken.is_ok().then(|| Self(place))
    }

    /// The rows that are kept there.
    #[inline]
    pub(crate) fn rows(&mut self) -> &mut RowCache<ROWS> {
        // SAFETY: the place is taken, and what took it is borrowed.
        unsafe { &mut *self.0.rows.get() }
    }
}

/// The same places, of which the compiler does not know how many they are: a loop that rarely
/// runs is to be small.
fn rarely(places: &[Place]) -> &[Place] {
    black_box(places)
}

impl Drop for Taken {
    #[inline]
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

/// Lets child processes begin with an empty pool, in which no place is taken by a thread
/// that they do not have.
pub(crate) fn wipe_on_fork() {
    let (first, len) = (&raw const POOL, size_of::<Pool>());
    // SAFETY: the advice is about whole pages of this static alone, for which all zeroes is a
    // valid value.
    let error = unsafe { libc::madvise(first.cast_mut().cast(), len, libc::MADV_WIPEONFORK) };
    if error == 0 {
        POOL.process.store(syscall::process_id(), Ordering::Relaxed);
    }
}

/// The number of this process.
pub(crate) fn process_id() -> u64 {
    match POOL.process.load(Ordering::Relaxed) {
        // Also in a child process.
        0 => syscall::process_id(),
        process => process,
    }
}
