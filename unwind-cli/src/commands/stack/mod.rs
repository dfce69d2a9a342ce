//! `unwind stack`: the stacks of a process, a core file or a command.

mod built;
pub(crate) mod call_frames;
pub(crate) mod error;
pub(crate) mod frame_pointers;
pub(crate) mod frame_report;
mod help;
pub(crate) mod report;
mod source_lines;
pub(crate) mod tables;
pub(crate) mod text;
mod told_code;
pub(crate) mod walk;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::Child;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use unwind_core::CacheStats;

use crate::caller_signals::command_with_signals;
use crate::coloured;
use crate::commands::stack::error::StartError;
use crate::commands::stack::frame_pointers::FramePointerRows;
use crate::commands::stack::help::LONG_HELP;
use crate::commands::stack::report::{Naming, Report};
use crate::commands::stack::text::row_counts;
use crate::commands::stack::walk::{Method, Stack, StackWalker, Ways};
use crate::debug_files::DebugDirectories;
use crate::demangle::Parameters;
use crate::failure::Failure;
use crate::stack_switches::SwitchNames;
use crate::target::error::TargetError;
use crate::target::pause::{AfterLimit, HoldLimit};
use crate::target::{Look, Target, Wanted};

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
    /// from standard input. From a pipe, or decompressed, it is copied to a file without a name in the directory for temporary files
    #[arg(long, value_name = "FILE", group = "target")]
    core: Option<PathBuf>,

    /// The program that the core file is from, if it is not where it was
    #[arg(long, value_name = "FILE", requires = "core",
          conflicts_with_all = ["pid", "command"])]
    exe: Option<PathBuf>,

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
    #[arg(long, value_enum, default_value_t = Method::Auto)]
    method: Method,

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

    /// Show functions of C++ without their parameters
    #[arg(long)]
    short: bool,

    /// Do not look for files, lines and inlined functions
    #[arg(long)]
    no_lines: bool,

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
        let debug_files = self.debug_directories.files(self.sysroot.as_deref());
        let debug_files = if self.debuginfod { debug_files.asking_servers()? } else { debug_files };
        Ok(Naming {
            debug_files: Rc::new(debug_files),
            parameters: if self.short { Parameters::LeftOut } else { Parameters::Shown },
            lines: !self.no_lines,
        })
    }

    fn hold_limit(&self) -> HoldLimit {
        let then = match (self.pid, self.kill) {
            (Some(_), _) => AfterLimit::Continue,
            (None, false) => AfterLimit::Wait,
            (None, true) => AfterLimit::Kill,
        };
        HoldLimit { time: Duration::from_secs(self.hold_limit), then }
    }
}

