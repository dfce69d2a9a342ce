//! The records of a recording on their way to its file, compressed unless that is turned off.

use std::io::{self, Write};

use unwind_perf::record::Endian;

use crate::recording::header::Feature;
use crate::recording::record_file::RecordFile;
use crate::recording::tool_record;

/// How many bytes of records are compressed at a time. What comes of them has to fit a record.
const CHUNK: usize = 60 << 10;
/// The level of zstd: higher ones take more time, and records get no smaller by them.
const LEVEL: i32 = 1;
/// How many bytes of records come of a compressed one at most: a chunk, or one record alone.
const MAX_CHUNK: u32 = 1 << 17;

/// Writes records, each by one call.
pub(crate) struct RecordsWriter<W> {
    out: W,
    is_compressing: bool,
    pending: Vec<u8>,
}

impl<W: Write> RecordsWriter<W> {
    pub(crate) const fn new(out: W, is_compressing: bool) -> Self {
        Self { out, is_compressing, pending: Vec::new() }
    }

    /// Writes what waits.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.write_pending()
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        // Each has a frame of its own, so that readers get all of its records at once.
        let frame = zrip_encode::compress(&pending, LEVEL).map_err(io::Error::other)?;
        let size = frame.len().checked_add(8).and_then(|size| u16::try_from(size).ok());
        match size.filter(|_| frame.len() < pending.len()) {
            Some(size) => {
                let [kind, _] = tool_record::COMPRESSED;
                let endian = Endian::Little;
                self.out.write_all(&endian.bytes_of_u32(kind.0))?;
                self.out.write_all(&[0, 0])?;
                self.out.write_all(&size.to_le_bytes())?;
                self.out.write_all(&frame)
            }
            None => self.out.write_all(&pending),
        }
    }
}

impl RecordsWriter<&mut RecordFile> {
    pub(crate) const fn file(&self) -> &RecordFile {
        self.out
    }

    /// Makes what was written readable, with this section after it.
    pub(crate) fn checkpoint(&mut self, last: &[(Feature, Vec<u8>)]) -> io::Result<()> {
        self.write_pending()?;
        self.out.checkpoint(last)
    }
}

impl<W: Write> Write for RecordsWriter<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        if !self.is_compressing {
            self.out.write_all(record)?;
            return Ok(record.len());
        }
        if self.pending.len().saturating_add(record.len()) > CHUNK {
            self.write_pending()?;
        }
        self.pending.extend(record);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The feature section that tells perf how records are compressed: the version of the section,
/// zstd, its level, a ratio that perf only shows, and how much room what comes of a record takes at
/// most.
pub(crate) fn feature_section(endian: Endian) -> Vec<u8> {
    [1, 1, 1, 1, MAX_CHUNK].into_iter().flat_map(|word| endian.bytes_of_u32(word)).collect()
}
