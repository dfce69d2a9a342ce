//! Samples by the kernel's perf events: a ring for each CPU.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{AttrFlags, ReadFormat, SampleType};

use crate::engine::attrs::{
    COUNTS, CPU_CLOCK, DUMMY, EVENTS, SWITCHES, attr, of_event, of_requested, samples,
};
use crate::engine::perf_event::{EventRing, PerfEvent};
use crate::engine::requested::Requested;
use crate::engine::sampling::{CopySizes, Often, RingSize, Sampling, UserStacks, Whom};
use crate::engine::{CpuTime, Engine, EngineError, Found, SampledEvent, Shortfall, StoredRecord};
use crate::recording::events::OFF_CPU;

/// What is done with each event that takes samples, and its place.
type Each<'e> = dyn FnMut(BorrowedFd<'_>, usize) -> Result<(), EngineError> + 'e;

/// The smallest ring.
const MIN_RING: usize = 16 << 10;

/// Events of the kernel, and their rings.
#[derive(Debug)]
pub(crate) struct PerfEngine {
    attr: EventAttr,
    /// Those whose samples are taken.
    events: Vec<SampledEvent>,
    /// All that are open.
    opened: Vec<Opened>,
    /// How many sizes copies of stacks can have.
    sizes: usize,
    /// The place of the size that is on.
    on: usize,
    /// The rings, with the place in `opened` of the event that each belongs to.
    rings: Vec<(usize, EventRing)>,
    /// Bytes of a ring.
    ring: usize,
    /// Samples are those of CPUs, whatever they execute.
    is_of_cpus: bool,
    /// The time of the first event tells how many samples there should be.
    is_counted: bool,
    /// Of the events that were asked for, by their places.
    filters: Vec<Option<CString>>,
    /// The folder of the control group whose samples are taken.
    group: Option<Arc<File>>,
    /// Why samples in the kernel are left out.
    without_kernel: Option<io::Error>,
}

