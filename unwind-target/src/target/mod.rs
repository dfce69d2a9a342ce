//! What a stack is read from: a process that is held still or whose threads sleep, or a core
//! file.

pub(crate) mod capture;
mod captured_memory;
pub mod compressed_core;
mod core_file;
pub(crate) mod error;
pub mod held_process;
pub mod maps;
pub mod memory;
pub mod pause;
pub(crate) mod proc_text;
pub(crate) mod process;
pub mod process_modules;
pub mod processes;
pub mod registers;
pub mod return_probes;
pub mod sleeping;
pub mod status;
pub(crate) mod target_memory;
mod thread_list;
mod tracee;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use crate::counted::counted;
use crate::elf::ElfFile;
use crate::files::mapped_file::{ProcessFiles, Proof, Search, copy_vdso};
use crate::input_error::InputError;
use crate::interpreters::Interpreters;
use crate::interpreters::interpreter::{NativeFrame, StoppedThread};
use crate::interpreters::runs::ReadFrames;
use crate::jit::registered_objects::JitLists;
use crate::loaded::module::{Modules, Opening};
use crate::loaded::module_error::{BuildId, ModuleError};
use crate::stack::walk::Stack;
use crate::target::capture::{Before, Capture, mappings_and_memory, mappings_of};
use crate::target::captured_memory::{CapturedMemory, Copied};
use crate::target::core_file::CoreFile;
use crate::target::error::TargetError;
use crate::target::maps::{Backing, Mapping};
use crate::target::memory::{CoreMemory, PageCache};
use crate::target::pause::{HoldLimit, Pause, PausedProcess, STOPS};
use crate::target::proc_text::read_text;
use crate::target::process::Fate;
use crate::target::process_modules::{add_registered, load_of_process};
use crate::target::registers::UserRegisters;
use crate::target::sleeping::{Awake, SleepingProcess};
use crate::target::status::Status;
use crate::target::target_memory::TargetMemory;
use crate::untrusted::{Untrusted, escaped};

pub(crate) use crate::target::capture::Wanted;

/// The threads, memory and loaded files of a program at one point of time.
///
/// A process stands still as long as its `Target` lives or until
/// [`release`](Self::release).
#[derive(Debug)]
pub struct Target {
    /// The id of the process; 0 where a core file does not say it.
    pub(crate) process: i32,
    /// What the program calls itself.
    pub(crate) program: Untrusted,
    pub threads: Vec<Thread>,
    pub mappings: Vec<Mapping>,
    pub modules: Modules,
    pub memory: TargetMemory,
    /// What is not as it should be, a line each.
    pub warnings: Vec<String>,
    /// How much there can be to show of it.
    pub(crate) room: Room,
    /// The frames of its interpreters, if they were asked for.
    pub(crate) interpreted: Vec<ReadFrames>,
    /// Those that were found before it was stopped.
    interpreters: Interpreters,
    /// It was looked at while it ran.
    pub(crate) no_stop: bool,
    /// It is a process, and no core file.
    pub(crate) is_process: bool,
    hold: Option<Pause>,
}

/// How much there can be to show of a target, where that is known. Threads may
/// have one stack, and frames one file; what they share is shown for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Frames of all threads.
    pub(crate) frames: u64,
    /// Bytes of names of all frames.
    pub(crate) names: usize,
}

/// How many bytes the names of a process may have that is not a core file.
pub(crate) const ROOM_FOR_NAMES: usize = 256 << 20;

impl Room {
    /// Of a process, whose memory is not known.
    const UNKNOWN: Self = Self { frames: u64::MAX, names: ROOM_FOR_NAMES };

    /// Of a core file of this length. A frame takes a word of the stack at least.
    fn of_core(core: &ElfFile) -> Self {
        let frames = if core.is_64 { core.byte_len() >> 3 } else { core.byte_len() >> 2 };
        let names = usize::try_from(core.byte_len().saturating_mul(4)).unwrap_or(usize::MAX);
        Self { frames, names: names.saturating_add(1 << 20) }
    }
}

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    pub id: i32,
    /// What it calls itself, where that is known.
    pub name: Option<Untrusted>,
    /// The signal that ended the program, in the thread that got it.
    pub signal: Option<i32>,
    /// Unless it was looked at without a stop and did not sleep.
    pub registers: Result<UserRegisters, Awake>,
}

