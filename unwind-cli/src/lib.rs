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

/// Reads a recording and reports it in each format, with little memory. Returns the lengths of
/// all outputs in bytes, or `None` if it is no recording.
#[must_use]
pub fn report_perf_data(bytes: &[u8]) -> Option<Vec<usize>> {
    unwind_profile::bounded::reported_len(bytes)
}

/// How many bytes the records of a recording have that are stored, compressed or not.
#[must_use]
pub fn perf_records_len(bytes: &[u8]) -> usize {
    unwind_profile::bounded::records_len(bytes)
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

/// Reads the text of `/proc/kallsyms`. Returns how many functions there are, and how many bytes of
/// names are found by their addresses.
#[must_use]
pub fn read_kernel_symbols(text: &[u8]) -> (usize, usize) {
    unwind_profile::mapped::kernel::listed(text)
}

/// Reads what `perf script` prints for `unwind verify`. Returns how many samples and addresses
/// that are.
#[must_use]
pub fn read_perf_script(text: &[u8]) -> (usize, usize) {
    commands::verify::perf_script::listed(text)
}

/// Reads the sections that `unwind record` adds to a recording: its ledger, and how frames were
/// found, of which up to 1,024 of each sample are looked at. Returns how many bytes the ledger
/// takes as text, and how many frames there are.
#[must_use]
pub fn read_recorded_sections(ledger: &[u8], found_frames: &[u8]) -> (usize, usize) {
    let told = unwind_profile::session::ledger_section::ledger_of(ledger);
    let text = told.map_or(0, |told| {
        let notes = [told.ledger.to_string(), told.ledger.summary()];
        notes.iter().map(String::len).fold(0, usize::saturating_add)
    });
    let found = unwind_profile::walks::found_frames::FoundFrames::of_section(found_frames);
    let frames = found.map_or(0, |found| {
        let samples = (0..found.samples()).map_while(|number| u64::try_from(number).ok());
        samples.map(|number| found.of_sample(number).take(1 << 10).count()).sum()
    });
    (text, frames)
}

/// Reads two recordings and writes their difference in each format. Returns the lengths of all
/// outputs in bytes, or `None` if one is no recording.
#[must_use]
pub fn compare_perf_data(before: &[u8], after: &[u8]) -> Option<Vec<usize>> {
    unwind_profile::bounded::compared_len(before, after)
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