impl PerfEngine {
    /// Opens the events.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub(crate) fn open(sampling: &Sampling) -> Result<Self, EngineError> {
        Ok(Self::open_each(sampling, |_, _| Ok(()))?.0)
    }

    /// Opens the events, and has each that takes samples handed to `each` at once, with the place of the event that
    /// it is a copy of. Returns what that has made, too.
    ///
    /// # Errors
    ///
    /// [`EngineError`].
    pub(crate) fn open_each<T>(
        sampling: &Sampling,
        mut each: impl FnMut(BorrowedFd<'_>, usize) -> Result<T, EngineError>,
    ) -> Result<(Self, Vec<T>), EngineError> {
        let at_rate = matches!(sampling.often, Often::Rate(_));
        let mut others = sampling.events.iter().filter(|event| !event.is_by_time(at_rate));
        if let Some(Requested { name, .. }) = others.next().filter(|_| sampling.off_cpu) {
            return Err(EngineError::WaitsBeside { name: name.clone() });
        }
        let (attr, mut without_kernel) = possible(sampling)?;
        let more = more(sampling, &attr)?;
        if sampling.off_cpu && without_kernel.is_some() {
            return Err(EngineError::OffCpu);
        }
        let (mut ring, is_exact) = match sampling.ring {
            RingSize::Exactly(ring) => (ring, true),
            RingSize::AtMost(ring) => (ring, false),
        };
        let mut sizes = sampling.user_stacks.sizes();
        loop {
            let mut attr = attr;
            attr.wakeup = match sampling.user_stacks {
                // A table is made of what is mapped, at once.
                UserStacks::Module(_) => 1,
                _ => u32::try_from(ring / 2).unwrap_or(u32::MAX),
            };
            let mut made = Vec::new();
            let mut keep = |event: BorrowedFd<'_>, place: usize| {
                made.push(each(event, place)?);
                Ok(())
            };
            match Self::open_with(sampling, attr, &more, (&sizes, ring), &mut keep) {
                Err(EngineError::Open { error }) if is_too_many(&error) && !sizes.is_one() => {
                    sizes = CopySizes::one(sizes.first_bytes());
                }
                Err(EngineError::Map { error, .. })
                    if error.kind() == io::ErrorKind::PermissionDenied
                        && !is_exact
                        && ring > MIN_RING =>
                {
                    ring /= 2;
                }
                Ok(engine) => {
                    let without_kernel = without_kernel.take();
                    return Ok((Self { without_kernel, ..engine }, made));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn open_with(
        sampling: &Sampling,
        attr: EventAttr,
        more: &[EventAttr],
        (sizes, ring): (&CopySizes, usize),
        each: &mut Each<'_>,
    ) -> Result<Self, EngineError> {
        let tasks = match &sampling.whom {
            Whom::Command(process) => vec![*process],
            Whom::Threads(threads) => {
                allow_many_files();
                threads.clone()
            }
            Whom::All | Whom::ControlGroup(_) => vec![-1],
        };
        let group = match &sampling.whom {
            Whom::ControlGroup(folder) => Some(Arc::clone(folder)),
            _ => None,
        };
        let requested = |at: usize| sampling.events.get(at);
        let named = |at: usize| requested(at).map(|event| event.name.clone());
        let mut sampled = vec![(attr, named(0))];
        for (at, attr) in more.iter().enumerate() {
            let mut attr = *attr;
            attr.wakeup = sampled_wakeup(&sampled);
            sampled.push((attr, named(at.saturating_add(1))));
        }
        if sampling.off_cpu {
            sampled.push((of_event(&attr, SWITCHES, 1), Some(OFF_CPU.to_owned())));
        }
        let wanted = wanted(&sampled, sizes);
        let events = sampled.into_iter();
        let events = events.map(|(attr, name)| SampledEvent { attr, ids: Vec::new(), name });
        let mut engine = Self {
            attr,
            events: events.collect(),
            opened: Vec::new(),
            sizes: sizes.bytes.len(),
            on: sizes.first,
            rings: Vec::new(),
            ring,
            is_of_cpus: sampling.whom.is_of_cpus(),
            is_counted: matches!(sampling.often, Often::Rate(_)) && more.is_empty(),
            filters: sampling.events.iter().map(|event| event.filter.clone()).collect(),
            group,
            without_kernel: None,
        };
        for cpu in sampling.on_cpus() {
            let mut with_ring = None;
            for &task in &tasks {
                match engine.add(&wanted, (task, cpu), &mut with_ring, each) {
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
        wanted: &[Wanted],
        (task, cpu): (i32, i32),
        with_ring: &mut Option<usize>,
        each: &mut Each<'_>,
    ) -> Result<(), EngineError> {
        let opened = wanted.iter().map(|wanted| {
            let event = match &self.group {
                Some(folder) => PerfEvent::open_in(&wanted.attr, folder.as_fd(), cpu),
                None => PerfEvent::open(&wanted.attr, task, cpu),
            };
            let event = event.map_err(|error| EngineError::Open { error })?;
            let filter = wanted.sampled.and_then(|at| self.filters.get(at)?.as_deref());
            if let Some(filter) = filter {
                let set = event.filter(filter);
                let name = self.events.get(wanted.sampled.unwrap_or(0));
                let name = name.and_then(|event| event.name.clone()).unwrap_or_default();
                set.map_err(|error| EngineError::Filter { name, error })?;
            }
            if let Some(sampled) = wanted.sampled {
                each(event.as_fd(), sampled)?;
            }
            Ok(Opened { event, sampled: wanted.sampled, size: wanted.size })
        });
        let opened: Vec<Opened> = opened.collect::<Result<_, EngineError>>()?;
        let bytes = self.ring;
        let map_error = |error| EngineError::Map { bytes, error };
        for opened in opened {
            match with_ring.and_then(|first| self.opened.get(first)) {
                Some(first) => opened.event.write_into(&first.event).map_err(map_error)?,
                None => {
                    let at = self.opened.len();
                    self.rings.push((at, opened.event.map(bytes).map_err(map_error)?));
                    *with_ring = Some(at);
                }
            }
            self.learn_id(opened.sampled.unwrap_or(0), &opened.event)?;
            self.opened.push(opened);
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

    /// The events that take samples with copies of the size at this place alone.
    fn of_size(&self, size: usize) -> impl Iterator<Item = &PerfEvent> {
        let opened = self.opened.iter().filter(move |opened| opened.size == Some(size));
        opened.map(|opened| &opened.event)
    }
}

/// An event that is open.
#[derive(Debug)]
struct Opened {
    event: PerfEvent,
    /// The place of the event whose samples it takes among those that are sampled.
    sampled: Option<usize>,
    /// The place of the size of its copies, if there are several: else it stays on.
    size: Option<usize>,
}

/// An event to open for a thread on a CPU.
#[derive(Debug)]
struct Wanted {
    attr: EventAttr,
    sampled: Option<usize>,
    size: Option<usize>,
}

/// The events to open for a thread on a CPU: for each sampled one as many as there are sizes of
/// copies, and where there are several, one that tells of processes whichever size is on.
fn wanted(sampled: &[(EventAttr, Option<String>)], sizes: &CopySizes) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    let has_one_size = sizes.is_one();
    if let Some((attr, _)) = sampled.first().filter(|_| !has_one_size) {
        wanted.push(Wanted { attr: of_event(attr, DUMMY, 0), sampled: None, size: None });
    }
    for (at, (attr, _)) in sampled.iter().enumerate() {
        for (place, &stack) in sizes.bytes.iter().enumerate() {
            let attr = match has_one_size && at == 0 {
                true => *attr,
                false => samples(attr, stack, place == sizes.first),
            };
            let size = (!has_one_size).then_some(place);
            wanted.push(Wanted { attr, sampled: Some(at), size });
        }
    }
    wanted
}

/// How many bytes wake a reader.
fn sampled_wakeup(sampled: &[(EventAttr, Option<String>)]) -> u32 {
    sampled.first().map_or(0, |(attr, _)| attr.wakeup)
}

/// The attrs of the events that were asked for after the first. Each is opened for this thread, which
/// tells whether it can be.
fn more(sampling: &Sampling, attr: &EventAttr) -> Result<Vec<EventAttr>, EngineError> {
    let more = sampling.events.iter().skip(1).map(|requested| {
        let mut base = *attr;
        base.flags.remove(MODES);
        let kernel = attr.flags & excluded_for_want_of_rights(sampling, attr);
        let mut attr = of_requested(&base, requested, sampling.often)?;
        attr.flags |= kernel | AttrFlags::EXCLUDE_HV;
        if !kernel.is_empty() && attr.flags.contains(NO_USER) {
            return Err(kernel_refused(requested, io::Error::from_raw_os_error(libc::EACCES)));
        }
        let (task, cpu) = tried(sampling);
        match PerfEvent::open(&attr, task, cpu) {
            Ok(_) => Ok(attr),
            Err(error) => Err(refused(requested, error)),
        }
    });
    more.collect()
}

const NO_USER: AttrFlags = AttrFlags::EXCLUDE_USER;
const NO_KERNEL: AttrFlags = AttrFlags::EXCLUDE_KERNEL;

/// What an event is limited to, and how precise it is.
const MODES: AttrFlags = NO_USER
    .union(NO_KERNEL)
    .union(AttrFlags::EXCLUDE_HV)
    .union(AttrFlags::EXCLUDE_HOST)
    .union(AttrFlags::from_bits_retain(3 << 15));

/// The kernel's part, if the first event has none though it was not asked to leave it out.
fn excluded_for_want_of_rights(sampling: &Sampling, attr: &EventAttr) -> AttrFlags {
    let asked = sampling.events.first().map_or(AttrFlags::empty(), |first| first.modes);
    (attr.flags & NO_KERNEL).difference(asked)
}

/// Of which thread and CPU an event is opened to see whether it can be.
fn tried(sampling: &Sampling) -> (i32, i32) {
    match &sampling.whom {
        whom if whom.is_of_cpus() => (-1, sampling.on_cpus().first().copied().unwrap_or(0)),
        _ => (0, -1),
    }
}

fn refused(requested: &Requested, error: io::Error) -> EngineError {
    let (name, is_of_hardware) = (requested.name.clone(), requested.is_of_hardware());
    EngineError::Event { name, is_of_hardware, error }
}

/// Why an event of the kernel alone is refused.
fn kernel_refused(requested: &Requested, error: io::Error) -> EngineError {
    EngineError::KernelEvent { name: requested.name.clone(), error }
}

/// Has this program have as many files open as it may: each event of each thread on each
/// CPU is one. Where that is not enough, opening one says so.
fn allow_many_files() {
    /// As many as the kernel lets any process have, unless told otherwise (`fs.nr_open`).
    const MOST: u64 = 1 << 20;
    let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    // More than its limit is for those alone who may raise it.
    if most >= MOST || setrlimit(Resource::RLIMIT_NOFILE, MOST, MOST).is_err() {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Whether as many files are open as may be.
fn is_too_many(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

/// Whether a right is missing.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// The best event that the kernel takes: of this thread, which tells.
pub(crate) fn possible(sampling: &Sampling) -> Result<(EventAttr, Option<io::Error>), EngineError> {
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    let mut without_kernel = None;
    let whom = tried(sampling);
    let requested = sampling.events.first();
    let requested_numbers = requested.map(Requested::numbers).transpose()?;
    let candidates = match requested_numbers {
        Some(numbers) => vec![numbers],
        None => EVENTS.to_vec(),
    };
    for excluded in [AttrFlags::empty(), NO_KERNEL] {
        for &event in &candidates {
            for newer in [AttrFlags::empty(), AttrFlags::BUILD_ID] {
                for read_format in [COUNTS, ReadFormat::empty()] {
                    let mut attr = attr(sampling, event);
                    if let Some(requested) = requested {
                        attr = of_requested(&attr, requested, sampling.often)?;
                    }
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
        if let Some(requested) = requested.filter(|requested| requested.modes.contains(NO_USER)) {
            return Err(kernel_refused(requested, last));
        }
        without_kernel = Some(io::Error::from_raw_os_error(last.raw_os_error().unwrap_or(0)));
    }
    // What it does not know is an argument that it refuses.
    let is_unknown = last.raw_os_error() == Some(libc::EINVAL);
    if let Some(requested) = requested
        && !is_refused(&last)
        && sampling.user_stacks != UserStacks::Deferred
    {
        return Err(refused(requested, last));
    }
    Err(match sampling.user_stacks {
        UserStacks::Deferred if is_unknown => EngineError::Deferral,
        _ if is_refused(&last) && sampling.whom.is_of_cpus() => {
            EngineError::OpenAll { error: last }
        }
        _ => EngineError::Open { error: last },
    })
}

impl Engine for PerfEngine {
    fn events(&self) -> Vec<SampledEvent> {
        self.events.clone()
    }

    fn shortfalls(&mut self, sampling: &Sampling) -> Vec<Shortfall> {
        let is_small =
            ![RingSize::AtMost(self.ring), RingSize::Exactly(self.ring)].contains(&sampling.ring);
        let small = is_small.then_some(Shortfall::SmallRings { kib: self.ring / 1024 });
        let has_fewer_sizes = self.sizes < sampling.user_stacks.sizes().bytes.len();
        let one_size = has_fewer_sizes.then_some(Shortfall::OneSize);
        let no_kernel = self.without_kernel.take().map(|error| Shortfall::NoKernel { error });
        [small, one_size, no_kernel].into_iter().flatten().collect()
    }

    fn wait(&self, time: Duration) {
        let opened = self.rings.iter().filter_map(|&(at, _)| self.opened.get(at));
        let mut polled: Vec<PollFd<'_>> =
            opened.map(|opened| PollFd::new(opened.event.as_fd(), PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        let result = poll(&mut polled, timeout);
        let is_ready =
            |fd: &PollFd<'_>| fd.revents().is_some_and(|flags| flags.contains(PollFlags::POLLIN));
        // An event whose task has ended is always ready, and has nothing more to say.
        if result != Ok(0) && !polled.iter().any(is_ready) {
            sleep(time.min(Duration::from_millis(5)));
        }
    }

    fn drain(&mut self, take: &mut dyn FnMut(&dyn StoredRecord)) -> Found {
        let rings = self.rings.iter();
        rings.map(|(_, ring)| ring.drain(take)).fold(Found::default(), Found::with)
    }

    fn copy(&mut self, size: usize) -> bool {
        if self.sizes < 2 || size >= self.sizes {
            return false;
        }
        if size == self.on {
            return true;
        }
        if !self.of_size(size).all(|event| event.enable().is_ok()) {
            self.of_size(size).for_each(|event| _ = event.disable());
            return false;
        }
        // One that cannot be disabled takes samples until all its threads have ended.
        self.of_size(self.on).for_each(|event| _ = event.disable());
        self.on = size;
        true
    }

    fn stop(&mut self) {
        for opened in &self.opened {
            // It ends with the event in any case.
            let _ = opened.event.disable();
        }
    }

    fn lost(&self) -> Option<u64> {
        if !self.attr.read_format.contains(ReadFormat::LOST) {
            return None;
        }
        let lost = self.opened.iter().map(|opened| Some(opened.event.counts::<3>().ok()?[2]));
        lost.sum()
    }

    fn cpu_time(&self) -> Option<CpuTime> {
        // Of a CPU as a whole the clock counts when it is idle, too.
        let is_clock = (self.attr.kind, self.attr.config) == CPU_CLOCK && !self.is_of_cpus;
        // It counts what it takes no samples of.
        let is_clock = is_clock && !self.attr.flags.intersects(NO_USER.union(NO_KERNEL));
        if !is_clock || !self.is_counted || !self.attr.read_format.contains(ReadFormat::LOST) {
            return None;
        }
        // The first event is the clock.
        let clocks = self.opened.iter().filter(|opened| opened.sampled == Some(0));
        let mut time = CpuTime::default();
        for clock in clocks {
            let [sampled, running, _] = clock.event.counts::<3>().ok()?;
            time.running = time.running.saturating_add(running);
            time.sampled = time.sampled.saturating_add(sampled);
        }
        Some(time)
    }
}