impl Target {
    /// Stops a process, for `limit` at most, and looks at it.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is none, if it may not be traced, or if it ends.
    pub fn of_process(process: i32, limit: HoldLimit, look: Look<'_>) -> Result<Self, TargetError> {
        for _ in 0..STOPS {
            let mut before = Before::read(process);
            let mut files = ProcessFiles::of(process);
            let interpreters = match look {
                Look::Copies(wanted) if wanted.interpreters => before.interpreters(&files),
                _ => Interpreters::default(),
            };
            // What they need is walked while the process stands.
            let look = if interpreters.need_frames() { Look::InPlace } else { look };
            let jit_lists = before.jit_lists(&files);
            before.close_files();
            let (hold, held) = Pause::stop(process, limit, || match look {
                Look::InPlace => {}
                Look::Copies(_) => before.look_again(),
            })?;
            let (error, fate) = match look {
                Look::InPlace => match Self::of_held(&held, &jit_lists) {
                    Ok(target) => return Ok(Self { hold: Some(hold), interpreters, ..target }),
                    Err(error) => (error, hold.release()),
                },
                Look::Copies(wanted) => {
                    // The process was looked at by the id of a thread that has ended.
                    if held.some_thread != process {
                        files = ProcessFiles::of(held.some_thread);
                    }
                    let files = Rc::new(files);
                    let registers: Vec<_> =
                        held.threads.iter().map(|&(_, registers)| registers).collect();
                    let capture = Capture::take(held.some_thread, &registers, before, wanted);
                    let read = |capture: &Capture| {
                        interpreters.read_process(held.some_thread, &registers, &capture.mappings)
                    };
                    let interpreted = capture.as_ref().map_or_else(|_| Vec::new(), read);
                    let registered = jit_lists.read_process(held.some_thread);
                    match (capture, hold.release()) {
                        (Ok(_), Fate::Ended) => break,
                        (Ok(_), Fate::LetGo { seconds }) => {
                            return Err(TargetError::LetGo { process, seconds });
                        }
                        (Ok(capture), _) => {
                            let found = Found::of(&held);
                            let target = Self::of_capture(found, capture, &files, registered);
                            return Ok(Self { interpreted, ..target });
                        }
                        (Err(error), fate) => (error.into(), fate),
                    }
                }
            };
            match fate {
                Fate::Held => return Err(error),
                Fate::Ended => break,
                Fate::Replaced => {}
                Fate::LetGo { seconds } => return Err(TargetError::LetGo { process, seconds }),
            }
        }
        Err(TargetError::Ended(process))
    }

    /// Looks at a process that is held, and whose lists of registered objects are known.
    fn of_held(held: &PausedProcess, jit_lists: &JitLists) -> Result<Self, TargetError> {
        // After the first thread has ended only the others lead to the memory.
        let id = held.some_thread;
        let (mappings, memory) = mappings_and_memory(id)?;
        let mut memory = PageCache::new(memory);
        let files = Rc::new(ProcessFiles::of(id));
        let mut modules = load_of_process(&mappings, &files, &mut memory);
        modules.add_registered(&mappings, jit_lists.read(&mut memory));
        Ok(Self::of_mapped(Found::of(held), mappings, modules, TargetMemory::Process(memory)))
    }

