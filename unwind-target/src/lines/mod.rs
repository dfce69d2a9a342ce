//! Where in the source code is, by the DWARF of its file: file, line, and the functions that
//! were inlined there.
//!
//! Whoever made the file decides how long that takes and how much memory: a few bytes of
//! DWARF stand for any number of rows, ranges and names. So files of others are read by another process,
//! with limits for both; what it has told up to its end holds.

pub(crate) mod apart;
mod common_part;
mod dwarf_error;
pub(crate) mod error;
pub mod place;
mod reader;
mod sections;
mod split;
mod unit_selection;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
pub use crate::lines::apart::MOST_ADDRS;
use crate::lines::error::{LinesError, MOST_TIME};
use crate::lines::place::Places;

/// Who reads the DWARF of files, which has their lines and inlined functions.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum LineReader {
    /// This process, without a limit of its own: a file that somebody has crafted may take any memory,
    /// time and stack. For files that are as trusted as this program is.
    #[default]
    Here,
    /// Another process, started for each file: `program` with `arguments`, followed by addresses in hexadecimal
    /// digits without `0x`; the file is its standard input, and its standard error goes nowhere. It has to give the
    /// addresses to [`serve_lines`](crate::serve_lines), which lets it use 10 seconds of CPU time and 2 GiB of memory.
    /// After 100 seconds it is ended.
    ///
    /// The program may be this one again, if it looks for the argument before it does anything else:
    ///
    /// ```no_run
    /// use unwind_target::{LineReader, Naming, Process, serve_lines};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let arguments: Vec<String> = std::env::args().skip(1).collect();
    ///     if let [first, addresses @ ..] = arguments.as_slice()
    ///         && first == "serve"
    ///     {
    ///         let parse = |text: &String| u64::from_str_radix(text, 16);
    ///         let addresses: Result<Vec<u64>, _> = addresses.iter().map(parse).collect();
    ///         return Ok(serve_lines(&addresses?)?);
    ///     }
    ///     let program = std::env::current_exe()?;
    ///     let reader = LineReader::Apart { program, arguments: vec!["serve".into()] };
    ///     let stacks = Process::new(4711).naming(Naming::new().lines(Some(reader))).stacks()?;
    ///     println!("{}", stacks.threads.len());
    ///     Ok(())
    /// }
    /// ```
    Apart {
        /// The program.
        program: PathBuf,
        /// What comes before the addresses.
        arguments: Vec<OsString>,
    },
}

/// Whether a file has DWARF with places.
///
/// # Errors
///
/// [`ElfError`] if its section headers are damaged.
pub fn are_in(file: &ElfFile) -> Result<bool, ElfError> {
    let sections = file.sections()?;
    Ok(sections.iter().any(|section| section.name == b".debug_info" && section.size != 0))
}

impl LineReader {
    /// The places of link-time addresses of a file. Also says what is wrong, if there are fewer
    /// than were asked for or some are not known for that reason.
    #[doc(hidden)]
    pub fn find(&self, file: &ElfFile, addrs: &[u64]) -> (Vec<Places>, Option<LinesError>) {
        let addrs = addrs.get(..MOST_ADDRS).unwrap_or(addrs);
        let mut found = Vec::new();
        let error = match self {
            Self::Here => read(file, addrs, &mut found),
            Self::Apart { program, arguments } => {
                let mut command = Command::new(program);
                apart::ask(command.args(arguments), MOST_TIME, file, addrs, &mut found)
            }
        };
        (found, error.err())
    }
}

/// Reads the DWARF in this process.
fn read(file: &ElfFile, addrs: &[u64], found: &mut Vec<Places>) -> Result<(), LinesError> {
    let mut error = None;
    let path = file.path();
    let read = reader::read(file, path, addrs, |places| {
        found.push(places.unwrap_or_else(|damage| {
            error = error.or(Some(LinesError::Damaged(damage)));
            Places::new()
        }));
        Ok(())
    });
    let read = read?;
    error.map_or_else(|| read.map_err(|error| LinesError::Start(error.into())), Err)
}
