//! `unwind stack`: the stacks of a process, a core file or a command.

pub(crate) mod error;
mod help;
mod method;
pub(crate) mod text;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use unwind_profile::engine::caller_signals::command_with_signals;
use unwind_target::target::Target;
use unwind_target::{Core, HoldLimit, Naming, Process, SourceFiles, Stacks, WalkOptions, Walked};

use crate::after_limit::AfterLimit;
use crate::coloured;
use crate::commands::guest::dump::MachineDump;
use crate::commands::guest::files::SymbolFile;
use crate::commands::guest::{OfDump, show_dump};
use crate::commands::stack::error::{Incomplete, StartError};
use crate::commands::stack::help::LONG_HELP;
use crate::commands::stack::method::MethodArg;
use crate::commands::stack::text::row_counts;
use crate::debug_options::DebugDirectories;
use crate::failure::Failure;
use crate::naming::naming;
use crate::progress::BuildBar;
use crate::{ignored_pipe, open_files};

/// Print the stacks of a process, a core file or a command.
///
/// Shows all threads, each frame with how it was found, and why each stack has
/// no more frames.
///
/// A process is held still by ptrace while its stacks are copied, usually for less
/// than a millisecond, and then continues, also if this program dies. A command is
/// then waited for until it ends by itself, or ended by --kill.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP, override_usage = USAGE)]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub(crate) struct Args {
    /// The process, by its id or by that of one of its threads
    #[arg(long, value_name = "PID", group = "target",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,

    /// A core file of x86-64 or i386, also one that is compressed by zstd; `-` reads it
    /// from standard input. Also the dump of a machine (QEMU's `dump-guest-memory`, /proc/vmcore): the stacks of its
    /// CPUs, as `unwind guest` shows them. From a pipe, or decompressed, it is copied to a file without a name in the directory for temporary files
    #[arg(long, value_name = "FILE", group = "target")]
    core: Option<PathBuf>,

    /// The program that the core file is from, if it is not where it was
    #[arg(long, value_name = "FILE", requires = "core",
          conflicts_with_all = ["pid", "command"])]
    exe: Option<PathBuf>,

    /// Of the dump of a machine: an ELF file whose code it has executed, or the image of its Linux kernel, as `unwind
    /// guest` takes them; may be given several times
    #[arg(long, value_name = "FILE[@ADDR]", requires = "core", conflicts_with_all = ["pid", "command"],
          value_parser = OsStringValueParser::new().try_map(SymbolFile::parse::<OsString>))]
    symbols: Vec<SymbolFile>,

    /// Show the stack of this thread only
    #[arg(long, value_name = "TID", value_parser = clap::value_parser!(i32).range(1..))]
    tid: Option<i32>,

    /// When to stop the command, in milliseconds after its start
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "command",
          conflicts_with_all = ["pid", "core"])]
    after: u64,

    /// End the command once its stack is taken, instead of waiting for its end
    #[arg(long, requires = "command", conflicts_with_all = ["pid", "core"])]
    kill: bool,

    /// How long the process may be held still, in seconds. If its stacks are not
    /// read then, for whatever reason, it continues and unwind fails; a command
    /// that was started is waited for or ended first
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..),
          requires = "target", conflicts_with = "core")]
    hold_limit: u64,

    /// Hold the process still until its stacks are walked, instead of copying them first
    #[arg(long, requires = "target", conflicts_with = "core")]
    live: bool,

    /// Stop nothing: show the threads that sleep, as far as /proc tells where, and say which
    /// did not. No stack counts as complete
    #[arg(long, requires = "pid", conflicts_with_all = ["live", "hold_limit"])]
    no_stop: bool,

    /// How to find the caller of a frame
    #[arg(long, value_enum, default_value_t = MethodArg::Auto)]
    method: MethodArg,

    /// Declare that all code without a table keeps frame pointers, so that a frame
    /// found by one is no guess
    #[arg(long, requires = "target")]
    trust_fp: bool,

    /// A function that calls on another stack and changes back before it returns; its name as
    /// the file has it. May be given more than once. Those of Go's runtime are known
    #[arg(long, value_name = "FUNCTION", requires = "target")]
    stack_switch: Vec<OsString>,

    /// How many frames of a stack to show at most
    #[arg(long, value_name = "N", default_value_t = 510)]
    max_frames: u32,

    /// Show the stacks of the process again after this many seconds each time, until it ends;
    /// with --json, an object each time
    #[arg(long, value_name = "SECONDS", requires = "pid",
          value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,

    /// Show native frames only, and none of an interpreter
    #[arg(long, conflicts_with = "interpreted")]
    native: bool,

    /// Show only the calls that an interpreter executes, of Python, without the native frames between
    #[arg(long, conflicts_with = "no_stop")]
    interpreted: bool,

    /// Show functions of C++ without their parameters
    #[arg(long)]
    short: bool,

    /// Do not look for files, lines and inlined functions
    #[arg(long)]
    no_lines: bool,

    /// Show the text of the lines, as the sources of the process, or below --sysroot, have them now
    #[arg(long)]
    source: bool,

    #[command(flatten)]
    debug_directories: DebugDirectories,

    /// Ask the servers in `DEBUGINFOD_URLS` for what was stripped off and is not here, by elfutils'
    /// debuginfod-find
    #[arg(long)]
    debuginfod: bool,

    /// Where the files of the machine that a core comes from are, and debug files, in place of
    /// /. Files of a running process are always its own
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,

    /// Print one JSON object instead of text; `--help` describes it
    #[arg(long)]
    json: bool,

    /// Print to standard error how often a row of a table had to be looked up
    #[arg(long)]
    stats: bool,

    /// End with exit code 9 if a stack is incomplete; it is printed all the same
    #[arg(long)]
    fail_incomplete: bool,

    /// A command to start and to stop once; what it writes to standard output
    /// goes to standard error, so that the stacks stand alone
    #[arg(last = true, value_name = "COMMAND", group = "target")]
    command: Vec<OsString>,
}

