//! ELF files laid out piece by piece.
//!
//! Nothing is checked or improved: what a test says is what the file holds,
//! right or wrong.

/// A little-endian ELF file of x86-64 to be: its header, what was put into it in
/// order, the program headers, the section headers.
#[derive(Clone, Debug)]
pub struct ElfBuilder {
    /// `e_type`.
    pub kind: u16,
    /// `e_entry`.
    pub entry: u64,
    /// The program headers.
    pub segments: Vec<ElfSegment>,
    /// The section headers. The first one, which is none, is added.
    pub sections: Vec<ElfSection>,
    /// `e_shstrndx`, counted with the first one.
    pub names: u32,
    body: Vec<u8>,
}

/// A program header.
#[derive(Clone, Copy, Debug, Default)]
pub struct ElfSegment {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// `p_offset`.
    pub offset: u64,
    /// `p_vaddr`.
    pub addr: u64,
    /// `p_filesz`.
    pub file_size: u64,
    /// `p_memsz`.
    pub memory_size: u64,
    /// `p_align`.
    pub align: u64,
}

/// A section header.
#[derive(Clone, Copy, Debug, Default)]
pub struct ElfSection {
    /// `sh_name`.
    pub name: u32,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// `sh_addr`.
    pub addr: u64,
    /// `sh_offset`.
    pub offset: u64,
    /// `sh_size`.
    pub size: u64,
    /// `sh_link`.
    pub link: u32,
    /// `sh_info`.
    pub info: u32,
    /// `sh_entsize`.
    pub entry_size: u64,
}

impl ElfBuilder {
    /// `ET_REL`, `ET_EXEC`, `ET_DYN` and `ET_CORE`.
    pub const RELOCATABLE: u16 = 1;
    /// See [`RELOCATABLE`](Self::RELOCATABLE).
    pub const EXECUTABLE: u16 = 2;
    /// See [`RELOCATABLE`](Self::RELOCATABLE).
    pub const SHARED: u16 = 3;
    /// See [`RELOCATABLE`](Self::RELOCATABLE).
    pub const CORE: u16 = 4;

    const HEADER: usize = 64;

    /// A file of this type, with nothing in it.
    #[must_use]
    pub fn new(kind: u16) -> Self {
        let (segments, sections, body) = (Vec::new(), Vec::new(), Vec::new());
        Self { kind, entry: 0, segments, sections, names: 0, body }
    }

    /// Puts bytes into the file, at the next multiple of 16. Returns their
    /// offset.
    pub fn put(&mut self, bytes: &[u8]) -> u64 {
        self.body.resize(self.body.len().next_multiple_of(16), 0);
        let at = Self::HEADER + self.body.len();
        self.body.extend(bytes);
        u64::try_from(at).unwrap()
    }

    /// Adds a section header and returns its index.
    pub fn section(&mut self, section: ElfSection) -> u32 {
        self.sections.push(section);
        u32::try_from(self.sections.len()).unwrap()
    }

    /// The file. Counts that do not fit the header are in the first section
    /// header, as the format has it.
    #[must_use]
    pub fn finish(&self) -> Vec<u8> {
        let segments_at = (Self::HEADER + self.body.len()).next_multiple_of(16);
        let sections_at = segments_at + 56 * self.segments.len();
        let has_sections = !self.sections.is_empty() || self.segments.len() >= 0xffff;
        let count = self.sections.len() + usize::from(has_sections);
        let long = |value: usize| u64::try_from(value).unwrap();
        let half = |value: usize, limit: usize, escape: u16| {
            if value < limit { u16::try_from(value).unwrap() } else { escape }
        };

        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend(self.kind.to_le_bytes());
        file.extend(62_u16.to_le_bytes());
        file.extend(1_u32.to_le_bytes());
        for value in
            [self.entry, long(segments_at), if has_sections { long(sections_at) } else { 0 }]
        {
            file.extend(value.to_le_bytes());
        }
        file.extend(0_u32.to_le_bytes());
        let names = half(usize::try_from(self.names).unwrap(), 0xff00, 0xffff);
        for value in
            [64, 56, half(self.segments.len(), 0xffff, 0xffff), 64, half(count, 0xff00, 0), names]
        {
            file.extend(value.to_le_bytes());
        }
        file.extend(&self.body);
        file.resize(segments_at, 0);
        for segment in &self.segments {
            file.extend(segment.kind.to_le_bytes());
            file.extend(segment.flags.to_le_bytes());
            for value in [
                segment.offset,
                segment.addr,
                segment.addr,
                segment.file_size,
                segment.memory_size,
                segment.align,
            ] {
                file.extend(value.to_le_bytes());
            }
        }
        if has_sections {
            let info = u32::try_from(self.segments.len()).unwrap();
            let first =
                ElfSection { size: long(count), link: self.names, info, ..ElfSection::default() };
            put_section(&mut file, &first);
        }
        for section in &self.sections {
            put_section(&mut file, section);
        }
        file
    }
}

fn put_section(file: &mut Vec<u8>, section: &ElfSection) {
    file.extend(section.name.to_le_bytes());
    file.extend(section.kind.to_le_bytes());
    for value in [section.flags, section.addr, section.offset, section.size] {
        file.extend(value.to_le_bytes());
    }
    file.extend(section.link.to_le_bytes());
    file.extend(section.info.to_le_bytes());
    for value in [1, section.entry_size] {
        file.extend(value.to_le_bytes());
    }
}

/// A note: its lengths, its kind, its name and what it says, each padded to four
/// bytes.
#[must_use]
pub fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for value in [name.len() + 1, desc.len()] {
        note.extend(u32::try_from(value).unwrap().to_le_bytes());
    }
    note.extend(kind.to_le_bytes());
    for part in [&[name, b"\0"].concat(), desc] {
        note.extend(part);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    note
}
