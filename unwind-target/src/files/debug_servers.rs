//! Servers that have what was stripped off files: those that `DEBUGINFOD_URLS` names, asked by the
//! client of elfutils, which keeps what it gets.
//!
//! The client asks for one file at a time, and may wait for minutes. So each server is asked alone:
//! one that does not answer is told of and not asked again, and there is a limit for all.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::elf::ElfFile;
use crate::files::regular_file;
use crate::notices::Notices;
use crate::untrusted::escaped;

/// The client of elfutils.
const CLIENT: &str = "debuginfod-find";

/// What its variables are where the user has not set them: how many seconds a server may be
/// silent, how many seconds one file may take, and how many bytes it may have.
const TIMEOUT: u64 = 10;
const MOST_TIME: u64 = 300;
const MOST_BYTES: u64 = 8 << 30;

/// How long all files may take.
const ALL: Duration = Duration::from_secs(900);

/// How much of what the client prints is read, in bytes.
const PRINTED: u64 = 4096;

/// What goes without the files.
const WITHOUT: &str = "files whose debug information is not here go without lines of the source, \
                       inlined functions and the names of functions that were stripped off";

/// What lacks to ask servers. The text is what is needed, and why it is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoServers {
    /// The variable is empty, or not there.
    #[error("servers: DEBUGINFOD_URLS names none")]
    NoUrls,
    /// The client cannot be started.
    #[error("{CLIENT}, of elfutils (Debian's package debuginfod): {0}")]
    NoClient(#[source] io::Error),
}

/// Servers that have what was stripped off files (debuginfod), and the client of elfutils that asks them.
/// Copies share what is known of them: one that does not answer is not asked again.
#[derive(Clone, Debug)]
pub struct DebugServers(Arc<Mutex<Servers>>);

impl DebugServers {
    /// Those that `DEBUGINFOD_URLS` names. What they do not answer is told by `notices`.
    ///
    /// # Errors
    ///
    /// [`NoServers`] if there are none, or no client.
    pub fn of_environment(notices: Notices) -> Result<Self, NoServers> {
        let servers = Servers::of_environment(notices);
        if servers.urls.is_empty() {
            return Err(NoServers::NoUrls);
        }
        let client = Command::new(CLIENT).arg("--version").stdout(Stdio::null()).status();
        client.map_err(NoServers::NoClient)?;
        Ok(Self(Arc::new(Mutex::new(servers))))
    }

    /// What was stripped off the file with this build id, if a server has it.
    pub(super) fn find(&self, id: &[u8]) -> Option<ElfFile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).find(id)
    }
}

/// Servers that answer so far.
#[derive(Debug)]
struct Servers {
    urls: Vec<OsString>,
    /// How long they may take all together.
    left: Duration,
    notices: Notices,
}

/// What a server says.
enum Answer {
    File(PathBuf),
    /// It has no such file.
    Nothing,
    /// Why there is no answer, in words.
    Silence(String),
}

impl Servers {
    fn of_environment(notices: Notices) -> Self {
        let urls = env::var_os("DEBUGINFOD_URLS").unwrap_or_default();
        let urls = urls.as_bytes().split(u8::is_ascii_whitespace).filter(|url| !url.is_empty());
        Self {
            urls: urls.map(|url| OsStr::from_bytes(url).to_owned()).collect(),
            left: ALL,
            notices,
        }
    }

    fn find(&mut self, id: &[u8]) -> Option<ElfFile> {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let open = |path: &Path| {
            let found = ElfFile::from_file(regular_file::open(path).ok()?).ok()?;
            (found.build_id().as_deref() == Some(id)).then_some(found)
        };
        // What the client has is there also if a server is not.
        if let Some(found) = kept(&hex).iter().find_map(|path| open(path)) {
            return Some(found);
        }
        let mut found = None;
        let (left, notices) = (&mut self.left, &self.notices);
        self.urls.retain(|url| {
            if found.is_some() {
                return true;
            }
            if left.is_zero() {
                notices.add(format!(
                    "debuginfod servers have taken {} seconds and are not asked again: {WITHOUT}",
                    ALL.as_secs()
                ));
                return false;
            }
            let start = Instant::now();
            let answer = ask(url, &hex, *left).unwrap_or_else(|error| {
                // The client was there before.
                Answer::Silence(format!("{CLIENT}: {error}"))
            });
            *left = left.saturating_sub(start.elapsed());
            let silence = match answer {
                Answer::Nothing => return true,
                Answer::File(path) => match open(&path) {
                    Some(file) => {
                        found = Some(file);
                        return true;
                    }
                    None => format!("what it sent for build id {hex} is another file"),
                },
                Answer::Silence(why) => why,
            };
            let url = without_password(url);
            let url = escaped(&url).at_most(200);
            notices.add(format!("{url} is not asked again: {silence}; {WITHOUT}"));
            false
        });
        found
    }
}

