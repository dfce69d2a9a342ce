//! Programs as people have them, whose truth is known, through every command: which of their
//! functions are named, whether their stacks are complete, and whether what is missing is told.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{Target, compile, functions, report, scratch, stderr, threads, unwind};
use test_support::skip;

const TABLES: &[&str] =
    &["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-Wl,--build-id"];

/// What a program is to those who look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Its file is another one after it was recorded.
    Rebuilt,
    /// Its file was removed while it ran.
    Removed,
    /// It was executed from memory.
    Memory,
    /// Its file is in a mount namespace of its own, and another one has its path.
    Mounted,
    /// It has moved its code to memory.
    Moved,
    /// It executes code that it has made, which a map and a dump name.
    Compiled,
}

const KINDS: [Kind; 7] = [
    Kind::Plain,
    Kind::Rebuilt,
    Kind::Removed,
    Kind::Memory,
    Kind::Mounted,
    Kind::Moved,
    Kind::Compiled,
];

/// A running program, and what is to be found of it.
struct Subject {
    target: Target,
    program: PathBuf,
    folder: PathBuf,
    names: &'static [&'static str],
}

impl Kind {
    fn start(self) -> Option<Subject> {
        let test = format!("people_{self:?}");
        let source = if self == Self::Compiled { "compiled.c" } else { "remapped.c" };
        let program = compile(&test, source, TABLES)?;
        let folder = scratch(&format!("{test}_folder"));
        let how = if self == Self::Moved { "mremap" } else { "stay" };
        let mut command = Command::new(&program);
        match self {
            Self::Memory => {
                let starter = compile(&format!("{test}_starter"), "from_memory.c", &["-O1"])?;
                command = Command::new(starter);
                command.arg(&program);
            }
            Self::Mounted => {
                if !nix::unistd::geteuid().is_root() {
                    skip("another mount namespace needs root");
                    return None;
                }
                fs::copy("/bin/true", folder.join("program")).unwrap();
                let script = "mount -t tmpfs none \"$1\" && cp \"$0\" \"$1/program\" && shift && \
                              exec \"$folder/program\" \"$@\"";
                command = Command::new("unshare");
                command.args(["-m", "sh", "-c", script]).arg(&program).arg(&folder);
                command.env("folder", &folder);
            }
            _ => {}
        }
        command.current_dir(&folder);
        let target = Target::start_command(command.args([how, "600", "ready"]));
        if self == Self::Removed {
            fs::remove_file(&program).unwrap();
        }
        let names: &[_] = match self {
            Self::Compiled => &["named_by_map", "main"],
            _ => &["moved_inner", "moved_outer", "main"],
        };
        Some(Subject { target, program, folder, names })
    }
}

/// What a command makes of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    named: bool,
    complete: bool,
}

const GOOD: Cell = Cell { named: true, complete: true };

fn has_all(names: &[&str], text: &str) -> bool {
    names.iter().all(|name| text.contains(name))
}

impl Subject {
    fn id(&self) -> String {
        self.target.id().to_string()
    }

    /// The best of some looks: one may find the program in the few instructions between functions.
    fn best(look: impl Fn() -> Cell) -> Cell {
        let mut cell = look();
        for _ in 0..10 {
            if cell == GOOD {
                break;
            }
            cell = look();
        }
        cell
    }

    fn stack(&self) -> Cell {
        Self::best(|| {
            let report = report(&["--pid", &self.id()]);
            let thread = &threads(&report)[0];
            let found = functions(thread);
            let named = self.names.iter().all(|name| found.contains(name));
            Cell { named, complete: thread["end"]["complete"] == true }
        })
    }

    fn explain(&self) -> Cell {
        Self::best(|| {
            let output = unwind(["explain", "--pid", &self.id()]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let complete = text.contains("complete") && !text.contains("incomplete");
            Cell { named: has_all(self.names, &text), complete }
        })
    }

    /// `None` where the kernel allows no samples.
    fn record(&self, data: &Path) -> Option<f64> {
        let data = data.to_str().unwrap();
        let id = self.id();
        let arguments = ["record", "--json", "-o", data, "--duration", "1", "--pid", &id];
        let output = unwind(arguments).output().unwrap();
        if stderr(&output).contains("lets no sampling event be opened") {
            skip(&stderr(&output));
            return None;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let ledger: Value = serde_json::from_slice(&output.stdout).unwrap();
        let number = |name: &str| ledger[name].as_u64().unwrap();
        assert!(number("written") > 20, "{ledger}");
        Some(
            f64::from(u32::try_from(number("complete")).unwrap())
                / f64::from(u32::try_from(number("written")).unwrap()),
        )
    }

    /// All commands; the recording is read after the program's end.
    fn row(self, kind: Kind) -> Option<[Cell; 5]> {
        let (stack, explain) = (self.stack(), self.explain());
        let data = self.folder.with_extension("data");
        let complete = self.record(&data)? > 0.9;
        let id = self.id();
        let top = shows(self.names, &["top", "--interval", "1", "--batch", "1", "--pid", &id]);
        let Self { target, program, names, .. } = self;
        drop(target);
        if kind == Kind::Rebuilt {
            fs::remove_file(&program).unwrap();
            fs::copy("/bin/true", &program).unwrap();
        }
        let data = data.to_str().unwrap();
        let (report, script) = (shows(names, &["report", data]), shows(names, &["script", data]));
        let _ = fs::remove_file(format!("/tmp/perf-{id}.map"));
        let cell = |named| Cell { named, complete };
        Some([stack, explain, cell(report), cell(script), cell(top)])
    }
}

fn shows(names: &[&str], command: &[&str]) -> bool {
    let output = unwind(command).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    has_all(names, &String::from_utf8_lossy(&output.stdout))
}

#[test]
fn k9_programs_as_people_have_them_are_named_and_complete_by_every_command() {
    let mut told = format!("{:10}", "");
    for command in ["stack", "explain", "report", "script", "top"] {
        told += &format!("{command:>16}");
    }
    let mut bad = Vec::new();
    for kind in KINDS {
        let Some(subject) = kind.start() else { continue };
        let Some(row) = subject.row(kind) else { return };
        told += &format!("\n{:10}", format!("{kind:?}"));
        for cell in row {
            let named = if cell.named { "named" } else { "-" };
            let complete = if cell.complete { "complete" } else { "-" };
            told += &format!("{:>16}", format!("{named} {complete}"));
        }
        // A stack that was interrupted in code of a compiler may be complete or not.
        let is_good = |cell: &Cell| *cell == GOOD || (kind == Kind::Compiled && cell.named);
        if !row.iter().all(is_good) {
            bad.push(kind);
        }
    }
    eprintln!("{told}");
    assert!(bad.is_empty(), "{bad:?}\n{told}");
}
