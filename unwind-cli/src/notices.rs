//! What a user is told once, however often it is met: what was not used or did not answer, and
//! what goes without it. It is told when the command is done, as a screen or a bar may be shown
//! before.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

/// How many are kept.
const LIMIT: usize = 64;

/// Those that are not told yet, and those that are.
static NOTICES: Mutex<Notices> = Mutex::new(Notices { new: Vec::new(), all: BTreeSet::new() });

#[derive(Debug)]
struct Notices {
    new: Vec<String>,
    all: BTreeSet<String>,
}

impl Notices {
    fn add(&mut self, notice: String) {
        if self.all.len() < LIMIT && self.all.insert(notice.clone()) {
            self.new.push(notice);
        }
    }
}

/// Takes note of a line that a terminal may show. The same one is told once.
pub(crate) fn add(notice: String) {
    NOTICES.lock().unwrap_or_else(PoisonError::into_inner).add(notice);
}

/// Tells what was not told yet.
pub(crate) fn tell() {
    let new = {
        let mut notices = NOTICES.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut notices.new)
    };
    for notice in new {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {notice}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_and_a_bounded_number_in_all() {
        let mut notices = Notices { new: Vec::new(), all: BTreeSet::new() };
        for _ in 0..3 {
            notices.add("a".into());
            notices.add("b".into());
        }
        assert_eq!(notices.new, ["a", "b"]);
        (0..1000).for_each(|number| notices.add(number.to_string()));
        assert_eq!(notices.new.len(), LIMIT);
    }
}
