//! What is to be told once, however often it is met: what was not used or did not answer, and what
//! goes without it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// How many are kept.
const LIMIT: usize = 64;

/// Lines to be told once: what was not used or did not answer, and what goes without it. Copies are the
/// same list.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<Kept>>);

/// Those that were not taken yet, and all.
#[derive(Debug, Default)]
struct Kept {
    new: Vec<String>,
    all: BTreeSet<String>,
}

impl Notices {
    /// Takes note of a line that a terminal may show. The same one is told once; 64 are kept in all.
    pub fn add(&self, notice: String) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.all.len() < LIMIT && kept.all.insert(notice.clone()) {
            kept.new.push(notice);
        }
    }

    /// What was added since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_a_bounded_number_in_all() {
        let notices = Notices::default();
        for _ in 0..3 {
            notices.add("a".into());
            notices.add("b".into());
        }
        assert_eq!(notices.take(), ["a", "b"]);
        (0..1000).for_each(|number| notices.add(number.to_string()));
        assert_eq!(notices.take().len(), LIMIT - 2);
    }
}
