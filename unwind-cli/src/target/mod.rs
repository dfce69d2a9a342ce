//! What a stack is read from: a process that is held still, or a core file.

mod core_file;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod registers;
mod status;
mod tracee;

use std::fs::File;
use std::path::Path;
use std::rc::Rc;

use crate::counted::counted;
use crate::elf::ElfFile;
use crate::error::Error;
use crate::module::{self, Modules};
use crate::target::core_file::CoreFile;
use crate::target::maps::{Backing, Mapping};
use crate::target::memory::{CoreMemory, PageCache, ProcessMemory, TargetMemory};
use crate::target::process::StoppedProcess;
use crate::target::registers::UserRegisters;
use crate::untrusted::{Untrusted, escaped};

/// The threads, memory and loaded files of a program at one point of time.
///
/// A process stands still as long as its `Target` lives or until
/// [`release`](Self::release).
#[derive(Debug)]
pub(crate) struct Target {
    /// The id of the process; 0 where a core file does not say it.
    pub(crate) process: i32,
    /// What the program calls itself.
    pub(crate) program: Untrusted,
    pub(crate) threads: Vec<Thread>,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) modules: Modules,
    pub(crate) memory: TargetMemory,
    /// What is not as it should be, a line each.
    pub(crate) warnings: Vec<String>,
    hold: Option<StoppedProcess>,
}

/// One thread.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) id: i32,
    /// What it calls itself, where that is known.
    pub(crate) name: Option<Untrusted>,
    /// The signal that ended the program, in the thread that got it.
    pub(crate) signal: Option<i32>,
    pub(crate) registers: UserRegisters,
}

/// How often a process is stopped whose threads all end while they are stopped.
const STOPS: u32 = 10;

/// Stops a process, and reads the registers of its threads, the first one first;
/// returns also the id of one of them.
fn stop(process: i32) -> Result<(StoppedProcess, Vec<Thread>, i32), Error> {
    for _ in 0..STOPS {
        let hold = StoppedProcess::stop(process)?;
        let mut threads: Vec<_> = hold.threads().filter_map(read_thread).collect();
        threads.sort_by_key(|thread| (thread.id != hold.id(), thread.id));
        if let Some(&Thread { id, .. }) = threads.first() {
            return Ok((hold, threads, id));
        }
        // A thread that began to execute another program ends all others, also
        // those that are held, and goes on in their place.
    }
    Err(Error::Ended(process))
}

impl Target {
    /// Stops a process and looks at it.
    ///
    /// # Errors
    ///
    /// [`Error`] if there is none, if it may not be traced, or if it ends.
    pub(crate) fn of_process(process: i32) -> Result<Self, Error> {
        // After the first thread has ended only the others lead to the memory.
        let (hold, threads, id) = stop(process)?;
        let read = |path: String| {
            std::fs::read(&path).map_err(|error| Error::Read { path: path.into(), error })
        };
        let mappings = maps::parse(&read(format!("/proc/{id}/maps"))?);
        let memory = ProcessMemory::open(id)
            .map_err(|error| Error::Read { path: format!("/proc/{id}/mem").into(), error })?;
        let mut memory = PageCache::new(memory);
        let modules =
            Modules::load(&mappings, |mapping| module::open_of_process(id, mapping, &mut memory));
        let warnings = hold.unstoppable().iter().map(|thread| {
            format!("thread {thread} cannot be stopped: it waits inside the kernel; it is left out")
        });
        Ok(Self {
            process: hold.id(),
            program: name_of(hold.id()).unwrap_or_default(),
            threads,
            mappings,
            modules,
            memory: TargetMemory::Process(memory),
            warnings: warnings.collect(),
            hold: Some(hold),
        })
    }

    /// Reads a core file. `program` is the executable that it was made from,
    /// where the path in the core is not the right one.
    ///
    /// # Errors
    ///
    /// [`Error`] if the file is no core file of x86, has no thread, or is not
    /// one of `program`.
    pub(crate) fn of_core(path: &Path, program: Option<&Path>) -> Result<Self, Error> {
        let core = Rc::new(core_file::open(path)?);
        let mut notes = CoreFile::parse(&core, path)?;
        let mut memory = CoreMemory::new(Rc::clone(&core));
        let mut build_ids = notes.build_ids(&mut memory);
        if let Some(program) = program {
            let file = open_program(program)?;
            let old_path = notes.replace_program(program, &file);
            let id = old_path.and_then(|path| build_ids.remove(&path));
            if id.is_some() && file.build_id().is_some() && id != file.build_id() {
                return Err(Error::WrongProgram { core: path.into(), program: program.into() });
            }
            build_ids.extend(id.map(|id| (program.into(), id)));
        }
        let modules = Modules::load(&notes.mappings, |mapping| match &mapping.backing {
            Backing::File(file) => {
                let id = build_ids.get(&file.path);
                Some(module::open_of_core(&file.path, id.map(Vec::as_slice)))
            }
            Backing::Vdso => Some(module::copy_vdso(&mapping.range, &mut memory)),
            Backing::Anonymous | Backing::Named(_) => None,
        });
        for mapping in &notes.mappings {
            if let Some(file) = modules.file_of(&mapping.backing) {
                memory.add_file(mapping.range.clone(), mapping.offset, file);
            }
        }
        Ok(Self {
            process: notes.process,
            program: Untrusted::from(&notes.program),
            threads: notes.threads.iter().map(Thread::from).collect(),
            mappings: notes.mappings,
            modules,
            memory: TargetMemory::Core(PageCache::new(memory)),
            warnings: missing_part(path, notes.missing).into_iter().collect(),
            hold: None,
        })
    }

    /// Lets the process go on. What was read of it stays.
    pub(crate) fn release(&mut self) {
        self.hold = None;
    }
}

impl From<&core_file::CoreThread> for Thread {
    fn from(thread: &core_file::CoreThread) -> Self {
        Self {
            id: thread.id,
            name: None,
            signal: Some(thread.signal).filter(|&signal| signal != 0),
            registers: thread.registers,
        }
    }
}

fn read_thread(thread: nix::unistd::Pid) -> Option<Thread> {
    let registers = StoppedProcess::registers(thread)?;
    let id = thread.as_raw();
    Some(Thread { id, name: name_of(id), signal: None, registers })
}

/// The name of a task, without the newline behind it.
fn name_of(task: i32) -> Option<Untrusted> {
    let name = std::fs::read(format!("/proc/{task}/comm")).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(Untrusted::from(name))
}

fn missing_part(path: &Path, bytes: u64) -> Option<String> {
    let path = escaped(path);
    let missing = counted(bytes, "byte is", "bytes are");
    (bytes != 0).then(|| format!("{path} is cut off: {missing} missing at its end"))
}

fn open_program(path: &Path) -> Result<ElfFile, Error> {
    let file = File::open(path).map_err(|error| Error::Read { path: path.into(), error })?;
    ElfFile::from_file(file).map_err(|error| Error::Elf { path: path.into(), error })
}
