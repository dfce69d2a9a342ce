//! An ELF file: its headers, read once, and its bytes, read on demand.
//!
//! Nothing is mapped: a mapped file that shrinks kills the reader. Every size
//! that the file claims is held against the file's length, and against a limit
//! of this program where bytes are copied, before anything is allocated.

mod code;
mod compressed;
pub mod error;
mod image;
pub mod kernel_image;
pub mod notes;
pub mod relocations;
pub(crate) mod section;
pub(crate) mod segment;
pub mod sframe_section;
mod table_indices;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use memchr::memchr;
use nix::errno::Errno;
use object::elf::{self, FileHeader32, FileHeader64, FileType, Machine};
use object::read::elf::{FileHeader, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, Pod, pod};

use crate::elf::code::CodeSegments;
use crate::elf::error::{ElfError, Part};
use crate::elf::image::Image;
use crate::elf::notes::{NOTE_GNU_BUILD_ID, Notes};
use crate::elf::section::Section;
use crate::elf::segment::Segment;

/// The longest name of a section that is read, in bytes. Many may share one.
const NAME_LIMIT: usize = 255;

/// An opened ELF file of any class, byte order and machine.
#[derive(Debug)]
pub struct ElfFile {
    image: Image,
    pub endian: Endianness,
    pub is_64: bool,
    pub kind: FileType,
    pub machine: Machine,
    /// The link-time address of the first instruction of a program.
    pub entry: u64,
    pub segments: Vec<Segment>,
    code: CodeSegments,
    section_table: SectionTable,
    sections: OnceLock<Result<Vec<Section>, ElfError>>,
    /// Sections that were read and are kept, by their offset, if any are.
    kept: Option<Box<Kept>>,
}

type Kept = Mutex<BTreeMap<u64, Arc<Vec<u8>>>>;

/// Where the section headers are. They are read when something is looked for in
/// them, so that a damaged table harms nothing else.
#[derive(Clone, Copy, Debug)]
struct SectionTable {
    offset: u64,
    count: u32,
    entry_size: u16,
    /// The index of the section that holds the names.
    names: u32,
}

impl ElfFile {
    /// Reads the headers of a file that is open.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it has no ELF header or a damaged program header table.
    pub fn from_file(file: File) -> Result<Self, ElfError> {
        let part = Part::Header;
        let metadata =
            file.metadata().map_err(|error| ElfError::Read { part, error: error.into() })?;
        if metadata.is_dir() {
            return Err(ElfError::Read { part, error: Errno::EISDIR.into() });
        }
        Self::parse(Image::of_file(file, metadata.len()))
    }

