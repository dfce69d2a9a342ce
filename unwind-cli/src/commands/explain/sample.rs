//! A sample of a recording, to be explained.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unwind_perf::record::{Attr, UserState};
use unwind_profile::mapped::address_spaces::Space;
use unwind_profile::mapped::files::RecordedFiles;
use unwind_profile::mapped::layout::Layout;
use unwind_profile::mapped::names::{self, Mode, Names};
use unwind_profile::mapped::origin::Origin;
use unwind_profile::mapped::ranges::Range;
use unwind_profile::mapped::recorded_file::FileError;
use unwind_profile::recording::code_names::InterpretedCall;
use unwind_profile::recording::error::{PerfError, RecordingError};
use unwind_profile::recording::events::Events;
use unwind_profile::recording::held::Held;
use unwind_profile::recording::pipeline::Options;
use unwind_profile::recording::reader::PerfReader;
use unwind_profile::session::ledger_section::{told, unfinished};
use unwind_profile::session::recorded_stacks::RecordedStacks;
use unwind_profile::walks::call_stacks::CallStacks;
use unwind_profile::walks::found_by::FoundBy;
use unwind_profile::walks::frame_calls::FrameCalls;
use unwind_profile::walks::printed::print;
use unwind_profile::walks::shown::{Link, Printer, Shown};
use unwind_profile::walks::walked_stack::WalkedStack;
use unwind_target::loaded::module_error::ModuleError;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::target::maps::{Access, Backing, MappedFile, Mapping};
use unwind_target::target::registers::UserRegisters;
use unwind_target::target::{Target, Thread};
use unwind_target::{DebugFiles, Frame, Untrusted};

use crate::commands::summary::report;
use crate::failure::Failure;
use crate::{notices, progress};

/// About how many bytes of records are held to sort and to merge.
const MEMORY: usize = 1 << 30;

/// Which sample is asked for: `FILE@N`, the N-th that `unwind script` shows, from 1 on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SampleName {
    pub(super) file: PathBuf,
    pub(super) number: u64,
}

impl SampleName {
    /// # Errors
    ///
    /// In words, if it is of another form.
    pub(super) fn parse(text: &OsString) -> Result<Self, Failure> {
        let bytes = text.as_bytes();
        let at = memchr::memrchr(b'@', bytes);
        let parts = at.and_then(|at| Some((bytes.get(..at)?, bytes.get(at.checked_add(1)?..)?)));
        let number = |digits: &[u8]| unwind_target::untrusted::plain(digits)?.parse().ok();
        let parts = parts.and_then(|(file, digits)| Some((file, number(digits)?)));
        match parts.filter(|&(file, number)| !file.is_empty() && number > 0) {
            Some((file, number)) => {
                Ok(Self { file: Path::new(OsStr::from_bytes(file)).to_owned(), number })
            }
            None => Err(Failure::new("a sample is named by FILE@N, from 1 on", 2)),
        }
    }
}

/// A sample, as far as the recording keeps it.
pub(super) struct Sample {
    held: Arc<Held>,
    attr: Option<Attr>,
    comm: Untrusted,
    pub(super) space: Space,
    kernel: Space,
    links: Vec<Link>,
    /// What came of its walk, if its stack is kept.
    pub(super) walked: Option<WalkedStack>,
    /// How the frames of its user part were found when it was recorded.
    pub(super) found: Vec<FoundBy>,
    /// The calls of interpreters that these execute.
    calls: FrameCalls,
    /// Why its stack is not complete, by the recording's own account; `None` if it has none.
    pub(super) reason: Option<Option<String>>,
    names: RefCell<Names>,
}

/// An address of a sample's chain.
pub(super) struct Place {
    pub(super) addr: u64,
    /// Where the code is looked up: in the call, for a return address.
    pub(super) lookup: u64,
    pub(super) is_user: bool,
    pub(super) function: Option<(Untrusted, u64)>,
    pub(super) file: Option<Untrusted>,
    /// The calls of an interpreter that its frame executes.
    pub(super) calls: Vec<InterpretedCall>,
}

/// What stops the reading once the sample is there.
#[derive(Debug, thiserror::Error)]
#[error("the sample is found")]
struct IsFound;

/// Waits for a sample.
struct Finder {
    wanted: u64,
    seen: u64,
    found: Option<(Shown, Option<Attr>, Option<WalkedStack>)>,
}

impl Printer for Finder {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        if !shown.is_sample() {
            return Ok(());
        }
        self.seen = self.seen.saturating_add(1);
        if self.seen < self.wanted {
            return Ok(());
        }
        let attr = events.get(shown.held.event).map(|event| event.attr);
        self.found = Some((shown.clone(), attr, walked.cloned()));
        Err(io::Error::other(IsFound))
    }

    fn read(&mut self, _: usize) {}
}

