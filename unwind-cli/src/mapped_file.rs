//! Opens the files that processes and core files have mapped.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use unwind_core::{Memory, VirtAddr};

use crate::elf::ElfFile;
use crate::module_error::ModuleError;
use crate::regular_file::{self, NotRegular};
use crate::target::maps::{FileId, MappedFile};

/// The most bytes that are copied as the vDSO; it has a few pages.
pub(crate) const VDSO_LIMIT: u64 = 1 << 20;

/// Opens a file that was mapped when a core was made, below `sysroot` if that is given.
/// `build_id` is that of the mapped file, if the core has it.
///
/// # Errors
///
/// [`ModuleError`] if the file is gone, or is another one by now.
pub(crate) fn open_of_core(
    path: &Path,
    build_id: Option<&[u8]>,
    sysroot: Option<&Path>,
) -> Result<ElfFile, ModuleError> {
    let file = open_elf(match sysroot {
        Some(sysroot) => open_in(sysroot, path),
        None => regular_file::open(path),
    })?;
    match (build_id, file.build_id()) {
        (Some(mapped), Some(present)) if mapped != present => {
            Err(ModuleError::Replaced(present.as_slice().into()))
        }
        _ => Ok(file),
    }
}

/// Opens a file of a machine whose files are below `sysroot`, links among them as they are
/// there.
fn open_in(sysroot: &Path, path: &Path) -> io::Result<File> {
    let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(sysroot)?;
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::IN_ROOT);
    let file = openat2(&root, path, flags, Mode::empty(), resolve)?;
    regular_file::open(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

/// The files that a process maps, opened when they are needed: also after the process has
/// ended, as far as their names still lead to them.
#[derive(Debug)]
pub(crate) struct ProcessFiles {
    /// A thread of the process.
    thread: i32,
    /// The root directory of the process.
    root: io::Result<File>,
}

impl ProcessFiles {
    /// Of the process of a thread that lives.
    pub(crate) fn of(thread: i32) -> Self {
        let path = format!("/proc/{thread}/root");
        let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
        Self { thread, root }
    }

    /// Opens a file by a mapping of it.
    ///
    /// The path may lead elsewhere by now, so what it leads to is compared with what is
    /// mapped. Of a process with another root directory it may be as seen from there or
    /// from here.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] if the file is gone, or is no ELF file.
    pub(crate) fn open(
        &self,
        range: &Range<u64>,
        mapped: &MappedFile,
    ) -> Result<ElfFile, ModuleError> {
        let proc = PathBuf::from(format!("/proc/{}", self.thread));
        let is_same = |file: &File| {
            let metadata = file.metadata();
            metadata.is_ok_and(|metadata| mapped.id.is_none_or(|id| same_file(&metadata, id)))
        };
        let by_path = self.open_below_root(&mapped.path);
        if by_path.as_ref().is_ok_and(is_same) {
            return open_elf(by_path);
        }
        // A mapping leads to its file whatever the file's name, but for root only.
        let Range { start, end } = range;
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

    fn open_below_root(&self, path: &Path) -> io::Result<File> {
        let root = self.root.as_ref().map_err(|error| io::Error::from(error.kind()))?;
        let below_root = path.strip_prefix("/").unwrap_or(path);
        regular_file::open(
            &Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())).join(below_root),
        )
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
