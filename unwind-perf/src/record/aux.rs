//! Records about the AUX area, where hardware writes traces.

use bitflags::bitflags;

use super::encode::{Encode, Encoder, Output};
use super::header::{Record, RecordType};
use super::sample_id::{SampleId, Task, split_trailer};
use super::{Error, EventFormat};

bitflags! {
    /// What there is to know of a piece of a trace (`PERF_AUX_FLAG_…`).
    ///
    /// Bits without a name here are kept; bits 8 to 15 are the format of the trace.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AuxFlags: u64 {
        /// The area was full: the end of the piece is missing (`TRUNCATED`).
        const TRUNCATED = 1 << 0;
        /// The area is overwritten; the piece is a snapshot of it (`OVERWRITE`).
        const OVERWRITE = 1 << 1;
        /// Parts in between may be missing (`PARTIAL`).
        const PARTIAL = 1 << 2;
        /// Another trace of the CPU got in the way (`COLLISION`).
        const COLLISION = 1 << 3;
    }
}

/// A piece of a trace lies in the AUX area (`PERF_RECORD_AUX`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aux {
    /// Its position in the area.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// What there is to know of it.
    pub flags: AuxFlags,
    /// When and where.
    pub id: SampleId,
}

impl Aux {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::Truncated`] or [`Error::Trailing`] if the record does
    /// not have this layout.
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        let (mut c, id) = split_trailer(record.body_of(RecordType::AUX)?, format)?;
        let (offset, len, flags) = (c.u64()?, c.u64()?, AuxFlags::from_bits_retain(c.u64()?));
        c.finish()?;
        Ok(Self { offset, len, flags, id })
    }
}

impl Encode for Aux {
    fn kind(&self) -> RecordType {
        RecordType::AUX
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u64(self.offset);
        e.u64(self.len);
        e.u64(self.flags.bits());
        self.id.encode(format, e)
    }
}

/// The trace of a thread begins (`PERF_RECORD_ITRACE_START`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItraceStart {
    /// The thread.
    pub task: Task,
    /// When and where.
    pub id: SampleId,
}

impl ItraceStart {
    /// Decodes a record that an event with `format` received.
    ///
    /// # Errors
    ///
    /// As [`Aux::decode`].
    pub fn decode(record: &Record<'_>, format: EventFormat) -> Result<Self, Error> {
        let (mut c, id) = split_trailer(record.body_of(RecordType::ITRACE_START)?, format)?;
        let task = Task { pid: c.u32()?, tid: c.u32()? };
        c.finish()?;
        Ok(Self { task, id })
    }
}

impl Encode for ItraceStart {
    fn kind(&self) -> RecordType {
        RecordType::ITRACE_START
    }

    fn encode_body<O: Output>(
        &self,
        format: EventFormat,
        e: &mut Encoder<'_, O>,
    ) -> Result<(), Error> {
        e.u32(self.task.pid);
        e.u32(self.task.tid);
        self.id.encode(format, e)
    }
}
