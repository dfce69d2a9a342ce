//! The files whose code a target executes: what is loaded where.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sframe::{Format, WriteError};
use unwind_core::{Memory, RegisterRules, Row, VirtAddr, WordSize};

use crate::call_frame_rows::CallFrameRows;
use crate::call_frames::{BuiltTable, CallFrames};
use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::elf::sframe_section::SframeSection;
use crate::indexed_frames::NoRowError;
use crate::progress::Progress;
use crate::regular_file::{self, NotRegular};
use crate::symbols::{Function, Symbols};
use crate::system_error::SystemError;
use crate::target::maps::{Backing, FileId, MappedFile, Mapping};

/// The most bytes that are copied as the vDSO; it has a few pages.
const VDSO_LIMIT: u64 = 1 << 20;

/// Why the file of a mapping is not used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ModuleError {
    /// It cannot be opened.
    #[error("cannot open it: {0}")]
    Open(SystemError),
    /// It is a directory, a pipe, a device or a socket.
    #[error("it is not a regular file")]
    NotRegular,
    /// It has no name any more.
    #[error("it was deleted or replaced, and only root may still read it")]
    Deleted,
    /// Another file has taken its place.
    #[error("it is not the file that was mapped: the build ids differ, its own is {0}")]
    Replaced(BuildId),
    /// A file that a core file was made with cannot be used.
    #[error("{error}{}", hint(wanted.as_ref(), *is_program))]
    OfCore {
        /// Why not.
        error: Box<ModuleError>,
        /// The build id of the file that was mapped.
        wanted: Option<BuildId>,
        /// It is the program, not a library.
        is_program: bool,
    },
    /// It is not ELF, or damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Its program headers have no code where it was mapped.
    #[error("its program headers have no code at the mapped offset {0:#x}")]
    NoCodeAt(u64),
    /// The target's memory cannot be read.
    #[error("its memory cannot be read")]
    Memory,
}

/// What helps where a file that a core was made with cannot be used.
fn hint(wanted: Option<&BuildId>, is_program: bool) -> String {
    match (wanted, is_program) {
        (Some(id), true) => {
            format!(
                "; give the program that has build id {id}, which the core was made of, by --exe"
            )
        }
        (None, true) => "; give the program that the core was made of by --exe".into(),
        (Some(id), false) => format!("; the one that was mapped has build id {id}"),
        (None, false) => String::new(),
    }
}

/// What identifies the contents of a file, as the linker left it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BuildId(Vec<u8>);

impl BuildId {
    /// How many bytes are shown; the usual ones have 20.
    const SHOWN: usize = 32;
}

impl From<&[u8]> for BuildId {
    fn from(id: &[u8]) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0.iter().take(Self::SHOWN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(if self.0.len() > Self::SHOWN { "…" } else { "" })
    }
}

/// Why no table is made of a file's call frame information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BuildError {
    /// It is damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// One loaded file.
#[derive(Debug)]
pub(crate) struct Module {
    /// How it is called: the path of a file, or `[vdso]`.
    pub(crate) path: PathBuf,
    /// Its file, or why there is none.
    pub(crate) image: Result<LoadedImage, ModuleError>,
}

/// A file and where it is loaded. It may be loaded in many places.
#[derive(Debug)]
pub(crate) struct LoadedImage {
    file: Rc<LoadedFile>,
    /// How far it is above its link-time addresses, wrapping.
    pub(crate) bias: u64,
}

/// A file, and what was read of it so far: once, wherever it is loaded.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    pub(crate) elf: ElfFile,
    sframe: OnceCell<Result<Option<SframeSection>, ElfError>>,
    call_frames: CallFrameRows,
    built: OnceCell<Result<Option<BuiltTable>, BuildError>>,
    symbols: OnceCell<Result<Symbols, ElfError>>,
}

impl From<ElfFile> for LoadedFile {
    fn from(elf: ElfFile) -> Self {
        let (sframe, built, symbols) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        let call_frames = CallFrameRows::new(&elf);
        Self { elf, sframe, call_frames, built, symbols }
    }
}

impl LoadedImage {
    /// Its `.sframe`, read at the first call.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it is not inside the file.
    pub(crate) fn sframe(&self) -> Result<Option<&SframeSection>, ElfError> {
        match self.file.sframe.get_or_init(|| self.file.elf.sframe()) {
            Ok(section) => Ok(section.as_ref()),
            Err(error) => Err(*error),
        }
    }

    /// The row for an address of the target, straight from the file's call frame
    /// information; `None` if that says nothing of it, or is of code with other words.
    ///
    /// # Errors
    ///
    /// [`NoRowError`] if what it says cannot be used.
    pub(crate) fn call_frame_row(
        &self,
        addr: u64,
        word: WordSize,
    ) -> Result<Option<Row>, NoRowError> {
        let rows = &self.file.call_frames;
        if rows.word() != Some(word) {
            return Ok(None);
        }
        rows.row(&self.file.elf, addr.wrapping_sub(self.bias))
    }