/// Runs `unwind stack`.
///
/// # Errors
///
/// [`Failure`] if the target cannot be read, or the output not be written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(pid) = args.pid {
        print(args, Walked::of_process(args, pid)?)?;
        args.watch.map_or(Ok(()), |seconds| watch(args, pid, Duration::from_secs(seconds)))
    } else if let Some(core) = &args.core {
        print(
            args,
            Walked::new(
                args,
                Target::of_core(core, args.exe.as_deref(), args.sysroot.as_deref())?,
            )?,
        )
    } else {
        let (program, arguments) = args.command.split_first().ok_or(StartError::NoTarget)?;
        let mut command = Started::start(program, arguments)?;
        command.let_run(Duration::from_millis(args.after))?;
        let walked = Walked::of_process(args, command.id()).map_err(Failure::from);
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

/// A target and its stacks.
struct Walked {
    target: Target,
    stacks: Vec<Stack>,
    rows: CacheStats,
}

impl Walked {
    fn new(args: &Args, mut target: Target) -> Result<Self, TargetError> {
        if let Some(thread) = args.tid {
            target.keep_thread(thread)?;
        }
        let ways = Ways {
            method: args.method,
            frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
            switches: &SwitchNames::new(&args.stack_switch),
            max_frames: args.max_frames,
        };
        let (stacks, rows) = walk(&mut target, ways);
        Ok(Self { target, stacks, rows })
    }

    /// Walks the stacks of a process that is stopped, in place or in copies, or that is not. Where copies lack
    /// something, all are taken anew with that: no stack is of two times.
    fn of_process(args: &Args, process: i32) -> Result<Self, TargetError> {
        let limit = args.hold_limit();
        if args.live {
            return Self::new(args, Target::of_process(process, limit, Look::InPlace)?);
        }
        let mut wanted = Wanted::default();
        let look = |wanted: &Wanted| {
            let target = match args.no_stop {
                true => Target::of_sleeping(process, wanted),
                false => Target::of_process(process, limit, Look::Copies(wanted)),
            };
            Self::new(args, target?)
        };
        let mut walked: Self = look(&wanted)?;
        for _ in 1..HOLDS {
            if !walked.target.memory.lacked().is_some_and(|lacked| wanted.add(lacked)) {
                break;
            }
            match look(&wanted) {
                Ok(again) => walked = again,
                // What was found before holds for its time.
                Err(
                    TargetError::Ended(_)
                    | TargetError::NoSuchProcess(_)
                    | TargetError::NoSuchThread(_),
                ) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(walked)
    }
}

/// Shows the stacks of a process again and again, until it or the thread that is asked for
/// ends.
fn watch(args: &Args, process: i32, pause: Duration) -> Result<(), Failure> {
    loop {
        sleep(pause);
        let walked = match Walked::of_process(args, process) {
            Ok(walked) => walked,
            Err(
                TargetError::Ended(_)
                | TargetError::NoSuchProcess(_)
                | TargetError::NoSuchThread(_),
            ) => return Ok(()),
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

/// How often a process is held at most, for copies that lack nothing.
const HOLDS: usize = 8;

/// Lets a target go, and prints what was found.
fn print(args: &Args, walked: Walked) -> Result<(), Failure> {
    let Walked { mut target, stacks, rows } = walked;
    target.release()?;
    let naming = args.naming()?;

    let report = Report::new(&target, stacks, args.method, &naming);
    let mut out = coloured::stdout();
    write_report(&mut out, &report, args.json)
        .and_then(|()| out.flush())
        .map_err(Failure::output)?;
    if !args.json {
        // With standard error gone there is no other place to tell it.
        let _ = text::write_warnings(&mut io::stderr().lock(), &report);
    }
    if args.stats {
        let _ = writeln!(io::stderr(), "{}", row_counts(rows));
    }
    if args.fail_incomplete { Ok(report.check_complete()?) } else { Ok(()) }
}

fn write_report(out: &mut impl Write, report: &Report, json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        text::write(out, report)
    }
}

/// Walks the stacks of all threads of a target, and says how often a row had to be looked
/// up.
fn walk(target: &mut Target, ways: Ways<'_>) -> (Vec<Stack>, CacheStats) {
    let mut walker = StackWalker::new(&target.modules, &target.mappings, ways);
    let mut left = target.room.frames;
    let mut stacks = Vec::new();
    for thread in &target.threads {
        walker.max_frames(u32::try_from(left.max(1)).unwrap_or(u32::MAX).min(ways.max_frames));
        let stack = match &thread.registers {
            Ok(registers) => walker.walk(registers, &mut target.memory),
            Err(awake) => Stack::of_awake(*awake),
        };
        let stack = if target.no_stop { stack.without_stop() } else { stack };
        left = left.saturating_sub(u64::try_from(stack.frames.len()).unwrap_or(u64::MAX));
        stacks.push(stack);
    }
    let rows = walker.rows();
    let mut warnings = walker.warnings();
    target.warnings.append(&mut warnings);
    if left == 0 {
        let warning = "threads have the same stack: there are no more frames than it has room for";
        target.warnings.push(warning.into());
    }
    (stacks, rows)
}

/// Writes the stacks of a target that a fuzz target made up, as text and as JSON.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_stacks(out: &mut impl Write, mut target: Target) -> io::Result<()> {
    let ways = Ways {
        method: Method::Auto,
        frame_pointers: FramePointerRows { is_trusted: false },
        switches: SwitchNames::NONE,
        max_frames: 510,
    };
    let (stacks, _) = walk(&mut target, ways);
    let report = Report::new(&target, stacks, Method::Auto, &Naming::plain());
    write_report(out, &report, false)?;
    text::write_warnings(out, &report)?;
    write_report(out, &report, true)
}

/// A command that was started to look at its stack.
struct Started<'a> {
    program: &'a OsString,
    child: Child,
}

impl<'a> Started<'a> {
    fn start(program: &'a OsString, arguments: &[OsString]) -> Result<Self, Failure> {
        let child = command_with_signals(program, arguments)
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