impl Sample {
    /// Reads a recording up to the sample. What was stripped off its files is among `debug_files`.
    ///
    /// # Errors
    ///
    /// [`Failure`] if it cannot be read that far, or has no such sample.
    pub(super) fn find(name: &SampleName, debug_files: DebugFiles) -> Result<Self, Failure> {
        let error =
            |error: PerfError| Failure::from(RecordingError { path: name.file.clone(), error });
        let mut reader = PerfReader::open(&name.file).map_err(error)?;
        reader.tell_progress_to(progress::of_recordings(), &name.file);
        Self::find_in(&mut reader, name, MEMORY, debug_files)
    }

    /// The same of a recording that is open, with about `memory` bytes of records in memory.
    ///
    /// # Errors
    ///
    /// As [`find`](Self::find).
    pub(super) fn find_in(
        reader: &mut PerfReader,
        name: &SampleName,
        memory: usize,
        debug_files: DebugFiles,
    ) -> Result<Self, Failure> {
        let error =
            |error: PerfError| Failure::from(RecordingError { path: name.file.clone(), error });
        let told = told(reader).map_err(error)?;
        if told.as_ref().is_some_and(|told| told.is_unfinished) {
            notices::add(unfinished(&name.file));
        }
        let (mut recorded, missing) = RecordedStacks::read(reader, told.as_ref());
        if let Some(missing) = missing {
            let file = unwind_target::untrusted::escaped(&name.file);
            notices::add(format!("{file}: how frames were found and calls are missing: {missing}"));
        }
        let origin = Origin::read(reader).map_err(error)?;
        let build_ids = reader.build_ids();
        let kernel = origin.kernel(&build_ids);
        let options = Options {
            merge: true,
            memory,
            frame_pointers: FramePointerRows { is_trusted: false },
            stitch_lbr: false,
        };
        let files = RecordedFiles::new(build_ids)
            .of_origin(&origin)
            .with_notices(notices::all())
            .with_debug_files(debug_files);
        let call_stacks = CallStacks::new(false, reader.branch_entries());
        let finder = Finder { wanted: name.number, seen: 0, found: None };
        let (finder, ended) = print(reader, options, files, call_stacks, finder);
        let Finder { seen, found, .. } = finder;
        let Some((shown, attr, walked)) = found else {
            report(ended.map_err(|cause| error(cause.into()))?, &name.file)?;
            return Err(Failure::new(
                format!("no sample {}: the recording has {seen}", name.number),
                3,
            ));
        };
        let reason = recorded.take_reason(&shown.held);
        let is_known = reason.is_some() || recorded.others_are_complete();
        let found = recorded.found();
        let calls = FrameCalls::of_chain(found.as_deref(), &shown);
        let found = found.as_ref().map(|found| found.of_sample(shown.held.number).take(1 << 16));
        Ok(Self {
            links: shown.links().collect(),
            found: found.into_iter().flatten().collect(),
            calls,
            comm: (*shown.comm).clone(),
            names: RefCell::new(Names::new(kernel, Layout::Perf7_2, notices::all())),
            held: shown.held,
            space: shown.space,
            kernel: shown.kernel,
            attr,
            walked,
            reason: is_known.then_some(reason),
        })
    }

    /// Without the functions of the running kernel, which are no part of a recording.
    pub(super) fn without_kernel(self) -> Self {
        Self { names: RefCell::new(self.names.into_inner().without_kernel()), ..self }
    }

    /// What the sample is of, in a line.
    pub(super) fn heading(&self, name: &SampleName) -> String {
        let (held, comm) = (&self.held, &self.comm);
        let (seconds, rest) = (held.time / 1_000_000_000, held.time % 1_000_000_000);
        format!(
            "sample {} of {}: thread {} ({comm}) of process {}, at {seconds}.{rest:09} s",
            name.number,
            unwind_target::untrusted::escaped(&name.file),
            held.task.tid,
            held.task.pid
        )
    }

    /// Whether it is of a guest, alone or as the monitor's thread has entered it.
    pub(super) fn is_of_guest(&self) -> bool {
        self.links.iter().any(|link| matches!(link, Link::Ip(_, mode) if mode.is_guest()))
    }

    /// The thread and the process.
    pub(super) fn task(&self) -> (u32, u32) {
        (self.held.task.tid, self.held.task.pid)
    }

    /// The addresses of the chain, innermost first, with their names.
    pub(super) fn places(&self) -> Vec<Place> {
        let mut part = None;
        let mut places = Vec::new();
        let mut calls = self.calls.clone();
        for link in &self.links {
            let &Link::Ip(addr, mode) = link else { continue };
            let is_first = part.replace(mode) != Some(mode);
            let lookup = if is_first { addr } else { addr.wrapping_sub(1) };
            let place = self.place(lookup, mode);
            let past = addr.wrapping_sub(lookup);
            let calls = match mode {
                Mode::User => calls.of_next_frame().collect(),
                _ => Vec::new(),
            };
            places.push(Place {
                addr,
                lookup,
                is_user: mode.is_user(),
                function: place
                    .function
                    .map(|(name, offset)| ((*name).clone(), offset.wrapping_add(past))),
                file: place.file,
                calls,
            });
        }
        places
    }