    /// Looks at the threads of a process that sleep, and stops none.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if there is none, if it may not be read, or if it ends.
    pub(crate) fn of_sleeping(process: i32, wanted: &Wanted) -> Result<Self, TargetError> {
        let mut sleeping = SleepingProcess::look(process)?;
        let id = sleeping.some_thread;
        let files = Rc::new(ProcessFiles::of(id));
        let registers: Vec<_> = sleeping.threads().filter_map(|(_, found)| found.ok()).collect();
        let failed = |error: InputError| match Status::read(id) {
            Err(_) => TargetError::Ended(process),
            Ok(_) => error.into(),
        };
        let capture = Capture::take(id, &registers, Before::read(id), wanted).map_err(failed)?;
        sleeping.check();
        // A walk of a stack that slept still looks for rows by what was mapped at first.
        let code = |mappings: &[Mapping]| -> Vec<Mapping> {
            mappings.iter().filter(|mapping| mapping.executable).cloned().collect()
        };
        let is_same = code(&mappings_of(id).map_err(failed)?) == code(&capture.mappings);
        let threads = sleeping.threads();
        let threads = threads.map(|(id, found)| match found {
            Ok(_) if !is_same => (id, Err(Awake::Remapped)),
            _ => (id, found),
        });
        let found =
            Found { process: sleeping.process, threads: threads.collect(), warnings: Vec::new() };
        Ok(Self { no_stop: true, ..Self::of_capture(found, capture, &files, Vec::new()) })
    }

    /// Looks at what was copied of a process.
    fn of_capture(
        found: Found,
        capture: Capture,
        files: &Rc<ProcessFiles>,
        registered: Vec<ElfFile>,
    ) -> Self {
        let Capture { mappings, copies, unreadable } = capture;
        let mut memory = CapturedMemory::new(&mappings, copies, unreadable);
        let mut modules = load_of_process(&mappings, files, &mut memory);
        modules.add_registered(&mappings, registered);
        memory.add_code(&mappings, &modules);
        Self::of_mapped(found, mappings, modules, TargetMemory::Captured(memory))
    }

    fn of_mapped(
        found: Found,
        mappings: Vec<Mapping>,
        modules: Modules,
        memory: TargetMemory,
    ) -> Self {
        let threads = found.threads.into_iter();
        let thread = |(id, registers)| Thread { id, name: name_of(id), signal: None, registers };
        let threads: Vec<_> = threads.map(thread).collect();
        let first = threads.iter().find(|thread| thread.id == found.process);
        let program = first.map_or_else(|| name_of(found.process), |first| first.name.clone());
        Self {
            process: found.process,
            program: program.unwrap_or_default(),
            threads,
            mappings,
            modules,
            memory,
            warnings: found.warnings,
            room: Room::UNKNOWN,
            interpreted: Vec::new(),
            interpreters: Interpreters::default(),
            no_stop: false,
            is_process: true,
            hold: None,
        }
    }

    /// Reads a core file. `program` is the executable that it was made from,
    /// where the path in the core is not the right one. The files that the core names are
    /// below `sysroot`, if that is given.
    ///
    /// # Errors
    ///
    /// [`TargetError`] if the file is no core file of x86, has no thread, or is not
    /// one of `program`.
    pub fn of_core(
        path: &Path,
        program: Option<&Path>,
        sysroot: Option<&Path>,
    ) -> Result<Self, TargetError> {
        let open = |file: &Path, id: Option<&[u8]>| {
            // Files of a machine whose linkers leave none are taken by their names.
            let proof = id.map_or(Proof::None, Proof::BuildId);
            let (is_deleted, not_after, holder) = (false, None, None);
            Search { path: file, proof, is_deleted, not_after, holder, sysroot }.open()
        };
        Self::of_open_core(core_file::open(path)?, path, program, open)
    }

    /// Looks at a core file that was copied, for a fuzz target; `open` stands for
    /// the files that it names.
    ///
    /// # Errors
    ///
    /// As [`of_core`](Self::of_core).
    pub fn of_copied_core(
        bytes: &[u8],
        mut open: impl FnMut() -> Result<ElfFile, ModuleError>,
    ) -> Result<Self, TargetError> {
        let path = Path::new("core");
        let file = ElfFile::from_bytes(bytes.into());
        let file = file.map_err(|error| InputError::Elf { path: path.into(), error })?;
        Self::of_open_core(core_file::accept(file, path)?, path, None, |_, _| open())
    }

