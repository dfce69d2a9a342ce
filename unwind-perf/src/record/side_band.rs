//! Records about threads and losses, as far as merging and naming need them.

use super::encode::{Encode, Encoder, Output};
use super::header::{Misc, Record, RecordType};
use super::sample_id::{SampleId, Task, split_trailer};
use super::{Error, EventFormat};

/// A thread has a name (`PERF_RECORD_COMM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comm<'a> {
    /// The thread.
    pub task: Task,
    /// The name, as the bytes in front of the first zero.
    pub name: &'a [u8],
    /// Whether an exec gave it.
    pub exec: bool,
    /// When and where.
    pub id: SampleId,
}

impl<'a> Comm<'a> {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] or [`Error::Truncated`] if the record does not
    /// have this layout.
    pub fn decode(record: &Record<'a>, format: EventFormat) -> Result<Self, Error> {
        let (mut c, id) = split_trailer(record.body_of(RecordType::COMM)?, format)?;
        let task = Task { pid: c.u32()?, tid: c.u32()? };
        let name = c.left().split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Self { task, name, exec: record.header().misc.contains(Misc::COMM_EXEC), id })
    }
}

/// A thread starts or ends (`PERF_RECORD_FORK`, `PERF_RECORD_EXIT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// Whether it ends.
    pub exit: bool,
    /// The thread.
    pub task: Task,
    /// The thread that started it.
    pub parent: Task,
    /// When, in nanoseconds.
    pub time: u64,
    /// When and where.
    pub id: SampleId,
}

impl Lifecycle {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::Truncated`] or [`Error::Trailing`] if
    /// the record does not have this layout.
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        let exit = record.kind() == RecordType::EXIT;
        let kind = if exit { RecordType::EXIT } else { RecordType::FORK };
        let (mut c, id) = split_trailer(record.body_of(kind)?, format)?;
        let (pid, parent_pid, tid, parent_tid) = (c.u32()?, c.u32()?, c.u32()?, c.u32()?);
        let time = c.u64()?;
        c.finish()?;
        Ok(Self {
            exit,
            task: Task { pid, tid },
            parent: Task { pid: parent_pid, tid: parent_tid },
            time,
            id,
        })
    }
}

/// Records found no room in the ring (`PERF_RECORD_LOST`).
///
/// The kernel counts samples and other records alike, and names the event
/// that noticed, not the one that lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The event that noticed.
    pub event: u64,
    /// How many records.
    pub count: u64,
    /// When and where it was noticed.
    pub id: SampleId,
}

impl Lost {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::Truncated`] or [`Error::Trailing`] if
    /// the record does not have this layout.
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        let (mut c, id) = split_trailer(record.body_of(RecordType::LOST)?, format)?;
        let (event, count) = (c.u64()?, c.u64()?);
        c.finish()?;
        Ok(Self { event, count, id })
    }
}

impl Encode for Lost {
    fn kind(&self) -> RecordType {
        RecordType::LOST
    }

    fn misc(&self) -> Misc {
        Misc::UNKNOWN
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u64(self.event);
        e.u64(self.count);
        self.id.encode(format, e)
    }
}
