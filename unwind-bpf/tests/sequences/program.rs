//! The program, compiled for this machine.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use test_support::Compiler;

use crate::event::{Event, lines};

/// A piece of the program's text and what stands in its place.
pub type Replacement = (&'static str, &'static str);

#[derive(Debug)]
pub struct Program(PathBuf);

/// What the program has written of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub cookie: u64,
    pub tid: u64,
    pub is_user: bool,
    /// Whether a stack with its cookie came before it: it was walked at once.
    pub is_walked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Stack,
    Copy,
}

/// What it has written of a stack, or of why there is none.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    pub kind: Kind,
    pub is_lost: bool,
    pub cookie: u64,
    pub end: u64,
    pub frames: u64,
    pub pc: u64,
}

/// What it has written in a sequence.
#[derive(Clone, Debug, Default)]
pub struct Written {
    pub samples: Vec<Sample>,
    pub stacks: Vec<Stack>,
    /// Those of the program, then states that are not idle and rooms that are taken.
    pub counts: Vec<u64>,
    /// Samples for which the ring had no room.
    pub lost: u64,
    /// Whether what was to come within an event came when that was over.
    pub is_late: bool,
}

impl Written {
    fn take(&mut self, line: &str) {
        let mut words = line.split(' ');
        let kind = words.next().unwrap();
        let words: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        match (kind, &*words) {
            ("counts", counts) => self.counts = counts.to_vec(),
            ("late", []) => self.is_late = true,
            ("sample", &[lost, cookie, tid, flags, ..]) => {
                self.lost += lost;
                let is_walked = self.stacks.iter().any(|stack| stack.cookie == cookie);
                let is_walked = is_walked && self.samples.iter().all(|it| it.cookie != cookie);
                self.samples.push(Sample { cookie, tid, is_user: flags == 1, is_walked });
            }
            ("stack" | "copy", &[lost, cookie, _, _, end, frames, pc]) => {
                let kind = if kind == "copy" { Kind::Copy } else { Kind::Stack };
                let is_lost = lost == 1;
                self.stacks.push(Stack { kind, is_lost, cookie, end, frames, pc });
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Program {
    /// The compiler that it takes.
    pub fn compiler() -> Option<Compiler> {
        Compiler::find(&["-std=gnu11", "-w", "-fno-strict-aliasing"])
    }

    /// Compiles it, with replacements.
    pub fn compile(compiler: &Compiler, name: &str, replacements: &[Replacement]) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sequences").join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let copy = |from: &str| {
            for file in fs::read_dir(here.join(from)).unwrap() {
                let file = file.unwrap().path();
                if file.extension().is_some_and(|it| it == "h" || it == "c") {
                    fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
                }
            }
        };
        copy("src/bpf");
        fs::rename(folder.join("kernel.h"), folder.join("declarations.h")).unwrap();
        copy("tests/host");
        let source = folder.join("walk.bpf.c");
        let mut text = fs::read_to_string(&source).unwrap();
        for (from, to) in replacements {
            assert_eq!(text.matches(from).count(), 1, "{name}: {from}");
            text = text.replace(from, to);
        }
        fs::write(source, text).unwrap();
        let program = folder.join("host");
        compiler.compile(&folder.join("host.c"), &program, &[]);
        Self(program)
    }

    /// What it writes in each of the sequences.
    pub fn run<'a>(&self, sequences: impl IntoIterator<Item = &'a [Event]>) -> Vec<Written> {
        let text: String = sequences.into_iter().map(lines).collect();
        let mut child = Command::new(&self.0);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let writer = thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output().unwrap();
        // A planted fault may end it before it has read all.
        let _ = writer.join().unwrap();
        let mut all = vec![Written::default()];
        let output = std::str::from_utf8(&output.stdout).unwrap();
        for line in output.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            all.last_mut().unwrap().take(line);
            if line.starts_with("counts") {
                all.push(Written::default());
            }
        }
        all
    }
}
