//! The records of a recording on their way to its file, compressed unless that is turned off.

use std::io::{self, Write};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use unwind_perf::record::Endian;

use crate::commands::perf::tool_record;

/// How many bytes of records are compressed at a time. What comes of them has to fit a record.
const CHUNK: usize = 60 << 10;
/// How many bytes of records come of a compressed one at most: a chunk, or one record alone.
const MAX_CHUNK: u32 = 1 << 17;

/// Writes records, each by one call.
pub(super) struct RecordsWriter<W> {
    out: W,
    is_compressing: bool,
    pending: Vec<u8>,
    /// How many bytes the file has of them.
    written: u64,
}

impl<W: Write> RecordsWriter<W> {
    pub(super) const fn new(out: W, is_compressing: bool) -> Self {
        Self { out, is_compressing, pending: Vec::new(), written: 0 }
    }

    /// Writes what waits. Returns how many bytes the file has of all records.
    pub(super) fn finish(&mut self) -> io::Result<u64> {
        self.write_pending()?;
        Ok(self.written)
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        // Each has a frame of its own, so that readers get all of its records at once.
        let frame = compress_to_vec(pending.as_slice(), CompressionLevel::Fastest);
        let size = frame.len().checked_add(8).and_then(|size| u16::try_from(size).ok());
        match size.filter(|_| frame.len() < pending.len()) {
            Some(size) => {
                let [kind, _] = tool_record::COMPRESSED;
                let endian = Endian::Little;
                self.store(&endian.bytes_of_u32(kind.0))?;
                self.store(&[0, 0])?;
                self.store(&size.to_le_bytes())?;
                self.store(&frame)
            }
            None => self.store(&pending),
        }
    }

    fn store(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.written = self.written.saturating_add(len);
        self.out.write_all(bytes)
    }
}

impl<W: Write> Write for RecordsWriter<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        if !self.is_compressing {
            self.store(record)?;
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
pub(super) fn feature_section(endian: Endian) -> Vec<u8> {
    [1, 1, 1, 1, MAX_CHUNK].into_iter().flat_map(|word| endian.bytes_of_u32(word)).collect()
}
