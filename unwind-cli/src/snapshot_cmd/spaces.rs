//! What code is mapped in each process, as it changes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use unwind_snapshot::{Image, Mapping, Space, Writer};

use crate::elf::ElfFile;
use crate::regular_file;

/// The address spaces of all processes, and what of them is in the file.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    processes: HashMap<u32, State>,
    images: HashMap<Vec<u8>, Known>,
    /// The spaces in the file.
    written: Vec<Space>,
}

/// One process.
#[derive(Clone, Debug, Default)]
struct State {
    space: Space,
    /// Its index in the file, if it is there as it is.
    index: Option<u32>,
}

/// A file with code that was opened.
#[derive(Debug)]
struct Known {
    file: ElfFile,
    index: u32,
}

impl Spaces {
    /// The process has become another program.
    pub(crate) fn exec(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    /// A process has started, as a copy of another.
    pub(crate) fn fork(&mut self, process: u32, parent: u32) {
        if let Some(state) = self.processes.get(&parent) {
            let state = state.clone();
            self.processes.insert(process, state);
        }
    }

    /// Code was mapped from `offset` of the file at `path` on. What was mapped
    /// there before is gone; what is no file that can be read is left out.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub(crate) fn map<W: Write>(
        &mut self,
        process: u32,
        range: Range<u64>,
        offset: u64,
        path: &[u8],
        writer: &mut Writer<W>,
    ) -> io::Result<()> {
        let bias = self.image(path, writer)?.and_then(|known| {
            let bias = known.file.bias(range.start, offset)?;
            Some((known.index, bias))
        });
        let State { space, index } = self.processes.entry(process).or_default();
        *index = None;
        cut_out(&mut space.mappings, &range);
        if let Some((image, bias)) = bias
            && !range.is_empty()
        {
            let at = space.mappings.partition_point(|other| other.range.start < range.start);
            space.mappings.insert(at, Mapping { range, bias, image });
        }
        Ok(())
    }

    /// The index of the process's address space in the file, where it is
    /// written if it is not there.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub(crate) fn index<W: Write>(
        &mut self,
        process: u32,
        writer: &mut Writer<W>,
    ) -> io::Result<u32> {
        let state = self.processes.entry(process).or_default();
        if let Some(index) = state.index {
            return Ok(index);
        }
        // Code that comes and goes leaves the same space again and again.
        let same = self.written.iter().position(|space| *space == state.space);
        let index = match same.and_then(|index| u32::try_from(index).ok()) {
            Some(index) => index,
            None => {
                self.written.push(state.space.clone());
                writer.space(&state.space)?
            }
        };
        state.index = Some(index);
        Ok(index)
    }

    fn image<W: Write>(
        &mut self,
        path: &[u8],
        writer: &mut Writer<W>,
    ) -> io::Result<Option<&Known>> {
        if !self.images.contains_key(path) {
            // Code without a file: of a JIT compiler, or the kernel's own.
            let file = regular_file::open(Path::new(OsStr::from_bytes(path))).ok();
            let Some(file) = file.and_then(|file| ElfFile::from_file(file).ok()) else {
                return Ok(None);
            };
            let build_id = file.build_id().unwrap_or_default();
            let index = writer.image(&Image { build_id: &build_id, path })?;
            self.images.insert(path.to_vec(), Known { file, index });
        }
        Ok(self.images.get(path))
    }
}

/// Takes `range` out of mappings that ascend.
fn cut_out(mappings: &mut Vec<Mapping>, range: &Range<u64>) {
    let pieces = std::mem::take(mappings).into_iter().flat_map(|mapping| {
        let before = mapping.range.start..mapping.range.end.min(range.start);
        let behind = mapping.range.start.max(range.end)..mapping.range.end;
        [before, behind].map(|range| Mapping { range, ..mapping.clone() })
    });
    mappings.extend(pieces.filter(|mapping| !mapping.range.is_empty()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(range: Range<u64>) -> Vec<(u64, u64)> {
        let mapping = |range| Mapping { range, bias: 0, image: 0 };
        let mut mappings = vec![mapping(10..20), mapping(20..30)];
        cut_out(&mut mappings, &range);
        mappings.into_iter().map(|mapping| (mapping.range.start, mapping.range.end)).collect()
    }

    #[test]
    fn a_new_mapping_replaces_what_was_there() {
        assert_eq!(cut(0..10), [(10, 20), (20, 30)]);
        assert_eq!(cut(12..15), [(10, 12), (15, 20), (20, 30)]);
        assert_eq!(cut(15..25), [(10, 15), (25, 30)]);
        assert_eq!(cut(10..20), [(20, 30)]);
        assert!(cut(0..99).is_empty());
    }

    #[test]
    fn a_space_is_written_once_for_as_long_as_it_is_the_same() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut spaces = Spaces::default();
        let exe = std::env::current_exe().unwrap();
        let exe = exe.as_os_str().as_bytes();
        let file =
            ElfFile::from_file(regular_file::open(Path::new(OsStr::from_bytes(exe))).unwrap())
                .unwrap();
        let code = file.segments.iter().find(|segment| segment.executable).unwrap();
        let mut index = |spaces: &mut Spaces, process| spaces.index(process, &mut writer).unwrap();
        let empty = index(&mut spaces, 1);
        assert_eq!(index(&mut spaces, 2), empty);
        let mut other = Writer::new(Vec::new()).unwrap();
        spaces.map(1, 0x1000..0x2000, code.offset, exe, &mut other).unwrap();
        spaces.fork(2, 1);
        let one = index(&mut spaces, 1);
        assert_eq!((index(&mut spaces, 2), index(&mut spaces, 3)), (one, empty));
        assert_ne!(one, empty);
        // Code without a file that replaces it.
        spaces.map(1, 0x1000..0x2000, 0, b"//anon", &mut other).unwrap();
        assert_eq!(index(&mut spaces, 1), empty);
        spaces.exec(2);
        assert_eq!(index(&mut spaces, 2), empty);
    }
}
