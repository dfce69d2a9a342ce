//! The `unwind` command: stacks of processes, core files and guests, and SFrame
//! tables.
//!
//! The command is the program, which calls [`main`]. Besides that this library
//! has what fuzz targets call, and nothing for others.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    reason = "the lints are for the libraries, which have no std"
)]

mod call_frames;
mod elf;
mod error;
mod guest;
mod module;
mod perf_cmd;
mod progress;
mod sample;
mod sframe_cmd;
mod snapshot_cmd;
mod stack;
mod symbols;
mod target;
mod untrusted;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::call_frames::CallFrames;
use crate::elf::ElfFile;
use crate::error::Error;
use crate::symbols::Symbols;

/// Prints the stacks of running programs, core files and virtual machines, and
/// reads SFrame tables.
///
/// Without a subcommand: a sample, which walks the stack of a small program by
/// each method and shows the results beside the truth.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Stack(stack::Args),
    Guest(guest::Args),
    Sframe(sframe_cmd::Args),
    Snapshot(snapshot_cmd::Args),
    Script(perf_cmd::ScriptArgs),
    Merge(perf_cmd::MergeArgs),
    #[command(hide = true)]
    Sample(sample::Args),
}

/// How the exit codes of [`Error::exit_code`] are documented to the user.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  input or output failed, or a table is wrong
  2  the command line is wrong
  3  no such process, file, socket or command
  4  not permitted
  5  the file or process is of a kind that cannot be read, or it is damaged
  6  the program or guest ended before its stack was taken
  7  an address has no row
  8  a stack of the sample differs from the truth";

/// Runs the command with the arguments of this process.
///
/// Returns its exit code, which `--help` documents.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        None => sample::run(),
        Some(Command::Stack(args)) => stack::run(&args),
        Some(Command::Guest(args)) => guest::run(&args),
        Some(Command::Sframe(args)) => sframe_cmd::run(&args),
        Some(Command::Snapshot(args)) => snapshot_cmd::run(&args),
        Some(Command::Script(args)) => perf_cmd::run_script(&args),
        Some(Command::Merge(args)) => perf_cmd::run_merge(&args),
        Some(Command::Sample(args)) => sample::run_with(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough: `unwind … | head`.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // With standard error gone there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "unwind: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

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
