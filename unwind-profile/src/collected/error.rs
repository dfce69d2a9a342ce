//! What can go wrong when recordings are read.

use unwind_target::Untrusted;

use crate::recording::error::RecordingError;
use crate::session::ledger::LedgerError;
use crate::walks::chosen_event::{NoEvent, listed};

/// Why recordings cannot be read, or not as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadingError {
    /// A file cannot be read, or not to its end.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// None of the files can be read, each for its reason, or there is none.
    #[error("{}", all_of(_0))]
    NoRecording(Vec<Self>),
    /// There is no such event.
    #[error(transparent)]
    NoEvent(#[from] NoEvent),
    /// There are several events.
    #[error(transparent)]
    SeveralEvents(#[from] SeveralEvents),
    /// Not all samples were found that the ledger counts.
    #[error(transparent)]
    MissingSamples(#[from] MissingSamples),
    /// The ledger does not add up.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

fn all_of(errors: &[ReadingError]) -> String {
    if errors.is_empty() {
        return "there is no recording".to_owned();
    }
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

/// How the reading of recordings ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// What was left out because of limits, a line each.
    pub warnings: Vec<String>,
    /// What could not be read, and ledgers that do not add up.
    pub errors: Vec<ReadingError>,
}

/// There are several events, and the output is of one.
#[derive(Debug, thiserror::Error)]
#[error("{}: there are several events, which cannot be added up: {}", path, listed(events))]
pub struct SeveralEvents {
    /// The recording, to be shown as it is.
    pub path: String,
    /// The names of the events, and how many samples each has.
    pub events: Vec<(Untrusted, u64)>,
}

/// A recording does not have the samples that its ledger counts.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the recording has {found} samples, and its ledger is about {told}")]
pub struct MissingSamples {
    pub(crate) found: u64,
    pub(crate) told: u64,
}
