//! GNU readelf takes the tables that are written here for good ones, and prints
//! what `unwind sframe dump` prints.
//!
//! Needs a readelf of 2.41 or newer: the system's, or one in the directories that
//! `UNWIND_BINUTILS` names, separated by `:`.
#![cfg(test)]

mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{programs, run, scratch};

/// A readelf, and its release.
struct Readelf {
    program: PathBuf,
    release: (u32, u32),
}

impl Readelf {
    fn new(program: PathBuf) -> Option<Self> {
        let output = Command::new(&program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut numbers = text.lines().next()?.rsplit(' ').next()?.split('.');
        let mut number = || numbers.next()?.parse().ok();
        Some(Self { release: (number()?, number()?), program })
    }

    /// The forms of tables that it knows.
    fn formats(&self) -> &'static [&'static str] {
        match self.release {
            (..2, _) | (2, ..=40) => &[],
            (2, ..=44) => &["v2"],
            (2, 45) => &["v2", "v2-pcrel"],
            _ => &["v2", "v2-pcrel", "v3"],
        }
    }

    /// What it prints of the table of a file, line by line.
    fn print(&self, file: &Path) -> Vec<String> {
        let output =
            Command::new(&self.program).arg("--sframe=.sframe").arg(file).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let title = format!("{} of {}", self.program.display(), file.display());
        assert!(output.status.success() && error.is_empty(), "{title}: {error}");
        lines(&output.stdout)
    }
}

/// The lines that say something.
fn lines(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Whether two lines are about a row without words, as the outermost frame has
/// in errata 2. A readelf that does not know them prints what it makes of the
/// words of another row.
fn is_unknown_outermost(readelf: &Readelf, ours: &str, theirs: &str) -> bool {
    let pc = |line: &str| line.split_whitespace().next().map(str::to_owned);
    readelf.release < (2, 46) && ours.ends_with("RA undefined") && pc(ours) == pc(theirs)
}

#[test]
fn readelf_prints_what_was_written_as_dump_does() {
    let directories = env::var_os("UNWIND_BINUTILS").unwrap_or_default();
    let named = env::split_paths(&directories).map(|path| path.join("readelf"));
    let candidates = [PathBuf::from("readelf")].into_iter().chain(named);
    let readers = candidates.filter_map(Readelf::new).filter(|tool| !tool.formats().is_empty());
    let readers: Vec<_> = readers.collect();
    if readers.is_empty() {
        // Not one that is asked for: Debian 12 has none.
        println!("skipped: no readelf knows version 2; UNWIND_BINUTILS names directories");
    }
    let copy = scratch("readelf_prints_what_was_written").join("copy");
    let copy = copy.to_str().unwrap();
    for program in programs() {
        let program = program.to_str().unwrap();
        // What has a table already gets no other.
        let output = run(["sframe", "stat", "--json", program]);
        if String::from_utf8_lossy(&output.stdout).contains("\"source\": \"file\"") {
            continue;
        }
        for format in ["v2", "v2-pcrel", "v3"] {
            run(["sframe", "build", "--embed", "--format", format, program, "-o", copy]);
            let ours = lines(&run(["sframe", "dump", "--no-names", copy]).stdout);
            let knowing = readers.iter().filter(|tool| tool.formats().contains(&format));
            for readelf in knowing {
                let theirs = readelf.print(Path::new(copy));
                let mut outermost = 0;
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    if is_unknown_outermost(readelf, ours, theirs) {
                        outermost += 1;
                    } else {
                        assert_eq!(ours, theirs, "{program} in {format}");
                    }
                }
                assert_eq!(ours.len(), theirs.len(), "{program} in {format}");
                let (_, release) = readelf.release;
                println!(
                    "{program} in {format}: {} lines of 2.{release}, {outermost} of outermost \
                     rows that it does not know",
                    ours.len()
                );
            }
        }
    }
}