    fn place(&self, lookup: u64, mode: Mode) -> names::Place {
        self.names.borrow_mut().place(lookup, mode, &self.space, &self.kernel)
    }

    /// Tells the user once that the file of a frame is not there, if that is so. Returns whether.
    pub(super) fn tells_of_file(&self, frame: &Frame) -> bool {
        let is_lost = |range: &Range| range.file.tell_if_missing(notices::all());
        frame.symbol.object_pc.is_none() && self.space.find(frame.lookup()).is_some_and(is_lost)
    }

    /// Names a frame of code that is in no file, if a compiler has told of it.
    pub(super) fn name_made_code(&self, frame: &mut Frame) {
        if frame.symbol.function.is_some() || frame.symbol.object_pc.is_some() {
            return;
        }
        if let Some((name, past)) = self.place(frame.lookup(), Mode::User).function {
            frame.symbol.function = Some((*name).clone());
            frame.symbol.function_offset = Some(past.saturating_add(u64::from(!frame.exact)));
        }
    }

    /// The files that are mapped, and the registers and the bytes of the stack as a target, if
    /// the recording keeps them.
    pub(super) fn target(&self) -> Option<Target> {
        let record = self.held.record()?;
        let attr = self.attr.as_ref()?;
        let state = UserState::decode(&record, attr).ok()??;
        let registers = UserRegisters::of_sample(&state)?;
        let mut copies = self.made_code();
        copies.insert(registers.rsp, state.stack.to_vec());
        Some(self.target_with(registers, copies))
    }

    /// The files that are mapped, of a sample whose stack is not kept.
    pub(super) fn files(&self) -> Target {
        self.target_with(UserRegisters::default(), BTreeMap::new())
    }

    /// The functions on the stack whose instructions a compiler has told, by their starts.
    fn made_code(&self) -> BTreeMap<u64, Vec<u8>> {
        /// The longest one, in bytes.
        const LIMIT: u64 = 1 << 20;
        let frames = self.walked.iter().flat_map(|walked| &walked.frames);
        let ranges = frames.filter_map(|frame| self.space.find(frame.call));
        let made = ranges.filter_map(|range| {
            let len = range.end.checked_sub(range.start).filter(|&len| len <= LIMIT)?;
            let mut bytes = vec![0; usize::try_from(len).ok()?];
            range.file.read_jit(range.start, &mut bytes).then_some((range.start, bytes))
        });
        made.collect()
    }

    fn target_with(&self, registers: UserRegisters, copies: BTreeMap<u64, Vec<u8>>) -> Target {
        let id = |id: u32| i32::try_from(id).unwrap_or(0);
        let thread = Thread {
            id: id(self.held.task.tid),
            name: Some(self.comm.clone()),
            signal: None,
            registers: Ok(registers),
        };
        let mappings = self.space.ranges.all().into_iter().map(mapping).collect();
        Target::of_sample(id(self.held.task.pid), thread, mappings, copies, |mapping| {
            let file = Arc::clone(&self.space.find(mapping.range.start)?.file);
            match file.open() {
                Ok(elf) => Some(Ok(elf)),
                Err(FileError::Module(error)) => Some(Err(error)),
                Err(FileError::NoFile) => Some(Err(ModuleError::Deleted)),
            }
        })
    }
}

/// A mapping as a process has it. Recordings have code alone.
fn mapping(range: &Range) -> Mapping {
    let backing = match (range.file.name.as_bytes(), range.file.path()) {
        (b"[vdso]" | b"[vdso32]", _) => Backing::Vdso,
        (_, Some(path)) => {
            Backing::File(MappedFile { path: path.to_owned(), id: None, deleted: false })
        }
        _ => Backing::Anonymous,
    };
    Mapping {
        range: range.start..range.end,
        executable: range.executable,
        access: Some(Access::ReadOnly),
        offset: range.offset,
        backing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_named_by_its_file_and_its_number() {
        let name = |text: &str| SampleName::parse(&text.into()).ok();
        let of = |file: &str, number| Some(SampleName { file: file.into(), number });
        assert_eq!(name("perf.data@1"), of("perf.data", 1));
        assert_eq!(name("a@b@12"), of("a@b", 12));
        for text in ["perf.data", "perf.data@", "perf.data@0", "@3", "a@-1", "a@1x"] {
            assert_eq!(name(text), None, "{text}");
        }
    }
}
