//! The section of a recording that has its ledger, which `unwind record` and this library write.

use std::path::Path;

use serde::{Deserialize, Serialize};
use unwind_target::untrusted::escaped;

use crate::engine::drained::Drained;
use crate::recording::error::PerfError;
use crate::recording::header::Feature;
use crate::recording::reader::PerfReader;
use crate::session::ledger::Ledger;
use crate::session::told::Told;
use crate::walks::marks::Marks;
use crate::walks::tally::Tally;

/// What the ledger's section holds, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct LedgerSection {
    pub ledger: Ledger,
    /// The samples whose stacks are not complete: time in nanoseconds, thread, reason.
    pub incomplete: Vec<(u64, u32, String)>,
    /// The recorder has not come to the end of the file yet, or never: losses are not in the ledger.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_unfinished: bool,
    /// Those samples were too many to list them all.
    #[serde(default, rename = "lists_none", skip_serializing_if = "is_false")]
    is_cut: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// How many incomplete samples are listed in a file that is not finished.
const MAX_LISTED: usize = 1 << 14;

impl LedgerSection {
    /// Of a whole recording with these marks, and with more if these are cut.
    pub(crate) fn of_marks(ledger: Ledger, marks: &Marks) -> Self {
        let listed = marks.listed.iter();
        let incomplete =
            listed.map(|mark| (mark.time, mark.thread, mark.reason.to_owned())).collect();
        Self { ledger, incomplete, is_unfinished: false, is_cut: marks.is_cut }
    }

    /// The same of what is written so far.
    pub(crate) fn of_marks_so_far(ledger: Ledger, marks: &Marks) -> Self {
        let none = Marks { listed: Vec::new(), is_cut: true };
        let section =
            Self::of_marks(ledger, if marks.listed.len() > MAX_LISTED { &none } else { marks });
        Self { is_unfinished: true, ..section }
    }

    /// Of what is written so far.
    pub(crate) fn so_far(tally: &Tally, told: &Told, events: &[String]) -> Self {
        let ledger = Ledger::of(Drained::default(), tally, tally.unmatched, told);
        let ledger = Ledger { written: ledger.classified(), ..ledger };
        let ledger = ledger.with_events(events, None, tally);
        Self::of_marks_so_far(ledger, tally.marks.as_ref().unwrap_or(&Marks::default()))
    }

    /// Whether the stacks that it does not list are complete. Those that the kernel has walked may
    /// be or not.
    #[must_use]
    pub const fn others_are_complete(&self) -> bool {
        self.ledger.unchecked == 0 && !self.is_cut
    }
}

/// What is told of a recording whose recorder was ended before it could write the end.
#[must_use]
pub fn unfinished(path: &Path) -> String {
    format!(
        "{}: the recorder was ended before it could finish the file; what it has is read, and what was lost \
         is not known",
        escaped(path)
    )
}

/// What a recording of `unwind record` says of itself.
///
/// # Errors
///
/// [`PerfError`] if it cannot be read.
pub fn told(reader: &mut PerfReader) -> Result<Option<LedgerSection>, PerfError> {
    let Some(place) = reader.place_of(Feature::LEDGER)? else { return Ok(None) };
    let section = reader.section("ledger", place)?;
    let bad = PerfError::BadSection { part: "ledger", at: place.at, len: place.len };
    ledger_of(&section).map(Some).ok_or(bad)
}

/// What the bytes of the ledger's section say; `None` if they are none.
#[must_use]
pub fn ledger_of(section: &[u8]) -> Option<LedgerSection> {
    let mut told: LedgerSection = serde_json::from_slice(section).ok()?;
    // Its words come from outside.
    let shown = |reason: &str| escaped(reason).at_most(MAX_REASON).to_string();
    let reasons = std::mem::take(&mut told.ledger.incomplete);
    for (reason, count) in reasons {
        let sum = told.ledger.incomplete.entry(shown(&reason)).or_default();
        *sum = sum.saturating_add(count);
    }
    told.incomplete.iter_mut().for_each(|(_, _, reason)| *reason = shown(reason));
    Some(told)
}

/// The longest word for a reason, in characters.
const MAX_REASON: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::marks::{LIMIT, Mark};

    #[test]
    fn marks_are_listed_up_to_a_limit_and_then_no_other_stack_counts_as_complete() {
        let mut marks = Marks::default();
        let mark = Mark {
            time: 999_999_999_999_999,
            thread: 4_000_000,
            reason: "frame-pointer-below-stack",
        };
        for _ in 0..LIMIT {
            marks.add(mark);
        }
        let section = |marks: &Marks| LedgerSection::of_marks(Ledger::new(), marks);
        assert!(section(&marks).others_are_complete());
        marks.add(mark);
        assert_eq!(marks.listed.len(), LIMIT);
        assert!(!section(&marks).others_are_complete());
        // It can be read, however long the words are.
        assert!(serde_json::to_vec(&section(&marks)).unwrap().len() < 64 << 20);
        // What is written each second lists few.
        let so_far = LedgerSection::of_marks_so_far(Ledger::new(), &marks);
        assert!(so_far.incomplete.is_empty() && !so_far.others_are_complete());
    }
}
