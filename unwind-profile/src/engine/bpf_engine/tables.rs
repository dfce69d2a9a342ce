//! The tables that the program walks by: made by threads, of the files that it asks for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, available_parallelism};

use object::elf;
use unwind_bpf::{FileKey, Segment, Table, Walker, Wanted};
use unwind_perf::record::{MappedId, Mapping};
use unwind_target::Notices;
use unwind_target::elf::ElfFile;
use unwind_target::files::mapped_file::{ProcessFiles, copy_vdso};
use unwind_target::files::regular_file;
use unwind_target::rows::compact_table::compact_table;
use unwind_target::target::maps::{Backing, parse};
use unwind_target::target::memory::ProcessMemory;

use crate::engine::bpf_engine::interpreted::{Interpreters, Sampled};
use crate::engine::priority::go_first;
use crate::mapped::recorded_file::own_vdso;

/// Bytes of all tables at most, which are memory of the kernel.
const MOST: usize = 512 << 20;

/// Names and files in tries at most, of which those that are asked for are the newest.
const NAMES: usize = 1 << 14;

/// How often a file is asked for that cannot be looked at.
const TRIES: u32 = 32;

/// Threads that make tables at most: a program needs a few large ones at its start.
const MAKERS: usize = 4;

/// Tables that are asked for, and made.
#[derive(Debug)]
pub(super) struct Tables {
    /// The names of files by the process and the address at which they were mapped.
    names: HashMap<(u32, u64), Named>,
    wanted: Sender<(Wanted, Option<Named>)>,
}

/// What a record says of a file that was mapped.
#[derive(Clone, Debug)]
struct Named {
    path: PathBuf,
    build_id: Option<Vec<u8>>,
}

/// What the threads share.
#[derive(Debug)]
struct Makers {
    asked: Mutex<Receiver<(Wanted, Option<Named>)>>,
    tables: unwind_bpf::Tables,
    /// Those that were found, if calls of them are wanted.
    interpreters: Option<Interpreters>,
    notices: Notices,
    made: Mutex<Made>,
}

/// What was made so far.
#[derive(Debug, Default)]
struct Made {
    /// Bytes of all tables.
    bytes: usize,
    /// How often a file could not be looked at.
    tries: HashMap<FileKey, u32>,
}

/// What comes of looking at a file.
#[derive(Debug)]
enum Looked {
    /// The file, and the image of its table.
    Table(Box<ElfFile>, Vec<u8>),
    /// It has no table.
    Without,
    /// Who had it mapped has ended, or has something else there.
    Gone,
}

impl Tables {
    /// Starts the threads, which end with this value.
    ///
    /// # Errors
    ///
    /// [`Walker::tables`].
    pub(super) fn start(
        walker: &Walker,
        interpreters: Option<Interpreters>,
        notices: Notices,
    ) -> io::Result<Self> {
        let (wanted, asked) = channel();
        let (asked, made) = (Mutex::new(asked), Mutex::default());
        let makers =
            Arc::new(Makers { asked, tables: walker.tables()?, interpreters, notices, made });
        for _ in 0..available_parallelism().map_or(1, usize::from).min(MAKERS) {
            let makers = Arc::clone(&makers);
            thread::spawn(move || makers.run());
        }
        Ok(Self { names: HashMap::new(), wanted })
    }

    /// Has the table of a file made.
    pub(super) fn want(&mut self, wanted: Wanted) {
        // A child has what its parent has mapped, and may have ended before anybody looks.
        let own = self.names.get(&(wanted.origin.process, wanted.start));
        let any = || self.names.iter().find(|&(&(_, start), _)| start == wanted.start);
        let named = own.or_else(|| any().map(|(_, named)| named)).cloned();
        // Without threads there are no tables: all stacks are copied.
        let _ = self.wanted.send((wanted, named));
    }

    /// Takes note that a process has mapped a file with code: it may have ended when its table is asked for.
    pub(super) fn learn(&mut self, mapping: &Mapping<'_>) {
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        let path = PathBuf::from(OsStr::from_bytes(mapping.name));
        let build_id = match mapping.id {
            MappedId::BuildId(id) => Some(id.to_vec()),
            _ => None,
        };
        self.names.insert((mapping.task.pid, mapping.addr), Named { path, build_id });
    }
}

