//! Words of CPython's that were read of a thread while it stood, all at one moment.

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::interpreters::python::offsets::{Chain, Layout, Place, Traced};
use crate::interpreters::sampled::Piece;

/// What was read of a thread.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Where the interpreter has the thread.
    pub thread: u64,
    /// The word there with its innermost record or call.
    pub first: u64,
    /// The frames on the native stack that may be the evaluator's, innermost first: their stack pointers.
    pub evaluators: Vec<Piece>,
    /// The interpreter's records of them.
    pub records: Vec<Piece>,
    /// The calls.
    pub calls: Vec<Piece>,
    /// Nothing was missing.
    pub is_whole: bool,
}

/// Which words a snapshot has: offsets in structures, rounded down to whole words where they are less than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    pub first_interpreter: u32,
    pub next_interpreter: u32,
    pub first_thread: u32,
    pub next_thread: u32,
    pub thread_id: u32,
    /// Of the thread.
    pub first: u32,
    /// Records that are read at most, and what of them.
    pub records: u32,
    pub record_innermost: u32,
    pub record_previous: u32,
    /// Of a call: how many bytes are read, and what of them.
    pub call_bytes: u32,
    pub previous: u32,
    pub code: u32,
    pub place: u32,
    pub mark: u32,
    /// The least mark of what has no code.
    pub entry: u32,
    /// Of code: where its texts begin, and how many words of them are of interest.
    pub identity: u32,
    pub identity_words: u32,
    /// Of a text: its hash.
    pub hash: u32,
}

impl Offsets {
    /// Those of a layout; `None` if that cannot be read in this way.
    pub(super) fn of(layout: &Layout) -> Option<Self> {
        /// More records than there are, where all are read.
        const ALL: u32 = 1 << 16;
        /// What no byte is, where frames have no mark.
        const NO_MARK: u32 = 0x100;
        /// What the BPF program reads of a call at most.
        const MOST: u32 = 112;
        let narrow = |offset: u64| u32::try_from(offset).ok();
        let (frame, code, state) = (layout.frame, layout.code, layout.state);
        // A frame says in another word which copy of its code is executed.
        if frame.copy.is_some() {
            return None;
        }
        let (first, records, record_innermost, record_previous, mark, entry) = match layout.chain {
            Chain::Single { innermost } => {
                let mark = match frame.place {
                    Place::Number { traced: Traced::Word(at), .. } => at,
                    Place::Number { at, .. } | Place::Address { at } => at,
                };
                (innermost, 0, 0, 0, mark, NO_MARK)
            }
            Chain::Records { record, innermost, previous, is_entry } => {
                (record, ALL, innermost, previous, is_entry, NO_MARK)
            }
            Chain::Entries { record: Some(record), innermost } => {
                (record.record, 2, innermost, record.previous, frame.owner?, 3)
            }
            Chain::Entries { record: None, innermost } => (innermost, 0, 0, 0, frame.owner?, 3),
        };
        let place = match frame.place {
            Place::Number { at, .. } | Place::Address { at } => at,
        };
        // Its file, its name, its whole name and its lines; in older versions what comes after is changed.
        let has_whole_name = code.name == code.file.checked_add(16)?;
        let is_as_known = match has_whole_name {
            true => code.table == code.file.checked_add(24)?,
            false => code.name == code.file.checked_add(8)?,
        };
        let last = [frame.previous, frame.code, place, mark].into_iter().max()?;
        let call_bytes = narrow(last & !7)?.checked_add(8)?;
        if !is_as_known || call_bytes > MOST {
            return None;
        }
        Some(Self {
            first_interpreter: narrow(state.first_interpreter)?,
            next_interpreter: narrow(state.next_interpreter)?,
            first_thread: narrow(state.first_thread)?,
            next_thread: narrow(state.next_thread)?,
            thread_id: narrow(state.thread_id)?,
            first: narrow(first)?,
            records,
            record_innermost: narrow(record_innermost)?,
            record_previous: narrow(record_previous)?,
            call_bytes,
            previous: narrow(frame.previous)?,
            code: narrow(frame.code)?,
            place: narrow(place)?,
            mark: narrow(mark)?,
            entry,
            identity: narrow(code.file)?,
            identity_words: if has_whole_name { 4 } else { 3 },
            hash: narrow(layout.text.len)?.checked_add(8)?,
        })
    }
}

/// A snapshot as memory that has nothing else.
pub(super) struct SnapshotMemory<'s> {
    snapshot: &'s Snapshot,
    offsets: Offsets,
    /// The piece that was read last: the next one is near.
    last: usize,
}

impl<'s> SnapshotMemory<'s> {
    pub(super) const fn new(snapshot: &'s Snapshot, offsets: Offsets) -> Self {
        Self { snapshot, offsets, last: 0 }
    }

    /// The piece of this number, and where its words were.
    fn piece(&self, number: usize) -> Option<(&'s Piece, [u32; 4])> {
        let Offsets { previous, code, place, mark, .. } = self.offsets;
        let Offsets { record_previous, record_innermost, .. } = self.offsets;
        let records = &self.snapshot.records;
        match number.checked_sub(records.len()) {
            Some(call) => Some((self.snapshot.calls.get(call)?, [previous, code, place, mark])),
            None => {
                let innermost = record_innermost;
                Some((records.get(number)?, [record_previous, innermost, innermost, innermost]))
            }
        }
    }
}

impl Memory for SnapshotMemory<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        const WORD: u64 = 8;
        let (addr, len) = (addr.get(), u64::try_from(buf.len()).unwrap_or(u64::MAX));
        let mut fill = |start: u64, word: u64| {
            let skip = addr.checked_sub(start).filter(|skip| skip.saturating_add(len) <= WORD);
            let skip = skip.and_then(|skip| usize::try_from(skip).ok())?;
            let bytes = word.to_le_bytes();
            let bytes = bytes.get(skip..)?.get(..buf.len())?;
            buf.copy_from_slice(bytes);
            Some(())
        };
        let first = self.snapshot.thread.wrapping_add(self.offsets.first.into());
        if fill(first, self.snapshot.first).is_some() {
            return Ok(());
        }
        let count = self.snapshot.records.len().saturating_add(self.snapshot.calls.len());
        for number in (self.last..count).chain(0..self.last) {
            let Some((piece, offsets)) = self.piece(number) else { continue };
            let words = offsets.into_iter().zip(piece.words);
            for (offset, word) in words {
                let start = piece.at.wrapping_add(u64::from(offset & !7));
                if fill(start, word).is_some() {
                    self.last = number;
                    return Ok(());
                }
            }
        }
        Err(ReadError::Invalid)
    }
}
