//! A file whose code a recording has samples of: is it still here, and what is in it.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, WordSize};
use unwind_perf::record::MappedId;
use unwind_target::elf::ElfFile;
use unwind_target::elf::error::Part;
use unwind_target::elf::sframe_section::SframeSection;
use unwind_target::files::build_id_cache;
use unwind_target::files::mapped_file::{Holder, Proof, Search, copy_vdso};
use unwind_target::interpreters::python::SampledPython;
use unwind_target::interpreters::v8::SampledV8;
use unwind_target::jit::jit_code::JitCode;
use unwind_target::jit::registered_objects::list_of;
use unwind_target::loaded::module_error::ModuleError;
use unwind_target::rows::call_frame_rows::CallFrameRows;
use unwind_target::rows::indexed_frames::{NoRowError, row_in_frame};
use unwind_target::rows::linkage::{LinkageEntry, LinkageTables};
use unwind_target::rows::stack_switches::{FileSwitches, SwitchNames};
use unwind_target::symbols::{Alias, NAME_LIMIT, Rank, Symbols, read_whole_name};
use unwind_target::target::maps::{self, Backing, FileId as FileNumber, is_name_of_memory};
use unwind_target::target::memory::ProcessMemory;
use unwind_target::{DebugFiles, ElfError, Notices, Untrusted};

use crate::mapped::holders::Holders;
use crate::recording::guest_names::ObjectNames;

/// What the vDSO of 32-bit programs is called here, as by perf: records have one name for both.
pub(super) const VDSO_32: &[u8] = b"[vdso32]";

/// What an object is called that a compiler has registered.
const REGISTERED: &[u8] = b"[jit]";

/// The most names of a function that are looked at.
const MAX_ALIASES: usize = 64;

/// A file that was mapped, opened when something is asked of it first.
#[derive(Debug, Default)]
pub struct RecordedFile {
    /// As the recording calls it: a path, `[vdso]`, `//anon` and the like.
    pub name: Untrusted,
    id: FileId,
    /// Which of the files of all recordings it is, from 1 on; 0 if it is none of them.
    pub(crate) number: u64,
    elf: OnceLock<Result<ElfFile, FileError>>,
    sframe: OnceLock<Result<Option<SframeSection>, ElfError>>,
    call_frames: OnceLock<CallFrameRows>,
    symbols: OnceLock<Result<Symbols, ElfError>>,
    linkage: OnceLock<Result<LinkageTables, ElfError>>,
    switches: OnceLock<FileSwitches>,
    has_v8: OnceLock<bool>,
    has_python: OnceLock<bool>,
    /// Where V8's builtin functions are, if it has V8 whose calls are read.
    builtins: OnceLock<Option<Range<u64>>>,
    jit_list: OnceLock<Option<u64>>,
    /// Whether a sample was told to be in it.
    has_samples: AtomicBool,
    /// Whether the user was told that it is not there.
    is_told: AtomicBool,
    /// Who has mapped it, if processes are recorded while it is read.
    holders: Holders,
    /// When it was recorded, in nanoseconds since 1970, if that is known.
    recorded: Option<u64>,
    /// Where what was stripped off it is looked for.
    debug_files: Arc<DebugFiles>,
    /// The code itself, if it is in no file: the name is then that of the one which tells it.
    jit: Option<Box<JitCode>>,
    /// The object file that a compiler has registered in memory, if it is one.
    registered: Option<Arc<Vec<u8>>>,
    /// Functions that the recording itself names, of a guest's.
    names: Option<Arc<ObjectNames>>,
}

/// What tells whether a file is the one that was mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum FileId {
    #[default]
    Unknown,
    /// Its number on its device, and its generation there.
    Number(FileNumber, u64),
    BuildId(Box<[u8]>),
}

/// Why a mapped file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// There is no code in a file.
    #[error("it is not in a file")]
    NoFile,
    /// A file that cannot be opened, or is another one.
    #[error(transparent)]
    Module(#[from] ModuleError),
}

