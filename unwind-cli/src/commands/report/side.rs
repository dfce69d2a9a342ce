//! One of two recordings that stand beside each other.

use crate::commands::record::ledger::Ledger;
use crate::commands::report::profile::Profile;

/// One of the two recordings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'s> {
    /// To be shown as it is.
    pub(crate) title: &'s str,
    pub(crate) profile: &'s Profile,
    pub(crate) ledger: &'s Ledger,
}
