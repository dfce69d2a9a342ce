//! Any bytes as an ELF file: the readers of sections, notes, symbols and call frame information
//! take no more than the file has.

use unwind_target::elf::{ElfFile, error::Part};
use unwind_target::rows::call_frames::CallFrames;
use unwind_target::symbols::Symbols;

pub(crate) fn run(data: &[u8]) {
    let Ok(file) = ElfFile::from_bytes(data.to_vec()) else { return };
    let copied = copied(&file);
    // Each section header and each note may name all of the file.
    let headers = data.len() / 40 + 1;
    assert!(copied <= data.len() * (headers + 2) + 4 * (64 << 10), "{copied} of {}", data.len());
    let Ok(Some(frames)) = CallFrames::read(&file) else { return };
    let built = frames.build(sframe::Format::V3, 0x10_0000, |_| ());
    let built = built.map_or(0, |table| table.bytes.len());
    // A row takes 2 bytes of instructions at least and 18 of a table at most.
    assert!(built <= 64 * data.len() + 28, "{built} of {}", data.len());
}

/// Reads all that may be read of a file that someone else made. Returns how many bytes that takes.
fn copied(file: &ElfFile) -> usize {
    let mut copied = 0;
    for section in file.sections().into_iter().flatten() {
        copied += file.section_bytes(Part::Sframe, section).map_or(0, |bytes| bytes.len());
    }
    for section in file.sframe_sections().unwrap_or_default() {
        let tables = section.tables().tables().flatten();
        copied += tables.map(|table| table.bytes().len()).sum::<usize>();
    }
    copied += file.build_id().map_or(0, |id| id.len());
    for segment in file.note_segments().flatten() {
        let notes = segment.notes();
        copied += notes.map(|note| note.name.len() + note.desc.len()).sum::<usize>();
    }
    for segment in &file.segments {
        let _ = file.bias(segment.addr, segment.offset);
    }
    if let Ok(symbols) = Symbols::read(file) {
        for at in [file.entry, 0, u64::MAX, 0x1000] {
            let function = symbols.find(file, at);
            copied += function.map_or(0, |function| function.name.as_bytes().len());
        }
    }
    copied
}
