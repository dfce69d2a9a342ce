//! A process of its own that reads DWARF, with limits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
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
    let mut out = io::stdout().lock();
    let served = answer(addrs, &mut out);
    if let Err(ServeError::Elf(_)) = served {
        // It is the file that is damaged, and not this process that fails.
        tell(&mut out, &Err(DwarfError::Section))?;
    }
    served
}

fn answer(addrs: &[u64], out: &mut impl Write) -> Result<(), ServeError> {
    let file = ElfFile::from_file(File::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    let path = std::fs::read_link("/proc/self/fd/0").ok();
    Ok(reader::read(&file, path, addrs, |places| tell(out, &places))??)
}

fn tell(out: &mut impl Write, places: &Result<Places, DwarfError>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, places)?;
    out.write_all(b"\n")
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

/// Asks such a process, which has this much time.
pub(super) fn ask(
    command: &mut Command,
    time: Duration,
    file: &ElfFile,
    addrs: &[u64],
    found: &mut Vec<Places>,
) -> Result<(), LinesError> {
    let start = |error: io::Error| LinesError::Start(error.into());
    let mut child = command
        .args(addrs.iter().map(|addr| format!("{addr:x}")))
        .stdin(file.handed_over().map_err(start)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(start)?;
    let allowed = Allowed { since: Instant::now(), time };
    let answers = child.stdout.take().map(|from| Answers { from, allowed });
    let taken = answers.map_or(Ok(()), |answers| take(&mut BufReader::new(answers), addrs, found));
    let is_over = taken.is_err() || found.len() == addrs.len();
    let ended = if is_over { Ok(None) } else { end(&mut child, allowed) };
    // The rest of what it says is not read.
    let _ = child.kill();
    child.wait().map_err(start)?;
    taken?;
    match ended.map_err(start)? {
        _ if is_over => Ok(()),
        Some(ended) => Err(reason(ended)),
        None => Err(LinesError::Late),
    }
}

/// Takes an answer for each address, as long as there are more.
fn take(
    answers: &mut impl BufRead,
    addrs: &[u64],
    found: &mut Vec<Places>,
) -> Result<(), LinesError> {
    let mut error = None;
    while found.len() < addrs.len()
        && let Some(answer) = next_answer(answers)
    {
        match answer {
            // Of the whole file.
            Err(DwarfError::Section) => return Err(LinesError::Damaged(DwarfError::Section)),
            Err(damage) => {
                error = error.or(Some(LinesError::Damaged(damage)));
                found.push(Places::new());
            }
            Ok(places) => found.push(places),
        }
    }
    error.map_or(Ok(()), Err)
}

/// What the other process says of one address, if it says anything that is understood.
fn next_answer(answers: &mut impl BufRead) -> Option<Result<Places, DwarfError>> {
    let mut line = Vec::new();
    answers.take(ANSWER_LIMIT).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// How long a process may run.
#[derive(Clone, Copy)]
struct Allowed {
    since: Instant,
    time: Duration,
}

impl Allowed {
    fn left(self) -> Duration {
        self.time.saturating_sub(self.since.elapsed())
    }
}

/// What the other process says in its time.
struct Answers {
    from: ChildStdout,
    allowed: Allowed,
}

impl Read for Answers {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut polled = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        let left = PollTimeout::try_from(self.allowed.left()).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, left)? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => self.from.read(bytes),
        }
    }
}

/// How a process that says no more ends, if it does in its time.
fn end(child: &mut Child, allowed: Allowed) -> io::Result<Option<ExitStatus>> {
    loop {
        match child.try_wait()? {
            None if !allowed.left().is_zero() => sleep(Duration::from_millis(1)),
            ended => return Ok(ended),
        }
    }
}

/// Why the other process has ended before it has said all.
fn reason(ended: ExitStatus) -> LinesError {
    match ended.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => LinesError::TooLong,
        Some(_) => LinesError::TooLarge,
        None => LinesError::Failed(ended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong if the shell does this in place of the process that reads.
    fn error_of(script: &str, time: Duration) -> (usize, LinesError) {
        let file = ElfFile::from_file(File::open("/proc/self/exe").unwrap()).unwrap();
        let mut found = Vec::new();
        let mut command = Command::new("sh");
        let asked = ask(command.args(["-c", script]), time, &file, &[1, 2], &mut found);
        (found.len(), asked.unwrap_err())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_reader_that_fails_is_not_taken_for_a_file_that_is_damaged() {
        for (script, exit_code) in [("exit 3", 3), ("echo '{\"Ok\":[]}'", 0), ("echo no answer", 0)]
        {
            let (_, error) = error_of(script, LONG);
            let expected =
                format!("the reader of DWARF ended without an answer: exit status: {exit_code}");
            assert_eq!(error.to_string(), expected, "{script}");
        }
        let damaged = LinesError::Damaged(DwarfError::Section);
        assert_eq!(error_of("echo '{\"Err\":\"Section\"}'; exit 3", LONG), (0, damaged));
        assert_eq!(error_of("kill -s XCPU $$", LONG), (0, LinesError::TooLong));
    }

    #[test]
    fn a_reader_that_does_not_answer_or_end_is_ended() {
        let time = Duration::from_millis(200);
        for script in ["exec sleep 60", "echo '{\"Ok\":[]}'; exec sleep 60 >&-"] {
            let since = Instant::now();
            let (found, error) = error_of(script, time);
            assert_eq!(found, usize::from(script.starts_with("echo")));
            assert_eq!(error, LinesError::Late, "{script}");
            assert!((time..LONG).contains(&since.elapsed()), "{script}");
        }
    }
}
