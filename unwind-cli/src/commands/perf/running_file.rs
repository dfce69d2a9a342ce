//! The file of a process that runs, when its name leads there no longer: it was removed or
//! replaced, or the process has another root directory.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::elf::ElfFile;
use crate::mapped_file::open_elf;
use crate::regular_file;

/// A process that has mapped a file, and where.
#[derive(Clone, Debug)]
pub(crate) struct RunningFile {
    pub(crate) process: u32,
    pub(crate) range: Range<u64>,
}

impl RunningFile {
    /// Opens the file of this name, if the process still has it and it is the one with this
    /// inode, where that is known.
    pub(crate) fn open(
        &self,
        name: &Path,
        inode: Option<u64>,
        is_right: impl Fn(&ElfFile) -> bool,
    ) -> Option<ElfFile> {
        let Range { start, end } = self.range;
        let process = PathBuf::from(format!("/proc/{}", self.process));
        let below_root = name.strip_prefix("/").unwrap_or(name);
        // A mapping leads to its file for root only, the program itself for its owner.
        let paths = [
            process.join(format!("map_files/{start:x}-{end:x}")),
            process.join("root").join(below_root),
            process.join("exe"),
        ];
        paths.iter().find_map(|path| {
            let file = regular_file::open(path).ok()?;
            let found = file.metadata().ok()?.ino();
            let elf = open_elf(Ok(file)).ok()?;
            (inode.is_none_or(|inode| inode == found) && is_right(&elf)).then_some(elf)
        })
    }
}
