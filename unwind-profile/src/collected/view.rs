//! What a report is made of.

use std::fmt::Write as _;

use unwind_target::counted::counted;

use crate::collected::call_tree::CallTree;
use crate::collected::labels::Labels;
use crate::collected::source_lines::SourceLines;
use crate::collected::time_line::TimeLine;
use crate::session::ledger::Ledger;

/// What there is to write.
#[derive(Clone, Copy, Debug)]
pub struct View<'v> {
    /// To be shown as it is.
    pub(crate) title: &'v str,
    pub(crate) profile: &'v CallTree,
    pub(crate) time_line: &'v TimeLine,
    pub(crate) ledger: &'v Ledger,
    pub(crate) labels: &'v Labels,
    pub(crate) lines: &'v SourceLines,
    /// Whether the text names options of the command.
    pub(crate) names_options: bool,
}

impl View<'_> {
    /// What the formats tell beside the samples: the ledger, and what was not kept.
    pub(crate) fn notes(&self) -> String {
        let mut notes = self.ledger.to_string();
        if self.profile.not_kept > 0 {
            let memory = if self.names_options { "--memory" } else { "the memory that it may use" };
            let _ = writeln!(
                notes,
                "of these, with their innermost function alone, so in no `total` of its callers: {}, as \
                 more does not fit into {memory}",
                counted(self.profile.not_kept, "sample", "samples")
            );
        }
        notes
    }
}