    /// The rules of other registers for an address of the target by the call frame
    /// information, if that has them.
    pub(crate) fn call_frame_register_rules(
        &self,
        addr: u64,
        word: WordSize,
    ) -> Option<RegisterRules> {
        let rows = &self.file.call_frames;
        let is_same = rows.word() == Some(word);
        is_same.then(|| rows.register_rules(&self.file.elf, addr.wrapping_sub(self.bias)))?
    }

    /// What of the call frame information that was looked for so far could not be read.
    pub(crate) fn unread_call_frames(&self) -> Option<ElfError> {
        self.file.call_frames.unread()
    }

    /// Whether the file has call frame information of code that is understood.
    pub(crate) fn has_call_frames(&self) -> bool {
        self.file.call_frames.is_there(&self.file.elf)
    }

    /// A table made of its call frame information at the first call; `None` if
    /// it has none. `path` is what to call it while that takes long.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if the information is not inside the file, or memory is
    /// short.
    pub(crate) fn built(&self, path: &Path) -> Result<Option<&BuiltTable>, BuildError> {
        let elf = &self.file.elf;
        let built = self.file.built.get_or_init(|| {
            let Some(frames) = CallFrames::read(elf)? else { return Ok(None) };
            let progress = Progress::new(path, elf.len());
            let done = |done| progress.set(done, frames.len());
            // Addresses are the file's own until the table is used.
            let built = frames.build(Format::V3, 0, done);
            progress.finish();
            Ok(Some(built?))
        });
        match built {
            Ok(table) => Ok(table.as_ref()),
            Err(error) => Err(*error),
        }
    }

    /// What has come of [`built`](Self::built), if it was asked for.
    pub(crate) fn built_so_far(&self) -> Option<Result<Option<&BuiltTable>, BuildError>> {
        self.file.built.get().map(|built| match built {
            Ok(table) => Ok(table.as_ref()),
            Err(error) => Err(*error),
        })
    }

    /// The function that holds an address of the target. Symbols are read at
    /// the first call.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if the symbols are damaged.
    pub(crate) fn function(&self, addr: u64) -> Result<Option<Function>, ElfError> {
        let elf = &self.file.elf;
        match self.file.symbols.get_or_init(|| Symbols::read(elf)) {
            Ok(symbols) => Ok(symbols.find(elf, addr.wrapping_sub(self.bias))),
            Err(error) => Err(*error),
        }
    }
}

/// All loaded files of a target.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    modules: Vec<Module>,
    /// Ranges of code and the index of the module that each belongs to, sorted.
    text: Vec<(Range<u64>, usize)>,
    /// What was opened for which mappings.
    files: HashMap<Backing, Result<Rc<LoadedFile>, ModuleError>>,
}

impl Modules {
    /// Opens what backs each executable mapping, by `open`.
    pub(crate) fn load(
        mappings: &[Mapping],
        mut open: impl FnMut(&Mapping) -> Option<Result<ElfFile, ModuleError>>,
    ) -> Self {
        let mut modules = Self::default();
        // Programs may map their files in many thousand pieces.
        let mut known = HashMap::new();
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            // A file is opened once, however many mappings it has.
            let file = match modules.files.get(&mapping.backing) {
                Some(file) => file.clone(),
                None => {
                    let Some(file) = open(mapping) else { continue };
                    let file = file.map(|elf| Rc::new(elf.into()));
                    modules.files.insert(mapping.backing.clone(), file.clone());
                    file
                }
            };
            modules.add(mapping, file, &mut known);
        }
        modules.text.sort_unstable_by_key(|(range, _)| range.start);
        modules
    }

    /// Adds a range of code. `known` has which module each file is, by where it is
    /// loaded or why it is not.
    fn add<'m>(
        &mut self,
        mapping: &'m Mapping,
        file: Result<Rc<LoadedFile>, ModuleError>,
        known: &mut HashMap<(&'m Backing, Result<u64, ModuleError>), usize>,
    ) {
        let path = match &mapping.backing {
            Backing::File(file) => file.path.clone(),
            Backing::Vdso => PathBuf::from("[vdso]"),
            Backing::Anonymous | Backing::Named(_) => return,
        };
        let image = file.and_then(|file| {
            let bias = file
                .elf
                .bias(mapping.range.start, mapping.offset)
                .ok_or(ModuleError::NoCodeAt(mapping.offset))?;
            Ok(LoadedImage { file, bias })
        });
        let place = image.as_ref().map(|image| image.bias).map_err(Clone::clone);
        let index = *known.entry((&mapping.backing, place)).or_insert_with(|| {
            self.modules.push(Module { path, image });
            self.modules.len().saturating_sub(1)
        });
        self.text.push((mapping.range.clone(), index));
    }

    /// The module whose code holds an address of the target.
    pub(crate) fn find(&self, addr: u64) -> Option<&Module> {
        let after = self.text.partition_point(|(range, _)| range.start <= addr);
        let (range, index) = self.text.get(after.checked_sub(1)?)?;
        if range.contains(&addr) { self.modules.get(*index) } else { None }
    }

    /// The file that backs the mappings of a kind, if one of them is executable and
    /// the file could be opened.
    pub(crate) fn file_of(&self, backing: &Backing) -> Option<Rc<LoadedFile>> {
        self.files.get(backing)?.clone().ok()
    }

    /// The loaded files.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Module> {
        self.modules.iter()
    }

    /// Each range of code with the file that it was loaded from, ascending.
    pub(crate) fn text(&self) -> impl Iterator<Item = (&Range<u64>, &Module)> {
        self.text.iter().filter_map(|(range, index)| Some((range, self.modules.get(*index)?)))
    }
}

