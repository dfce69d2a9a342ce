//! What each command makes of a program.

use std::process::{Command, Output};

use serde_json::Value;
use test_support::skip;

use crate::kinds::{Kind, Subject};
use crate::matrix::{Cell, Told};
use crate::support::{functions, stderr, threads, unwind};

/// A program with its recording, and what is wrong so far.
pub struct Looker {
    subject: Subject,
    /// What was told that ought not to be, or is not as it ought to be.
    pub wrong: Vec<String>,
}

fn is_in(names: &[&str], text: &str) -> bool {
    names.iter().all(|name| text.contains(name))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Looker {
    pub fn new(subject: Subject) -> Self {
        Self { subject, wrong: Vec::new() }
    }

    /// All commands, in the order of the matrix; `None` where the kernel allows no samples.
    pub fn row(&mut self) -> Option<Vec<Cell>> {
        let (stack, explain) = (self.best(Self::stack), self.best(Self::explain));
        let top = self.top();
        let record = self.record()?;
        // To be walked later.
        self.record_into("stacks.data", &["--keep-stacks"])?;
        self.subject.end();
        let report = self.report();
        let folded = self.folded("perf.data");
        let script = self.script();
        let sample = self.sample("perf.data", "in the ledger: complete");
        let walked = self.sample("stacks.data", "\ncomplete: ");
        let merged = self.merged();
        Some(vec![stack, explain, top, record, report, folded, script, sample, walked, merged])
    }

    /// Runs a command, which keeps files for this program alone.
    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = unwind(arguments);
        command.current_dir(&self.subject.folder);
        command.env("PERF_BUILDID_DIR", self.subject.folder.join("kept"));
        if self.subject.kind == Kind::Stripped && arguments[0] != "record" {
            command.arg("--debug-dir").arg(self.subject.debug_folder());
        }
        command
    }

    /// The same of one that has to succeed.
    fn runs(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output
    }

    /// What a command has told in lines, beside what a program without it would have to be told.
    fn told(&mut self, output: &Output, lacks: Option<&[String]>) -> Told {
        let errors = stderr(output);
        // Other lines are the ledger. What is told of the kernel depends on the machine.
        let is_told = |line: &&str| line.starts_with("unwind: ") && !line.contains("the kernel");
        let lines: Vec<&str> = errors.lines().filter(is_told).collect();
        let told = match (&lines[..], lacks) {
            ([], _) => Told::Nothing,
            ([line], Some(parts)) if parts.iter().all(|part| line.contains(part)) => Told::Whole,
            _ => Told::Wrong,
        };
        if told == Told::Wrong {
            self.wrong.push(format!("{:?}: {lines:#?} is not {lacks:#?}", self.subject.kind));
        }
        told
    }

    fn told_alive(&mut self, output: &Output) -> Told {
        let lacks = self.subject.lacks_alive();
        self.told(output, lacks.as_deref())
    }

    fn told_after(&mut self, output: &Output) -> Told {
        let lacks = self.subject.lacks();
        self.told(output, lacks.as_deref())
    }

    /// The best of some looks: one may find the program between functions, or a child that ends.
    fn best(&mut self, look: impl Fn(&mut Self) -> Option<Cell>) -> Cell {
        let mut best = None;
        for _ in 0..20 {
            let Some(cell) = look(self) else { continue };
            let has_all = cell.named == Some(true) && cell.complete == Some(true);
            let is_better = |best: Cell| (cell.named, cell.complete) > (best.named, best.complete);
            if best.is_none_or(is_better) {
                best = Some(cell);
            }
            if has_all {
                break;
            }
            if self.subject.lacks_alive().is_some() && cell.complete == Some(true) {
                break;
            }
        }
        best.unwrap_or(Cell { named: Some(false), complete: Some(false), told: Told::Wrong })
    }

    fn stack(&mut self) -> Option<Cell> {
        let id = self.subject.busy().to_string();
        let output = self.run(&["stack", "--no-lines", "--json", "--pid", &id]);
        let report: Value = serde_json::from_slice(&output.stdout).ok()?;
        let thread = &threads(&report)[0];
        let found = functions(thread);
        let named = self.subject.kind.names().iter().all(|name| found.contains(name));
        // JSON has the lines itself.
        let warnings = report["warnings"].as_array().unwrap().iter();
        let told = |warning: &Value| format!("unwind: {}", warning.as_str().unwrap());
        let told: Vec<String> = warnings.map(told).collect();
        let output = Output { stderr: told.join("\n").into_bytes(), ..output };
        let complete = thread["end"]["complete"] == true;
        let told = self.told_alive(&output);
        Some(Cell { named: Some(named), complete: Some(complete), told })
    }

    fn explain(&mut self) -> Option<Cell> {
        let id = self.subject.busy().to_string();
        let output = self.run(&["explain", "--no-lines", "--pid", &id]);
        if !output.status.success() {
            return None;
        }
        let text = text(&output);
        let complete = text.lines().any(|line| line.trim().starts_with("complete"));
        let named = is_in(self.subject.kind.names(), &text);
        let told = self.told_alive(&output);
        Some(Cell { named: Some(named), complete: Some(complete), told })
    }

    fn top(&mut self) -> Cell {
        let id = self.subject.process().to_string();
        let seconds = self.subject.kind.seconds();
        let is_whole = self.subject.lacks_alive().is_none();
        let look = || self.runs(&["top", "--interval", seconds, "--batch", "1", "--pid", &id]);
        let is_named = |output: &Output| is_in(self.subject.kind.names(), &text(output));
        let mut output = look();
        // On a busy machine a screen may have no sample.
        for _ in 0..10 {
            if is_named(&output) || !is_whole && is_in(&["main"], &text(&output)) {
                break;
            }
            output = look();
        }
        let named = is_named(&output);
        Cell { named: Some(named), complete: None, told: self.told_alive(&output) }
    }

    fn record(&mut self) -> Option<Cell> {
        let (output, ledger) = self.record_into("perf.data", &[])?;
        let number = |name: &str| ledger[name].as_u64().unwrap();
        let complete = number("complete") * 20 >= number("written") * 19;
        if !complete {
            self.wrong.push(format!("{:?}: {ledger}", self.subject.kind));
        }
        Some(Cell { named: None, complete: Some(complete), told: self.told(&output, None) })
    }

    /// Records some hundreds of samples of it. Returns what was told, and the ledger.
    fn record_into(&self, file: &str, options: &[&str]) -> Option<(Output, Value)> {
        let id = self.subject.process().to_string();
        let mut arguments = [&["record", "--json", "-o", file], options].concat();
        if !self.subject.kind.is_kept() {
            arguments.push("--no-buildid-cache");
        }
        arguments.extend(["--pid", &id]);
        // On a busy machine a program may get little time.
        let ends = (1..=5).map(|attempt| self.subject.end_of_recording(attempt));
        let mut recorded = None;
        for end in ends {
            let end: Vec<&str> = end.iter().map(String::as_str).collect();
            let output = self.run(&[&arguments[..], &end].concat());
            if stderr(&output).contains("lets no sampling event be opened") {
                skip(&stderr(&output));
                return None;
            }
            assert!(output.status.success(), "{}", stderr(&output));
            let ledger: Value = serde_json::from_slice(&output.stdout).unwrap();
            let has_many = ledger["written"].as_u64().unwrap() > 200;
            recorded = Some((output, ledger));
            if has_many {
                break;
            }
        }
        recorded
    }

    fn report(&mut self) -> Cell {
        let output = self.runs(&["report", "perf.data"]);
        let text = text(&output);
        let number = |what: &str| -> f64 {
            let line = text.lines().find(|line| line.trim_end().ends_with(what));
            let word = line.and_then(|line| line.split_whitespace().next()).unwrap_or("0");
            word.replace(',', "").parse().unwrap_or(0.0)
        };
        let complete = number(" complete") >= number(" samples") * 0.95;
        let named = is_in(self.subject.kind.names(), &text);
        Cell { named: Some(named), complete: Some(complete), told: self.told_after(&output) }
    }

    fn folded(&mut self, file: &str) -> Cell {
        let output = self.runs(&["report", "--format", "folded", file]);
        let text = text(&output);
        let samples = |is_wanted: fn(&str) -> bool| -> u64 {
            let lines = text.lines().filter(|line| is_wanted(line));
            lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
        };
        let cut = samples(|line| {
            line.contains("[incomplete") || line.contains("[callers may be missing")
        });
        let complete = cut * 20 <= samples(|_| true);
        let named = is_in(self.subject.kind.names(), &text);
        Cell { named: Some(named), complete: Some(complete), told: self.told_after(&output) }
    }

    fn script(&mut self) -> Cell {
        let output = self.runs(&["script", "-F", "ip,sym", "perf.data"]);
        let named = is_in(self.subject.kind.names(), &text(&output));
        Cell { named: Some(named), complete: None, told: self.told_after(&output) }
    }

    /// One sample of a recording, explained.
    fn sample(&mut self, file: &str, complete: &str) -> Cell {
        let mut best = None;
        for number in [20, 15, 10, 5] {
            let output = self.runs(&["explain", &format!("{file}@{number}")]);
            let text = text(&output);
            let named = Some(is_in(self.subject.kind.names(), &text));
            let complete = Some(text.contains(complete));
            let cell = Cell { named, complete, told: self.told_after(&output) };
            if best.is_none_or(|best: Cell| (named, complete) > (best.named, best.complete)) {
                best = Some(cell);
            }
            let has_all = named == Some(true) && complete == Some(true);
            if has_all || self.subject.lacks().is_some() {
                break;
            }
        }
        best.unwrap()
    }

    /// A report of the recording as other perfs can read it.
    fn merged(&mut self) -> Cell {
        let mut merge = unwind(["merge", "perf.data", "-o", "merged.data"]);
        let output = merge.current_dir(&self.subject.folder).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        self.folded("merged.data")
    }
}
