//! `unwind sframe`: SFrame tables as text.

use crate::error::Error;

/// Show SFrame tables
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs `unwind sframe`.
///
/// # Errors
///
/// [`Error`] if the file cannot be read.
pub(crate) fn run(_: &Args) -> Result<(), Error> {
    Ok(())
}
