//! What is copied of a process while it is held, so that it continues before its stacks are
//! walked: what is mapped where, each stack from its pointer on, and code that is in no
//! file.
//!
//! Code that the process cannot change is read from its file, later. A walk that needs more than was
//! copied ends there, since the stack has changed meanwhile; then all is copied again with that, so
//! that no stack is of two times. Threads are all traced before the first one is stopped; of a few,
//! those that run are stopped last and let go first. Memory is read by `/proc/PID/mem`, which, unlike
//! `process_vm_readv`, does not wait for pages that only the process itself brings in.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::hint::black_box;
use std::ops::Range;
use std::rc::Rc;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread, read};

use crate::elf::ElfFile;
use crate::files::mapped_file::{ProcessFiles, VDSO_LIMIT};
use crate::input_error::InputError;
use crate::interpreters::Interpreters;
use crate::jit::registered_objects::JitLists;
use crate::loaded::loaded_file::LoadedFile;
use crate::loaded::remapped_text::{candidates, places};
use crate::target::captured_memory::{Copied, is_file_code};
use crate::target::maps::{self, Access, Backing, Mapping};
use crate::target::memory::ProcessMemory;
use crate::target::registers::{CodeMode, UserRegisters};

/// How much of a stack is copied at first: more than 510 frames take mostly.
const STACK: u64 = 256 << 10;
/// How much of a stack that was longer.
const LONG_STACK: u64 = 64 << 20;
/// How much from a place on that is not on a stack.
const PLACE: u64 = 64 << 10;
/// How much is copied in one hold.
const TOTAL: u64 = 256 << 20;
/// How many pages of code that is in no file.
const CODE_PAGES: usize = 1024;

/// How much memory is there for copies before a hold: the stacks of a dozen threads that sleep.
const COPIES: usize = 96 << 10;

const PAGE: u64 = 4096;
/// What is below the stack pointer and may be in use.
const RED_ZONE: u64 = 128;
/// How far from a pc the code is looked at.
const CODE_AROUND: u64 = 64;

/// What walks have lacked, and the next hold copies: addresses of pages.
#[derive(Debug, Default)]
pub struct Wanted {
    pages: BTreeSet<u64>,
    /// Frames of interpreters are wanted, too.
    pub(crate) interpreters: bool,
}

impl Wanted {
    /// No pages yet; with frames of interpreters, or without.
    pub(crate) fn new(interpreters: bool) -> Self {
        Self { interpreters, ..Self::default() }
    }

    /// Adds the pages that a walk has lacked, and says whether there are new ones.
    pub(crate) fn add(&mut self, pages: &BTreeSet<u64>) -> bool {
        let known = self.pages.len();
        self.pages.extend(pages);
        self.pages.len() != known
    }
}

/// What was copied.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) copies: Vec<Copied>,
    /// Pages that could not be read although they are mapped.
    pub(crate) unreadable: BTreeSet<u64>,
}

impl Capture {
    /// Copies what walks of stacks with these registers need, of the process with the
    /// thread `id`. `before` was read before the hold.
    ///
    /// # Errors
    ///
    /// [`InputError`] if `/proc` does not say what is mapped where.
    pub(crate) fn take(
        id: i32,
        threads: &[UserRegisters],
        mut before: Before,
        wanted: &Wanted,
    ) -> Result<Self, InputError> {
        let mut capture = Self {
            mappings: before.mappings(id)?,
            copies: Vec::new(),
            unreadable: BTreeSet::new(),
        };
        let mut reader = Reader { memory: before.memory(id)?, left: TOTAL };
        let registers = || threads.iter();
        let ranges = registers().filter_map(|registers| capture.stack(registers, wanted));
        let ranges =
            ranges.chain(registers().filter_map(|registers| capture.code_at(registers.rip)));
        let ranges = ranges.chain(capture.vdso()).chain(capture.remapped());
        let ranges =
            ranges.chain(wanted.pages.iter().filter_map(|&page| capture.around(page, PLACE)));
        let ranges = disjoint(ranges.collect());
        capture.copy(ranges, &mut reader);
        let is_narrow = registers().any(|regs| regs.code_mode() == Some(CodeMode::Ia32));
        let pages = capture.code_that_is_returned_to(is_narrow);
        capture.copy(pages, &mut reader);
        capture.copies.sort_by_key(|copied| copied.start);
        Ok(capture)
    }

    /// The part of a thread's stack that is in use.
    fn stack(&self, registers: &UserRegisters, wanted: &Wanted) -> Option<Range<u64>> {
        let sp = match registers.code_mode() {
            Some(CodeMode::Ia32) => registers.rsp & u64::from(u32::MAX),
            _ => registers.rsp,
        };
        let mapping = self.mapping_of(sp)?;
        let was_too_short = wanted.pages.range(sp..mapping.range.end).next().is_some();
        let len = if was_too_short { LONG_STACK } else { STACK };
        let start = (sp.saturating_sub(RED_ZONE) & !(PAGE - 1)).max(mapping.range.start);
        Some(start..start.saturating_add(len).min(mapping.range.end))
    }

