//! Samples by the kernel's perf events: a ring for each CPU.

use std::io;
use std::os::fd::AsFd as _;
use std::thread::sleep;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};
use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{AttrFlags, ReadFormat, Record, SampleType};
use unwind_perf::ring::RingReader;

use crate::commands::record::attrs::{
    COUNTS, CPU_CLOCK, DUMMY, EVENTS, SWITCHES, attr, of_event, samples,
};
use crate::commands::record::engine::{CpuTime, Engine, EngineError, OFF_CPU, SampledEvent};
use crate::commands::record::sampling::{RingSize, Sampling, UserStacks, Whom};
use crate::perf_event::{EventRing, PerfEvent};

/// The smallest ring.
const MIN_RING: usize = 16 << 10;

/// Events of the kernel, and their rings.
#[derive(Debug)]
pub(crate) struct PerfEngine {
    attr: EventAttr,
    /// Those whose samples are taken.
    events: Vec<SampledEvent>,
    /// Those that tell of processes.
    side_band: Vec<PerfEvent>,
    /// Those that take samples.
    samples: Vec<PerfEvent>,
    /// Those that take samples with larger copies of stacks, off at first.
    larger: Vec<PerfEvent>,
    /// The rings, with the place in `side_band` of the event that each belongs to.
    rings: Vec<(usize, EventRing)>,
    buf: Vec<u8>,
    /// Bytes of a ring.
    pub(crate) ring: usize,
    /// Samples are those of CPUs, whatever they execute.
    is_of_cpus: bool,
    /// Why samples in the kernel are left out.
    pub(crate) without_kernel: Option<io::Error>,
}

impl PerfEngine {
    /// Opens the events.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub(crate) fn open(sampling: &Sampling) -> Result<Self, EngineError> {
        let (attr, mut without_kernel) = possible(sampling)?;
        if sampling.off_cpu && without_kernel.is_some() {
            return Err(EngineError::OffCpu);
        }
        let (mut ring, is_exact) = match sampling.ring {
            RingSize::Exactly(ring) => (ring, true),
            RingSize::AtMost(ring) => (ring, false),
        };
        loop {
            let mut attr = attr;
            attr.wakeup = u32::try_from(ring / 4).unwrap_or(u32::MAX);
            match Self::open_with(sampling, attr, ring) {
                Err(EngineError::Map { error, .. })
                    if error.kind() == io::ErrorKind::PermissionDenied
                        && !is_exact
                        && ring > MIN_RING =>
                {
                    ring /= 2;
                }
                Ok(engine) => {
                    let without_kernel = without_kernel.take();
                    return Ok(Self { without_kernel, ..engine });
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open_with(sampling: &Sampling, attr: EventAttr, ring: usize) -> Result<Self, EngineError> {
        // All there are, also those that this program may not run on or that are off.
        let cpus = sysconf(SysconfVar::_NPROCESSORS_CONF).ok().flatten().unwrap_or(1);
        let cpus = i32::try_from(cpus).unwrap_or(i32::MAX);
        let tasks = match &sampling.whom {
            Whom::Command(process) => vec![*process],
            Whom::Threads(threads) => {
                allow_many_files();
                threads.clone()
            }
            Whom::All => vec![-1],
        };
        let mut sampled = vec![(attr, None)];
        if sampling.off_cpu {
            sampled.push((of_event(&attr, SWITCHES, 1), Some(OFF_CPU)));
        }
        let (stack, larger) = sampling.user_stacks.sizes();
        let sizes = [Some((stack, true)), larger.map(|stack| (stack, false))];
        let attrs_of = |(attr, _): &(EventAttr, _)| {
            sizes.map(|size| size.map(|(stack, is_on)| samples(attr, stack, is_on)))
        };
        let attrs = Attrs {
            side_band: of_event(&attr, DUMMY, 0),
            samples: sampled.iter().map(attrs_of).collect(),
        };
        let events = sampled.into_iter();
        let events = events.map(|(attr, name)| SampledEvent { attr, ids: Vec::new(), name });
        let mut engine = Self {
            attr,
            events: events.collect(),
            side_band: Vec::new(),
            samples: Vec::new(),
            larger: Vec::new(),
            rings: Vec::new(),
            buf: vec![0; RingReader::MAX_RECORD],
            ring,
            is_of_cpus: matches!(sampling.whom, Whom::All),
            without_kernel: None,
        };
        for cpu in 0..cpus {
            let mut with_ring = None;
            for &task in &tasks {
                match engine.add(&attrs, task, cpu, &mut with_ring) {
                    // The thread, or the CPU, is gone.
                    Err(EngineError::Open { error })
                        if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV)) => {}
                    // An event of this process could be opened.
                    Err(EngineError::Open { error })
                        if is_refused(&error) && matches!(sampling.whom, Whom::Threads(_)) =>
                    {
                        return Err(EngineError::OpenProcess { error });
                    }
                    result => result?,
                }
            }
        }
        if engine.rings.is_empty() {
            return Err(EngineError::Open { error: io::Error::from_raw_os_error(libc::ESRCH) });
        }
        Ok(engine)
    }

    /// Opens the events of a thread on a CPU. The first ones of a CPU get a ring, whose
    /// place is left in `with_ring`.
    fn add(
        &mut self,
        attrs: &Attrs,
        task: i32,
        cpu: i32,
        with_ring: &mut Option<usize>,
    ) -> Result<(), EngineError> {
        let open =
            |attr| PerfEvent::open(attr, task, cpu).map_err(|error| EngineError::Open { error });
        let side_band = open(&attrs.side_band)?;
        let opened = attrs.samples.iter().map(|sizes| -> Result<_, EngineError> {
            let [samples, larger] = sizes;
            Ok([samples.as_ref().map(open).transpose()?, larger.as_ref().map(open).transpose()?])
        });
        let opened: Vec<_> = opened.collect::<Result<_, _>>()?;
        let bytes = self.ring;
        let map_error = |error| EngineError::Map { bytes, error };
        match with_ring.and_then(|first| self.side_band.get(first)) {
            Some(first) => side_band.write_into(first).map_err(map_error)?,
            None => {
                let at = self.side_band.len();
                self.rings.push((at, side_band.map(bytes).map_err(map_error)?));
                *with_ring = Some(at);
            }
        }
        self.learn_id(0, &side_band)?;
        self.side_band.push(side_band);
        for (at, sizes) in opened.into_iter().enumerate() {
            for event in sizes.iter().flatten() {
                let first = with_ring.and_then(|first| self.side_band.get(first));
                first.map_or(Ok(()), |first| event.write_into(first)).map_err(map_error)?;
                self.learn_id(at, event)?;
            }
            let [samples, larger] = sizes;
            self.samples.extend(samples);
            self.larger.extend(larger);
        }
        Ok(())
    }

    /// Notes the id of a copy of a sampled event, where records have ids.
    fn learn_id(&mut self, at: usize, event: &PerfEvent) -> Result<(), EngineError> {
        if self.attr.sample_type.contains(SampleType::IDENTIFIER) {
            let id = event.id().map_err(|error| EngineError::Open { error })?;
            self.events.get_mut(at).into_iter().for_each(|event| event.ids.push(id));
        }
        Ok(())
    }

    fn opened(&self) -> impl Iterator<Item = &PerfEvent> {
        self.side_band.iter().chain(&self.samples).chain(&self.larger)
    }
}

/// What to open for a thread on a CPU.
struct Attrs {
    side_band: EventAttr,
    /// Of each sampled event those with small and with larger copies.
    samples: Vec<[Option<EventAttr>; 2]>,
}

/// Has this program have as many files open as it may: each event of each thread on each
/// CPU is one. Where that is not enough, opening one says so.
fn allow_many_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Whether a right is missing.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
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
                for read_format in [COUNTS, ReadFormat::empty()] {
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
        if !is_refused(&last) {
            break;
        }
        without_kernel = Some(io::Error::from_raw_os_error(last.raw_os_error().unwrap_or(0)));
    }
    // What it does not know is an argument that it refuses.
    let is_unknown = last.raw_os_error() == Some(libc::EINVAL);
    Err(match sampling.user_stacks {
        UserStacks::Deferred if is_unknown => EngineError::Deferral,
        _ if is_refused(&last) && matches!(sampling.whom, Whom::All) => {
            EngineError::OpenAll { error: last }
        }
        _ => EngineError::Open { error: last },
    })
}

