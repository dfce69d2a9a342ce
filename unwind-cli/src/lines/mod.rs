//! Where in the source code is, by the DWARF of its file: file, line, and the functions that
//! were inlined there.
//!
//! Whoever made the file decides how long that takes and how much memory: a few bytes of
//! DWARF stand for any number of rows, ranges and names. So another process reads it, this
//! program again, which may use so much of both; what it has told up to its end holds.

mod common_part;
mod dwarf_error;
pub(crate) mod place;
pub(crate) mod reader;
mod sections;
mod split;
mod unit_selection;

use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::lines::dwarf_error::DwarfError;
use crate::lines::place::Places;
use crate::system_error::SystemError;

/// Why places are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinesError {
    /// The file's headers are damaged.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The other process cannot be started, or does not answer.
    #[error("cannot run the reader of DWARF: {0}")]
    Start(SystemError),
    /// It was at it for too long.
    #[error("its DWARF takes more than {} seconds to read", reader::MOST_SECONDS)]
    TooLong,
    /// It has ended early: it lacked memory or room for its stack.
    #[error("its DWARF is damaged, or takes more than {} MiB to read", reader::MOST_MEMORY >> 20)]
    TooLarge,
    /// The DWARF is damaged.
    #[error("its DWARF cannot be read: {0}")]
    Damaged(DwarfError),
}

/// How many addresses of one file are asked for at most: they are arguments of a process.
pub(crate) const MOST_ADDRS: usize = 16 << 10;

/// The longest answer for one address, in bytes.
const ANSWER_LIMIT: u64 = 1 << 20;

/// Whether a file has DWARF with places.
///
/// # Errors
///
/// [`ElfError`] if its section headers are damaged.
pub(crate) fn are_in(file: &ElfFile) -> Result<bool, ElfError> {
    let sections = file.sections()?;
    Ok(sections.iter().any(|section| section.name == b".debug_info" && section.size != 0))
}

/// The places of link-time addresses of a file. Also says what is wrong, if there are fewer
/// than were asked for or some are not known for that reason.
pub(crate) fn find(file: &ElfFile, addrs: &[u64]) -> (Vec<Places>, Option<LinesError>) {
    let addrs = addrs.get(..MOST_ADDRS).unwrap_or(addrs);
    let mut found = Vec::new();
    let error = ask(file, addrs, &mut found).err();
    (found, error)
}

fn ask(file: &ElfFile, addrs: &[u64], found: &mut Vec<Places>) -> Result<(), LinesError> {
    let start = |error: std::io::Error| LinesError::Start(error.into());
    // What was copied from memory has no DWARF.
    let Some(opened) = file.opened() else { return Ok(()) };
    let mut child = Command::new("/proc/self/exe")
        .arg(reader::NAME)
        .args(addrs.iter().map(|addr| format!("{addr:x}")))
        .stdin(opened.map_err(start)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(start)?;
    let mut answers = child.stdout.take().map(BufReader::new);
    let mut error = None;
    while found.len() < addrs.len()
        && let Some(answer) = answers.as_mut().and_then(next_answer)
    {
        found.push(answer.unwrap_or_else(|damage| {
            error = error.or(Some(LinesError::Damaged(damage)));
            Places::new()
        }));
    }
    // The rest of what it says is not read.
    drop(answers);
    let ended = child.wait().map_err(start)?;
    match error {
        Some(error) => Err(error),
        None if found.len() == addrs.len() => Ok(()),
        None => Err(reason(ended)),
    }
}

/// What the other process says of one address, if it says anything that is understood.
fn next_answer(answers: &mut impl BufRead) -> Option<Result<Places, DwarfError>> {
    let mut line = Vec::new();
    answers.take(ANSWER_LIMIT).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// Why the other process has ended before it has said all.
fn reason(ended: ExitStatus) -> LinesError {
    match ended.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => LinesError::TooLong,
        Some(_) => LinesError::TooLarge,
        None => LinesError::Damaged(DwarfError::Section),
    }
}
