//! The program in the kernel: how it gets there, and its maps.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::kernel::{Attr, Command, address, take_fd};

/// What the loader's program reads: the maps' first values, the programs, their types.
const DATA: &[u8] = include_bytes!("bpf/walk.data");
/// The loader's program, which makes the maps and loads the programs. The kernel runs it, so nothing
/// of an ELF file, of types or of places of fields is read here.
const LOADER: &[u8] = include_bytes!("bpf/walk.loader");

/// The maps and then the programs, in the order in which the loader's program makes them: a line each.
const NAMES: &str = include_str!("bpf/walk.names");

/// A map of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    Files,
    Images,
    Interpreters,
    Ring,
    Counts,
    Constants,
}

impl Map {
    const fn name(self) -> &'static str {
        match self {
            Self::Files => "map files",
            Self::Images => "map images",
            Self::Interpreters => "map interpreters",
            Self::Ring => "map ring",
            Self::Counts => "map walk.bss",
            Self::Constants => "map walk.rodata",
        }
    }
}

/// The place of what has this name.
fn place(name: &str) -> Option<usize> {
    NAMES.lines().position(|line| line == name)
}

/// The program, loaded.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its maps and programs, in their order.
    files: Vec<OwnedFd>,
}

/// What the program is told when it is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    pub(crate) max_frames: u32,
    pub(crate) may_fault: bool,
    pub(crate) stops: bool,
    pub(crate) waits: Option<u32>,
    /// The inode of the pid namespace whose numbers records have, 0 of the first one.
    pub(crate) pid_namespace: u32,
    /// Bytes of the ring, a power of two of pages.
    pub(crate) ring: u32,
}

/// How often it is tried to load it.
const TRIES: usize = 8;

/// A step of loading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadStep {
    /// A map for the loader's data.
    #[error("make a map")]
    Map,
    /// The loader's program.
    #[error("load the loader's program")]
    Loader,
    /// The programs themselves.
    #[error("load the programs{}", verifier.as_deref().map(|line| format!(" ({line})")).unwrap_or_default())]
    Programs {
        /// The last that its verifier has said, if anything.
        verifier: Option<String>,
    },
}

impl Program {
    /// Has the kernel load it.
    pub(crate) fn load(constants: Constants) -> Result<Self, (LoadStep, io::Error)> {
        let data = loader_data().map_err(|error| (LoadStep::Map, error))?;
        let loader = loader(data.as_fd()).map_err(|error| (LoadStep::Loader, error))?;
        let of_programs = |verifier| LoadStep::Programs { verifier };
        let mut log = Vec::new();
        // A signal ends what the verifier does; and after a failure it is asked why.
        let context = (0..TRIES).find_map(|_| match run(loader.as_fd(), constants, &mut log) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => None,
            Err(_) if log.is_empty() => {
                log = vec![0; 1 << 16];
                None
            }
            done => Some(done),
        });
        let context = context.unwrap_or(Err(io::ErrorKind::Interrupted.into()));
        let context = context.map_err(|error| (of_programs(last_line(&log)), error))?;
        let lacking = || (of_programs(None), io::Error::from(io::ErrorKind::InvalidData));
        Ok(Self { files: context.files().ok_or_else(lacking)? })
    }

    fn file(&self, name: &str) -> io::Result<BorrowedFd<'_>> {
        let file = place(name).and_then(|place| self.files.get(place));
        Ok(file.ok_or(io::ErrorKind::NotFound)?.as_fd())
    }

    /// One of its maps.
    pub(crate) fn map(&self, map: Map) -> io::Result<BorrowedFd<'_>> {
        self.file(map.name())
    }

    /// Has it run for each sample of a perf event. `number` is what its records call the event.
    pub(crate) fn attach(&self, event: BorrowedFd<'_>, number: u64) -> io::Result<OwnedFd> {
        const PERF_EVENT: u32 = 41;
        let attr = Attr::new().fd(0, self.file("program sample")?).fd(4, event);
        attr.u32(8, PERF_EVENT).u64(16, number).open(Command::LINK_CREATE)
    }

    /// Has it told of tasks that end, and of threads that execute another program.
    pub(crate) fn attach_to_ends(&self) -> io::Result<[OwnedFd; 2]> {
        let attach = |name| Attr::new().fd(8, self.file(name)?).open(Command::RAW_TRACEPOINT_OPEN);
        Ok([attach("program on_exit")?, attach("program on_exec")?])
    }
}

impl Program {
    /// How many instructions the verifier looked at of the program that takes samples.
    pub(crate) fn verified_instructions(&self) -> io::Result<u32> {
        /// The place of `verified_insns` in `struct bpf_prog_info`.
        const VERIFIED: usize = 216;
        let mut info = [0; VERIFIED + 4];
        let program = self.file("program sample")?;
        let len = u32::try_from(info.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let attr = Attr::new().fd(0, program).u32(4, len).bytes_mut(8, &mut info);
        attr.act(Command::OBJECT_INFO)?;
        Ok(info.last_chunk().map_or(0, |&field| u32::from_ne_bytes(field)))
    }
}

/// The data of the loader's program, for this kernel.
///
/// From 7.0 on the types of the kernel name a function that is none, as the function itself without its last
/// argument: `bpf_task_work_schedule_resume_impl`. Its call is dead there, but refused all the same, and so it gets
/// a name that no kernel has.
fn data() -> Cow<'static, [u8]> {
    const OLD: &[u8] = b"bpf_task_work_schedule_resume_impl";
    const NONE: &[u8] = b"bpf_task_work_schedule_resume_none";
    if version() < (7, 0) {
        return Cow::Borrowed(DATA);
    }
    let mut data = DATA.to_vec();
    let places = (0..data.len()).filter(|&at| DATA.get(at..).is_some_and(|it| it.starts_with(OLD)));
    for place in places.collect::<Vec<_>>() {
        let name = data.get_mut(place..).unwrap_or_default();
        name.iter_mut().zip(NONE).for_each(|(byte, &other)| *byte = other);
    }
    Cow::Owned(data)
}

