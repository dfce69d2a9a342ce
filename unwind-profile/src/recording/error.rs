//! What can go wrong with a `perf.data`.

use std::io;
use std::path::PathBuf;

use unwind_perf::record;
use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;

/// Why a `perf.data` could not be read whole, or its merge not be written.
///
/// What was read before the fault has been shown or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// Neither magic number.
    #[error("not a perf.data file")]
    NotPerfData,
    /// A header of a size that no known version of the format has.
    #[error("a perf.data with a header of {0} bytes, which is not known")]
    UnknownHeader(u64),
    /// The file form needs to be read out of order.
    #[error("has the file form of perf.data, which cannot be read from a pipe; name the file")]
    FileFormOnPipe,
    /// The same for writing.
    #[error("has the file form of perf.data, which cannot be written to a pipe; name a file by -o")]
    FileFormToPipe,
    /// A part of the header points outside the file, or is too large to be
    /// true.
    #[error("damaged: its {part} ({} at {at:#x}) cannot be", counted(*len, "byte", "bytes"))]
    BadSection {
        /// What it holds.
        part: &'static str,
        /// Where it is said to be.
        at: u64,
        /// How long it is said to be.
        len: u64,
    },
    /// Lists of event ids that overlap.
    #[error(
        "damaged: its lists of event ids share bytes: that of {} at {at:#x} makes them longer than \
         the file",
        counted(*len, "byte", "bytes")
    )]
    SharedIds {
        /// Where the first list is that does not fit.
        at: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// Feature sections that overlap.
    #[error(
        "damaged: its feature sections share bytes: that of {} at {at:#x} makes them longer than \
         the file",
        counted(*len, "byte", "bytes")
    )]
    SharedSections {
        /// Where the first section is that does not fit.
        at: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A description of an event cannot be read.
    #[error("damaged: event {index}: {error}")]
    BadEvent {
        /// Which event, counted from zero.
        index: usize,
        /// What is wrong with it.
        #[source]
        error: record::Error,
    },
    /// More events than any recording has.
    #[error("damaged: more than {0} events")]
    TooManyEvents(usize),
    /// Records, but no description of an event.
    #[error("describes no event, so its records cannot be read")]
    NoEvents,
    /// The events have different layouts and no id that tells them apart.
    #[error(transparent)]
    MixedEvents(record::Error),
    /// The file ends before its data do.
    #[error("cut off: the record at {at:#x} is not whole")]
    CutOff {
        /// Where the record starts.
        at: u64,
    },
    /// The recorder was killed before it wrote the length of the data.
    #[error("not finished by its recorder; all records up to its end were read")]
    Unfinished,
    /// A record with a size that leaves the rest unreadable.
    #[error("damaged at {at:#x}: {error}")]
    BadRecord {
        /// Where the record starts.
        at: u64,
        /// What is wrong with it.
        #[source]
        error: record::Error,
    },
    /// Records that were left out; the others were read.
    #[error(
        "damaged: {} left out, the first at {at:#x} ({fault})",
        counted(*count, "record was", "records were")
    )]
    BadRecords {
        /// How many.
        count: u64,
        /// Where the first one starts.
        at: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A folder, as a recorder with several threads makes it.
    #[error("a folder; recordings of `perf record --threads` are not supported")]
    Directory,
    /// Compressed records that cannot be decompressed.
    #[error("damaged: the compressed records before {at:#x} cannot be decompressed")]
    BadCompression {
        /// Where the one ends that was read last.
        at: u64,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Input and output are one file.
    #[error("cannot be merged into itself; name another file by -o")]
    SameFile,
}

/// Why a record was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It does not have the layout that its event asks for.
    #[error(transparent)]
    Layout(#[from] record::Error),
    /// No event has this id.
    #[error("no event has the id {0}")]
    UnknownEvent(u64),
}

/// What is wrong with a recording, or with what is written of it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", escaped(path))]
pub struct RecordingError {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong.
    #[source]
    pub error: PerfError,
}
