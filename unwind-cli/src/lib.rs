//! The command's readers of ELF files, where a fuzz target can call them.
//!
//! The command is the program; this library has nothing else for others.

#![deny(unsafe_code)]
#![allow(
    dead_code,
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    reason = "the command uses the rest, and has std"
)]

mod call_frames;
mod elf;
mod symbols;
mod untrusted;

use crate::call_frames::CallFrames;
use crate::elf::ElfFile;
use crate::symbols::Symbols;

/// Reads everything that the command may read of an ELF file that someone else
/// made. Returns how many bytes were copied out of it, and how many of tables
/// were made of it.
#[must_use]
pub fn read_elf(bytes: &[u8]) -> Option<(usize, usize)> {
    let file = ElfFile::from_bytes(bytes.to_vec()).ok()?;
    let mut copied = 0_usize;
    let mut took = |len: usize| copied = copied.saturating_add(len);
    if let Ok(sections) = file.sections() {
        for section in &sections {
            took(file.section_bytes(elf::Part::Sframe, section).map_or(0, |bytes| bytes.len()));
        }
    }
    for section in file.sframe_sections().unwrap_or_default() {
        took(section.tables().tables().flatten().map(|table| table.bytes().len()).sum());
    }
    took(file.build_id().map_or(0, |id| id.len()));
    for segment in file.note_segments().flatten() {
        took(segment.notes().map(|note| note.name.len().saturating_add(note.desc.len())).sum());
    }
    for segment in &file.segments {
        let _ = file.bias(segment.addr, segment.offset);
    }
    if let Ok(symbols) = Symbols::read(&file) {
        for at in [file.entry, 0, u64::MAX, 0x1000] {
            let function = symbols.find(&file, at);
            took(function.map_or(0, |function| function.name.as_bytes().len()));
        }
    }
    let built = match CallFrames::read(&file) {
        Ok(Some(frames)) => frames.build(sframe::Format::V3, 0x10_0000, |_| ()).ok(),
        _ => None,
    };
    Some((copied, built.map_or(0, |table| table.bytes.len())))
}
