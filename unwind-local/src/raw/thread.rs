//! What each thread has: its control block, and four words that begin as zero.

use core::sync::atomic::AtomicU64;

pub(crate) use super::machine::{control_block, thread_words};

/// What is kept of the thread.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadWords {
    /// From here on its own stack can be read; zero if nothing is known.
    pub(crate) start: AtomicU64,
    /// To here, which does not change while the thread runs.
    pub(crate) end: AtomicU64,
    /// The number of its place, if that says so, too.
    pub(crate) place: AtomicU64,
    /// The pages of its signal stack that can be read: the address of the first, and in the bits below a
    /// page how many. In one word, since a handler may store other pages at any time.
    pub(crate) signal_stack: AtomicU64,
}
