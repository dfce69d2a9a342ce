//! The bytes of an ELF file, wherever they are.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::buffer::spare_capacity;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, pread};

use crate::elf::error::{ElfError, Part};

/// The most bytes that one read copies. The largest tables known, those of web
/// browsers, are a tenth of it.
pub(super) const COPY_LIMIT: u64 = 256 << 20;

/// How much of a file is read when it is opened. A linker puts the program headers and the notes
/// there, and each is asked for by itself.
const HEAD: u64 = 4096;

/// The bytes of an ELF file.
#[derive(Debug)]
pub(crate) enum Image {
    /// On a disk, read as needed. `len` is its length when it was opened, and `head` what it began
    /// with: most headers.
    File { file: File, len: u64, head: Vec<u8> },
    /// Copied from a target's memory.
    Bytes(Vec<u8>),
}

impl Image {
    /// Of a file of this length. What it begins with is read now, if it can be.
    pub(super) fn of_file(file: File, len: u64) -> Self {
        let mut image = Self::File { file, len, head: Vec::new() };
        let bytes = image.read(Part::Header, 0, len.min(HEAD)).unwrap_or_default();
        if let Self::File { head, .. } = &mut image {
            *head = bytes;
        }
        image
    }

    /// The length in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            Self::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        }
    }

    /// The file again, where it is one on a disk.
    pub(super) fn opened(&self) -> Option<io::Result<File>> {
        match self {
            Self::File { file, .. } => Some(file.try_clone()),
            Self::Bytes(_) => None,
        }
    }

    /// The file again, or one in memory with these bytes.
    pub(super) fn handed_over(&self) -> io::Result<File> {
        match self {
            Self::File { file, .. } => file.try_clone(),
            Self::Bytes(bytes) => {
                let file = File::from(memfd_create("object", MemfdFlags::CLOEXEC)?);
                file.write_all_at(bytes, 0)?;
                Ok(file)
            }
        }
    }

    /// Where the file is, as far as the kernel tells.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let Self::File { file, .. } = self else { return None };
        fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
    }

    /// Those from the start that need not be read.
    fn in_memory(&self) -> &[u8] {
        match self {
            Self::File { head, .. } => head,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// A part of them, if it is all in memory.
    fn part(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.in_memory().get(usize::try_from(at).ok()?..)?.get(..len)
    }

    /// Fills `buf` from offset `at`.
    pub(super) fn read_into(&self, part: Part, at: u64, buf: &mut [u8]) -> Result<(), ElfError> {
        if let Some(bytes) = self.part(at, buf.len()) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        let truncated = ElfError::Truncated { part, at, len, end: self.len() };
        match self {
            Self::File { file, .. } => file.read_exact_at(buf, at).map_err(|error| {
                // The file may have been cut since it was opened.
                match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => truncated,
                    _ => ElfError::Read { part, error: error.into() },
                }
            }),
            Self::Bytes(_) => Err(truncated),
        }
    }

    /// Copies `len` bytes from offset `at`.
    pub(super) fn read(&self, part: Part, at: u64, len: u64) -> Result<Vec<u8>, ElfError> {
        let end = self.len();
        let truncated = ElfError::Truncated { part, at, len, end };
        if at.checked_add(len).is_none_or(|last| last > end) {
            return Err(truncated);
        }
        let too_large = ElfError::TooLarge { part, len };
        let count = usize::try_from(len).ok().filter(|_| len <= COPY_LIMIT).ok_or(too_large)?;
        if let Some(bytes) = self.part(at, count) {
            return Ok(bytes.to_vec());
        }
        let Self::File { file, .. } = self else { return Err(truncated) };
        // Into memory that is not cleared before.
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let done = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            let room = spare_capacity(&mut bytes);
            match pread(file, room, at.saturating_add(done)) {
                // The file was cut since it was opened.
                Ok(0) | Err(Errno::INVAL) => return Err(truncated),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    let error = io::Error::from(error).into();
                    return Err(ElfError::Read { part, error });
                }
            }
        }
        bytes.truncate(count);
        Ok(bytes)
    }
}
