//! What code is mapped in a process, as it is written.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use object::{Object as _, ObjectSegment as _, SegmentFlags, elf};
use unwind_snapshot::{Image, Mapping, Space, Writer};
use unwind_target::target::held_process::MappedCode;

/// The address spaces and images that are in the file.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    images: HashMap<PathBuf, Known>,
    /// The spaces, by their index.
    written: Vec<Space>,
}

/// An image that is in the file.
#[derive(Debug)]
struct Known {
    index: u32,
    segments: Vec<Segment>,
}

/// An executable segment of a file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    file_size: u64,
    addr: u64,
}

impl Spaces {
    /// The index of the address space with this code, which ascends. It is written if
    /// it is not in the file. Code that is of no file that can be read is left out.
    ///
    /// # Errors
    ///
    /// As writing does.
    pub(crate) fn index<W: Write>(
        &mut self,
        code: impl Iterator<Item = MappedCode>,
        writer: &mut Writer<W>,
    ) -> io::Result<u32> {
        let mut space = Space::default();
        for MappedCode { range, offset, path, .. } in code {
            let Some(known) = self.image(&path, writer)? else { continue };
            if let Some(bias) = known.bias(range.start, offset) {
                space.mappings.push(Mapping { range, bias, image: known.index });
            }
        }
        let same = self.written.iter().position(|written| *written == space);
        match same.and_then(|index| u32::try_from(index).ok()) {
            Some(index) => Ok(index),
            None => {
                let index = writer.space(&space)?;
                self.written.push(space);
                Ok(index)
            }
        }
    }

    fn image<W: Write>(
        &mut self,
        path: &Path,
        writer: &mut Writer<W>,
    ) -> io::Result<Option<&Known>> {
        if !self.images.contains_key(path) {
            let Some(bytes) = read_regular(path) else { return Ok(None) };
            let Ok(file) = object::File::parse(&*bytes) else { return Ok(None) };
            let build_id = file.build_id().ok().flatten().unwrap_or_default();
            let index = writer.image(&Image { build_id, path: path.as_os_str().as_bytes() })?;
            let segments = segments(&file);
            self.images.insert(path.to_owned(), Known { index, segments });
        }
        Ok(self.images.get(path))
    }
}

impl Known {
    /// How far the file is loaded above its link-time addresses if what is at `offset`
    /// is mapped at `start`. A mapping begins at the start of a page.
    fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| {
            let end = segment.offset.saturating_add(segment.file_size);
            (segment.offset & !0xfff..end).contains(&offset)
        })?;
        let linked = segment.addr.wrapping_sub(segment.offset).wrapping_add(offset);
        Some(start.wrapping_sub(linked))
    }
}

fn segments(file: &object::File<'_>) -> Vec<Segment> {
    let executable = file.segments().filter(|segment| {
        matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(elf::PF_X))
    });
    let segments = executable.map(|segment| {
        let (offset, file_size) = segment.file_range();
        Segment { offset, file_size, addr: segment.address() }
    });
    segments.collect()
}

/// The build id of a file that has one and can be read.
pub(crate) fn build_id(path: &Path) -> Option<Vec<u8>> {
    let bytes = read_regular(path)?;
    let file = object::File::parse(&*bytes).ok()?;
    file.build_id().ok().flatten().map(<[u8]>::to_vec)
}

/// The bytes of a regular file. The program may have put something else in the place of
/// a file that it maps, such as a pipe; that is neither waited for nor read.
fn read_regular(path: &Path) -> Option<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = file.ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwind_target::target::held_process;

    #[test]
    fn a_space_is_written_once_for_as_long_as_it_is_the_same() {
        let own = || {
            let process = i32::try_from(std::process::id()).unwrap();
            held_process::code_of(process).unwrap().into_iter()
        };
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mut spaces = Spaces::default();
        let mut index =
            |code: &mut dyn Iterator<Item = MappedCode>| spaces.index(code, &mut writer).unwrap();
        let whole = index(&mut own());
        let empty = index(&mut own().take(0));
        assert_ne!(whole, empty);
        assert_eq!((index(&mut own()), index(&mut own().take(0))), (whole, empty));
        assert_ne!(index(&mut own().take(1)), whole);
    }

    #[test]
    fn a_mapping_in_the_middle_of_a_segment_has_the_bias_of_its_start() {
        let segment = Segment { offset: 0x1234, file_size: 0x3000, addr: 0x5234 };
        let known = Known { index: 0, segments: vec![segment] };
        assert_eq!(known.bias(0x70_1000, 0x1000), Some(0x70_1000 - 0x5000));
        assert_eq!(known.bias(0x70_3000, 0x3000), known.bias(0x70_1000, 0x1000));
        assert_eq!(known.bias(0x70_5000, 0x5000), None);
    }
}
