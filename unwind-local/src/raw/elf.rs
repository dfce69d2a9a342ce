//! The structures of ELF, of which the words are as long as those of the program.

#[cfg(target_pointer_width = "32")]
pub(super) use libc::{
    Elf32_Ehdr as ElfHeader, Elf32_Phdr as ProgramHeader, Elf32_Shdr as SectionHeader,
    Elf32_Sym as Symbol,
};
#[cfg(target_pointer_width = "64")]
pub(super) use libc::{
    Elf64_Ehdr as ElfHeader, Elf64_Phdr as ProgramHeader, Elf64_Shdr as SectionHeader,
    Elf64_Sym as Symbol,
};

/// A word of them as one of 64 bits.
pub(super) fn wide(word: impl Into<u64>) -> u64 {
    word.into()
}

/// What of a program header is asked.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) vaddr: u64,
    pub(super) filesz: u64,
    pub(super) memsz: u64,
}

impl From<&ProgramHeader> for Segment {
    fn from(header: &ProgramHeader) -> Self {
        Self {
            kind: header.p_type,
            flags: header.p_flags,
            offset: wide(header.p_offset),
            vaddr: wide(header.p_vaddr),
            filesz: wide(header.p_filesz),
            memsz: wide(header.p_memsz),
        }
    }
}
