//! Samples by the kernel's perf events: a ring for each CPU.

use std::io;
use std::os::fd::AsFd as _;
use std::thread::sleep;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{SysconfVar, sysconf};
use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{AttrFlags, ReadFormat, Record, SampleType};
use unwind_perf::ring::RingReader;

use crate::commands::record::engine::{Engine, EngineError};
use crate::perf_event::{EventRing, PerfEvent};

/// What to sample, and how.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    /// Samples a second of CPU time.
    pub(crate) rate: u32,
    /// Bytes of the user stack that a sample has at most.
    pub(crate) stack: u32,
    /// Whether samples have the kernel's chain of user frames, too.
    pub(crate) user_chains: bool,
    /// Bytes of the ring of each CPU, a power of two of pages.
    pub(crate) ring: usize,
    pub(crate) whom: Whom,
}

/// Whose samples are taken.
#[derive(Clone, Debug)]
pub(crate) enum Whom {
    /// Those of the command that this thread starts next, and of its children.
    Command,
    /// Those of these threads, and of what they start.
    Threads(Vec<i32>),
    All,
}

/// The general registers, rip, flags, cs and ss, by the kernel's numbers.
const REGISTERS: u64 = 0xff_0fff;

/// Cycles of the CPU, and the clock where there are none to be had.
const EVENTS: [(u32, u64); 2] = [(0, 0), (1, 0)];

/// Events of the kernel, and their rings.
#[derive(Debug)]
pub(crate) struct PerfEngine {
    attr: EventAttr,
    /// All that were opened.
    events: Vec<PerfEvent>,
    /// Those that have a ring, by their place in `events`.
    rings: Vec<(usize, EventRing)>,
    buf: Vec<u8>,
    /// Why samples in the kernel are left out.
    pub(crate) without_kernel: Option<io::Error>,
}

fn attr(sampling: &Sampling, (kind, config): (u32, u64)) -> EventAttr {
    let mut attr = EventAttr::default();
    (attr.kind, attr.config) = (kind, config);
    // The length with the last field that is used here: older kernels take it, too.
    attr.size = 112;
    attr.sample_period = sampling.rate.into();
    attr.sample_type = SampleType::IP
        | SampleType::TID
        | SampleType::TIME
        | SampleType::CPU
        | SampleType::PERIOD
        | SampleType::CALLCHAIN
        | SampleType::REGS_USER
        | SampleType::STACK_USER;
    attr.read_format = ReadFormat::LOST;
    attr.flags = AttrFlags::FREQ
        | AttrFlags::INHERIT
        | AttrFlags::SAMPLE_ID_ALL
        | AttrFlags::EXCLUDE_HV
        | AttrFlags::EXCLUDE_GUEST
        | AttrFlags::MMAP
        | AttrFlags::MMAP2
        | AttrFlags::BUILD_ID
        | AttrFlags::COMM
        | AttrFlags::COMM_EXEC
        | AttrFlags::TASK
        | AttrFlags::WATERMARK;
    attr.flags.set(AttrFlags::EXCLUDE_CALLCHAIN_USER, !sampling.user_chains);
    if matches!(sampling.whom, Whom::Command) {
        attr.flags |= AttrFlags::DISABLED | AttrFlags::ENABLE_ON_EXEC;
    }
    attr.wakeup = u32::try_from(sampling.ring / 4).unwrap_or(u32::MAX);
    attr.sample_regs_user = REGISTERS;
    // The kernel takes multiples of eight.
    attr.sample_stack_user = sampling.stack & !7;
    attr
}

