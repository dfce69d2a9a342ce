//! Processes that run while they are looked at.

use super::*;

/// A process that runs while it is looked at.
struct Live<'a> {
    title: &'a str,
    /// Seconds of CPU time before the first stop.
    head: f64,
    /// Seconds that it may run between two stops.
    gap: f64,
    /// Code of its files without a symbol was made at run time.
    generates_code: bool,
    /// Without tables: all that is asked for is that no more is claimed than found.
    claims_only: bool,
    /// elfutils does not find the outermost frame of such programs, so that no stack is
    /// one on which both agree.
    is_disputed: bool,
}

impl<'a> Live<'a> {
    const fn new(title: &'a str) -> Self {
        Self {
            title,
            head: 0.0,
            gap: 0.05,
            generates_code: false,
            claims_only: false,
            is_disputed: false,
        }
    }

    /// Stops the process again and again, and holds the stacks of all its
    /// threads against those that gdb and elfutils agree on, from the innermost
    /// to the outermost frame.
    fn check(&self, command: &mut Command, methods: &[&str]) {
        let Some(witnesses) = Witnesses::find() else { return };
        let title = self.title;
        let target = Target::start_command(command);
        let job = json!({
            "pid": target.id(),
            "methods": methods,
            "seed": seed(),
            "stops": stops_wanted().div_ceil(if self.is_disputed { 1 } else { 4 }),
            "head": self.head,
            "gap": self.gap,
            "eu_stack": witnesses.eu_stack.to_str(),
        });
        let stops = stops::run(&witnesses.gdb, &scratch(&format!("oracle-live-{title}")), job);
        assert!(!target.status("State").starts_with('Z'), "{title} has ended");
        let (mut tally, mut claims) = (Tally::default(), Claims::default());
        add_claims(&mut claims, title, &stops);
        for stop in &stops {
            for method in methods {
                self.add(&mut tally, stop, method);
            }
        }
        show("Stops of a live process", &tally);
        check_claims(&claims);
        if self.claims_only {
            return;
        }
        for class in [COMPILED, GENERATED, DISPUTED, LOST] {
            tally.assert_not_differing(class);
        }
        if self.is_disputed {
            tally.assert_equal(DISPUTED, 1);
            return;
        }
        for method in methods.iter().filter(|method| METHODS_BY_CFI.contains(method)) {
            tally.assert_mostly_equal(COMPILED, method);
        }
    }

    fn add(&self, tally: &mut Tally, stop: &Stop, method: &str) {
        let title = self.title;
        let UnwindReport { threads, warnings, failed } = &stop.unwind[method];
        assert_eq!(*failed, None, "{title}, stop {}", stop.number);
        let count = stop.threads.len();
        assert_eq!(threads.len(), count, "{title}, stop {}: {warnings:?}", stop.number);
        for gdb in &stop.threads {
            let what = format!("stop {} thread {}", stop.number, gdb.thread);
            let unwind = threads.iter().find(|unwind| unwind.thread == gdb.thread);
            let unwind = unwind.unwrap_or_else(|| panic!("{title}, {what} is missing"));
            // A register that was pushed, which gdb takes for a return address: what it finds
            // after that is the caller by the word above.
            let has_code = |frame: &&GdbFrame| stop.is_code(frame.pc);
            let frames: Vec<_> = gdb.frames.iter().filter(has_code).cloned().collect();
            if frames.len() < gdb.frames.len() && !self.generates_code {
                let gdb = GdbThread { thread: gdb.thread, frames };
                let last = gdb.frames.len() - 1;
                tally.add(title, LOST, method, &what, &compare(&gdb, unwind, last));
                continue;
            }
            let elfutils = stop.elfutils(gdb.thread);
            let agreed = gdb.frames.iter().zip(elfutils).take_while(|(f, pc)| f.pc == **pc).count();
            // Above code without `.eh_frame` gdb has to guess.
            let guess = gdb.frames.iter().position(|frame| self.has_no_eh_frame(frame));
            let (class, last) = match guess {
                Some(guess) => (GENERATED, guess),
                None if agreed < gdb.frames.len() => (DISPUTED, agreed.saturating_sub(1)),
                None => (COMPILED, gdb.frames.len() - 1),
            };
            tally.add(title, class, method, &what, &compare(gdb, unwind, last));
        }
    }

    /// Code that was generated: gdb knows no function there. Node copies what it
    /// has of it beforehand from its file to another place.
    fn has_no_eh_frame(&self, frame: &GdbFrame) -> bool {
        frame.object.is_none() || self.generates_code && frame.name.is_none()
    }
}

/// All frames are in compiled code, and gdb and elfutils agree on them.
const COMPILED: &str = "compiled code";
/// Some frame is in code that was generated at run time.
const GENERATED: &str = "generated code";
/// gdb has a frame where no code is: held against its other frames.
const LOST: &str = "with a frame that is none";
/// gdb and elfutils do not agree: held against gdb up to there.
const DISPUTED: &str = "disputed";

/// Programs that have neither tables nor frame pointers are walked by them. A
/// walk by `fp` alone takes what such code keeps in the register for a frame
/// pointer, which now and then leads to code.
const METHODS_BY_CFI: [&str; 2] = ["auto", "cfi-sframe"];

