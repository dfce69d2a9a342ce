//! The attrs of the kernel's events: of one that tells of processes, and of those that take samples.

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{AttrFlags, ReadFormat, SampleType};

use crate::engine::requested::{Requested, TracepointError};
use crate::engine::sampling::{Often, Sampling, UserStacks, Whom};

/// The general registers and rip, by the kernel's numbers. Each one takes the time that half a KiB of
/// stack does.
pub(crate) const REGISTERS: u64 = 0xff_01ff;

/// The type of tracepoints.
const TRACEPOINT: u32 = 2;

/// Cycles of the CPU, and the clock where there are none to be had.
pub(crate) const EVENTS: [(u32, u64); 2] = [(0, 0), CPU_CLOCK];

/// The time that a thread runs, in nanoseconds.
pub(crate) const CPU_CLOCK: (u32, u64) = (1, 0);

/// What reading an event gives: its count, how long it ran, and how many records were lost.
pub(crate) const COUNTS: ReadFormat = ReadFormat::TOTAL_TIME_RUNNING.union(ReadFormat::LOST);

/// Switches of a CPU from one thread to another.
pub(crate) const SWITCHES: (u32, u64) = (1, 3);

/// The event that never takes a sample.
pub(crate) const DUMMY: (u32, u64) = (1, 9);

/// What tells of processes. One event has it, which stays on while others are changed for
/// each other.
const SIDE_BAND: AttrFlags = AttrFlags::MMAP
    .union(AttrFlags::MMAP2)
    .union(AttrFlags::BUILD_ID)
    .union(AttrFlags::COMM)
    .union(AttrFlags::COMM_EXEC)
    .union(AttrFlags::CONTEXT_SWITCH)
    .union(AttrFlags::TASK);

/// An event whose samples have the usual fields and call chains.
pub(crate) fn with_call_chains((kind, config): (u32, u64)) -> EventAttr {
    let mut attr = EventAttr::default();
    (attr.kind, attr.config) = (kind, config);
    // The length with the last field that is used here: older kernels take it, too.
    attr.size = 112;
    attr.sample_type = SampleType::IP
        | SampleType::TID
        | SampleType::TIME
        | SampleType::CPU
        | SampleType::PERIOD
        | SampleType::CALLCHAIN;
    // That of the wall is told beside it, and compilers of running programs use it, too.
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr
}

/// How an event is to take samples.
pub(crate) fn attr(sampling: &Sampling, event: (u32, u64)) -> EventAttr {
    let mut attr = with_call_chains(event);
    attr.read_format = COUNTS;
    if sampling.off_cpu || sampling.events.len() > 1 {
        attr.sample_type |= SampleType::IDENTIFIER;
    }
    attr.flags = SIDE_BAND
        | AttrFlags::USE_CLOCKID
        | AttrFlags::INHERIT
        | AttrFlags::SAMPLE_ID_ALL
        | AttrFlags::EXCLUDE_HV
        | AttrFlags::EXCLUDE_GUEST
        | AttrFlags::WATERMARK;
    set_often(&mut attr, sampling.often);
    attr.flags.set(AttrFlags::CONTEXT_SWITCH, sampling.off_cpu);
    if matches!(sampling.whom, Whom::Command(_)) {
        attr.flags |= AttrFlags::DISABLED | AttrFlags::ENABLE_ON_EXEC;
    }
    match &sampling.user_stacks {
        UserStacks::Copied(copies) | UserStacks::Any(copies, _) => {
            attr.sample_type |= SampleType::REGS_USER | SampleType::STACK_USER;
            attr.sample_regs_user = REGISTERS;
            attr.sample_stack_user = in_words(copies.sizes.first_bytes());
            attr.flags.set(AttrFlags::EXCLUDE_CALLCHAIN_USER, !copies.with_chains);
            attr.flags.set(AttrFlags::MMAP_DATA, copies.with_data);
        }
        // Not by the kernel itself: it would walk along frame pointers.
        UserStacks::Walked(_) | UserStacks::Module(_) => {
            attr.flags |= AttrFlags::EXCLUDE_CALLCHAIN_USER
        }
        UserStacks::Deferred => {
            attr.flags |= AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
        }
    }
    attr
}

/// Has samples be taken so often. Of a tracepoint each hit is one, unless it is said how many make one.
fn set_often(attr: &mut EventAttr, often: Often) {
    attr.flags.remove(AttrFlags::FREQ);
    attr.sample_period = match often {
        Often::Each(count) => {
            // With it software events take a sample each time, and say how much was counted.
            attr.sample_type.remove(SampleType::PERIOD);
            count
        }
        Often::Rate(_) if attr.kind == TRACEPOINT => 1,
        Often::Rate(rate) => {
            attr.flags |= AttrFlags::FREQ;
            rate.into()
        }
    };
}

/// The attr of an event that was asked for, in other ways like one that the kernel takes.
pub(crate) fn of_requested(
    attr: &EventAttr,
    requested: &Requested,
    often: Often,
) -> Result<EventAttr, TracepointError> {
    let mut attr = *attr;
    (attr.kind, attr.config) = requested.numbers()?;
    set_often(&mut attr, often);
    // What it is limited to takes the place of what goes without saying.
    if requested.modes.intersects(AttrFlags::EXCLUDE_HOST | AttrFlags::EXCLUDE_GUEST) {
        attr.flags.remove(AttrFlags::EXCLUDE_GUEST);
    }
    attr.flags |= requested.modes;
    Ok(attr)
}

/// The bytes of a copy that the kernel takes: a multiple of eight.
const fn in_words(bytes: u32) -> u32 {
    bytes & !7
}

/// The attr of another event that counts up to `period`: zero takes no samples.
pub(crate) fn of_event(attr: &EventAttr, (kind, config): (u32, u64), period: u64) -> EventAttr {
    let mut attr = *attr;
    (attr.kind, attr.config) = (kind, config);
    attr.sample_period = period;
    attr.flags.remove(AttrFlags::FREQ);
    attr
}

/// The attr of an event that takes samples alone, with copies of this size.
pub(crate) fn samples(attr: &EventAttr, stack: u32, is_on: bool) -> EventAttr {
    let mut attr = *attr;
    attr.sample_stack_user = in_words(stack);
    // Each event that has it writes each deferred stack: one is enough.
    attr.flags.remove(SIDE_BAND | AttrFlags::MMAP_DATA | AttrFlags::DEFER_OUTPUT);
    if !is_on {
        attr.flags.remove(AttrFlags::ENABLE_ON_EXEC);
        attr.flags.insert(AttrFlags::DISABLED);
    }
    attr
}
