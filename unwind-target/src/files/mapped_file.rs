//! Opens the files that processes, core files and recordings have mapped.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use unwind_core::{Memory, VirtAddr};

use crate::elf::ElfFile;
use crate::files::build_id_cache;
use crate::files::regular_file::{self, NotRegular};
use crate::loaded::module_error::ModuleError;
use crate::target::maps::{FileId, MappedFile};

/// The most bytes that are copied as the vDSO; it has a few pages.
pub(crate) const VDSO_LIMIT: u64 = 1 << 20;

/// What proves that a file is the one that was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof<'a> {
    /// Nothing: whatever has the name is taken.
    None,
    /// Its number on its device.
    File(FileId),
    /// What the linker has left in it.
    BuildId(&'a [u8]),
}

/// Where the bytes of a mapped file are looked for: the one place that decides it.
///
/// A process that has it mapped still has the file, whatever its name leads to by now: below its
/// own root directory, by the mapping, or as its program. Next comes what has the name here, or
/// below another root. Last comes what perf and `unwind record` keep by build ids, if that is known.
/// Only a file with the proof is taken.
#[derive(Debug)]
pub struct Search<'a> {
    /// What the process calls it.
    pub path: &'a Path,
    pub proof: Proof<'a>,
    /// Its name was removed when it was mapped.
    pub is_deleted: bool,
    /// When it was recorded, in nanoseconds since 1970, if that is known: what was written later is
    /// another file, whose number may be the same.
    pub not_after: Option<u64>,
    /// A process that has it mapped, if one may run.
    pub holder: Option<Holder<'a>>,
    /// What stands for `/` here.
    pub sysroot: Option<&'a Path>,
}

/// A process that has mapped a file, and where.
#[derive(Clone, Debug)]
pub struct Holder<'a> {
    /// A thread of it.
    pub thread: i32,
    /// Its root directory, if it was opened while the process ran.
    pub root: Option<&'a File>,
    pub range: Range<u64>,
}

impl Search<'_> {
    /// Opens the file.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] if it is gone, another one by now, or no ELF file.
    pub fn open(&self) -> Result<ElfFile, ModuleError> {
        match self.proof {
            Proof::BuildId(id) => self.by_build_id(id),
            Proof::File(wanted) => self.by_number(wanted),
            Proof::None => match &self.holder {
                Some(holder) => {
                    let found = holder.below_root(self.path).or_else(|_| holder.by_mapping());
                    open_elf(found.or_else(|_| self.here()))
                }
                None => open_elf(self.here()),
            },
        }
    }

    /// What has the name here.
    fn here(&self) -> io::Result<File> {
        match self.sysroot {
            Some(sysroot) => regular_file::open_in(sysroot, self.path),
            None => regular_file::open(self.path),
        }
    }

    fn by_build_id(&self, id: &[u8]) -> Result<ElfFile, ModuleError> {
        let is_it = |elf: &ElfFile| elf.build_id().as_deref() == Some(id);
        let here = open_elf(self.here());
        if here.as_ref().is_ok_and(is_it) {
            return here;
        }
        let of_holder = self.holder.iter().flat_map(|holder| holder.files(self.path));
        let kept = || build_id_cache::open(id).map(Ok);
        for file in of_holder.chain(iter::once_with(kept).flatten()) {
            if let Some(found) = open_elf(file).ok().filter(is_it) {
                return Ok(found);
            }
        }
        let present = here?.build_id().unwrap_or_default();
        Err(ModuleError::Replaced(present.as_slice().into()))
    }

    fn by_number(&self, wanted: FileId) -> Result<ElfFile, ModuleError> {
        let is_old = |found: &Metadata| self.not_after.is_none_or(|at| written(found) <= at);
        let is_same = |file: &File| {
            file.metadata().is_ok_and(|found| same_file(&found, wanted) && is_old(&found))
        };
        let by_root = self.holder.as_ref().map(|holder| holder.below_root(self.path));
        match by_root {
            Some(Ok(file)) if is_same(&file) => return open_elf(Ok(file)),
            _ => {}
        }
        if let Some(holder) = &self.holder {
            // A mapping leads to its file whatever the file's name, but for root only. Another
            // process may have the number of one that has ended.
            let by_mapping = holder.by_mapping();
            if by_mapping.as_ref().is_ok_and(|file| same_inode(file, wanted)) {
                return open_elf(by_mapping);
            }
            let program = holder.program();
            if program.as_ref().is_ok_and(is_same) {
                return open_elf(program);
            }
        }
        let here = self.here();
        if here.as_ref().is_ok_and(is_same) {
            return open_elf(here);
        }
        // Stacked file systems give a file one device number when asked by its path
        // and another when asked by a mapping, so these say nothing.
        let has_root = self.holder.as_ref().is_some_and(|holder| holder.root.is_some());
        let by_path = match by_root {
            // A process of which there is no root any more may have had this one.
            None | Some(Err(_)) if !has_root => here,
            by_root => by_root.unwrap_or(here),
        };
        let is_gone = match &by_path {
            Ok(file) => {
                let is_old = file.metadata().is_ok_and(|found| is_old(&found));
                self.is_deleted || !is_old || !same_inode(file, wanted)
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound || NotRegular::is_why(error),
        };
        if is_gone { Err(ModuleError::Deleted) } else { open_elf(by_path) }
    }
}