impl RecordedFile {
    /// A file that was recorded in these nanoseconds since 1970 at the latest.
    pub(crate) fn new(
        (name, id): (Untrusted, FileId),
        number: u64,
        debug_files: Arc<DebugFiles>,
        recorded: Option<u64>,
    ) -> Self {
        Self { name, id, number, debug_files, recorded, ..Self::default() }
    }

    /// Takes note of a process that has mapped it and may run.
    pub(crate) fn mapped_by(&self, holder: Holder<'static>) {
        // Once the file is open no holder is needed.
        if self.elf.get().is_none() {
            self.holders.add(holder);
        }
    }

    /// Whether it was looked for, and no process that had mapped it led to it: another one may.
    pub(crate) fn is_lost(&self) -> bool {
        use ModuleError::{Deleted, Open, Replaced};
        let lost =
            |error: &FileError| matches!(error, FileError::Module(Open(_) | Deleted | Replaced(_)));
        self.elf.get().is_some_and(|file| file.as_ref().is_err_and(lost))
    }

    /// A file of a guest, whose functions the recording names.
    pub(crate) fn of_guest((name, id): (Untrusted, FileId), names: Arc<ObjectNames>) -> Self {
        Self { name, id, names: Some(names), ..Self::default() }
    }

    /// How far its link-time addresses are above the places in it, wrapping, if the recording says so.
    pub(crate) fn told_shift(&self) -> Option<u64> {
        self.names.as_ref().map(|names| names.shift())
    }

    /// The build id that the recording has of it.
    pub(crate) fn build_id(&self) -> Option<&[u8]> {
        match &self.id {
            FileId::BuildId(id) => Some(id),
            _ => None,
        }
    }

