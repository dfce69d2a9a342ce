//! Where the bytes of a recording come from.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use crate::recording::error::PerfError;
use crate::recording::stream::StreamReader;

pub(crate) enum Input {
    /// With its length when it was opened.
    File(BufReader<File>, u64),
    /// The bytes of a file.
    Bytes(Cursor<Vec<u8>>),
    Pipe(Box<dyn Read>),
    /// Records of this process.
    Stream(StreamReader),
}

impl Input {
    /// Fills `buf` from offset `at`.
    pub(crate) fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<(), PerfError> {
        let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        match self {
            Self::File(file, _) => file.get_ref().read_exact_at(buf, at)?,
            Self::Bytes(bytes) => {
                let tail = usize::try_from(at).ok().and_then(|at| bytes.get_ref().get(at..));
                buf.copy_from_slice(tail.and_then(|tail| tail.get(..buf.len())).ok_or_else(end)?);
            }
            Self::Pipe(_) | Self::Stream(_) => return Err(PerfError::FileFormOnPipe),
        }
        Ok(())
    }

    /// Continues at offset `at`.
    pub(crate) fn seek(&mut self, at: u64) -> Result<(), PerfError> {
        match self {
            Self::File(file, _) => file.seek(SeekFrom::Start(at))?,
            Self::Bytes(bytes) => bytes.seek(SeekFrom::Start(at))?,
            Self::Pipe(_) | Self::Stream(_) => return Err(PerfError::FileFormOnPipe),
        };
        Ok(())
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file, _) => file.read(buf),
            Self::Bytes(bytes) => bytes.read(buf),
            Self::Pipe(pipe) => pipe.read(buf),
            Self::Stream(stream) => stream.read(buf),
        }
    }
}
