//! The `unwind` command: stacks of processes, core files and guests, and SFrame
//! tables.

#![deny(unsafe_code)]
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

use crate::error::Error;

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

fn main() -> ExitCode {
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
