//! Programs that tests need and a machine may lack.
//!
//! A test that lacks one says so and passes. With `UNWIND_REQUIRE_TOOLS=1` in
//! the environment, as in `.ci/run`, it fails.

use core::sync::atomic::{AtomicU32, Ordering};
use std::env;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};

/// Finds a program by its name.
///
/// # Panics
///
/// If there is none and `UNWIND_REQUIRE_TOOLS` asks for all.
#[must_use]
pub fn tool(program: &str) -> Option<PathBuf> {
    let found = find_program(program);
    if found.is_none() {
        skip(&format!("no {program}"));
    }
    found
}

/// Says that a test is skipped, and why.
///
/// # Panics
///
/// If `UNWIND_REQUIRE_TOOLS` asks for all tools.
#[expect(clippy::panic, reason = "fails the test, as asked")]
pub fn skip(reason: &str) {
    if env::var_os("UNWIND_REQUIRE_TOOLS").is_some_and(|value| value == "1") {
        panic!("{reason}, but UNWIND_REQUIRE_TOOLS=1");
    }
    // Past the capture of output by the test harness, which shows it for failed
    // tests only.
    let _ = writeln!(stderr(), "skipped: {reason}");
}

/// Runs `perf record`, and does so again if a signal ends it.
///
/// perf 6.1 ends by one where another process on the machine samples with build ids in its records: it fails
/// an assertion about them, or finds its own stack written over. Why is not known.
///
/// # Panics
///
/// If it cannot be started.
pub fn perf_record(command: &mut Command) -> Output {
    const ATTEMPTS: usize = 5;
    let mut output = command.output().unwrap();
    for _ in 1..ATTEMPTS {
        if output.status.code().is_some() {
            break;
        }
        output = command.output().unwrap();
    }
    output
}

/// A C compiler that makes programs which this machine can run.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    flags: Vec<String>,
}

impl Compiler {
    /// Finds the C compiler that takes `flags`, such as `-m32`, for every
    /// program.
    ///
    /// # Panics
    ///
    /// If there is none and `UNWIND_REQUIRE_TOOLS` asks for all.
    #[must_use]
    pub fn find(flags: &[&str]) -> Option<Self> {
        let Some(program) = ["cc", "gcc", "clang"].into_iter().find_map(find_program) else {
            skip("no C compiler");
            return None;
        };
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let compiler = Self { program, flags };
        // Tests run side by side, in one process or several.
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let number = PROBES.fetch_add(1, Ordering::Relaxed);
        let probe = env::temp_dir().join(format!("unwind-probe-{}-{number}", process::id()));
        fs::create_dir_all(&probe).unwrap();
        let source = probe.join("probe.c");
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let program = probe.join("probe");
        let works = compiler.command(&source, &program, &[]).output().unwrap().status.success()
            && Command::new(&program).status().is_ok_and(|status| status.success());
        fs::remove_dir_all(&probe).unwrap();
        if !works {
            skip(&format!("no C compiler for {}", compiler.flags.join(" ")));
        }
        works.then_some(compiler)
    }

    /// Compiles and links one source file.
    ///
    /// # Panics
    ///
    /// If it does not compile.
    pub fn compile(&self, source: &Path, program: &Path, flags: &[&str]) {
        let output = self.command(source, program, flags).output().unwrap();
        assert!(
            output.status.success(),
            "{} does not compile:\n{}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn command(&self, source: &Path, program: &Path, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.flags).args(flags).arg("-o").arg(program).arg(source);
        command
    }
}

fn find_program(program: &str) -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    env::split_paths(&directories)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}
