//! What goes into a merge, and how it ends.

use alloc::sync::Arc;

use crate::record::Task;
#[cfg(doc)]
use crate::record::UserPart;

/// Whose and when an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamped {
    /// The thread.
    pub task: Task,
    /// The time in nanoseconds; 0 in a stream without times, where the order of
    /// the records takes the place of time.
    pub time: u64,
}

/// Why a sample ended without its stack.
///
/// Several can hold; the first of these that does is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unmatched {
    /// The chain has a mark and no cookie ([`UserPart::CookieLost`]).
    NoCookie,
    /// The sample was dropped to keep the memory limit.
    Evicted,
    /// Its thread ended. Events of a task are gone before the stack of a
    /// dying thread is taken.
    Exit,
    /// Records were lost while it waited.
    Lost,
    /// Its thread called exec.
    Exec,
    /// Its thread moved to another cookie.
    NewerCookie,
    /// The input ended.
    End,
}

/// A stack for a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The user addresses, innermost first, without marks. All samples of one kernel
    /// entry share them.
    pub stack: Arc<[u64]>,
    /// Whether an exec lies between the sample and the record: the stack is
    /// that of the program *after* it.
    pub across_exec: bool,
    /// Whether the record came before the sample.
    pub late: bool,
}

/// How a sample ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its chain was whole, or has no user part.
    Inline,
    /// Its stack came.
    Merged(Merged),
    /// Its stack did not come, or cannot be identified.
    Unmatched {
        /// The cookie, unless the chain lacks it.
        cookie: Option<u64>,
        /// Why.
        reason: Unmatched,
    },
}
