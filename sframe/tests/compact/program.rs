//! Programs and libraries of this machine, and their call frame information.

use core::ops::Range;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSection, elf};
use sframe::CfiSection;

/// The call frame information of a 64-bit ELF file.
pub(crate) struct Program {
    pub(crate) eh_frame: Vec<u8>,
    pub(crate) addr: u64,
    /// Where code is, by the program headers.
    pub(crate) code: Vec<Range<u64>>,
}

impl Program {
    /// That of a file, if it is one and has it.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let file = ElfFile64::<Endianness>::parse(&*bytes).ok()?;
        let section = file.section_by_name(".eh_frame")?;
        let endian = file.endian();
        let code = file.elf_program_headers().iter().filter(|header| {
            header.p_type(endian) == elf::PT_LOAD && header.p_flags(endian).0 & elf::PF_X.0 != 0
        });
        let code = code.map(|header| {
            let start = header.p_vaddr(endian);
            start..start + header.p_memsz(endian)
        });
        Some(Self {
            eh_frame: section.uncompressed_data().ok()?.into_owned(),
            addr: section.address(),
            code: code.collect(),
        })
    }

    pub(crate) fn cfi(&self) -> CfiSection<'_> {
        CfiSection::eh_frame(&self.eh_frame, self.addr).code(&self.code)
    }
}

/// This test, and the files that it has mapped: the C library and the linker among them; and the
/// python that is found first.
pub(crate) fn files() -> Vec<PathBuf> {
    let mut files = vec![std::env::current_exe().unwrap()];
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped = maps.lines().filter_map(|line| line.split_once('/'));
    files.extend(mapped.map(|(_, path)| format!("/{path}").into()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).map(|folder| folder.join("python3"));
    let python = python.filter_map(|path| path.canonicalize().ok());
    files.extend(python.filter(|path| Program::read(path).is_some()).take(1));
    files.sort();
    files.dedup();
    files.retain(|path| Program::read(path).is_some());
    files
}
