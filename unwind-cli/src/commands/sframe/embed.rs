//! A section put into an ELF file that is linked already.
//!
//! Nothing of the file moves. After its end comes one page-aligned part that is
//! loaded: the program headers, two more than before, and the section. The new
//! part lies as far from the first loaded byte in memory as in the file, since
//! kernels and loaders look for the program headers at that distance. After it
//! comes what is not loaded: the section headers, one more than before, with
//! their names.
//!
//! ```text
//!     the file as it was, its header changed
//!     (a hole, up to where the program's memory ends)
//!     program headers      loaded, PT_LOAD and PT_PHDR
//!     .sframe              loaded, PT_GNU_SFRAME
//!     section names
//!     section headers
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use object::elf::{
    self, FileHeader64, ProgramFlags, ProgramHeader64, SectionHeader64, SectionType,
};
use object::{Endianness, Pod, U16, U32, U64, pod};
use unwind_target::ElfError;
use unwind_target::elf::ElfFile;
use unwind_target::elf::error::Part;

/// Why no segment can be added safely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum EmbedError {
    /// Not a program or shared library of 64-bit code.
    #[error("it is not a 64-bit program or shared library")]
    Kind,
    /// There is one already.
    #[error("it has an .sframe section")]
    HasSection,
    /// Nothing that starts at the file's start is loaded.
    #[error("its headers are not loaded")]
    HeadersNotLoaded,
    /// Segments that are not in the order of their addresses.
    #[error("its segments overlap or are not in order")]
    Order,
    /// A program that is loaded where its physical addresses say.
    #[error("it is loaded by physical addresses")]
    Physical,
    /// Data that belongs to no part of the file: the program may look for it at
    /// the file's end.
    #[error("it has data after its end")]
    Overlay,
    /// More headers than their counts can hold, or an address that does not
    /// exist.
    #[error("it has no room for more headers")]
    NoRoom,
    /// The headers are damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
}

/// The size of one header as it is in the file.
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const SECTION_NAME: &[u8] = b".sframe\0";

type Header = FileHeader64<Endianness>;
type Program = ProgramHeader64<Endianness>;
type SectionHeader = SectionHeader64<Endianness>;

/// An ELF file with room for a section.
#[derive(Debug)]
pub(crate) struct Embedder {
    endian: Endianness,
    header: Header,
    programs: Vec<Program>,
    sections: Vec<SectionHeader>,
    /// The names of the sections.
    names: Vec<u8>,
    /// Where the new part starts, in the file and in memory.
    offset: u64,
    addr: u64,
    page: u64,
}

impl Embedder {
    /// Looks for room.
    ///
    /// # Errors
    ///
    /// [`EmbedError`] if there is none that is safe.
    pub(crate) fn new(file: &ElfFile) -> Result<Self, EmbedError> {
        if !file.is_64 || !matches!(file.kind, elf::ET_EXEC | elf::ET_DYN) {
            return Err(EmbedError::Kind);
        }
        let endian = file.endian;
        let headers: Vec<Header> = read(file, Part::Header, 0, 1)?;
        let header = *headers.first().ok_or(EmbedError::Kind)?;
        let count = u64::from(header.e_phnum.get(endian));
        let programs: Vec<Program> =
            read(file, Part::ProgramHeaders, header.e_phoff.get(endian), count)?;
        let count = u64::from(header.e_shnum.get(endian));
        let sections: Vec<SectionHeader> = match header.e_shoff.get(endian) {
            0 => Vec::new(),
            offset => read(file, Part::SectionHeaders, offset, count)?,
        };
        let known = file.sections()?;
        if known.iter().any(|section| section.name == b".sframe")
            || programs.iter().any(|program| program.p_type.get(endian) == elf::PT_GNU_SFRAME)
        {
            return Err(EmbedError::HasSection);
        }
        if sections.len() != known.len() || programs.len() != file.segments.len() {
            // Counts that do not fit the header.
            return Err(EmbedError::NoRoom);
        }
        let names = match sections.get(usize::from(header.e_shstrndx.get(endian).0)) {
            Some(names) if !sections.is_empty() => {
                let (at, len) = (names.sh_offset.get(endian), names.sh_size.get(endian));
                file.bytes(Part::SectionNames, at, len)?
            }
            _ => Vec::new(),
        };
        let page = match file.machine {
            elf::EM_AARCH64 => 0x1_0000,
            _ => 0x1000,
        };
        let mut embedder =
            Self { endian, header, programs, sections, names, offset: 0, addr: 0, page };
        (embedder.offset, embedder.addr) = embedder.find_room(file)?;
        Ok(embedder)
    }