    /// Reads the headers of a file that was copied from memory.
    ///
    /// # Errors
    ///
    /// As [`from_file`](Self::from_file).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, ElfError> {
        Self::parse(Image::Bytes(bytes))
    }

    fn parse(image: Image) -> Result<Self, ElfError> {
        let mut ident = [0; 16];
        image.read_into(Part::Header, 0, &mut ident).map_err(|error| match error {
            ElfError::Truncated { .. } => ElfError::NotElf,
            other => other,
        })?;
        let [0x7f, b'E', b'L', b'F', class, data, version, ..] = ident else {
            return Err(ElfError::NotElf);
        };
        let endian = match elf::DataEncoding(data) {
            elf::ELFDATA2LSB => Endianness::Little,
            elf::ELFDATA2MSB => Endianness::Big,
            _ => return Err(ElfError::UnknownForm),
        };
        match (elf::FileClass(class), version) {
            (elf::ELFCLASS32, 1) => Self::parse_headers::<FileHeader32<_>>(image, endian),
            (elf::ELFCLASS64, 1) => Self::parse_headers::<FileHeader64<_>>(image, endian),
            _ => Err(ElfError::UnknownForm),
        }
    }

    fn parse_headers<H>(image: Image, endian: Endianness) -> Result<Self, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let bytes = image.read(Part::Header, 0, size_of_u64::<H>())?;
        let header: H = one(&bytes).ok_or(ElfError::NotElf)?;

        let (section_table, segment_count) = read_counts(&image, endian, &header);
        let segments = if segment_count == 0 {
            Vec::new()
        } else {
            let size = header.e_phentsize(endian).into();
            read_segments::<H>(&image, endian, header.e_phoff(endian).into(), segment_count, size)?
        };
        Ok(Self {
            endian,
            is_64: header.is_type_64(),
            kind: header.e_type(endian),
            machine: header.e_machine(endian),
            entry: header.e_entry(endian).into(),
            code: CodeSegments::new(&segments),
            segments,
            section_table,
            sections: OnceLock::new(),
            kept: None,
            image,
        })
    }

    /// The section headers and their names, read at the first call. In a relocatable object, loaded
    /// sections are given addresses of their own: see [`section::place`].
    ///
    /// # Errors
    ///
    /// [`ElfError`] if the table or the names are damaged. A file without
    /// section headers has none, which is no error.
    pub fn sections(&self) -> Result<&[Section], ElfError> {
        let read = || match self.is_64 {
            _ if self.section_table.offset == 0 || self.section_table.count == 0 => Ok(Vec::new()),
            true => self.read_sections::<FileHeader64<Endianness>>(),
            false => self.read_sections::<FileHeader32<Endianness>>(),
        };
        match self.sections.get_or_init(read) {
            Ok(sections) => Ok(sections),
            Err(error) => Err(*error),
        }
    }

    fn read_sections<H>(&self) -> Result<Vec<Section>, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
    {
        let SectionTable { offset, count, entry_size, names } = self.section_table;
        let part = Part::SectionHeaders;
        let size = size_of_u64::<H::SectionHeader>();
        if u64::from(entry_size) != size {
            return Err(ElfError::EntrySize { part, size: entry_size.into() });
        }
        let bytes = self.image.read(part, offset, u64::from(count).saturating_mul(size))?;
        let headers: &[H::SectionHeader] = pod::slice_from_all_bytes(&bytes).unwrap_or_default();

        let endian = self.endian;
        let part = Part::SectionNames;
        let names = if names == 0 {
            Vec::new()
        } else {
            let header = usize::try_from(names).ok().and_then(|index| headers.get(index));
            let header = header.ok_or(ElfError::NoSuchSection { part, index: names })?;
            self.image.read(part, header.sh_offset(endian).into(), header.sh_size(endian).into())?
        };
        let sections = headers.iter().map(|header| Section {
            name: section_name(&names, header.sh_name(endian)),
            kind: header.sh_type(endian),
            addr: header.sh_addr(endian).into(),
            offset: header.sh_offset(endian).into(),
            size: header.sh_size(endian).into(),
            link: header.sh_link(endian),
            info: header.sh_info(endian),
            entry_size: header.sh_entsize(endian).into(),
            executable: header.sh_flags(endian).0 & elf::SHF_EXECINSTR.0 != 0,
            allocated: header.sh_flags(endian).0 & elf::SHF_ALLOC.0 != 0,
            compressed: header.sh_flags(endian).0 & elf::SHF_COMPRESSED.0 != 0,
        });
        let mut sections: Vec<_> = sections.collect();
        if self.kind == elf::ET_REL {
            section::place(&mut sections);
        }
        Ok(sections)
    }

    /// Copies what a section has in the file, decompressed.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if it is not inside the file, or compressed and damaged.
    pub fn section_bytes(&self, part: Part, section: &Section) -> Result<Vec<u8>, ElfError> {
        if section.kind == elf::SHT_NOBITS {
            return Ok(Vec::new());
        }
        let bytes = self.image.read(part, section.offset, section.size)?;
        if section.compressed {
            compressed::decompress(part, self.is_64, self.endian, &bytes)
        } else {
            Ok(bytes)
        }
    }

    /// The same with the bytes of sections kept that [`shared_section_bytes`](Self::shared_section_bytes) reads,
    /// for as long as the value is there: for one in which several things are looked for.
    pub(crate) fn keeping_sections(self) -> Self {
        Self { kept: Some(Box::default()), ..self }
    }

    /// As [`section_bytes`](Self::section_bytes), which are kept if that is wanted.
    ///
    /// # Errors
    ///
    /// As these.
    pub(crate) fn shared_section_bytes(
        &self,
        part: Part,
        section: &Section,
    ) -> Result<Arc<Vec<u8>>, ElfError> {
        let read = || self.section_bytes(part, section).map(Arc::new);
        let Some(kept) = &self.kept else { return read() };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = kept.get(&section.offset) {
            return Ok(Arc::clone(bytes));
        }
        let bytes = read()?;
        kept.insert(section.offset, Arc::clone(&bytes));
        Ok(bytes)
    }

    /// Copies `len` bytes from offset `at` of the file.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if they are not inside the file.
    pub fn bytes(&self, part: Part, at: u64, len: u64) -> Result<Vec<u8>, ElfError> {
        self.image.read(part, at, len)
    }

    /// Fills `buf` from offset `at` of the file.
    ///
    /// # Errors
    ///
    /// As [`bytes`](Self::bytes).
    pub fn read_into(&self, part: Part, at: u64, buf: &mut [u8]) -> Result<(), ElfError> {
        self.image.read_into(part, at, buf)
    }

    /// Where in the file the byte at a link-time address is, and how many bytes of its
    /// segment the file has from there on; `None` if it has none.
    pub fn place_of(&self, addr: u64) -> Option<(u64, u64)> {
        let mut loaded = self.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD);
        loaded.find_map(|segment| {
            let skip = addr.checked_sub(segment.addr)?;
            let left = segment.file_size.checked_sub(skip).filter(|&left| left != 0)?;
            Some((segment.offset.saturating_add(skip), left))
        })
    }

    /// How far after the first instruction of the program an address is; `None` if there is none, or
    /// the address is before it.
    pub fn past_entry(&self, addr: u64) -> Option<u64> {
        addr.checked_sub(self.entry).filter(|_| self.entry != 0)
    }

    /// The file again, for another process to read; `None` if it was copied from memory.
    pub fn opened(&self) -> Option<io::Result<File>> {
        self.image.opened()
    }

    /// The file again, or a copy in memory of what was copied from memory.
    pub(crate) fn handed_over(&self) -> io::Result<File> {
        self.image.handed_over()
    }

    /// Where the file is, as far as the kernel tells.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.image.path()
    }

    /// The length of the file in bytes.
    pub fn byte_len(&self) -> u64 {
        self.image.len()
    }

    /// The build id that the linker left, which identifies the file's contents.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        self.note_segments().filter_map(Result::ok).find_map(|segment| segment.build_id())
    }

    /// The note segments, each as far as the file has it: core files are cut off
    /// at times, and the notes before the cut are good.
    ///
    /// # Errors
    ///
    /// [`ElfError`] if a segment is too large, if the file cannot be read, or if
    /// another segment has some of the notes, too.
    pub fn note_segments(&self) -> impl Iterator<Item = Result<NoteSegment, ElfError>> {
        let segments = || self.segments.iter().filter(|segment| segment.kind == elf::PT_NOTE);
        let shared = shared(segments().map(|segment| (segment.offset, segment.file_size)));
        segments().zip(shared).map(|(segment, shared)| {
            if shared {
                return Err(ElfError::SameBytes { part: Part::Notes, at: segment.offset });
            }
            let left = self.byte_len().saturating_sub(segment.offset);
            let len = segment.file_size.min(left);
            let bytes = self.image.read(Part::Notes, segment.offset, len)?;
            Ok(NoteSegment { bytes, endian: self.endian, align: segment.align })
        })
    }

    /// How far the code that is mapped at `start` from `offset` of this file on
    /// has moved from its link-time addresses, wrapping; `None` if the file has
    /// no code there.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        Some(start.wrapping_sub(self.code.addr_of(offset)?))
    }
}

