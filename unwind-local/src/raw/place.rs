//! Memory for walks, in places that are taken without waiting.

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use unwind_core::{PackedFrame, RowCache, Trace};

use super::thread::control_block;

/// The most frames of a walk.
pub const MAX_FRAMES: usize = 1024;

/// How many rows a place keeps.
pub(crate) const ROWS: usize = 512;

/// How many walks can be under way at a time with a place of their own.
const PLACES: usize = 16;

/// What a walk keeps for later ones, and where its frames go.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) rows: RowCache<ROWS>,
    pub(crate) trace: Trace<[PackedFrame; MAX_FRAMES]>,
}

struct Place {
    is_taken: AtomicBool,
    workspace: UnsafeCell<Workspace>,
}

/// Whole pages, which a child process finds zeroed: all zeroes is the beginning.
#[repr(C, align(4096))]
struct Pool([Place; PLACES]);

// SAFETY: `is_taken` says who alone may use a workspace.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool(
    [const {
        Place {
            is_taken: AtomicBool::new(false),
            workspace: UnsafeCell::new(Workspace { rows: RowCache::new(), trace: Trace::new() }),
        }
    }; PLACES],
);

/// A place that is this walk's until it is dropped.
pub(crate) struct Taken(&'static Place);

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").finish_non_exhaustive()
    }
}

impl Taken {
    /// The first free place from that on which this thread had last time, most likely.
    #[inline]
    pub(crate) fn take() -> Option<Self> {
        let hash = (control_block() >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let first = usize::try_from(hash).unwrap_or(0).checked_rem(PLACES).unwrap_or(0);
        POOL.0.get(first).and_then(Self::take_this).or_else(|| Self::take_after(first))
    }

    #[inline]
    fn take_this(place: &'static Place) -> Option<Self> {
        let is_taken = &place.is_taken;
        let taken = is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Made only then: one that is dropped is given back.
        taken.is_ok().then(|| Self(place))
    }

    #[cold]
    #[inline(never)]
    fn take_after(first: usize) -> Option<Self> {
        let (before, after) = POOL.0.split_at_checked(first)?;
        after.iter().skip(1).chain(before).find_map(Self::take_this)
    }

    #[inline]
    pub(crate) fn workspace(&mut self) -> &mut Workspace {
        // SAFETY: the place is taken, and what took it is borrowed.
        unsafe { &mut *self.0.workspace.get() }
    }
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
    unsafe { libc::madvise(first.cast_mut().cast(), len, libc::MADV_WIPEONFORK) };
}
