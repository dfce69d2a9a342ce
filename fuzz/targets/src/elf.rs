//! Any bytes as an ELF file: the command's readers of sections, notes, symbols
//! and call frame information take no more than the file has.

pub(crate) fn run(data: &[u8]) {
    let Some((copied, built)) = unwind_cli::read_elf(data) else { return };
    // Each section header and each note may name all of the file.
    let headers = data.len() / 40 + 1;
    assert!(copied <= data.len() * (headers + 2) + 4 * (64 << 10), "{copied} of {}", data.len());
    // A row takes 2 bytes of instructions at least and 18 of a table at most.
    assert!(built <= 64 * data.len() + 28, "{built} of {}", data.len());
}