    /// Looks at a core file that is open. `open` opens what it names, and is told
    /// the build id of that where the core has it.
    fn of_open_core(
        core: ElfFile,
        path: &Path,
        program: Option<&Path>,
        mut open: impl FnMut(&Path, Option<&[u8]>) -> Result<ElfFile, ModuleError>,
    ) -> Result<Self, TargetError> {
        let core = Rc::new(core);
        let mut notes = CoreFile::parse(&core, path)?;
        let damage = notes.damage.map(|error| format!("{}: {error}", escaped(path)));
        let mut memory = CoreMemory::new(Rc::clone(&core));
        let mut build_ids = notes.build_ids(&mut memory);
        if let Some(program) = program {
            let file = open_program(program)?;
            let old_path = notes.replace_program(program, &file);
            let id = old_path.and_then(|path| build_ids.remove(&path));
            if id.is_some() && id != file.build_id() {
                return Err(TargetError::WrongProgram {
                    core: path.into(),
                    program: program.into(),
                });
            }
            build_ids.extend(id.map(|id| (program.into(), id)));
        }
        let of_program = notes.program();
        let mut modules = Modules::load(&notes.mappings, |mapping| match &mapping.backing {
            Backing::File(file) => {
                let id = build_ids.get(&file.path);
                let opened = open(&file.path, id.map(Vec::as_slice));
                Some(Opening::Now(opened.map_err(|error| ModuleError::OfCore {
                    error: error.into(),
                    wanted: id.map(|id| BuildId::from(id.as_slice())),
                    is_program: of_program == Some(&mapping.backing),
                })))
            }
            Backing::Vdso => Some(Opening::Now(copy_vdso(&mapping.range, &mut memory))),
            Backing::Anonymous | Backing::Named(_) => None,
        });
        modules.add_remapped(&notes.mappings, &mut memory, |mapping| match &mapping.backing {
            Backing::File(file) => {
                let id = build_ids.get(&file.path);
                let opened = open(&file.path, id.map(Vec::as_slice));
                Some(Opening::Now(opened))
            }
            _ => None,
        });
        memory.add_files(notes.mappings.iter().filter_map(|mapping| {
            let file = modules.file_of(&mapping.backing)?.get().ok()?;
            Some((mapping.range.clone(), mapping.offset, file))
        }));
        let mut memory = PageCache::new(memory);
        add_registered(&mut modules, &notes.mappings, &mut memory);
        Ok(Self {
            process: notes.process,
            program: Untrusted::from(&notes.program),
            threads: notes.threads.iter().map(Thread::from).collect(),
            mappings: notes.mappings,
            modules,
            memory: TargetMemory::Core(memory),
            warnings: missing_part(path, notes.missing).into_iter().chain(damage).collect(),
            room: Room::of_core(&core),
            interpreted: Vec::new(),
            interpreters: Interpreters::default(),
            no_stop: false,
            is_process: false,
            hold: None,
        })
    }

    /// What a sample has of a process: the registers of a thread, a copy of its stack from an
    /// address on, and what was mapped. `open` opens the file of a mapping.
    pub fn of_sample(
        process: i32,
        thread: Thread,
        mappings: Vec<Mapping>,
        copies: BTreeMap<u64, Vec<u8>>,
        mut open: impl FnMut(&Mapping) -> Option<Result<ElfFile, ModuleError>>,
    ) -> Self {
        let modules = Modules::load(&mappings, |mapping| open(mapping).map(Opening::Now));
        let copies = copies.into_iter().map(|(start, bytes)| Copied { start, bytes }).collect();
        let mut memory = CapturedMemory::new(&mappings, copies, BTreeSet::new());
        memory.add_code(&mappings, &modules);
        Self {
            process,
            program: thread.name.clone().unwrap_or_default(),
            threads: vec![thread],
            mappings,
            modules,
            memory: TargetMemory::Captured(memory),
            warnings: Vec::new(),
            room: Room::UNKNOWN,
            interpreted: Vec::new(),
            interpreters: Interpreters::default(),
            no_stop: false,
            is_process: false,
            hold: None,
        }
    }