const USAGE: &str = "\
unwind stack [OPTIONS] --pid <PID>
       unwind stack [OPTIONS] --core <FILE>
       unwind stack [OPTIONS] -- <COMMAND>...";

impl Args {
    fn naming(&self) -> Result<Naming, Failure> {
        let sysroot = self.sysroot.as_deref();
        let debug_files = self.debug_directories.files_and_servers(sysroot, self.debuginfod)?;
        Ok(naming(debug_files, !self.no_lines, self.short))
    }

    fn options(&self) -> WalkOptions {
        let options = WalkOptions::new()
            .method(self.method.into())
            .max_frames(self.max_frames)
            .stack_switches(&self.stack_switch)
            .progress(Rc::new(BuildBar::default()));
        let options = if self.native { options.native() } else { options };
        let options = if self.trust_fp { options.trust_frame_pointers() } else { options };
        self.tid.into_iter().fold(options, WalkOptions::thread)
    }

    /// The process with this id, as it is to be looked at.
    fn process(&self, id: i32) -> Process {
        open_files::allow_all();
        let process = Process::new(id).options(self.options()).hold_limit(self.hold_limit());
        match (self.live, self.no_stop) {
            (true, _) => process.in_place(),
            (_, true) => process.without_stop(),
            _ => process,
        }
    }

    fn core(&self, path: &PathBuf) -> Core {
        open_files::allow_all();
        let core = Core::new(path).options(self.options());
        let core = self.exe.iter().fold(core, Core::program);
        self.sysroot.iter().fold(core, Core::sysroot)
    }

    fn of_dump(&self) -> OfDump<'_> {
        OfDump {
            symbols: &self.symbols,
            trust_fp: self.trust_fp,
            max_frames: self.max_frames,
            json: self.json,
            fail_incomplete: self.fail_incomplete,
        }
    }

    fn source_files(&self, process: i32) -> SourceFiles {
        match &self.core {
            Some(_) => SourceFiles::below(self.sysroot.as_deref().unwrap_or(Path::new("/"))),
            None => SourceFiles::of_process(process),
        }
    }

    fn hold_limit(&self) -> HoldLimit {
        let then = match (self.pid, self.kill) {
            (Some(_), _) => AfterLimit::Continue,
            (None, false) => AfterLimit::Wait,
            (None, true) => AfterLimit::Kill,
        };
        then.limit(Duration::from_secs(self.hold_limit))
    }
}

