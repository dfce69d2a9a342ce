//! Rows of a file's call frame information, looked up where it is in the file.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, OnceLock, PoisonError};

use object::elf;
use unwind_cfi::{CfiAbi, CfiError, CfiScratch, FrameRules, RemoteCfi, RemoteCfiError};
use unwind_core::{Memory, ReadError, RegisterRules, Row, VirtAddr, WordSize};

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::rows::indexed_frames::{IndexedFrames, NoRowError, cfi_abi};

/// The call frame information of one file.
///
/// `.eh_frame` is searched by its search table, in the parts of the file that a lookup
/// needs. What has no search table, and what is missing in one that is not in order, is read as a
/// whole, when it is first needed, and gets an index. Threads share what was read.
#[derive(Debug)]
pub struct CallFrameRows {
    abi: Option<CfiAbi>,
    searched: OnceLock<Option<RemoteCfi>>,
    /// The first entry of the search table that is not in order.
    disorder: OnceLock<Option<u32>>,
    has_debug_frame: OnceLock<bool>,
    indexed: OnceLock<Result<Option<IndexedFrames>, ElfError>>,
    reading: Mutex<Reading>,
}

/// What lookups read.
#[derive(Debug, Default)]
struct Reading {
    blocks: Blocks,
    scratch: CfiScratch,
}

impl CallFrameRows {
    /// Of a file, of which nothing is read yet.
    pub fn new(file: &ElfFile) -> Self {
        Self {
            abi: cfi_abi(file),
            searched: OnceLock::new(),
            disorder: OnceLock::new(),
            has_debug_frame: OnceLock::new(),
            indexed: OnceLock::new(),
            reading: Mutex::default(),
        }
    }

    /// The size of the words of the code that there may be rows for.
    pub const fn word(&self) -> Option<WordSize> {
        match self.abi {
            Some(CfiAbi::Ia32) => Some(WordSize::Four),
            Some(_) => Some(WordSize::Eight),
            None => None,
        }
    }

    /// Whether the file has call frame information.
    pub fn is_there(&self, file: &ElfFile) -> bool {
        let indexed = || self.indexed(file).is_ok_and(|indexed| indexed.is_some());
        self.abi.is_some_and(|_| matches!(self.searched.get(), Some(Some(_))) || indexed())
    }

    /// What could not be read of the information that was looked for so far: all of it, or
    /// one of two sections.
    pub fn unread(&self) -> Option<ElfError> {
        match self.indexed.get()? {
            Ok(indexed) => indexed.as_ref().and_then(|indexed| indexed.unread()),
            Err(error) => Some(*error),
        }
    }

    /// The row for a link-time address; `None` if nothing is said of that.
    ///
    /// # Errors
    ///
    /// [`NoRowError`] if what is said of it cannot be used.
    pub fn row(&self, file: &ElfFile, addr: u64) -> Result<Option<Row>, NoRowError> {
        let searched = self.searched(file);
        if let Some(searched) = searched {
            match self.read(file, |linked, scratch| searched.find_row(linked, addr, scratch)) {
                Ok(None) if self.disorder(file).is_some() => {
                    return self.indexed_row(file, addr, false);
                }
                Ok(None) => {}
                Ok(row) => return Ok(row),
                // The other way knows what addresses count from, and what is outside of
                // segments.
                Err(
                    RemoteCfiError::Unreadable { .. }
                    | RemoteCfiError::Cfi(CfiError::Pointer(_) | CfiError::CieTooLong),
                ) => return self.indexed_row(file, addr, false),
                Err(RemoteCfiError::Cfi(error)) => {
                    return Err(NoRowError::Cfi(Part::EhFrame, error));
                }
                Err(_) => return Ok(None),
            }
        }
        if searched.is_some() && !self.has_debug_frame(file) {
            return Ok(None);
        }
        self.indexed_row(file, addr, searched.is_some())
    }

    /// Most files have no other section than that with the search table, and this one is large.
    fn has_debug_frame(&self, file: &ElfFile) -> bool {
        *self.has_debug_frame.get_or_init(|| {
            let sections = file.sections();
            sections.map_or(true, |all| all.iter().any(|section| section.name == b".debug_frame"))
        })
    }