impl Engine for PerfEngine {
    fn events(&self) -> Vec<SampledEvent> {
        self.events.clone()
    }

    fn wait(&self, time: Duration) {
        let events = self.rings.iter().filter_map(|&(at, _)| self.side_band.get(at));
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

    fn copy_more(&mut self) {
        let has_more = self.larger.iter().all(|event| event.enable().is_ok());
        if has_more && !self.larger.is_empty() {
            for event in &self.samples {
                // It takes samples until all its threads have ended, then.
                let _ = event.disable();
            }
        }
    }

    fn stop(&mut self) {
        for event in self.opened() {
            // It ends with the event in any case.
            let _ = event.disable();
        }
    }

    fn lost(&self) -> Option<u64> {
        if !self.attr.read_format.contains(ReadFormat::LOST) {
            return None;
        }
        let lost = self.opened().map(|event| Some(event.counts::<3>().ok()?[2]));
        lost.sum()
    }

    fn cpu_time(&self) -> Option<CpuTime> {
        // Of a CPU as a whole the clock counts when it is idle, too.
        let is_clock = (self.attr.kind, self.attr.config) == CPU_CLOCK && !self.is_of_cpus;
        if !is_clock || !self.attr.read_format.contains(ReadFormat::LOST) {
            return None;
        }
        // Events of waits are between those of the clock.
        let step = self.events.len().max(1);
        let events = self.samples.iter().step_by(step).chain(self.larger.iter().step_by(step));
        let mut time = CpuTime::default();
        for event in events {
            let [sampled, running, _] = event.counts::<3>().ok()?;
            time.running = time.running.saturating_add(running);
            time.sampled = time.sampled.saturating_add(sampled);
        }
        Some(time)
    }
}