    /// Where a new part may be, in the file and in memory.
    fn find_room(&self, file: &ElfFile) -> Result<(u64, u64), EmbedError> {
        let endian = self.endian;
        let loads = self.programs.iter().filter(|p| p.p_type.get(endian) == elf::PT_LOAD);
        let mut base = None;
        let mut end = 0;
        for load in loads {
            let (offset, addr) = (load.p_offset.get(endian), load.p_vaddr.get(endian));
            if load.p_paddr.get(endian) != addr {
                return Err(EmbedError::Physical);
            }
            if addr < end {
                return Err(EmbedError::Order);
            }
            end = addr.checked_add(load.p_memsz.get(endian)).ok_or(EmbedError::NoRoom)?;
            if offset == 0 {
                base = Some(addr);
            }
        }
        let base = base.ok_or(EmbedError::HeadersNotLoaded)?;
        self.check_overlay(file)?;
        let in_memory = end.checked_sub(base).ok_or(EmbedError::Order)?;
        let offset = in_memory
            .max(file.byte_len())
            .checked_next_multiple_of(self.page)
            .ok_or(EmbedError::NoRoom)?;
        Ok((offset, base.checked_add(offset).ok_or(EmbedError::NoRoom)?))
    }

    /// All bytes of the file have to belong to something, but for zeros.
    fn check_overlay(&self, file: &ElfFile) -> Result<(), EmbedError> {
        let endian = self.endian;
        let table = |offset: u64, count: usize, size: u64| {
            offset.saturating_add(u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(size))
        };
        let segments = self
            .programs
            .iter()
            .map(|p| p.p_offset.get(endian).saturating_add(p.p_filesz.get(endian)));
        let sections = self
            .sections
            .iter()
            .filter(|section| section.sh_type.get(endian) != elf::SHT_NOBITS)
            .map(|s| s.sh_offset.get(endian).saturating_add(s.sh_size.get(endian)));
        let tables = [
            table(self.header.e_phoff.get(endian), self.programs.len(), PROGRAM_HEADER),
            table(self.header.e_shoff.get(endian), self.sections.len(), SECTION_HEADER),
        ];
        let end = segments.chain(sections).chain(tables).max().unwrap_or(0);
        let after = file.byte_len().saturating_sub(end);
        let tail =
            file.bytes(Part::SectionHeaders, file.byte_len().saturating_sub(after), after)?;
        if tail.iter().any(|&byte| byte != 0) { Err(EmbedError::Overlay) } else { Ok(()) }
    }

    /// How many bytes the program headers have.
    fn programs_len(&self) -> u64 {
        // At most 0xffff and two.
        u64::try_from(self.programs.len())
            .unwrap_or(0)
            .saturating_add(2)
            .saturating_mul(PROGRAM_HEADER)
    }

    /// Where the section will be loaded.
    pub(crate) fn section_addr(&self) -> u64 {
        // A multiple of 8.
        self.addr.saturating_add(self.programs_len())
    }

