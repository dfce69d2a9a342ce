//! What the kernel's records hold: said once, for the kernel, which writes them,
//! and for the report, which reads them.
#![no_std]

use unwind_perf::record::{
    AttrFlags, BranchSampleType, EventFormat, ReadFormat, RecordType, SampleType,
};

/// The fields of all records.
///
/// The stream id is not what its name says: it is how often the task had gone
/// back to user mode, plus one, or zero where that was about to change. It
/// comes from the kernel's own count, not from the unwinder, so it is a second
/// opinion on which stack belongs to which sample.
pub const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IDENTIFIER
        .union(SampleType::IP)
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::STREAM_ID)
        .union(SampleType::CPU)
        .union(SampleType::CALLCHAIN),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::SAMPLE_ID_ALL
        .union(AttrFlags::DEFER_CALLCHAIN)
        .union(AttrFlags::DEFER_OUTPUT),
    branch_sample_type: BranchSampleType::empty(),
};

/// The event of the profiler, by number.
pub const PROFILER: u64 = 1;
/// The event of the system-call tracer.
pub const TRACER: u64 = 2;

/// The profiler's event of the timer on several CPUs: with [`INSTRUCTIONS`] it gets each
/// stack once.
pub const CYCLES: u64 = 3;
/// The profiler's event of the counter of user instructions.
pub const INSTRUCTIONS: u64 = 4;
/// An event of the timer that gets all stacks that it or [`SPANS`] asks for.
pub const WATCHER: u64 = 5;
/// An event of the counter that wants no records of stacks.
pub const SPANS: u64 = 6;

/// An event that is bound to a task, one on each CPU, and that children inherit.
pub const FOLLOWER: u64 = 7;
/// An event that is bound to a task and to no CPU.
pub const OWN: u64 = 8;

/// A mark after each round through the rings, as the readers of Linux's rings
/// write it (`PERF_RECORD_FINISHED_ROUND`): records after a mark are not older
/// than records before the previous mark.
pub const FINISHED_ROUND: RecordType = RecordType(68);