impl Holder<'_> {
    /// Its files of this name, and the one that it maps there.
    fn files(&self, path: &Path) -> [io::Result<File>; 3] {
        // A mapping leads to its file for root only, the program itself for its owner.
        [self.by_mapping(), self.below_root(path), self.program()]
    }

    fn by_mapping(&self) -> io::Result<File> {
        let Range { start, end } = self.range;
        regular_file::open(&self.of_process(&format!("map_files/{start:x}-{end:x}")))
    }

    fn program(&self) -> io::Result<File> {
        regular_file::open(&self.of_process("exe"))
    }

    fn below_root(&self, path: &Path) -> io::Result<File> {
        let below_root = path.strip_prefix("/").unwrap_or(path);
        let root = match self.root {
            Some(root) => PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())),
            None => self.of_process("root"),
        };
        regular_file::open(&root.join(below_root))
    }

    fn of_process(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.thread))
    }
}

/// The files that a process maps, opened when they are needed: also after the process has
/// ended, as far as their names still lead to them.
#[derive(Debug)]
pub struct ProcessFiles {
    /// A thread of the process.
    thread: i32,
    /// The root directory of the process.
    root: Option<File>,
}

impl ProcessFiles {
    /// Of the process of a thread that lives.
    #[must_use]
    pub fn of(thread: i32) -> Self {
        let path = format!("/proc/{thread}/root");
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
        Self { thread, root: root.ok() }
    }

    /// Opens a file by a mapping of it.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] if the file is gone, or is no ELF file.
    pub fn open(&self, range: &Range<u64>, mapped: &MappedFile) -> Result<ElfFile, ModuleError> {
        let search = Search {
            path: &mapped.path,
            proof: mapped.id.map_or(Proof::None, Proof::File),
            is_deleted: mapped.deleted,
            not_after: None,
            holder: Some(self.holder(range)),
            sysroot: None,
        };
        search.open()
    }

    /// Opens the file that is mapped there, whatever its name leads to: for root only.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_mapping(&self, range: &Range<u64>) -> Result<ElfFile, ModuleError> {
        open_elf(self.holder(range).by_mapping())
    }

    fn holder(&self, range: &Range<u64>) -> Holder<'_> {
        Holder { thread: self.thread, root: self.root.as_ref(), range: range.clone() }
    }
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

/// When a file was written last, in nanoseconds since 1970; 0 if before that.
fn written(file: &Metadata) -> u64 {
    let seconds = u64::try_from(file.mtime()).unwrap_or(0);
    let rest = u64::try_from(file.mtime_nsec()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

fn same_inode(file: &File, id: FileId) -> bool {
    file.metadata().is_ok_and(|metadata| id.inode == metadata.ino())
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
pub fn copy_vdso(range: &Range<u64>, memory: &mut impl Memory) -> Result<ElfFile, ModuleError> {
    let len = range.end.saturating_sub(range.start).min(VDSO_LIMIT);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    memory.read(VirtAddr::new(range.start), &mut bytes).map_err(|_| ModuleError::Memory)?;
    Ok(ElfFile::from_bytes(bytes)?)
}
