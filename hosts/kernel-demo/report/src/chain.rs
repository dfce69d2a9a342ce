//! A chain of addresses in its parts.

use unwind_perf::record::{Context, Entry};

/// The parts of a chain, innermost address first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) kernel: Vec<u64>,
    pub(crate) user: Vec<u64>,
    /// Whether the boundary to user code is marked.
    pub(crate) has_user: bool,
}

impl Parts {
    /// Sorts out the words of a chain whose user part is there, or never comes.
    /// `None` if it has words that no chain of this kernel has.
    pub(crate) fn of(words: &[u64], deferred: bool) -> Option<Self> {
        // A user part that did not come leaves its mark and the cookie.
        let words = if deferred { words.split_last_chunk::<2>()?.0 } else { words };
        let mut parts = Self::default();
        let mut part = None;
        for &word in words {
            match Entry::from_word(word) {
                Entry::Context(Context::Kernel) if part.is_none() => part = Some(Context::Kernel),
                Entry::Context(Context::User) if part != Some(Context::User) => {
                    part = Some(Context::User);
                    parts.has_user = true;
                }
                Entry::Ip(ip) if part == Some(Context::Kernel) => parts.kernel.push(ip),
                Entry::Ip(ip) if part == Some(Context::User) => parts.user.push(ip),
                _ => return None,
            }
        }
        Some(parts)
    }
}