/// The bytes of one note segment.
#[derive(Debug)]
pub struct NoteSegment {
    bytes: Vec<u8>,
    endian: Endianness,
    align: u64,
}

impl NoteSegment {
    /// The notes, in order.
    #[must_use]
    pub fn notes(&self) -> Notes<'_> {
        Notes::new(&self.bytes, self.endian, self.align)
    }

    fn build_id(&self) -> Option<Vec<u8>> {
        let mut notes = self.notes();
        let note = notes.find(|note| note.name == b"GNU" && note.kind == NOTE_GNU_BUILD_ID)?;
        Some(note.desc.to_vec())
    }
}

/// Where the section headers are, and how many program headers there are. A
/// count that does not fit its field is in the first section header.
fn read_counts<H>(image: &Image, endian: Endianness, header: &H) -> (SectionTable, u32)
where
    H: FileHeader<Endian = Endianness>,
{
    let mut table = SectionTable {
        offset: header.e_shoff(endian).into(),
        count: header.e_shnum(endian).into(),
        entry_size: header.e_shentsize(endian),
        names: header.e_shstrndx(endian).0.into(),
    };
    let mut segments = u32::from(header.e_phnum(endian));
    let size = size_of_u64::<H::SectionHeader>();
    if table.offset != 0
        && let Ok(first) = image.read(Part::SectionHeaders, table.offset, size)
        && let Some(first) = one::<H::SectionHeader>(&first)
    {
        if table.count == 0 {
            table.count = u32::try_from(first.sh_size(endian).into()).unwrap_or(u32::MAX);
        }
        if table.names == u32::from(elf::SHN_XINDEX.0) {
            table.names = first.sh_link(endian);
        }
        if segments == u32::from(elf::PN_XNUM) {
            segments = first.sh_info(endian);
        }
    }
    (table, segments)
}