/// The first two numbers of the kernel's version; zeros if it does not tell.
fn version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether the kernel runs the program later, before a thread returns to user code: Linux 6.18 and newer. On
/// others all stacks are walked at once.
#[must_use]
pub fn is_deferring_kernel() -> bool {
    version() >= (6, 18)
}

/// The map with the data of the loader's program.
fn loader_data() -> io::Result<OwnedFd> {
    const ARRAY: u32 = 2;
    let data = data();
    let len = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    let attr = Attr::new().u32(0, ARRAY).u32(4, 4).u32(8, len).u32(12, 1);
    let map = attr.name(28, "unwind_load").open(Command::MAP_CREATE)?;
    let key = 0_u32.to_ne_bytes();
    Attr::new().fd(0, map.as_fd()).bytes(8, &key).bytes(16, &data).act(Command::MAP_UPDATE)?;
    Ok(map)
}

/// The loader's program, loaded.
fn loader(data: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const SYSCALL: u32 = 31;
    const SLEEPABLE: u32 = 1 << 4;
    let instructions = u32::try_from(LOADER.len() >> 3).map_err(|_| io::ErrorKind::InvalidData)?;
    let maps = std::os::fd::AsRawFd::as_raw_fd(&data).to_ne_bytes();
    let attr = Attr::new().u32(0, SYSCALL).u32(4, instructions).bytes(8, LOADER);
    let attr = attr.bytes(16, b"Dual BSD/GPL\0").u32(44, SLEEPABLE).name(48, "unwind_load");
    attr.bytes(120, &maps).open(Command::PROGRAM_LOAD)
}

/// What the loader's program is given and gives back: a header, for each map its file, its size and its
/// first value, for each program its file.
#[derive(Debug)]
struct Context {
    bytes: Vec<u8>,
}

impl Context {
    const HEADER: usize = 24;
    const MAP: usize = 16;
    const PROGRAM: usize = 4;

    fn new() -> Self {
        let end = Self::at(NAMES.lines().count());
        let mut context = Self { bytes: vec![0; end] };
        context.put(0, &u32::try_from(end).unwrap_or(0).to_ne_bytes());
        context
    }

    /// Where the map or program of this place is.
    fn at(place: usize) -> usize {
        let maps = NAMES.lines().take(place).filter(|line| line.starts_with("map ")).count();
        let programs = place.saturating_sub(maps).saturating_mul(Self::PROGRAM);
        Self::HEADER.saturating_add(maps.saturating_mul(Self::MAP)).saturating_add(programs)
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        let place = self.bytes.get_mut(at..).unwrap_or_default();
        place.iter_mut().zip(value).for_each(|(byte, &value)| *byte = value);
    }

    /// Has the verifier write what it finds.
    fn put_log(&mut self, log: &mut [u8]) {
        const LEVEL: usize = 8;
        const SIZE: usize = 12;
        const START: usize = 16;
        if !log.is_empty() {
            self.put(LEVEL, &1_u32.to_ne_bytes());
            self.put(SIZE, &u32::try_from(log.len()).unwrap_or(0).to_ne_bytes());
            self.put(START, &address(log.as_mut_ptr()).to_ne_bytes());
        }
    }

    /// Sets a field of a map.
    fn put_of(&mut self, map: Map, field: usize, value: &[u8]) {
        if let Some(place) = place(map.name()) {
            self.put(Self::at(place).saturating_add(field), value);
        }
    }

    /// The files of the maps and the programs.
    fn files(&self) -> Option<Vec<OwnedFd>> {
        let fd =
            |place| take_fd(i32::from_ne_bytes(*self.bytes.get(Self::at(place)..)?.first_chunk()?));
        (0..NAMES.lines().count()).map(fd).collect()
    }
}

/// Runs the loader's program. What the verifier says comes at the end of `log`.
fn run(loader: BorrowedFd<'_>, constants: Constants, log: &mut [u8]) -> io::Result<Context> {
    const ENTRIES: usize = 4;
    const FIRST_VALUE: usize = 8;
    let mut context = Context::new();
    let len = u32::try_from(context.bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    context.put_of(Map::Ring, ENTRIES, &constants.ring.to_ne_bytes());
    let flags = [constants.may_fault, constants.stops].map(u32::from);
    let waits = constants.waits.unwrap_or(u32::MAX);
    let values = [constants.max_frames, flags[0], flags[1], waits, constants.pid_namespace];
    let values = values.map(u32::to_ne_bytes);
    context.put_of(Map::Constants, FIRST_VALUE, &address(values.as_ptr()).to_ne_bytes());
    context.put_log(log);
    let attr = Attr::new().fd(0, loader).u32(40, len).bytes_mut(48, &mut context.bytes);
    let error = attr.run_program()?;
    if error < 0 {
        return Err(io::Error::from_raw_os_error(error.saturating_neg()));
    }
    Ok(context)
}

/// The last line that the verifier has written, but for its figures.
fn last_line(log: &[u8]) -> Option<String> {
    let text = log.split(|&byte| byte == 0).next()?;
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && !line.starts_with("processed ")).map(str::to_owned)
}