    /// Reads the frames of interpreters, of a core file or a process that stands still; those of copies were
    /// read when they were made. `stacks` are those of the threads, in the same order.
    pub fn read_interpreters(&mut self, stacks: &[Stack]) {
        if matches!(self.memory, TargetMemory::Captured(_)) {
            return;
        }
        let open = |mapping: &Mapping| self.modules.file_of(&mapping.backing)?.get().ok();
        let interpreters = match std::mem::take(&mut self.interpreters) {
            none if none.is_empty() => Interpreters::find(&self.mappings, open),
            found => found,
        };
        let threads = self.threads.iter().zip(stacks).filter_map(|(thread, stack)| {
            let frames = stack.frames.iter().map(NativeFrame::from).collect();
            Some(StoppedThread { registers: thread.registers.ok()?, frames })
        });
        let threads: Vec<_> = threads.collect();
        self.interpreted = interpreters.read(&threads, &self.mappings, &mut self.memory);
    }

    /// Leaves one of the threads only.
    ///
    /// # Errors
    ///
    /// [`TargetError::NoSuchThread`] if there is none of this id.
    pub fn keep_thread(&mut self, id: i32) -> Result<(), TargetError> {
        self.threads.retain(|thread| thread.id == id);
        match self.threads.is_empty() {
            true => Err(TargetError::NoSuchThread(id)),
            false => Ok(()),
        }
    }

    /// Lets the process continue. What was read of it stays.
    ///
    /// # Errors
    ///
    /// [`TargetError::Ended`] if it was killed meanwhile, [`TargetError::LetGo`] if it continues already.
    pub fn release(&mut self) -> Result<(), TargetError> {
        let process = self.process;
        match self.hold.take().map(Pause::release) {
            Some(Fate::Ended) => Err(TargetError::Ended(process)),
            Some(Fate::LetGo { seconds }) => Err(TargetError::LetGo { process, seconds }),
            _ => Ok(()),
        }
    }
}

/// What was found of the threads of a process.
struct Found {
    process: i32,
    threads: Vec<(i32, Result<UserRegisters, Awake>)>,
    warnings: Vec<String>,
}

impl Found {
    fn of(held: &PausedProcess) -> Self {
        let warnings = held.unstoppable.iter().map(|thread| {
            format!("thread {thread} cannot be stopped: it waits inside the kernel; it is left out")
        });
        let threads = held.threads.iter().map(|&(id, registers)| (id, Ok(registers)));
        Self { process: held.process, threads: threads.collect(), warnings: warnings.collect() }
    }
}

/// How a process is looked at.
#[derive(Clone, Copy, Debug)]
pub enum Look<'w> {
    /// Where it stands, for as long as that takes.
    InPlace,
    /// In copies, so that it continues before its stacks are walked.
    Copies(&'w Wanted),
}

impl From<&core_file::CoreThread> for Thread {
    fn from(thread: &core_file::CoreThread) -> Self {
        Self {
            id: thread.id,
            name: None,
            signal: Some(thread.signal).filter(|&signal| signal != 0),
            registers: Ok(thread.registers),
        }
    }
}

/// The name of a task, without the newline after it.
fn name_of(task: i32) -> Option<Untrusted> {
    let name = read_text(format!("/proc/{task}/comm")).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(Untrusted::from(name))
}

fn missing_part(path: &Path, bytes: u64) -> Option<String> {
    let path = escaped(path);
    let missing = counted(bytes, "byte is", "bytes are");
    (bytes != 0).then(|| format!("{path} is cut off: {missing} missing at its end"))
}

fn open_program(path: &Path) -> Result<ElfFile, TargetError> {
    let file = File::open(path).map_err(|error| InputError::Read { path: path.into(), error })?;
    Ok(ElfFile::from_file(file).map_err(|error| InputError::Elf { path: path.into(), error })?)
}