    /// The rules for a link-time address, some of which no row can say: they have a row in a
    /// frame of code that was loaded this far above. `None` if there are none such.
    pub fn frame_rules(&self, file: &ElfFile, addr: u64, bias: u64) -> Option<FrameRules> {
        let searched = self.searched(file).map(|searched| {
            let find = |linked: &mut LinkedBytes<'_>, scratch: &mut CfiScratch| {
                searched.find_frame_rules(linked, addr, scratch)
            };
            self.read(file, find)
        });
        let found = self.searched_or(file, searched, |indexed| indexed.frame_rules(addr));
        found.map(|rules| rules.loaded(bias))
    }

    /// The rules of other registers for a link-time address, if there are any.
    pub fn register_rules(&self, file: &ElfFile, addr: u64) -> Option<RegisterRules> {
        let searched = self.searched(file).map(|searched| {
            let find = |linked: &mut LinkedBytes<'_>, scratch: &mut CfiScratch| {
                searched.find_register_rules(linked, addr, scratch)
            };
            self.read(file, find)
        });
        self.searched_or(file, searched, |indexed| indexed.register_rules(addr))
    }

    /// What was found by the search table, if there is one, else what `find` finds in what is read as a whole: if
    /// the table may lack it.
    fn searched_or<T, E>(
        &self,
        file: &ElfFile,
        searched: Option<Result<Option<T>, E>>,
        find: impl FnOnce(&IndexedFrames) -> Option<T>,
    ) -> Option<T> {
        match searched {
            Some(Ok(Some(found))) => return Some(found),
            Some(Ok(None)) if !self.has_debug_frame(file) && self.disorder(file).is_none() => {
                return None;
            }
            _ => {}
        }
        find(self.indexed(file).ok().flatten()?)
    }

    /// The search table, if the file has one.
    fn searched(&self, file: &ElfFile) -> Option<&RemoteCfi> {
        let found = self.searched.get_or_init(|| {
            let header = file.segments.iter().find(|s| s.kind == elf::PT_GNU_EH_FRAME)?.addr;
            let abi = self.abi?;
            self.read(file, |linked, _| RemoteCfi::open(linked, abi, header)).ok().flatten()
        });
        found.as_ref()
    }

    /// The number of the first entry of the search table that is not in order, looked for once.
    pub fn disorder(&self, file: &ElfFile) -> Option<u32> {
        *self.disorder.get_or_init(|| {
            let searched = self.searched(file)?;
            let find = |linked: &mut LinkedBytes<'_>, scratch: &mut CfiScratch| {
                searched.find_disorder(linked, scratch)
            };
            self.read(file, find).ok().flatten()
        })
    }

    /// The same, if it was looked for: where a row was missing.
    pub(crate) fn disorder_so_far(&self) -> Option<u32> {
        self.disorder.get().copied().flatten()
    }

    /// Looks something up in the file, one thread at a time.
    fn read<T>(
        &self,
        file: &ElfFile,
        look_up: impl FnOnce(&mut LinkedBytes<'_>, &mut CfiScratch) -> T,
    ) -> T {
        // Whatever a thread left that panicked: blocks are whole, and the scratch means
        // nothing.
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let Reading { blocks, scratch } = &mut *reading;
        look_up(&mut LinkedBytes { file, blocks }, scratch)
    }

    /// The row of a section that is read as a whole.
    fn indexed_row(
        &self,
        file: &ElfFile,
        addr: u64,
        only_debug_frame: bool,
    ) -> Result<Option<Row>, NoRowError> {
        match self.indexed(file)? {
            Some(indexed) => indexed.row(addr, only_debug_frame),
            None => Ok(None),
        }
    }

    fn indexed(&self, file: &ElfFile) -> Result<Option<&IndexedFrames>, ElfError> {
        match self.indexed.get_or_init(|| IndexedFrames::read(file)) {
            Ok(indexed) => Ok(indexed.as_ref()),
            Err(error) => Err(*error),
        }
    }
}

/// Blocks of a file that were read, by their offset.
#[derive(Debug, Default)]
struct Blocks(BTreeMap<u64, Vec<u8>>);

impl Blocks {
    /// In bytes.
    const SIZE: u64 = 4096;

    /// The most that are kept of a file: 16 MiB.
    const LIMIT: usize = 4096;

    /// The block that starts at an offset, shorter at the file's end.
    fn at(&mut self, file: &ElfFile, offset: u64) -> Result<&[u8], ElfError> {
        if self.0.len() >= Self::LIMIT && !self.0.contains_key(&offset) {
            self.0.clear();
        }
        Ok(match self.0.entry(offset) {
            Entry::Occupied(block) => block.into_mut(),
            Entry::Vacant(slot) => {
                let len = file.byte_len().saturating_sub(offset).min(Self::SIZE);
                slot.insert(file.bytes(Part::EhFrame, offset, len)?)
            }
        })
    }
}

/// A file's bytes at its link-time addresses.
struct LinkedBytes<'f> {
    file: &'f ElfFile,
    blocks: &'f mut Blocks,
}

impl Memory for LinkedBytes<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let (mut at, left) = self.file.place_of(addr.get()).ok_or(ReadError::Invalid)?;
        if u64::try_from(buf.len()).is_ok_and(|len| len > left) {
            return Err(ReadError::Invalid);
        }
        let mut rest = buf;
        while !rest.is_empty() {
            let inside = at % Blocks::SIZE;
            let block = self.blocks.at(self.file, at.wrapping_sub(inside));
            let block = block.map_err(|_| ReadError::Invalid)?;
            let inside = usize::try_from(inside).unwrap_or(usize::MAX);
            let bytes = block.get(inside..).filter(|bytes| !bytes.is_empty());
            let bytes = bytes.ok_or(ReadError::Invalid)?;
            let len = bytes.len().min(rest.len());
            let (Some(source), Some((target, after))) =
                (bytes.get(..len), rest.split_at_mut_checked(len))
            else {
                return Err(ReadError::Invalid);
            };
            target.copy_from_slice(source);
            rest = after;
            at = at.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn what_a_search_table_lacks_is_not_looked_for_in_the_whole_section() {
        let program = File::open("/proc/self/exe").unwrap();
        let file = ElfFile::from_file(program).unwrap();
        let rows = CallFrameRows::new(&file);
        // In no function.
        assert_eq!(rows.row(&file, 1).unwrap(), None);
        assert!(rows.register_rules(&file, 1).is_none());
        assert!(rows.frame_rules(&file, 1, 0).is_none());
        assert!(rows.searched.get().unwrap().is_some() && rows.indexed.get().is_none());
    }
}
