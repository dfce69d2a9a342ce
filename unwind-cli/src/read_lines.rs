//! The process that reads DWARF: hidden from users, and given so much time and memory.

use unwind_target::{InputError, LineReader, ServeError, serve_lines};

use crate::failure::Failure;

/// The name of the hidden subcommand.
pub(crate) const NAME: &str = "read-lines";

/// Tell the places of addresses, by the DWARF of the file that is standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Link-time addresses, hexadecimal
    #[arg(value_parser = |text: &str| u64::from_str_radix(text, 16))]
    addrs: Vec<u64>,
}

/// Writes a line of JSON for each address.
///
/// # Errors
///
/// [`Failure`] if standard input is no ELF file with sections of DWARF, or the output cannot
/// be written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    serve_lines(&args.addrs).map_err(|error| match error {
        ServeError::Elf(error) => InputError::Elf { path: "-".into(), error }.into(),
        ServeError::Stream(error) => Failure::output(error),
        other => Failure::new(other, 1),
    })
}

/// This program again, as that process.
pub(crate) fn reader() -> LineReader {
    LineReader::Apart { program: "/proc/self/exe".into(), arguments: vec![NAME.into()] }
}
