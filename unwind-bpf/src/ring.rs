//! The ring of records that the kernel fills.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::Shared;

/// A ring of the kernel's (`BPF_MAP_TYPE_RINGBUF`), which is read here alone.
#[derive(Debug)]
pub(crate) struct Ring {
    /// How far it is read: a page with one word.
    read: Shared,
    /// How far it is written, a page with one word, and the ring, twice in a row.
    written: Shared,
    /// Bytes of the ring.
    len: u64,
    /// The record that is read, which begins with its length.
    record: Vec<u8>,
}

/// Bytes of a page on x86, and of a word's.
const PAGE: usize = 4096;
const WORD: u64 = 8;
/// What a record's length is marked with: the record is still written, or is none.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

impl Ring {
    /// Maps a ring of `len` bytes.
    pub(crate) fn map(file: BorrowedFd<'_>, len: u32) -> io::Result<Self> {
        let bytes = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let all = bytes.saturating_mul(2).saturating_add(PAGE);
        Ok(Self {
            read: Shared::map(file, PAGE, 0, true)?,
            written: Shared::map(file, all, 4096, false)?,
            len: len.into(),
            record: Vec::new(),
        })
    }

    fn position(shared: &Shared, ordering: Ordering) -> u64 {
        shared.words().first().map_or(0, |word| word.load(ordering))
    }

    /// Hands out what is written. Returns how full the ring was, in percent.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(&[u8])) -> u64 {
        let mut at = Self::position(&self.read, Ordering::Relaxed);
        let end = Self::position(&self.written, Ordering::Acquire);
        let used = end.wrapping_sub(at).saturating_mul(100).checked_div(self.len).unwrap_or(0);
        while at < end {
            let Some(head) = self.word(at) else { break };
            let (len, is_record) = match u32::try_from(head.load(Ordering::Acquire) & 0xffff_ffff) {
                Ok(len) if len & BUSY == 0 => (len & !DISCARDED, len & DISCARDED == 0),
                _ => break,
            };
            let next =
                at.saturating_add(WORD).saturating_add(u64::from(len).next_multiple_of(WORD));
            if is_record {
                self.copy(at.saturating_add(WORD), len);
                take(&self.record);
            }
            at = next;
            if let Some(read) = self.read.words().first() {
                read.store(at, Ordering::Release);
            }
        }
        used
    }

    /// The word at this position.
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.words(at, 1).first()
    }

    /// As many words from this position on, which lie together: the ring is mapped twice in a row.
    fn words(&self, at: u64, count: u64) -> &[AtomicU64] {
        let first = (at & self.len.wrapping_sub(1)) / WORD;
        let range = usize::try_from(first).ok().zip(usize::try_from(count).ok());
        let words = range.and_then(|(first, count)| {
            let first = first.checked_add(PAGE >> 3)?;
            self.written.words().get(first..first.checked_add(count)?)
        });
        words.unwrap_or_default()
    }

    /// Copies the bytes from this position on.
    fn copy(&mut self, at: u64, len: u32) {
        let mut record = std::mem::take(&mut self.record);
        let words = self.words(at, u64::from(len).div_ceil(WORD));
        record.resize(size_of_val(words), 0);
        for (bytes, word) in record.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        record.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        self.record = record;
    }
}
