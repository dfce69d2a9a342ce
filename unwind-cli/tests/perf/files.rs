//! Running the command, and making files for it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use testdata::PerfRecording;

/// The fields that the listings of `perf script` have.
pub(crate) const FIELDS: &str = "comm,pid,tid,time,event,ip";

/// `unwind script` with the fields and the depth of those listings.
pub(crate) fn plain<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let fields = ["script", "--ns", "--max-stack", "1024", "-F", FIELDS];
    [&fields[..], arguments].concat()
}

/// The command, which finds no copies of files that a perf of this user has kept.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unwind"));
    command.env("HOME", "/nonexistent");
    command
}

pub(crate) fn unwind(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

/// As [`unwind`], with `input` on standard input.
pub(crate) fn unwind_with(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The command may stop reading early.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    })
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that succeeds.
pub(crate) fn done(arguments: &[&str]) -> String {
    let output = unwind(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A file of this test run, gone when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{count}.perf.data", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Another test may have taken the folder away.
        let _ = fs::remove_file(&self.0);
    }
}

/// The fixture `name` as a `perf.data`: a `.data` as it is, a `.raw` with the
/// least header.
pub(crate) fn perf_data(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    match path.extension() {
        Some(raw) if raw == "raw" => PerfRecording::parse(&bytes).to_perf_data(),
        _ => bytes,
    }
}

/// A little-endian number in a file.
pub(crate) fn word(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
}

/// A `perf.data` taken apart.
pub(crate) struct Parts<'a> {
    pub(crate) events: Vec<(&'a [u8], &'a [u8])>,
    pub(crate) data: &'a [u8],
    /// The names of the events, as the file has them.
    pub(crate) event_desc: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    pub(crate) fn of(file: &'a [u8]) -> Self {
        let section = |at: usize| &file[word(file, at)..][..word(file, at + 8)];
        let entry = word(file, 16);
        let events = section(24)
            .chunks_exact(entry)
            .map(|event| {
                let (attr, place) = event.split_at(entry - 16);
                (attr, &file[word(place, 0)..][..word(place, 8)])
            })
            .collect();
        let features = word(file, 72);
        let table = word(file, 40) + word(file, 48);
        let event_desc = (features & 1 << 12 != 0).then(|| {
            let index = (features & ((1 << 12) - 1)).count_ones();
            section(table + 16 * usize::try_from(index).unwrap())
        });
        Self { events, data: section(40), event_desc }
    }

    /// The same recording in pipe form.
    pub(crate) fn to_pipe(&self) -> Vec<u8> {
        let mut pipe = b"PERFILE2".to_vec();
        pipe.extend(16_u64.to_le_bytes());
        let mut record = |kind: u32, parts: &[&[u8]]| {
            let body: Vec<u8> = parts.concat();
            pipe.extend(kind.to_le_bytes());
            pipe.extend(0_u16.to_le_bytes());
            pipe.extend(u16::try_from(8 + body.len()).unwrap().to_le_bytes());
            pipe.extend(body);
        };
        for (attr, ids) in &self.events {
            record(64, &[attr, ids]);
        }
        if let Some(section) = self.event_desc {
            record(80, &[&12_u64.to_le_bytes(), section]);
        }
        pipe.extend(self.data);
        pipe
    }
}
