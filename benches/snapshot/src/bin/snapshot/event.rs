//! A sampling event of the kernel and the ring of records that it fills.

use std::io;

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{
    AttrFlags, BranchSampleType, Endian, EventFormat, ReadFormat, SampleType,
};
use unwind_perf::ring::RingReader;
use unwind_profile::engine::perf_event::{EventRing, PerfEvent};

use crate::error::Error;

/// What is sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attr {
    /// Samples a second of CPU time.
    pub(crate) rate: u32,
    /// Bytes of stack.
    pub(crate) stack: u32,
    /// Start at an exec, else at once.
    pub(crate) on_exec: bool,
}

/// The fields of a sample: those that tools need of one whose stack is walked later.
pub(crate) const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IP
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::PERIOD)
        .union(SampleType::CALLCHAIN)
        .union(SampleType::REGS_USER)
        .union(SampleType::STACK_USER),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::EXCLUDE_KERNEL
        .union(AttrFlags::EXCLUDE_HV)
        .union(AttrFlags::FREQ)
        .union(AttrFlags::SAMPLE_ID_ALL)
        .union(AttrFlags::EXCLUDE_CALLCHAIN_USER),
    branch_sample_type: BranchSampleType::empty(),
};

/// The general registers, rip, flags, cs and ss, by the kernel's numbers.
const REGISTERS: u64 = 0xff_0fff;

impl Attr {
    fn event_attr(&self) -> EventAttr {
        const SOFTWARE: u32 = 1;
        let mut attr = EventAttr::default();
        // Its config is the clock of the CPU, 0.
        (attr.kind, attr.size) = (SOFTWARE, 128);
        attr.sample_period = self.rate.into();
        attr.sample_type = FORMAT.sample_type;
        attr.flags = FORMAT.flags
            | AttrFlags::INHERIT
            | AttrFlags::MMAP
            | AttrFlags::MMAP2
            | AttrFlags::BUILD_ID
            | AttrFlags::COMM
            | AttrFlags::COMM_EXEC
            | AttrFlags::TASK;
        if self.on_exec {
            attr.flags |= AttrFlags::DISABLED | AttrFlags::ENABLE_ON_EXEC;
        }
        attr.sample_regs_user = REGISTERS;
        // The kernel takes multiples of eight.
        attr.sample_stack_user = self.stack & !7;
        attr
    }

    /// A `perf_event_attr`, as words.
    pub(crate) fn words(&self) -> [u64; 16] {
        let mut bytes = [0; 128];
        let mut words = [0; 16];
        if self.event_attr().encode(&mut bytes, Endian::Little).is_some() {
            let (chunks, _) = bytes.as_chunks();
            words.iter_mut().zip(chunks).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
        }
        words
    }
}

/// Bytes of records, a power of two.
const RING: usize = 8 << 20;

/// An open event and its ring.
#[derive(Debug)]
pub(crate) struct Event {
    ring: EventRing,
    _event: PerfEvent,
}

impl Event {
    /// Opens an event of the thread `task`, 0 for this one, and of those that
    /// it will start, while they run on `cpu`.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] and [`Error::Map`].
    pub(crate) fn open(attr: &Attr, task: i32, cpu: i32) -> Result<Self, Error> {
        let event = PerfEvent::open(&attr.event_attr(), task, cpu).map_err(Error::Open)?;
        let ring = event.map(RING).map_err(Error::Map)?;
        Ok(Self { ring, _event: event })
    }

    /// Moves all records that are in the ring to the end of `records`.
    ///
    /// # Errors
    ///
    /// [`Error::Map`] if the kernel's ring is none.
    pub(crate) fn drain(&mut self, records: &mut Vec<u8>) -> Result<(), Error> {
        let is_none = |error| Error::Map(io::Error::other(error));
        let mut reader = self.ring.reader().map_err(is_none)?;
        let mut buf = vec![0; RingReader::MAX_RECORD];
        while let Some(record) = reader.next(&mut buf).map_err(is_none)? {
            records.extend(record.bytes());
        }
        Ok(())
    }
}
