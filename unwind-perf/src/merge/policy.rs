//! What a merge may wait for and hold.

#[cfg(doc)]
use super::Merger;

/// How long a [`Merger`] waits, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// How far out of order the input may be, in nanoseconds: an item is older
    /// than the newest item before it by no more than this.
    ///
    /// A cookie is over when a stack under a newer cookie of its thread is
    /// this old.
    pub window: u64,
    /// A cookie is also over when a sample under a newer cookie of its thread
    /// is this old, in nanoseconds, and the stack of that sample has not come.
    ///
    /// It matters where stacks are lost or not recorded at all.
    pub sample_window: u64,
    /// Whether cookies rise: of two cookies of a thread the greater one is that of the later
    /// kernel entry.
    ///
    /// So they do from every source in `unwind_core::deferred` but `PerCpuCookies`, which
    /// are Linux's. Then the merge goes by them and not by times, which may be equal, or of
    /// several CPUs' clocks, or absent.
    pub ascending_cookies: bool,
    /// How long after its thread's exit a record may come, in nanoseconds.
    ///
    /// An event of a CPU still receives the stack of a thread whose exit is
    /// already recorded.
    pub exit_lag: u64,
    /// About how many bytes of samples and stacks may be held.
    ///
    /// Above this limit stacks are dropped first, oldest first: most have been
    /// used. Then the oldest samples end unmatched.
    pub max_bytes: usize,
}

impl Default for Policy {
    /// 0.1 s out of order, one second after a sample or an exit, cookies as Linux's, 64 MiB.
    fn default() -> Self {
        Self {
            window: 100_000_000,
            sample_window: 1_000_000_000,
            ascending_cookies: false,
            exit_lag: 1_000_000_000,
            max_bytes: 64 << 20,
        }
    }
}

impl Policy {
    /// Sets [`window`](Self::window).
    #[must_use]
    pub const fn window(self, window: u64) -> Self {
        Self { window, ..self }
    }

    /// Sets [`sample_window`](Self::sample_window).
    #[must_use]
    pub const fn sample_window(self, sample_window: u64) -> Self {
        Self { sample_window, ..self }
    }

    /// Sets [`ascending_cookies`](Self::ascending_cookies).
    #[must_use]
    pub const fn ascending_cookies(self, ascending_cookies: bool) -> Self {
        Self { ascending_cookies, ..self }
    }

    /// Sets [`exit_lag`](Self::exit_lag).
    #[must_use]
    pub const fn exit_lag(self, exit_lag: u64) -> Self {
        Self { exit_lag, ..self }
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub const fn max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }
}