impl Makers {
    /// Makes tables until none can be asked for any more.
    fn run(&self) {
        // Until a table is there each stack is copied, which takes a program more time.
        go_first();
        loop {
            // One thread waits for a file, the others for their turn to.
            let next = self.asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((wanted, named)) = next else { break };
            // A file without a table has its stacks copied.
            let _ = match look(&wanted, named.as_ref()) {
                Looked::Table(file, image) if self.has_room(image.len()) => {
                    let segments = segments_of(&file);
                    let interpreter = self.interpreters.as_ref().and_then(|interpreters| {
                        let sampled = Sampled::of(&file).unwrap_or_else(|unread| {
                            self.notices.add(unread.to_string());
                            None
                        })?;
                        let read = sampled.read();
                        Some((interpreters.add(sampled)?, read))
                    });
                    let table = Table { image: &image, segments: &segments, interpreter };
                    self.tables.install(wanted.file, table).is_ok()
                }
                Looked::Gone if self.may_try_again(wanted.file) => {
                    self.tables.forget(wanted.file).is_ok()
                }
                _ => self.tables.refuse(wanted.file).is_ok(),
            };
        }
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for a table of this size, which is taken then.
    fn has_room(&self, bytes: usize) -> bool {
        let mut made = self.made();
        let all = made.bytes.saturating_add(bytes);
        let has_room = all <= MOST;
        if has_room {
            made.bytes = all;
        }
        has_room
    }

    fn may_try_again(&self, file: FileKey) -> bool {
        let mut made = self.made();
        if made.tries.len() >= NAMES {
            made.tries.clear();
        }
        let tries = made.tries.entry(file).or_default();
        *tries = tries.saturating_add(1);
        *tries < TRIES
    }
}

/// Looks at a file that a process has mapped.
fn look(wanted: &Wanted, named: Option<&Named>) -> Looked {
    match open(wanted).or_else(|| open_by(named?, wanted)) {
        Some(file) => match compact_table(&file) {
            Ok(Some(image)) => Looked::Table(Box::new(file), image),
            _ => Looked::Without,
        },
        None => Looked::Gone,
    }
}

/// Opens it, if it is still there.
fn open(wanted: &Wanted) -> Option<ElfFile> {
    let process = i32::try_from(wanted.origin.process).ok()?;
    let range = wanted.start..wanted.end;
    if wanted.file.is_vdso() {
        // All processes share its table, and any of them can write to its own copy.
        if !wanted.file.is_vdso_of_32_bit() {
            return own_vdso();
        }
        return copy_vdso(&range, &mut ProcessMemory::open(process).ok()?).ok();
    }
    let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
    let mapping = parse(&maps).into_iter().find(|mapping| mapping.range == range)?;
    let Backing::File(mapped) = &mapping.backing else { return None };
    let file = ProcessFiles::of(process).open(&range, mapped).ok()?;
    let metadata = file.opened()?.ok()?.metadata().ok()?;
    wanted.file.may_be(&metadata).then_some(file)
}

/// Opens it by the name that it had, if it is the same. A file of a layered file system, or of one with volumes,
/// is of another device than what is mapped of it: the build id tells it.
fn open_by(named: &Named, wanted: &Wanted) -> Option<ElfFile> {
    let file = regular_file::open(&named.path).ok()?;
    let metadata = file.metadata().ok()?;
    if !wanted.file.may_be(&metadata) {
        return None;
    }
    let elf = ElfFile::from_file(file).ok()?;
    let is_it =
        wanted.file.is(&metadata) || named.build_id.is_some() && elf.build_id() == named.build_id;
    is_it.then_some(elf)
}

/// Where a file has its code.
fn segments_of(file: &ElfFile) -> Vec<Segment> {
    let code = file.segments.iter().filter(|it| it.kind == elf::PT_LOAD && it.executable);
    let segments = code.map(|segment| Segment {
        from: segment.offset,
        to: segment.offset.saturating_add(segment.memory_size),
        address: segment.addr,
    });
    segments.collect()
}
