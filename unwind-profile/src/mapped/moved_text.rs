//! Which code of files the processes of a recording have moved to memory without a file.
//!
//! A recording tells that such memory was mapped where code of a file had been, and not what is in
//! it. While the process runs its memory tells. Of other recordings nothing but the place does.

use std::ops;

use unwind_perf::record::{Mapping, SampleId, Task};
use unwind_target::Notices;
use unwind_target::elf::ElfFile;
use unwind_target::loaded::remapped_text::{MappedAt, Piece, pieces, same_pieces};
use unwind_target::target::memory::ProcessMemory;
use unwind_target::target::processes::Processes;

use crate::mapped::ranges::{Range, Ranges};
use crate::mapped::text_proof::TextProof;

/// How often memory that does not have the bytes of the file yet is looked at again, and after how
/// many nanoseconds first: it is mapped before the code is copied to it.
const TRIES: u32 = 10;
const FIRST_GAP: u64 = 5_000_000;

/// Of how much memory at a time.
const MAX_PENDING: usize = 64;

/// Memory that may become code of a file.
#[derive(Clone, Debug)]
struct Pending {
    process: u32,
    range: ops::Range<u64>,
    /// When to look again, by the clock of the samples, and how long after that.
    due: u64,
    gap: u64,
    tries: u32,
}

/// Code that was moved, to be told in a recording.
#[derive(Clone, Debug)]
pub(crate) struct MovedText {
    task: Task,
    time: u64,
    range: Range,
}

impl MovedText {
    /// As a mapping of its file.
    pub(crate) fn mapping(&self) -> Mapping<'_> {
        let Range { start, end, offset, file, .. } = &self.range;
        let mut mapping = Mapping::of_code(self.task, *start..*end, file.name.as_bytes());
        (mapping.offset, mapping.id) = (*offset, file.mapped_id());
        mapping.sample_id = SampleId {
            task: Some(self.task),
            time: Some(self.time),
            cpu: Some(0),
            identifier: Some(0),
            ..SampleId::default()
        };
        mapping
    }
}

/// What is looked at again, and what is to be told.
#[derive(Debug, Default)]
pub(crate) struct MovedTexts {
    pending: Vec<Pending>,
    moved: Vec<MovedText>,
    notices: Notices,
}

impl MovedTexts {
    /// None yet. `notices` tell of what is not sure.
    pub(crate) fn new(notices: Notices) -> Self {
        Self { notices, ..Self::default() }
    }

    /// The code that a process has at `range`, which was mapped without a file at `time`. Code of
    /// files was mapped at `texts`.
    pub(crate) fn find(
        &mut self,
        (proof, processes): (TextProof, Processes),
        texts: &Ranges,
        task: Task,
        range: &ops::Range<u64>,
        time: u64,
    ) -> Vec<Range> {
        let is_other = |pending: &Pending| {
            pending.process != task.pid
                || pending.range.end <= range.start
                || range.end <= pending.range.start
        };
        self.pending.retain(is_other);
        match proof {
            TextProof::None => Vec::new(),
            TextProof::Place => match by_bytes(texts, task.pid, range) {
                // It is still the same process.
                found @ (Found::Same(_) | Found::Other) if processes.owner(task.pid).is_some() => {
                    found.into_code()
                }
                _ => by_place(texts, range, &self.notices),
            },
            TextProof::Bytes => match by_bytes(texts, task.pid, range) {
                Found::Same(found) => {
                    self.tell(task, time, &found);
                    found
                }
                Found::Other if self.pending.len() < MAX_PENDING => {
                    let (process, range) = (task.pid, range.clone());
                    let due = time.saturating_add(FIRST_GAP);
                    self.pending.push(Pending { process, range, due, gap: FIRST_GAP, tries: 0 });
                    Vec::new()
                }
                Found::Other | Found::Nothing => Vec::new(),
            },
        }
    }

    /// What has become code of a file by now of the memory of a process.
    pub(crate) fn find_again(&mut self, texts: &Ranges, task: Task, time: u64) -> Vec<Range> {
        let mut all = Vec::new();
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain_mut(|pending| {
            if pending.process != task.pid || time < pending.due {
                return true;
            }
            pending.gap = pending.gap.saturating_mul(2);
            pending.due = time.saturating_add(pending.gap);
            pending.tries = pending.tries.saturating_add(1);
            match by_bytes(texts, task.pid, &pending.range) {
                Found::Same(found) => {
                    self.tell(task, time, &found);
                    all.extend(found);
                    false
                }
                Found::Other => pending.tries < TRIES,
                Found::Nothing => false,
            }
        });
        self.pending = pending;
        all
    }

    /// Whether there is something to look at again.
    pub(crate) const fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Forgets the memory of a process.
    pub(crate) fn forget(&mut self, process: u32) {
        self.pending.retain(|pending| pending.process != process);
    }

    /// What was found since the last call.
    pub(crate) fn take(&mut self) -> Vec<MovedText> {
        std::mem::take(&mut self.moved)
    }

    fn tell(&mut self, task: Task, time: u64, found: &[Range]) {
        let moved = found.iter().map(|range| MovedText { task, time, range: range.clone() });
        self.moved.extend(moved);
    }
}

/// What memory is, by its bytes.
#[derive(Debug)]
enum Found {
    /// Code of files.
    Same(Vec<Range>),
    /// Something else than the code of a file that would be there.
    Other,
    /// No file would have code there.
    Nothing,
}

impl Found {
    fn into_code(self) -> Vec<Range> {
        match self {
            Self::Same(found) => found,
            Self::Other | Self::Nothing => Vec::new(),
        }
    }
}

fn by_bytes(texts: &Ranges, process: u32, range: &ops::Range<u64>) -> Found {
    let mut memory = i32::try_from(process).ok().and_then(|id| ProcessMemory::open(id).ok());
    let mut is_place = false;
    let found = first_of(texts, range, |file, at| {
        is_place |= !pieces(file, at, range).is_empty();
        memory.as_mut().map_or_else(Vec::new, |memory| same_pieces(file, at, range, memory))
    });
    match (found.is_empty(), is_place) {
        (false, _) => Found::Same(found),
        (true, true) => Found::Other,
        (true, false) => Found::Nothing,
    }
}

fn by_place(texts: &Ranges, range: &ops::Range<u64>, notices: &Notices) -> Vec<Range> {
    let found = first_of(texts, range, |file, at| {
        let mut found = pieces(file, at, range);
        // All of it would have been moved.
        found.retain(|piece| piece.range == *range);
        found
    });
    for Range { file, .. } in &found {
        notices.add(format!(
            "{}: code of it was moved to memory without a file; that is taken for the file's by its \
             place alone, since a recording does not have the bytes",
            file.name
        ));
    }
    found
}

/// The code of the first file with some at `range` by `pieces_of`.
fn first_of(
    texts: &Ranges,
    range: &ops::Range<u64>,
    mut pieces_of: impl FnMut(&ElfFile, MappedAt) -> Vec<Piece>,
) -> Vec<Range> {
    let last = range.end.saturating_sub(1);
    let nearby = [texts.at_or_before(range.start), texts.at_or_before(last), texts.after(last)];
    for text in nearby.into_iter().flatten() {
        let Ok(file) = text.file.elf() else { continue };
        let at = MappedAt { start: text.start, offset: text.offset };
        let found = pieces_of(file, at);
        if !found.is_empty() {
            let range = |piece: Piece| Range {
                start: piece.range.start,
                end: piece.range.end,
                offset: piece.offset,
                is_moved: true,
                ..text.clone()
            };
            return found.into_iter().map(range).collect();
        }
    }
    Vec::new()
}
