//! The `unwind` command: stacks of processes, core files and guests, and SFrame
//! tables.
//!
//! The command is the program, which calls [`main`]. Besides that this library has what
//! fuzz targets call, what the benches' tool that captures stacks ends by, as the command does
//! ([`AfterLimit`]), and nothing for others.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod after_limit;
mod cli;
mod coloured;
mod commands;
mod debug_options;
mod failure;
mod ignored_pipe;
mod naming;
mod notices;
mod open_files;
mod progress;
mod read_lines;

use std::io::{self, Write};

use unwind_target::elf::ElfFile;
use unwind_target::target::Target;

pub use crate::after_limit::AfterLimit;
pub use crate::cli::main;
pub use crate::failure::exit_code_of_target;

/// How many bytes were written.
#[derive(Debug, Default)]
struct Written(usize);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads bytes as a core file, all mapped files of which are `file`, and writes its
/// stacks as text and as JSON. Returns how many bytes that were; `None` if it is no
/// core file.
#[must_use]
pub fn read_core(core: &[u8], file: &[u8]) -> Option<usize> {
    let open = || Ok(ElfFile::from_bytes(file.to_vec())?);
    let target = Target::of_copied_core(core, open).ok()?;
    let mut out = Written::default();
    commands::stack::write_stacks(&mut out, target)?;
    Some(out.0)
}

/// Reads lines as the answers of a QEMU, and their text as that of its monitor.
/// Returns how many bytes the answers come to.
#[must_use]
pub fn read_qmp(text: &[u8]) -> usize {
    commands::guest::read_answers(text)
}

/// Reads bytes as packets of a stub for gdb, and as descriptions of registers. Returns how much there is in them.
#[must_use]
pub fn read_gdb(bytes: &[u8]) -> usize {
    commands::guest::read_stub(bytes)
}

/// Reads a recording of perf as `unwind script` and `unwind merge` do, with little memory.
/// Returns the lengths of the text, the JSON and the merged recording in bytes, or `None`
/// if it is no recording.
#[must_use]
pub fn read_perf_data(bytes: &[u8]) -> Option<[usize; 3]> {
    let (text, json) = commands::script::printed_len(bytes)?;
    let merged = unwind_profile::walks::merged_file::merged_len(bytes.to_vec())?;
    Some([text, json, merged])
}

/// Reads what `perf script` prints for `unwind verify`. Returns how many samples and addresses
/// that are.
#[must_use]
pub fn read_perf_script(text: &[u8]) -> (usize, usize) {
    commands::verify::perf_script::listed(text)
}

/// Explains the sample of this number of a recording as text and as JSON. Returns how many bytes
/// that are, or `None` if there is no such sample.
#[must_use]
pub fn explain_sample(bytes: &[u8], number: u64) -> Option<usize> {
    commands::explain::explained_len(bytes, number)
}

/// Reads an archive of objects and writes the SFrame tables of its members as text and as JSON.
/// Returns how many bytes that are, or `None` if none has tables.
#[must_use]
pub fn dump_archive(bytes: &[u8]) -> Option<usize> {
    commands::sframe::dumped_len(bytes)
}