#[test]
fn a_live_python_has_the_stacks_that_gdb_and_elfutils_find() {
    let Some(python) = test_support::tool("python3") else { return };
    let command = &mut Command::new(python);
    Live::new("python3").check(command.arg(program_source("busy.py")), &METHODS_BY_CFI);
}

#[test]
fn a_live_node_has_the_stacks_that_gdb_and_elfutils_find() {
    let Some(node) = test_support::tool("node") else { return };
    let live = Live { generates_code: true, ..Live::new("node") };
    live.check(Command::new(node).arg(program_source("busy.js")), &METHODS_BY_CFI);
}

#[test]
fn a_live_cc1plus_has_the_stacks_that_gdb_and_elfutils_find() {
    let Some(compiler) = test_support::tool("g++") else { return };
    let output = Command::new(compiler).arg("-print-prog-name=cc1plus").output().unwrap();
    let cc1plus = String::from_utf8(output.stdout).unwrap();
    let source = scratch("oracle-source-cc1plus").join("source.cc");
    std::fs::write(&source, long_source(CPLUSPLUS, CPLUSPLUS_PART, 600)).unwrap();
    let mut command = then_exec(cc1plus.trim());
    command.args(["-quiet", "-O2", "-o", "/dev/null"]).arg(source);
    Live { gap: 0.1, ..Live::new("cc1plus") }.check(&mut command, &METHODS_BY_CFI);
}

#[test]
fn a_live_rustc_has_the_stacks_that_gdb_and_elfutils_find() {
    check_rustc("rustc", 0.0);
}

#[test]
fn a_live_llvm_has_the_stacks_that_gdb_and_elfutils_find() {
    // By then rustc has handed the first parts of the source to LLVM.
    check_rustc("rustc, LLVM", 4.0);
}

fn check_rustc(title: &str, head: f64) {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap();
    let sysroot = String::from_utf8(output.stdout).unwrap();
    let directory = scratch(&format!("oracle-source-{title}"));
    let source = directory.join("source.rs");
    std::fs::write(&source, long_source(RUST, RUST_PART, 150)).unwrap();
    let mut command = then_exec(&format!("{}/bin/rustc", sysroot.trim()));
    command.args(["-O", "-C", "codegen-units=16", "--crate-type", "lib", "--out-dir"]);
    command.arg(directory).arg(source);
    Live { head, gap: 0.1, ..Live::new(title) }.check(&mut command, &METHODS_BY_CFI);
}

/// A shell that says that it is ready and becomes the program.
fn then_exec(program: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "echo ready; exec \"$0\" \"$@\"", program]);
    command
}

#[test]
fn twenty_threads_with_frame_pointers_have_no_frame_that_gdb_contradicts() {
    let source = "twenty_threads.c";
    let Some(program) = compile("oracle-threads-fp", source, FRAME_POINTERS) else { return };
    Live::new("20 threads, fp").check(&mut Command::new(program), &["auto", "fp"]);
}

#[test]
fn twenty_threads_with_tables_have_no_frame_that_gdb_contradicts() {
    let source = "twenty_threads.c";
    let Some(program) = compile("oracle-threads-sframe", source, SFRAME) else { return };
    Live::new("20 threads, sframe").check(&mut Command::new(program), &METHODS_BY_CFI);
}

/// A program that runs while it is looked at, with call frame information and without
/// frame pointers.
fn check_live_program(title: &str, source: &str, flags: &[&str]) {
    let name = format!("oracle-program-{title}");
    let flags = [flags, &["-O2", "-fomit-frame-pointer"]].concat();
    let Some(program) = compile(&name, source, &flags) else { return };
    let is_disputed = flags.contains(&"-m32") && source == "epilogues.c";
    let live = Live { is_disputed, ..Live::new(title) };
    live.check(Command::new(program).arg("for-ever"), &["auto"]);
}

#[test]
fn a_live_program_of_entries_and_exits_has_the_stacks_that_gdb_and_elfutils_find() {
    check_live_program("epilogues64", "epilogues.c", &[]);
}

#[test]
fn a_live_32_bit_program_has_the_stacks_that_gdb_and_elfutils_find() {
    check_live_program("epilogues32", "epilogues.c", &["-m32"]);
}

/// A static program has no search table.
#[test]
fn a_live_static_32_bit_program_has_the_stacks_that_gdb_and_elfutils_find() {
    check_live_program("static32", "epilogues.c", &["-m32", "-static"]);
}

#[test]
fn twenty_threads_of_32_bit_code_have_the_stacks_that_gdb_and_elfutils_find() {
    check_live_program("20 threads, 32 bits", "twenty_threads.c", &["-m32"]);
}

#[test]
fn a_live_go_program_claims_no_more_than_it_found() {
    let Some(go) = test_support::tool("go") else { return };
    let directory = scratch("oracle-source-go");
    let program = directory.join("program");
    let done = Command::new(go)
        .args(["build", "-o"])
        .arg(&program)
        .arg(program_source("busy.go"))
        .env("GOCACHE", directory.join("cache"))
        .env("GO111MODULE", "off")
        .status();
    assert!(done.unwrap().success(), "go build");
    let live = Live { claims_only: true, ..Live::new("go") };
    live.check(&mut Command::new(program), &["auto", "fp"]);
}