    /// Writes the new part, and the header that leads to it, into a copy of the
    /// file.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if it cannot be written.
    pub(crate) fn write(&self, copy: &File, section: &[u8], kind: SectionType) -> io::Result<()> {
        let len = u64::try_from(section.len()).unwrap_or(u64::MAX);
        let section_offset = self.offset.saturating_add(self.programs_len());
        let segment_len = self.programs_len().saturating_add(len);
        copy.write_all_at(
            pod::bytes_of_slice(&self.program_headers(segment_len, len)),
            self.offset,
        )?;
        copy.write_all_at(section, section_offset)?;

        let mut header = self.header;
        let endian = self.endian;
        header.e_phoff = U64::new(endian, self.offset);
        let count = self.programs.len().saturating_add(2);
        header.e_phnum = U16::new(endian, u16::try_from(count).unwrap_or(u16::MAX));
        if !self.sections.is_empty() {
            let names_offset = section_offset.saturating_add(len);
            let mut names = self.names.clone();
            let name = u32::try_from(names.len()).unwrap_or(u32::MAX);
            names.extend_from_slice(SECTION_NAME);
            let names_len = u64::try_from(names.len()).unwrap_or(u64::MAX);
            let table_offset = names_offset.saturating_add(names_len).next_multiple_of(8);
            let mut sections = self.sections.clone();
            let index = usize::from(header.e_shstrndx.get(endian).0);
            if let Some(section) = sections.get_mut(index) {
                section.sh_offset = U64::new(endian, names_offset);
                section.sh_size = U64::new(endian, names_len);
            }
            sections.push(SectionHeader {
                sh_name: U32::new(endian, name),
                sh_type: U32::new(endian, kind),
                sh_flags: U64::new(endian, elf::SHF_ALLOC),
                sh_addr: U64::new(endian, self.section_addr()),
                sh_offset: U64::new(endian, section_offset),
                sh_size: U64::new(endian, len),
                sh_link: U32::new(endian, 0),
                sh_info: U32::new(endian, 0),
                sh_addralign: U64::new(endian, 8),
                sh_entsize: U64::new(endian, 0),
            });
            copy.write_all_at(&names, names_offset)?;
            copy.write_all_at(pod::bytes_of_slice(&sections), table_offset)?;
            header.e_shoff = U64::new(endian, table_offset);
            let count = u16::try_from(sections.len()).unwrap_or(u16::MAX);
            header.e_shnum = U16::new(endian, count);
        }
        // Last, so that a copy that was cut short is as good as the original.
        copy.write_all_at(pod::bytes_of(&header), 0)
    }

    /// The program headers with those of the new part, which is `segment_len`
    /// bytes long with a section of `len`.
    fn program_headers(&self, segment_len: u64, len: u64) -> Vec<Program> {
        let endian = self.endian;
        let part = |kind, offset: u64, addr: u64, len: u64, align: u64| Program {
            p_type: U32::new(endian, kind),
            p_flags: U32::new(endian, ProgramFlags(elf::PF_R.0)),
            p_offset: U64::new(endian, offset),
            p_vaddr: U64::new(endian, addr),
            p_paddr: U64::new(endian, addr),
            p_filesz: U64::new(endian, len),
            p_memsz: U64::new(endian, len),
            p_align: U64::new(endian, align),
        };
        let mut programs = self.programs.clone();
        for program in programs.iter_mut().filter(|p| p.p_type.get(endian) == elf::PT_PHDR) {
            *program = part(elf::PT_PHDR, self.offset, self.addr, self.programs_len(), 8);
        }
        // Loaders want them in the order of their addresses.
        let last = programs.iter().rposition(|p| p.p_type.get(endian) == elf::PT_LOAD);
        let after = last.map_or(0, |last| last.saturating_add(1));
        programs.insert(after, part(elf::PT_LOAD, self.offset, self.addr, segment_len, self.page));
        let offset = self.offset.saturating_add(self.programs_len());
        programs.push(part(elf::PT_GNU_SFRAME, offset, self.section_addr(), len, 8));
        programs
    }
}

/// Reads a table of headers.
fn read<T: Pod>(file: &ElfFile, part: Part, at: u64, count: u64) -> Result<Vec<T>, EmbedError> {
    let size = u64::try_from(size_of::<T>()).unwrap_or(u64::MAX);
    let bytes = file.bytes(part, at, count.saturating_mul(size))?;
    let headers: &[T] = pod::slice_from_all_bytes(&bytes).unwrap_or_default();
    Ok(headers.to_vec())
}