    /// What identifies it in a record of a mapping.
    pub(crate) fn mapped_id(&self) -> MappedId<'_> {
        match &self.id {
            FileId::Unknown => MappedId::Unknown,
            FileId::Number(FileNumber { major, minor, inode }, generation) => MappedId::Inode {
                major: *major,
                minor: *minor,
                inode: *inode,
                generation: *generation,
            },
            FileId::BuildId(id) => MappedId::BuildId(id),
        }
    }

    /// Whether there can be code in it that tables are about, by its name. Memory that has a file's
    /// name may be a program that was executed from it, or what a compiler writes.
    pub(crate) fn has_code(&self) -> bool {
        let is_memory = self.name.as_bytes().starts_with(b"/memfd:");
        self.may_have_code() && (!is_memory || (!self.is_jit() && self.elf().is_ok()))
    }

    fn may_have_code(&self) -> bool {
        let name = self.name.as_bytes();
        let is_memory = name.starts_with(b"//") || is_name_of_memory(name);
        matches!(name, b"[vdso]" | VDSO_32) || (name.starts_with(b"/") && !is_memory)
    }

    /// Whether rows of its code were looked for, or a sample was told to be in it.
    pub(crate) fn has_samples(&self) -> bool {
        self.has_samples.load(Ordering::Relaxed)
            || self.call_frames.get().is_some()
            || self.sframe.get().is_some()
    }

    /// Takes note that it has samples.
    pub(crate) fn note_sample(&self) {
        self.has_samples.store(true, Ordering::Relaxed);
    }

    /// Whether it is memory of the program's own.
    pub(crate) fn is_memory(&self) -> bool {
        let name = self.name.as_bytes();
        name == b"//anon" || name.starts_with(b"[anon") || is_name_of_memory(name)
    }

    /// Code that the file of this name tells of.
    pub(crate) fn of_jit(name: Untrusted, code: JitCode) -> Self {
        Self { name, jit: Some(Box::new(code)), ..Self::default() }
    }

    /// An object file that a compiler has registered, whose sections have the addresses of the code.
    pub(crate) fn of_registered(bytes: Arc<Vec<u8>>) -> Self {
        Self { name: REGISTERED.into(), registered: Some(bytes), ..Self::default() }
    }

    /// The bytes of an object file that a compiler has registered.
    pub(crate) const fn registered(&self) -> Option<&Arc<Vec<u8>>> {
        self.registered.as_ref()
    }

    /// Whether it is code in memory, known by its own addresses.
    pub const fn is_jit(&self) -> bool {
        self.jit.is_some() || self.registered.is_some()
    }

    /// Whether it is one function, which was told together with its code.
    pub(crate) const fn is_function(&self) -> bool {
        self.jit.is_some()
    }

    /// Fills `buf` with the instructions of code in memory, if a file tells these.
    pub fn read_jit(&self, addr: u64, buf: &mut [u8]) -> bool {
        self.jit.as_ref().is_some_and(|code| code.read(addr, buf))
    }

    /// Where the file was, as the process that maps it has it.
    pub fn path(&self) -> Option<&Path> {
        let is_file = self.has_code() && !self.is_jit() && self.name.as_bytes().starts_with(b"/");
        is_file.then(|| Path::new(OsStr::from_bytes(self.name.as_bytes())))
    }

    /// A file without a name, of which nothing is known.
    #[cfg(test)]
    pub(crate) fn nameless() -> Self {
        Self::default()
    }

    /// A file of which nothing is known but its name.
    #[cfg(test)]
    pub(crate) fn of_name(name: &[u8]) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The file, if it is still the one that was mapped.
    ///
    /// # Errors
    ///
    /// [`FileError`] if it is gone or another one.
    pub(crate) fn elf(&self) -> Result<&ElfFile, FileError> {
        self.elf.get_or_init(|| self.open()).as_ref().map_err(Clone::clone)
    }

    /// Its functions that switch stacks, if it is still the one that was mapped.
    pub(crate) fn switches(&self) -> Option<&FileSwitches> {
        let elf = self.elf().ok()?;
        Some(self.switches.get_or_init(|| FileSwitches::read(elf, SwitchNames::NONE)))
    }

    /// Whether V8 is in it, by the names that it exports.
    pub(crate) fn has_v8(&self) -> bool {
        *self.has_v8.get_or_init(|| self.elf().is_ok_and(exports_v8))
    }

    /// Whether CPython is in it whose calls are read, whatever it is called.
    pub(crate) fn has_python(&self) -> bool {
        let find = || self.elf().is_ok_and(|file| matches!(SampledPython::of(file), Ok(Some(_))));
        *self.has_python.get_or_init(find)
    }

    /// The link-time addresses of V8's builtin functions, if it has V8 whose calls are read.
    pub(crate) fn builtins(&self) -> Option<&Range<u64>> {
        let find = || Some(SampledV8::of(self.elf().ok()?).ok()??.builtins);
        self.builtins.get_or_init(find).as_ref()
    }

    /// The link-time address of its list of objects that compilers register, if it has one.
    pub(crate) fn jit_list(&self) -> Option<u64> {
        *self.jit_list.get_or_init(|| list_of(self.elf().ok()?))
    }

    /// Gives notice that functions of it have no names, if it is a file and not there. Returns
    /// whether that is so.
    pub fn tell_if_missing(&self, notices: &Notices) -> bool {
        let Err(FileError::Module(error)) = self.elf() else { return false };
        let name = self.name.as_bytes();
        let is_memory = maps::is_name_of_memory(name) || name.starts_with(b"/memfd:");
        // What a compiler writes into memory, and data that are executable all the same.
        let was_file =
            self.build_id().is_some() || !(is_memory || matches!(error, ModuleError::Elf(_)));
        let is_missing = was_file && self.holders.is_empty();
        if is_missing && !self.is_told.swap(true, Ordering::Relaxed) {
            self.tell(error, notices);
        }
        is_missing
    }

    fn tell(&self, error: ModuleError, notices: &Notices) {
        let now = match error {
            ModuleError::Replaced(own) => format!("the file there now has build id {own}"),
            ModuleError::Deleted => "another file is there now".into(),
            ModuleError::Open(error) if error.kind() == io::ErrorKind::NotFound => {
                "there is no such file now".into()
            }
            error => format!("the file there now cannot be used: {error}"),
        };
        let (recorded, advice) = match self.build_id() {
            Some(id) => {
                let kept = build_id_cache::shown_folder();
                let advice = format!(
                    "and none with that is kept in {kept}; `perf buildid-cache --add FILE` keeps it \
                     if you still have it"
                );
                (format!("build id {}", build_id_cache::hex(id)), advice)
            }
            None => {
                let advice = "and nothing else tells it from others; link it with --build-id, so \
                              that `unwind record` can keep it";
                ("no build id".into(), advice.into())
            }
        };
        notices.add(format!(
            "functions of {} have no names: it was recorded with {recorded}, {now}, {advice}",
            self.name
        ));
    }

    /// Opens it, as [`elf`](Self::elf) does at its first call.
    ///
    /// # Errors
    ///
    /// [`FileError`] if it is gone or another one.
    pub fn open(&self) -> Result<ElfFile, FileError> {
        let name = self.name.as_bytes();
        if name == b"[vdso]" {
            return self.checked(own_vdso().ok_or(FileError::NoFile)?);
        }
        if name == VDSO_32 {
            let copy = |holder: &Holder<'_>| vdso_of(holder.thread, &holder.range);
            let found = self.holders.newest_first().iter().find_map(copy);
            return self.checked(found.ok_or(FileError::NoFile)?);
        }
        if let Some(bytes) = &self.registered {
            return Ok(ElfFile::from_bytes(bytes.to_vec()).map_err(ModuleError::Elf)?);
        }
        if !self.may_have_code() || self.is_jit() || self.names.is_some() {
            return Err(FileError::NoFile);
        }
        let search = |holder: Option<Holder<'static>>| Search {
            path: Path::new(OsStr::from_bytes(name)),
            proof: match &self.id {
                FileId::BuildId(id) => Proof::BuildId(id),
                FileId::Number(number, _) => Proof::File(*number),
                FileId::Unknown => Proof::None,
            },
            is_deleted: false,
            not_after: self.recorded,
            // Without a proof nothing tells that it is the right one.
            holder,
            sysroot: None,
        };
        let mut holders = match self.id {
            FileId::Unknown => Vec::new(),
            _ => self.holders.newest_first(),
        }
        .into_iter();
        let mut found = search(holders.next()).open();
        for holder in holders {
            if found.is_ok() {
                break;
            }
            found = search(Some(holder)).open();
        }
        Ok(found?)
    }

    fn checked(&self, file: ElfFile) -> Result<ElfFile, FileError> {
        match &self.id {
            FileId::BuildId(id) if file.build_id().as_deref() != Some(id) => {
                let own = file.build_id().unwrap_or_default();
                Err(ModuleError::Replaced(own.as_slice().into()).into())
            }
            _ => Ok(file),
        }
    }

    /// Its `.sframe`.
    pub(crate) fn sframe(&self) -> Option<&SframeSection> {
        let file = self.elf().ok()?;
        self.sframe.get_or_init(|| file.sframe()).as_ref().ok()?.as_ref()
    }

    /// The row for a link-time address, straight from its call frame information; `None` if
    /// that says nothing of it, or is of code with other words.
    ///
    /// # Errors
    ///
    /// [`NoRowError`] if what it says cannot be used.
    pub(crate) fn call_frame_row(
        &self,
        addr: u64,
        word: WordSize,
    ) -> Result<Option<Row>, NoRowError> {
        if let Some(code) = &self.jit {
            return code.found(addr, word).map_err(|error| NoRowError::Cfi(Part::EhFrame, error));
        }
        let of_file = self.call_frames(word);
        of_file.map_or(Ok(None), |(file, call_frames)| call_frames.row(file, addr))
    }

    /// Whether the row for a link-time address is that of the code to which a signal handler returns.
    pub(crate) fn is_trampoline(&self, addr: u64) -> bool {
        let is_signal =
            |word| matches!(self.call_frame_row(addr, word), Ok(Some(row)) if row.is_signal());
        [WordSize::Eight, WordSize::Four].into_iter().any(is_signal)
    }

    /// The row of a frame whose code was loaded this far above its link-time address, by the same,
    /// with what only the frame and its memory tell.
    pub(crate) fn call_frame_row_in<A: Arch, M: Memory>(
        &self,
        bias: u64,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Option<Row> {
        let addr = frame.lookup_addr().get().wrapping_sub(bias);
        row_in_frame(self.call_frame_row(addr, A::WORD), frame, mem, || match &self.jit {
            Some(code) => code.frame_rules(addr, A::WORD),
            None => {
                let (file, call_frames) = self.call_frames(A::WORD)?;
                call_frames.frame_rules(file, addr, bias)
            }
        })
    }

    /// The rules of other registers for a link-time address, if the same has them.
    pub(crate) fn call_frame_register_rules(
        &self,
        addr: u64,
        word: WordSize,
    ) -> Option<RegisterRules> {
        if let Some(code) = &self.jit {
            return code.register_rules(addr, word);
        }
        let (file, call_frames) = self.call_frames(word)?;
        call_frames.register_rules(file, addr)
    }

    /// Whether it has call frame information of such code.
    pub(crate) fn has_call_frames(&self, word: WordSize) -> bool {
        self.call_frames(word).is_some_and(|(file, call_frames)| call_frames.is_there(file))
    }

    /// What could not be read of the information that was looked for so far.
    pub(crate) fn unread_call_frames(&self) -> Option<ElfError> {
        self.call_frames.get()?.unread()
    }

    fn call_frames(&self, word: WordSize) -> Option<(&ElfFile, &CallFrameRows)> {
        let file = self.elf().ok()?;
        let call_frames = self.call_frames.get_or_init(|| CallFrameRows::new(file));
        (call_frames.word() == Some(word)).then_some((file, call_frames))
    }

    /// The start of the function that holds a link-time address, and its names.
    pub(crate) fn function(&self, addr: u64) -> Option<(u64, Vec<Alias>)> {
        if let Some(code) = &self.jit {
            let name = code.name.as_bytes().into();
            return Some((code.start, vec![Alias { name, end: code.end, rank: Rank::Global }]));
        }
        if let Some(names) = &self.names {
            let (start, end, name) = names.function(addr)?;
            let name = name.as_bytes().into();
            return Some((start, vec![Alias { name, end, rank: Rank::Global }]));
        }
        let file = self.elf().ok()?;
        let find = || self.debug_files.find(file, self.path()).ok().flatten().map(Arc::new);
        let read = || Symbols::read_with(file, find);
        let symbols = self.symbols.get_or_init(read).as_ref().ok()?;
        symbols.aliases(file, addr, MAX_ALIASES)
    }

    /// The entry of a linkage table that holds a link-time address.
    pub(crate) fn linkage(&self, addr: u64) -> Option<&LinkageEntry> {
        let file = self.elf().ok()?;
        self.linkage.get_or_init(|| LinkageTables::read(file)).as_ref().ok()?.find(addr)
    }

    /// The name at an offset in the file.
    pub(crate) fn name_at(&self, offset: u64) -> Option<Vec<u8>> {
        read_whole_name(self.elf().ok()?, offset, NAME_LIMIT)
    }
}

/// Whether a file exports functions of V8's class for its instances.
fn exports_v8(file: &ElfFile) -> bool {
    /// The largest list of names that is looked through, in bytes.
    const LIMIT: u64 = 64 << 20;
    let sections = file.sections().unwrap_or_default();
    let names = sections.iter().find(|section| section.name == b".dynstr");
    let names = names
        .and_then(|names| file.bytes(Part::SymbolNames, names.offset, names.size.min(LIMIT)).ok());
    names.is_some_and(|names| memchr::memmem::find(&names, b"_ZN2v87Isolate").is_some())
}

/// The code that the kernel lends to this very process: the same as to all others while it
/// runs.
pub(crate) fn own_vdso() -> Option<ElfFile> {
    let mappings = maps::parse(&std::fs::read("/proc/self/maps").ok()?);
    let vdso = mappings.iter().find(|mapping| mapping.backing == Backing::Vdso)?;
    vdso_of(i32::try_from(std::process::id()).ok()?, &vdso.range)
}

fn vdso_of(process: i32, range: &Range<u64>) -> Option<ElfFile> {
    copy_vdso(range, &mut ProcessMemory::open(process).ok()?).ok()
}