/// Runs `unwind stack`.
///
/// # Errors
///
/// [`Failure`] if the target cannot be read, or the output not be written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(pid) = args.pid {
        print(args, args.process(pid).walk()?)?;
        args.watch.map_or(Ok(()), |seconds| watch(args, pid, Duration::from_secs(seconds)))
    } else if let Some(core) = &args.core {
        match MachineDump::open(core)? {
            Some(dump) => show_dump(dump, &args.of_dump()),
            None => print(args, args.core(core).walk()?),
        }
    } else {
        let (program, arguments) = args.command.split_first().ok_or(StartError::NoTarget)?;
        let mut command = Started::start(program, arguments)?;
        command.let_run(Duration::from_millis(args.after))?;
        let walked = args.process(command.id()).walk().map_err(Failure::from);
        let printed = walked.and_then(|walked| print(args, walked)).map_err(|failure| {
            // Whether a closed output is a failure is not known yet.
            if failure.is_of_output() {
                return failure;
            }
            // The command may run for long, or wait for something.
            let _ = writeln!(io::stderr(), "unwind: {failure}");
            failure.told()
        });
        // Whatever went wrong with the stack, the command is not left alone.
        command.finish(args.kill)?;
        printed
    }
}

/// Shows the stacks of a process again and again, until it or the thread that is asked for
/// ends.
fn watch(args: &Args, process: i32, pause: Duration) -> Result<(), Failure> {
    loop {
        sleep(pause);
        let walked = match args.process(process).walk() {
            Ok(walked) => walked,
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !args.json {
            // Above them on a terminal, and between them elsewhere.
            let between = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "\n" };
            io::stdout().write_all(between.as_bytes()).map_err(Failure::output)?;
        }
        print(args, walked)?;
    }
}

/// Lets a target go, and prints what was found.
fn print(args: &Args, mut walked: Walked) -> Result<(), Failure> {
    walked.release()?;
    let rows = walked.rows();
    let mut stacks = walked.name(&args.naming()?)?;
    if args.interpreted {
        stacks.keep_interpreted();
    }
    if args.source {
        stacks.read_source(&args.source_files(stacks.process));
    }
    let form = Form { json: args.json, interpreted: args.interpreted };
    let mut out = coloured::stdout();
    write_report(&mut out, &stacks, form).and_then(|()| out.flush()).map_err(Failure::output)?;
    if !args.json {
        // With standard error gone there is no other place to tell it.
        let _ = text::write_warnings(&mut io::stderr().lock(), &stacks);
    }
    if args.stats {
        let _ = writeln!(io::stderr(), "{}", row_counts(rows));
    }
    match args.fail_incomplete {
        true => Ok(Incomplete::check(stacks.threads.iter().map(|thread| &thread.end))?),
        false => Ok(()),
    }
}

/// What is printed of a report.
#[derive(Clone, Copy, Default)]
struct Form {
    json: bool,
    /// The calls of an interpreter only.
    interpreted: bool,
}

fn write_report(out: &mut impl Write, report: &Stacks, form: Form) -> io::Result<()> {
    if form.json {
        serde_json::to_writer_pretty(&mut *out, report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        text::write(out, report, form.interpreted)
    }
}

/// Writes the stacks of a target that a fuzz target made up, as text and as JSON.
pub(crate) fn write_stacks(out: &mut impl Write, target: Target) -> Option<()> {
    let walked = Walked::new(target, &WalkOptions::new()).ok()?;
    let stacks = walked.name(&Naming::plain()).ok()?;
    write_report(out, &stacks, Form::default()).ok()?;
    text::write_warnings(out, &stacks).ok()?;
    write_report(out, &stacks, Form { json: true, ..Form::default() }).ok()
}

/// A command that was started to look at its stack.
struct Started<'a> {
    program: &'a OsString,
    child: Child,
}

impl<'a> Started<'a> {
    fn start(program: &'a OsString, arguments: &[OsString]) -> Result<Self, Failure> {
        let child = command_with_signals(program, arguments, ignored_pipe::is_ignored())
            .stdout(io::stderr())
            .spawn()
            .map_err(|error| StartError::Start { command: program.clone(), error })?;
        Ok(Self { program, child })
    }

    fn id(&self) -> i32 {
        // Linux has no process ids above 2^22.
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }
}

impl Started<'_> {
    /// Waits for `after`, or fails once the command ends.
    fn let_run(&mut self, after: Duration) -> Result<(), StartError> {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().map_err(|error| self.failed(error))? {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                return Err(StartError::EndedEarly {
                    command: self.program.clone(),
                    status,
                    after_ms,
                });
            }
            let left = after.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(LOOK_EVERY));
        }
    }

    /// Waits until the command ends, or ends it.
    fn finish(mut self, kill: bool) -> Result<(), StartError> {
        if kill {
            self.child.kill().map_err(|error| self.failed(error))?;
        }
        match self.child.wait() {
            Ok(_) => Ok(()),
            // It ended while it was traced, and its end was seen there.
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> StartError {
        StartError::Start { command: self.program.clone(), error }
    }
}
