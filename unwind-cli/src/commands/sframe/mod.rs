//! `unwind sframe`: the SFrame tables of files.

mod build;
mod check;
mod code;
mod columns;
mod diff;
mod dump;
mod embed;
pub(crate) mod error;
mod file;
mod find;
mod format;
mod formulas;
mod input;
mod json;
mod names;
mod shared_rows;
mod stat;

use crate::failure::Failure;

pub(crate) use dump::dumped_len;

/// Show, check, compare and build the SFrame tables of files.
///
/// Files are programs, libraries, objects and archives of objects; `-` is standard
/// input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Build(build::Args),
    Check(check::Args),
    Diff(diff::Args),
    Dump(dump::Args),
    Find(find::Args),
    Stat(stat::Args),
}

/// Runs `unwind sframe`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read, holds no tables or bad ones, or an
/// address has no row.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Build(args) => build::run(args),
        Command::Check(args) => check::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Find(args) => find::run(args),
        Command::Stat(args) => stat::run(args),
    }
}