    /// The code at a pc, if it is in no file.
    fn code_at(&self, pc: u64) -> Option<Range<u64>> {
        let mapping = self.mapping_of(pc)?;
        if is_file_code(mapping) {
            return None;
        }
        let start = pc.saturating_sub(CODE_AROUND) & !(PAGE - 1);
        let end = pc.saturating_add(CODE_AROUND + PAGE) & !(PAGE - 1);
        Some(start.max(mapping.range.start)..end.min(mapping.range.end))
    }

    /// The code that the kernel lends to the process.
    fn vdso(&self) -> Option<Range<u64>> {
        let vdso = self.mappings.iter().find(|mapping| mapping.backing == Backing::Vdso)?;
        self.around(vdso.range.start, VDSO_LIMIT)
    }

    /// What tells whether memory without a file has the code of one.
    fn remapped(&self) -> Vec<Range<u64>> {
        let candidates = candidates(&self.mappings);
        candidates.iter().flat_map(|candidate| places(&candidate.range)).collect()
    }

    /// At most `len` bytes of one mapping from `page` on.
    fn around(&self, page: u64, len: u64) -> Option<Range<u64>> {
        let mapping = self.mapping_of(page)?;
        Some(page..page.saturating_add(len).min(mapping.range.end))
    }

    /// The mapping of an address that can be read.
    fn mapping_of(&self, addr: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.range.start <= addr);
        let mapping = self.mappings.get(after.checked_sub(1)?)?;
        (addr < mapping.range.end && mapping.access != Some(Access::Nothing)).then_some(mapping)
    }

    /// The pages of code that is in no file to which words of the copied stacks lead.
    fn code_that_is_returned_to(&self, is_narrow: bool) -> Vec<Range<u64>> {
        let code = self.mappings.iter().filter(|mapping| {
            mapping.executable
                && mapping.access != Some(Access::Nothing)
                && mapping.backing != Backing::Vdso
                && !is_file_code(mapping)
        });
        let code: Vec<_> = code.map(|mapping| mapping.range.clone()).collect();
        let (Some(first), Some(last)) = (code.first(), code.last()) else { return Vec::new() };
        let all = first.start..last.end;
        let mut pages = BTreeSet::new();
        let mut look_at = |word: u64| {
            if !all.contains(&word) || pages.len() >= CODE_PAGES {
                return;
            }
            let after = code.partition_point(|range| range.start <= word);
            let range = after.checked_sub(1).and_then(|at| code.get(at));
            if range.is_some_and(|range| range.contains(&word)) {
                pages.insert(word & !(PAGE - 1));
            }
        };
        let len = usize::try_from(STACK).unwrap_or(usize::MAX);
        for copied in &self.copies {
            let bytes = copied.bytes.get(..len).unwrap_or(&copied.bytes);
            if is_narrow {
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .for_each(|&word| look_at(u32::from_le_bytes(word).into()));
            } else {
                bytes.as_chunks().0.iter().for_each(|&word| look_at(u64::from_le_bytes(word)));
            }
        }
        let is_new = |page: &u64| !self.copies.iter().any(|copied| copied.contains(*page));
        let pages = pages.into_iter().filter(is_new);
        disjoint(pages.map(|page| page..page.saturating_add(PAGE)).collect())
    }

    fn copy(&mut self, ranges: Vec<Range<u64>>, reader: &mut Reader) {
        for range in ranges {
            let copied = reader.copy(&range);
            let end = copied.end();
            if end < range.end {
                self.unreadable.insert(end & !(PAGE - 1));
            }
            if !copied.bytes.is_empty() {
                self.copies.push(copied);
            }
        }
    }
}

/// What was opened and read before a hold: what is mapped is mostly the same in the hold,
/// and need not be looked at closely then.
#[derive(Debug)]
pub(crate) struct Before {
    thread: i32,
    text: Vec<u8>,
    mappings: Vec<Mapping>,
    memory: Option<File>,
    /// What the text is in the hold.
    text_now: Option<Vec<u8>>,
    /// Files of interpreters, in which several things are looked for, by the places of their mappings.
    opened: RefCell<HashMap<u64, Option<Rc<LoadedFile>>>>,
}

impl Before {
    /// Of the process of a thread. What cannot be read is read in the hold.
    pub(crate) fn read(thread: i32) -> Self {
        let text = read_maps(thread, 1 << 16).unwrap_or_default();
        let memory = File::open(format!("/proc/{thread}/mem")).ok();
        let mappings = maps::parse(&text);
        // Freed again, this is there for the copies, and is not brought in during the hold.
        black_box(vec![1_u8; COPIES]);
        Self { thread, mappings, text, memory, text_now: None, opened: RefCell::default() }
    }

    /// The interpreters of the process; `files` are its files.
    pub(crate) fn interpreters(&self, files: &ProcessFiles) -> Interpreters {
        Interpreters::find(&self.mappings, |mapping| {
            let mut opened = self.opened.borrow_mut();
            let open = || Some(Rc::new(open(files, mapping)?.keeping_sections().into()));
            opened.entry(mapping.range.start).or_insert_with(open).clone()
        })
    }

