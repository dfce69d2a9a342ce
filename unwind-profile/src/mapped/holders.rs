//! The processes that have mapped a file of a recording while it runs.

use std::sync::{Mutex, PoisonError};

use unwind_target::files::mapped_file::Holder;

/// The most that are kept of a file.
const MOST: usize = 8;

/// Processes that have mapped a file, any of which may have ended: the first one, which others may be children of, and
/// the newest ones.
#[derive(Debug, Default)]
pub(crate) struct Holders(Mutex<Vec<Holder<'static>>>);

impl Holders {
    /// Takes note of one more.
    pub(crate) fn add(&self, holder: Holder<'static>) {
        let mut holders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.iter().any(|known| known.thread == holder.thread) {
            return;
        }
        if holders.len() == MOST {
            holders.remove(1);
        }
        holders.push(holder);
    }

    /// All that are kept, the newest first, and the first one last.
    pub(crate) fn newest_first(&self) -> Vec<Holder<'static>> {
        let holders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holders.iter().rev().cloned().collect()
    }

    /// Whether no process is known to have it.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_the_first_process_and_the_newest_ones_are_kept() {
        let holders = Holders::default();
        assert!(holders.is_empty());
        for thread in (1..=20).flat_map(|thread| [thread, thread]) {
            holders.add(Holder { thread, root: None, range: 0..1 });
        }
        let threads = holders.newest_first().into_iter().map(|holder| holder.thread);
        assert_eq!(threads.collect::<Vec<_>>(), [20, 19, 18, 17, 16, 15, 14, 1]);
        assert!(!holders.is_empty());
    }
}