/// Opens a file that was mapped when a core was made. `build_id` is that of the
/// mapped file, if the core has it.
///
/// # Errors
///
/// [`ModuleError`] if the file is gone, or is another one by now.
pub(crate) fn open_of_core(path: &Path, build_id: Option<&[u8]>) -> Result<ElfFile, ModuleError> {
    let file = open_elf(regular_file::open(path))?;
    match (build_id, file.build_id()) {
        (Some(mapped), Some(present)) if mapped != present => {
            Err(ModuleError::Replaced(present.as_slice().into()))
        }
        _ => Ok(file),
    }
}

/// Opens the file that backs a mapping of a process; `None` if there is none.
pub(crate) fn open_of_process(
    thread: i32,
    mapping: &Mapping,
    memory: &mut impl Memory,
) -> Option<Result<ElfFile, ModuleError>> {
    match &mapping.backing {
        Backing::File(file) => Some(open_mapped_file(thread, mapping, file)),
        Backing::Vdso => Some(copy_vdso(&mapping.range, memory)),
        Backing::Anonymous | Backing::Named(_) => None,
    }
}

/// The path may lead elsewhere by now, so what it leads to is compared with what
/// is mapped. Of a process with another root directory it may be as seen from
/// there or from here.
fn open_mapped_file(
    thread: i32,
    mapping: &Mapping,
    mapped: &MappedFile,
) -> Result<ElfFile, ModuleError> {
    let proc = PathBuf::from(format!("/proc/{thread}"));
    let is_same = |file: &File| {
        let metadata = file.metadata();
        metadata.is_ok_and(|metadata| mapped.id.is_none_or(|id| same_file(&metadata, id)))
    };
    let below_root = mapped.path.strip_prefix("/").unwrap_or(&mapped.path);
    let by_path = regular_file::open(&proc.join("root").join(below_root));
    if by_path.as_ref().is_ok_and(is_same) {
        return open_elf(by_path);
    }
    // A mapping leads to its file whatever the file's name, but for root only.
    let Range { start, end } = mapping.range;
    let by_mapping = regular_file::open(&proc.join(format!("map_files/{start:x}-{end:x}")));
    if by_mapping.is_ok() {
        return open_elf(by_mapping);
    }
    for path in [&proc.join("exe"), &mapped.path] {
        let file = regular_file::open(path);
        if file.as_ref().is_ok_and(is_same) {
            return open_elf(file);
        }
    }
    // Stacked file systems give a file one device number when asked by its path
    // and another when asked by a mapping, so these say nothing.
    let is_gone = match &by_path {
        Ok(file) => mapped.deleted || !same_inode(file, mapped.id),
        Err(error) => error.kind() == io::ErrorKind::NotFound || NotRegular::is_why(error),
    };
    if is_gone { Err(ModuleError::Deleted) } else { open_elf(by_path) }
}

/// Reads the headers of a file that was opened, or says why it was not.
///
/// # Errors
///
/// [`ModuleError`] if it was not opened, or is no ELF file.
pub(crate) fn open_elf(file: io::Result<File>) -> Result<ElfFile, ModuleError> {
    let file = file.map_err(|error| match NotRegular::is_why(&error) {
        true => ModuleError::NotRegular,
        false => ModuleError::Open(error.into()),
    })?;
    Ok(ElfFile::from_file(file)?)
}

fn same_inode(file: &File, id: Option<FileId>) -> bool {
    file.metadata().is_ok_and(|metadata| id.is_none_or(|id| id.inode == metadata.ino()))
}

fn same_file(metadata: &Metadata, id: FileId) -> bool {
    let device = metadata.dev();
    u64::from(id.major) == u64::from(libc::major(device))
        && u64::from(id.minor) == u64::from(libc::minor(device))
        && id.inode == metadata.ino()
}

/// Copies the code that the kernel lends to the process.
///
/// # Errors
///
/// [`ModuleError`] if it cannot be read, or is damaged.
pub(crate) fn copy_vdso(
    range: &Range<u64>,
    memory: &mut impl Memory,
) -> Result<ElfFile, ModuleError> {
    let len = range.end.saturating_sub(range.start).min(VDSO_LIMIT);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    memory.read(VirtAddr::new(range.start), &mut bytes).map_err(|_| ModuleError::Memory)?;
    Ok(ElfFile::from_bytes(bytes)?)
}
