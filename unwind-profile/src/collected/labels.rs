//! What tells a recording from others: for tables, and for those who receive profiles.

use std::time::SystemTime;

use chrono::{DateTime, NaiveDate};
#[cfg(any(feature = "otlp", feature = "parquet"))]
use sha2::{Digest as _, Sha256};
use unwind_target::Untrusted;

use crate::collected::call_tree::MAX_LABEL;
use crate::collected::time_line::TimeLine;
use crate::mapped::origin::{Moment, Origin};
use crate::session::ledger::Ledger;

/// What tells a recording from others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    /// To be shown as it is; empty if it is not known.
    pub(crate) host: String,
    /// The same, of what was recorded.
    pub(crate) release: Option<String>,
    /// One moment by the clock of the samples and by that of the wall.
    pub(crate) moment: Option<Moment>,
    /// The day if there is no moment.
    pub(crate) day: NaiveDate,
}

impl Labels {
    /// Those of a recording of this origin, which was written then, and what the user says of
    /// it.
    pub(crate) fn new(
        origin: &Origin,
        written: SystemTime,
        host: Option<Untrusted>,
        release: Option<Untrusted>,
    ) -> Self {
        let shown = |text: &Untrusted| text.escaped().at_most(MAX_LABEL).to_string();
        Self {
            host: host.as_ref().or(origin.host.as_ref()).map(shown).unwrap_or_default(),
            release: release.as_ref().map(shown),
            moment: origin.moment,
            day: day_of(written),
        }
    }

    /// Nanoseconds since 1970 of a time that a sample has.
    pub(crate) fn since_epoch(&self, time: u64) -> Option<u64> {
        self.moment?.since_epoch(time)
    }

    /// A number for the recording, which is the same whenever and however it is reported.
    #[cfg(any(feature = "otlp", feature = "parquet"))]
    pub(crate) fn id(&self, ledger: &Ledger, time_line: &TimeLine) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(&self.host);
        for number in [time_line.start(), time_line.duration(), ledger.written, ledger.lost] {
            hash.update(number.to_le_bytes());
        }
        hash.finalize().first_chunk().copied().unwrap_or_default()
    }
}

/// By the time of Greenwich.
fn day_of(time: SystemTime) -> NaiveDate {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(0);
    DateTime::from_timestamp_secs(seconds).map(|time| time.date_naive()).unwrap_or_default()
}