fn read_segments<H>(
    image: &Image,
    endian: Endianness,
    offset: u64,
    count: u32,
    entry_size: u64,
) -> Result<Vec<Segment>, ElfError>
where
    H: FileHeader<Endian = Endianness>,
{
    let part = Part::ProgramHeaders;
    let size = size_of_u64::<H::ProgramHeader>();
    if entry_size != size {
        return Err(ElfError::EntrySize { part, size: entry_size });
    }
    let bytes = image.read(part, offset, u64::from(count).saturating_mul(size))?;
    let headers: &[H::ProgramHeader] = pod::slice_from_all_bytes(&bytes).unwrap_or_default();
    Ok(headers
        .iter()
        .map(|header| Segment {
            kind: header.p_type(endian),
            readable: header.p_flags(endian).0 & elf::PF_R.0 != 0,
            executable: header.p_flags(endian).0 & elf::PF_X.0 != 0,
            offset: header.p_offset(endian).into(),
            addr: header.p_vaddr(endian).into(),
            physical_addr: header.p_paddr(endian).into(),
            file_size: header.p_filesz(endian).into(),
            memory_size: header.p_memsz(endian).into(),
            align: header.p_align(endian).into(),
        })
        .collect())
}

/// What a compressed section stands for, for a fuzz target.
///
/// # Errors
///
/// As [`ElfFile::section_bytes`].
pub fn decompress(is_64: bool, bytes: &[u8]) -> Result<Vec<u8>, ElfError> {
    compressed::decompress(Part::DebugFrame, is_64, Endianness::Little, bytes)
}

/// The name of a section, up to [`NAME_LIMIT`] bytes of it.
fn section_name(names: &[u8], offset: u32) -> Vec<u8> {
    let tail = usize::try_from(offset).ok().and_then(|at| names.get(at..)).unwrap_or_default();
    match tail.get(..=NAME_LIMIT) {
        Some(start) if memchr(0, start).is_none() => {
            [start.get(..NAME_LIMIT).unwrap_or_default(), "…".as_bytes()].concat()
        }
        start => string_at(start.unwrap_or(tail), 0).to_vec(),
    }
}

/// Of ranges by offset and length: for each, whether it has bytes that one has
/// that begins before it, or that begins with it and comes before it in the list.
/// Files have every part once; where it seems otherwise, one part of a small file
/// can stand for many large ones.
fn shared(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<bool> {
    let ranges: Vec<_> = ranges.collect();
    let mut order: Vec<_> = ranges.iter().enumerate().collect();
    order.sort_by_key(|&(_, &(offset, _))| offset);
    let mut shared = vec![false; ranges.len()];
    let mut taken_up_to = 0;
    for (index, &(offset, len)) in order {
        if len == 0 {
            continue;
        }
        if offset < taken_up_to
            && let Some(shared) = shared.get_mut(index)
        {
            *shared = true;
        }
        taken_up_to = taken_up_to.max(offset.saturating_add(len));
    }
    shared
}

/// Says where the first section of tables is that shares bytes with another one.
fn refuse_shared(ranges: impl Iterator<Item = (u64, u64)> + Clone) -> Result<(), ElfError> {
    match ranges.clone().zip(shared(ranges)).find(|&(_, shared)| shared) {
        Some(((at, _), _)) => Err(ElfError::SameBytes { part: Part::Sframe, at }),
        None => Ok(()),
    }
}

/// The bytes up to the next zero, or none where the offset is outside.
pub(crate) fn string_at(strings: &[u8], offset: u32) -> &[u8] {
    let tail = usize::try_from(offset).ok().and_then(|at| strings.get(at..)).unwrap_or_default();
    memchr(0, tail).and_then(|len| tail.get(..len)).unwrap_or_default()
}

fn one<T: Pod>(bytes: &[u8]) -> Option<T> {
    pod::from_bytes::<T>(bytes).ok().map(|(value, _)| *value)
}

fn size_of_u64<T>() -> u64 {
    u64::try_from(size_of::<T>()).unwrap_or(u64::MAX)
}