    /// The lists of objects that the compilers of the process register.
    pub(crate) fn jit_lists(&self, files: &ProcessFiles) -> JitLists {
        JitLists::find(&self.mappings, |mapping| {
            let known = self.opened.borrow().get(&mapping.range.start).cloned().flatten();
            known.or_else(|| Some(Rc::new(open(files, mapping)?.into())))
        })
    }

    /// Closes the files of interpreters.
    pub(crate) fn close_files(&mut self) {
        self.opened.take();
    }

    /// Reads again what is mapped, now that the process stands.
    pub(crate) fn look_again(&mut self) {
        self.text_now = self.read_maps_of(self.thread).ok();
    }

    fn read_maps_of(&self, thread: i32) -> Result<Vec<u8>, InputError> {
        read_maps(thread, self.text.len().saturating_add(1))
    }

    /// What is mapped in the hold.
    fn mappings(&mut self, thread: i32) -> Result<Vec<Mapping>, InputError> {
        let text = match self.text_now.take().filter(|_| self.thread == thread) {
            Some(text) => text,
            None => self.read_maps_of(thread)?,
        };
        let is_same = text == self.text;
        Ok(if is_same { std::mem::take(&mut self.mappings) } else { maps::parse(&text) })
    }

    /// The memory of the process, which some thread leads to.
    fn memory(&mut self, thread: i32) -> Result<File, InputError> {
        if let Some(memory) = self.memory.take().filter(|_| self.thread == thread) {
            return Ok(memory);
        }
        let path = format!("/proc/{thread}/mem");
        File::open(&path).map_err(|error| InputError::Read { path: path.into(), error })
    }
}

fn open(files: &ProcessFiles, mapping: &Mapping) -> Option<ElfFile> {
    match &mapping.backing {
        Backing::File(file) => files.open(&mapping.range, file).ok(),
        _ => None,
    }
}

/// What the process of a thread has mapped.
///
/// # Errors
///
/// [`InputError`] if `/proc` does not say it.
pub(crate) fn mappings_of(thread: i32) -> Result<Vec<Mapping>, InputError> {
    Ok(maps::parse(&read_maps(thread, 1 << 16)?))
}

/// What the process of a thread has mapped, and its memory.
///
/// # Errors
///
/// [`InputError`] if `/proc` does not say it, or the memory may not be read.
pub(crate) fn mappings_and_memory(
    thread: i32,
) -> Result<(Vec<Mapping>, ProcessMemory), InputError> {
    let mappings = mappings_of(thread)?;
    let failed = |error| InputError::Read { path: format!("/proc/{thread}/mem").into(), error };
    Ok((mappings, ProcessMemory::open(thread).map_err(failed)?))
}

/// The text of `/proc/PID/maps`, which has about `len` bytes.
fn read_maps(thread: i32, len: usize) -> Result<Vec<u8>, InputError> {
    let path = format!("/proc/{thread}/maps");
    let read = || {
        let file = File::open(&path)?;
        let mut text = Vec::with_capacity(len);
        loop {
            // One more tells the end.
            text.reserve(1);
            match read(&file, spare_capacity(&mut text)) {
                Ok(0) => return Ok(text),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    };
    read().map_err(|error| InputError::Read { path: path.clone().into(), error })
}

/// The same addresses in ranges that ascend and have none in common.
fn disjoint(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
    ranges
}

/// Copies from a process that is held, by `/proc/PID/mem`: unlike `process_vm_readv` that
/// does not wait for a page that only the process itself can bring in.
struct Reader {
    memory: File,
    /// How many bytes may still be copied.
    left: u64,
}

impl Reader {
    /// Copies a range as far as it can be read, or as there is room.
    fn copy(&mut self, range: &Range<u64>) -> Copied {
        let len = range.end.saturating_sub(range.start).min(self.left);
        let len = usize::try_from(len).unwrap_or(0);
        // Into memory that is not cleared before.
        let mut bytes = Vec::with_capacity(len);
        let read = pread(&self.memory, spare_capacity(&mut bytes), range.start).unwrap_or(0);
        bytes.truncate(len);
        self.left = self.left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
        Copied { start: range.start, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one_and_no_byte_is_in_two() {
        let ranges = disjoint(vec![8..9, 1..3, 2..2, 3..4, 6..7, 1..2]);
        assert_eq!(ranges, [1..4, 6..7, 8..9]);
    }

    #[test]
    fn code_without_a_file_is_copied_where_words_of_a_stack_lead() {
        let mappings = maps::parse(
            b"1000-2000 rw-p 0 00:00 0 \n5000-9000 r-xp 0 00:00 0 \na000-b000 r-xp 0 00:01 7 /a",
        );
        let words = [0x4fff_u64, 0x5123, 0x5fff, 0x8abc, 0x9000, 0xa010];
        let bytes = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let copies = vec![Copied { start: 0x1000, bytes }];
        let capture = Capture { mappings, copies, unreadable: BTreeSet::new() };
        assert_eq!(capture.code_that_is_returned_to(false), [0x5000..0x6000, 0x8000..0x9000]);
    }
}