impl PerfEngine {
    /// Opens the events. With [`Whom::Command`] the next program that this thread starts is
    /// sampled.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub(crate) fn open(sampling: &Sampling) -> Result<Self, EngineError> {
        let (attr, without_kernel) = possible(sampling)?;
        // All there are, also those that this program may not run on or that are off.
        let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten().unwrap_or(1);
        let cpus = i32::try_from(cpus).unwrap_or(i32::MAX);
        let tasks = match &sampling.whom {
            Whom::Command => vec![0],
            Whom::Threads(threads) => threads.clone(),
            Whom::All => vec![-1],
        };
        let mut engine = Self {
            attr,
            events: Vec::new(),
            rings: Vec::new(),
            buf: vec![0; RingReader::MAX_RECORD],
            without_kernel,
        };
        for cpu in 0..cpus {
            let mut with_ring = None;
            for &task in &tasks {
                let event = match PerfEvent::open(&engine.attr, task, cpu) {
                    // The thread, or the CPU, is gone.
                    Err(error)
                        if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) =>
                    {
                        continue;
                    }
                    Err(error) => return Err(EngineError::Open { error }),
                    Ok(event) => event,
                };
                let mapped = match with_ring.and_then(|first| engine.events.get(first)) {
                    Some(first) => event.write_into(first).map(|()| None),
                    None => event.map(sampling.ring).map(Some),
                };
                let bytes = sampling.ring;
                let ring = mapped.map_err(|error| EngineError::Map { bytes, error })?;
                let at = engine.events.len();
                if let Some(ring) = ring {
                    engine.rings.push((at, ring));
                    with_ring = Some(at);
                }
                engine.events.push(event);
            }
        }
        if engine.rings.is_empty() {
            return Err(EngineError::Open { error: io::Error::from_raw_os_error(libc::ESRCH) });
        }
        Ok(engine)
    }
}

/// The best event that the kernel takes: of this thread, which tells.
fn possible(sampling: &Sampling) -> Result<(EventAttr, Option<io::Error>), EngineError> {
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    let mut without_kernel = None;
    let whom = match &sampling.whom {
        Whom::All => (-1, 0),
        _ => (0, -1),
    };
    for excluded in [AttrFlags::empty(), AttrFlags::EXCLUDE_KERNEL] {
        for event in EVENTS {
            for newer in [AttrFlags::empty(), AttrFlags::BUILD_ID] {
                for read_format in [ReadFormat::LOST, ReadFormat::empty()] {
                    let mut attr = attr(sampling, event);
                    attr.flags = attr.flags.difference(newer) | excluded;
                    attr.read_format = read_format;
                    match PerfEvent::open(&attr, whom.0, whom.1) {
                        Ok(_) => return Ok((attr, without_kernel)),
                        Err(error) => last = error,
                    }
                }
            }
        }
        if !matches!(last.raw_os_error(), Some(libc::EACCES | libc::EPERM)) {
            break;
        }
        without_kernel = Some(io::Error::from_raw_os_error(last.raw_os_error().unwrap_or(0)));
    }
    Err(EngineError::Open { error: last })
}

impl Engine for PerfEngine {
    fn attr(&self) -> &EventAttr {
        &self.attr
    }

    fn wait(&self, time: Duration) {
        let events = self.rings.iter().filter_map(|&(at, _)| self.events.get(at));
        let mut polled: Vec<PollFd<'_>> =
            events.map(|event| PollFd::new(event.as_fd(), PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        let result = poll(&mut polled, timeout);
        let is_ready =
            |fd: &PollFd<'_>| fd.revents().is_some_and(|flags| flags.contains(PollFlags::POLLIN));
        // An event whose task has ended is always ready, and has nothing more to say.
        if result != Ok(0) && !polled.iter().any(is_ready) {
            sleep(time.min(Duration::from_millis(5)));
        }
    }

    fn drain(&mut self, take: &mut dyn FnMut(&Record<'_>)) -> u64 {
        let mut skipped = 0_u64;
        for (_, ring) in &self.rings {
            let Ok(mut reader) = ring.reader() else { continue };
            // As much as there is now: a ring that fills as fast as it is read has its turn
            // to end, too.
            let mut left = reader.waiting();
            while left > 0 {
                let before = reader.waiting();
                match reader.next(&mut self.buf) {
                    Ok(Some(record)) => {
                        left = left.saturating_sub(record.header().size.into());
                        take(&record);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        skipped = skipped.saturating_add(before.saturating_sub(reader.waiting()));
                        break;
                    }
                }
            }
        }
        skipped
    }

    fn stop(&mut self) {
        for event in &self.events {
            // It ends with the event in any case.
            let _ = event.disable();
        }
    }

    fn lost(&self) -> Option<u64> {
        if !self.attr.read_format.contains(ReadFormat::LOST) {
            return None;
        }
        let lost = self.events.iter().map(|event| Some(event.counts::<2>().ok()?[1]));
        lost.sum()
    }
}
