//! `unwind sframe`: the SFrame tables of a file.

mod dump;
mod error;
mod file;
mod find;
mod json;
mod notation;
mod rules;

pub(crate) use error::SframeError;

use crate::error::Error;

/// Show the SFrame tables of a file.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Dump(dump::Args),
    Find(find::Args),
}

/// Runs `unwind sframe`.
///
/// # Errors
///
/// [`Error`] if the file cannot be read, holds no tables or bad ones, or an
/// address has no row.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    match &args.command {
        Command::Dump(args) => dump::run(args),
        Command::Find(args) => find::run(args),
    }
}