/// Where the client may keep a file.
fn kept(hex: &str) -> Vec<PathBuf> {
    let of = |variable, below: &str| {
        let folder = env::var_os(variable).filter(|folder| !folder.is_empty())?;
        Some(Path::new(&folder).join(below).join(hex).join("debuginfo"))
    };
    let folders = [
        of("DEBUGINFOD_CACHE_PATH", ""),
        of("XDG_CACHE_HOME", "debuginfod_client"),
        of("HOME", ".cache/debuginfod_client"),
        of("HOME", ".debuginfod_client_cache"),
    ];
    folders.into_iter().flatten().collect()
}

/// A variable that is a number, or what it is without.
fn number(variable: &str, otherwise: u64) -> u64 {
    let value = env::var(variable).ok().and_then(|text| text.trim().parse().ok());
    value.filter(|&value| value > 0).unwrap_or(otherwise)
}

/// Has the client ask one server.
fn ask(url: &OsStr, hex: &str, left: Duration) -> io::Result<Answer> {
    let (timeout, most) =
        (number("DEBUGINFOD_TIMEOUT", TIMEOUT), number("DEBUGINFOD_MAXTIME", MOST_TIME));
    let most_bytes = number("DEBUGINFOD_MAXSIZE", MOST_BYTES);
    let mut command = Command::new(CLIENT);
    command.args(["debuginfo", hex]).env("DEBUGINFOD_URLS", url);
    for (variable, value) in [
        ("DEBUGINFOD_TIMEOUT", timeout),
        ("DEBUGINFOD_MAXTIME", most),
        ("DEBUGINFOD_MAXSIZE", most_bytes),
        ("DEBUGINFOD_RETRY_LIMIT", number("DEBUGINFOD_RETRY_LIMIT", 1)),
    ] {
        command.env(variable, value.to_string());
    }
    // What else it prints would be taken for its answer.
    command.env_remove("DEBUGINFOD_VERBOSE").env_remove("DEBUGINFOD_PROGRESS").env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn()?;
    if let Some(pid) = i32::try_from(client.id()).ok().and_then(Pid::from_raw) {
        let limit = Rlimit { current: Some(most_bytes), maximum: Some(most_bytes) };
        // It has ended already, then.
        let _ = prlimit(Some(pid), Resource::Fsize, limit);
    }
    let limit = Duration::from_secs(most.saturating_add(timeout)).min(left);
    let Some(status) = wait(&mut client, limit)? else {
        return Ok(Answer::Silence("it takes too long".to_owned()));
    };
    if status.signal() == Some(libc::SIGXFSZ) {
        return Ok(Answer::Silence(format!("it sends more than {most_bytes} bytes")));
    }
    let (out, told) = (printed(client.stdout.take()), printed(client.stderr.take()));
    if status.success() {
        let path = OsStr::from_bytes(out.trim_ascii_end());
        return Ok(Answer::File(path.into()));
    }
    let why = told.trim_ascii_end();
    let why = why.strip_prefix(b"Server query failed: ").unwrap_or(why);
    if why == b"No such file or directory" {
        return Ok(Answer::Nothing);
    }
    Ok(Answer::Silence(escaped(OsStr::from_bytes(why)).at_most(200).to_string()))
}

/// Waits for the client to end; ends it where that takes longer.
fn wait(client: &mut Child, limit: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    const LONGEST: Duration = Duration::from_millis(50);
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = client.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            client.kill()?;
            client.wait()?;
            return Ok(None);
        }
        sleep(pause);
        pause = pause.saturating_mul(2).min(LONGEST);
    }
}

/// What a process that has ended has printed, or the beginning of it.
fn printed(pipe: Option<impl io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read up to an error holds.
        let _ = pipe.take(PRINTED).read_to_end(&mut bytes);
    }
    bytes
}

/// A URL as it may be shown: without a name and a password before an `@`.
fn without_password(url: &OsStr) -> OsString {
    let bytes = url.as_bytes();
    let start = memchr::memmem::find(bytes, b"://").map_or(0, |at| at.saturating_add(3));
    let (scheme, rest) = bytes.split_at_checked(start).unwrap_or((&[], bytes));
    let end = memchr::memchr(b'/', rest).unwrap_or(rest.len());
    let at = rest.get(..end).and_then(|host| memchr::memrchr(b'@', host));
    let rest = at.and_then(|at| rest.get(at.checked_add(1)?..)).unwrap_or(rest);
    OsStr::from_bytes(&[scheme, rest].concat()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d14_a_server_is_shown_without_its_password() {
        for (url, shown) in [
            ("http://a:b@host:80/x@y", "http://host:80/x@y"),
            ("https://host/", "https://host/"),
            ("a@b", "b"),
            ("", ""),
        ] {
            assert_eq!(without_password(OsStr::new(url)), *OsStr::new(shown), "{url}");
        }
    }
}
