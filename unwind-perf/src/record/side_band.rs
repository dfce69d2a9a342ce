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

impl Encode for Comm<'_> {
    fn kind(&self) -> RecordType {
        RecordType::COMM
    }

    fn misc(&self) -> Misc {
        if self.exec { Misc::COMM_EXEC } else { Misc::UNKNOWN }
    }

    /// Writes the name and at least one zero after it, up to a whole word.
    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u32(self.task.pid);
        e.u32(self.task.tid);
        let name = self.name.split(|&byte| byte == 0).next().unwrap_or_default();
        e.bytes(name);
        let padding = [0; size_of::<u64>()];
        e.bytes(padding.get(name.len() & 7..).unwrap_or_default());
        self.id.encode(format, e)
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

impl Encode for Lifecycle {
    fn kind(&self) -> RecordType {
        if self.exit { RecordType::EXIT } else { RecordType::FORK }
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        for word in [self.task.pid, self.parent.pid, self.task.tid, self.parent.tid] {
            e.u32(word);
        }
        e.u64(self.time);
        self.id.encode(format, e)
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

#[cfg(all(test, feature = "alloc"))]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::record::{AttrFlags, Endian, SampleType};

    /// Records end in who and when.
    const FORMAT: EventFormat = EventFormat {
        sample_type: SampleType::TID.union(SampleType::TIME),
        read_format: crate::record::ReadFormat::empty(),
        flags: AttrFlags::SAMPLE_ID_ALL,
        branch_sample_type: crate::record::BranchSampleType::empty(),
    };
    const TASK: Task = Task { pid: 7, tid: 8 };

    fn id() -> SampleId {
        SampleId { task: Some(TASK), time: Some(0x1122), ..SampleId::default() }
    }

    #[expect(clippy::unwrap_used, reason = "tests")]
    fn encoded(record: &impl Encode) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_name_is_padded_to_a_word_with_at_least_one_zero() {
        for (name, padded) in [(&b""[..], 8), (b"a", 8), (b"seven77", 8), (b"eight888", 16)] {
            let comm = Comm { task: TASK, name, exec: true, id: id() };
            let bytes = encoded(&comm);
            assert_eq!(bytes.len(), 8 + 8 + padded + 16, "{name:?}");
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            assert_eq!(Comm::decode(&record, FORMAT), Ok(comm));
        }
        // The bytes after a zero are not part of the name.
        let cut = Comm { task: TASK, name: b"cut\0off", exec: false, id: id() };
        let bytes = encoded(&cut);
        let record = Record::parse(&bytes, Endian::Little).unwrap();
        assert_eq!(Comm::decode(&record, FORMAT), Ok(Comm { name: b"cut", ..cut }));
    }

    #[test]
    fn a_fork_and_an_exit_differ_in_the_type_alone() {
        let parent = Task { pid: 5, tid: 6 };
        let fork = Lifecycle { exit: false, task: TASK, parent, time: 0x33, id: id() };
        let exit = Lifecycle { exit: true, ..fork };
        let bytes = encoded(&fork);
        let expected: &[u8] = &[
            7, 0, 0, 0, 0, 0, 48, 0, // type, misc, size
            7, 0, 0, 0, 5, 0, 0, 0, // pid, the parent's
            8, 0, 0, 0, 6, 0, 0, 0, // tid, the parent's
            0x33, 0, 0, 0, 0, 0, 0, 0, // time
            7, 0, 0, 0, 8, 0, 0, 0, // sample_id: pid, tid
            0x22, 0x11, 0, 0, 0, 0, 0, 0, // sample_id: time
        ];
        assert_eq!(bytes, expected);
        for lifecycle in [fork, exit] {
            let bytes = encoded(&lifecycle);
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            assert_eq!(Lifecycle::decode(&record, FORMAT), Ok(lifecycle));
        }
        assert_eq!(encoded(&exit)[1..], bytes[1..]);
    }
}
