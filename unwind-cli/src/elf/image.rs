//! The bytes of an ELF file, wherever they are.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};

use crate::elf::error::{ElfError, Part};

/// The most bytes that one read copies. The largest tables known, those of web
/// browsers, are a tenth of it.
pub(super) const COPY_LIMIT: u64 = 256 << 20;

/// The bytes of an ELF file.
#[derive(Debug)]
pub(crate) enum Image {
    /// On a disk, read as needed. `len` is its length when it was opened.
    File { file: File, len: u64 },
    /// Copied from a target's memory.
    Bytes(Vec<u8>),
}

impl Image {
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

    /// Fills `buf` from offset `at`.
    pub(super) fn read_into(&self, part: Part, at: u64, buf: &mut [u8]) -> Result<(), ElfError> {
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
            Self::Bytes(bytes) => {
                let tail = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let source = tail.and_then(|tail| tail.get(..buf.len())).ok_or(truncated)?;
                buf.copy_from_slice(source);
                Ok(())
            }
        }
    }

    /// Copies `len` bytes from offset `at`.
    pub(super) fn read(&self, part: Part, at: u64, len: u64) -> Result<Vec<u8>, ElfError> {
        let end = self.len();
        if at.checked_add(len).is_none_or(|last| last > end) {
            return Err(ElfError::Truncated { part, at, len, end });
        }
        let too_large = ElfError::TooLarge { part, len };
        let count = usize::try_from(len).ok().filter(|_| len <= COPY_LIMIT).ok_or(too_large)?;
        let mut bytes = Vec::with_capacity(count);
        match self {
            // Into memory that is not cleared before.
            Self::File { file, .. } => {
                while bytes.len() < count {
                    let done = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    let room = spare_capacity(&mut bytes);
                    match pread(file, room, at.saturating_add(done)) {
                        // The file was cut since it was opened.
                        Ok(0) | Err(Errno::INVAL) => {
                            return Err(ElfError::Truncated { part, at, len, end });
                        }
                        Ok(_) | Err(Errno::INTR) => {}
                        Err(error) => {
                            let error = io::Error::from(error).into();
                            return Err(ElfError::Read { part, error });
                        }
                    }
                }
                bytes.truncate(count);
            }
            Self::Bytes(_) => {
                bytes.resize(count, 0);
                self.read_into(part, at, &mut bytes)?;
            }
        }
        Ok(bytes)
    }
}
