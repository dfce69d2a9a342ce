//! What the notes of an x86-64 core file say.

use crate::note;

/// `NT_PRSTATUS`: a thread with this id, instruction pointer, frame pointer and
/// stack pointer.
#[must_use]
pub fn thread_note(id: u32, pc: u64, fp: u64, sp: u64) -> Vec<u8> {
    let registers = (0..27).map(|number| match number {
        // rbp, rip, cs and rsp in the order of the registers.
        4 => fp,
        16 => pc,
        17 => 0x33,
        19 => sp,
        _ => 0,
    });
    let mut desc = vec![0; 32];
    desc.extend(id.to_le_bytes());
    desc.resize(112, 0);
    desc.extend(registers.flat_map(u64::to_le_bytes));
    desc.resize(336, 0);
    note(b"CORE", 1, &desc)
}

/// `NT_FILE`: what was mapped from where on, by address, end and offset in pages
/// of 4 KiB, and from which file.
#[must_use]
pub fn files_note(files: &[(u64, u64, u64, &[u8])]) -> Vec<u8> {
    let mut desc = Vec::new();
    desc.extend(u64::try_from(files.len()).unwrap().to_le_bytes());
    desc.extend(4096_u64.to_le_bytes());
    for &(start, end, offset, _) in files {
        for value in [start, end, offset] {
            desc.extend(value.to_le_bytes());
        }
    }
    for (_, _, _, path) in files {
        desc.extend(*path);
        desc.push(0);
    }
    note(b"CORE", 0x4649_4c45, &desc)
}
