//! A process of its own that reads DWARF, with limits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};

use nix::sys::resource::{Resource, setrlimit};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::lines::dwarf_error::DwarfError;
use crate::lines::error::{LinesError, MOST_MEMORY, MOST_SECONDS};
use crate::lines::place::Places;
use crate::lines::reader;

/// How many addresses of one file are asked for at most: they are arguments of a process.
pub const MOST_ADDRS: usize = 16 << 10;

/// The longest answer for one address, in bytes.
const ANSWER_LIMIT: u64 = 1 << 20;

/// Why [`serve`] cannot answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Standard input is no ELF file with sections of DWARF.
    #[error("standard input: {0}")]
    Elf(#[from] ElfError),
    /// Standard input or output fails.
    #[error("standard input or output: {0}")]
    Stream(#[from] io::Error),
}

/// Answers a process that reads lines [apart](crate::LineReader::Apart): writes to standard output what there is
/// at each of these link-time addresses of the file that is standard input. Takes at most 10 seconds of
/// CPU time and 2 GiB of memory more than it has, or the kernel ends this process.
///
/// # Errors
///
/// [`ServeError`] if standard input is no ELF file, or the output cannot be written.
pub fn serve(addrs: &[u64]) -> Result<(), ServeError> {
    limit();
    let file = ElfFile::from_file(File::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    let path = std::fs::read_link("/proc/self/fd/0").ok();
    let mut out = io::stdout().lock();
    Ok(reader::read(&file, path, addrs, |places| {
        serde_json::to_writer(&mut out, &places)?;
        out.write_all(b"\n")
    })??)
}

/// Lets this process use no more than it has and so much.
fn limit() {
    let pages = std::fs::read("/proc/self/statm").ok();
    let pages = pages.and_then(|text| {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
        digits
            .map(|digit| u64::from(digit & 15))
            .reduce(|sum, digit| sum.saturating_mul(10).saturating_add(digit))
    });
    let used = pages.unwrap_or(0).saturating_mul(4096);
    let memory = used.saturating_add(MOST_MEMORY);
    // A kernel that refuses has stricter limits.
    let _ = setrlimit(Resource::RLIMIT_AS, memory, memory);
    let _ = setrlimit(Resource::RLIMIT_CPU, MOST_SECONDS, MOST_SECONDS.saturating_add(1));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
}

/// Asks such a process.
pub(super) fn ask(
    command: &mut Command,
    file: &ElfFile,
    addrs: &[u64],
    found: &mut Vec<Places>,
) -> Result<(), LinesError> {
    let start = |error: io::Error| LinesError::Start(error.into());
    // What was copied from memory has no DWARF.
    let Some(opened) = file.opened() else { return Ok(()) };
    let mut child = command
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
