//! `unwind explain`: how one stack is walked, frame by frame.

mod registers;
mod row_place;
mod text;
mod walk;
mod watched;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::coloured;
use crate::commands::explain::text::Explanation;
use crate::commands::explain::walk::{Walked, walk};
use crate::commands::stack::report::{Naming, Report};
use crate::commands::stack::text::{write_heading, write_warnings};
use crate::commands::stack::walk::Method;
use crate::debug_files::DebugFiles;
use crate::demangle::Parameters;
use crate::failure::Failure;
use crate::stack_switches::SwitchNames;
use crate::target::error::TargetError;
use crate::target::pause::{AfterLimit, HoldLimit};
use crate::target::{Look, Target};

/// Explain how the stack of one thread is walked, frame by frame.
///
/// For each frame: its registers as far as they are known, where its code is, the row
/// that says where its caller is and where in which file that row is, what was read and
/// what was checked. At the end: why there are no more frames, and what gdb would say.
///
/// The walk is that of `unwind stack`, with all that it asks for written down.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
#[command(group(clap::ArgGroup::new("target").required(true)))]
pub(crate) struct Args {
    /// The process, by its id or by that of one of its threads. It is held still until its
    /// stack is walked
    #[arg(long, value_name = "PID", group = "target",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,

    /// A core file of x86-64 or i386; `-` reads it from standard input
    #[arg(long, value_name = "FILE", group = "target")]
    core: Option<PathBuf>,

    /// The program that the core file is from, if it is not where it was
    #[arg(long, value_name = "FILE", requires = "core", conflicts_with = "pid")]
    exe: Option<PathBuf>,

    /// The thread; if none is named, that of --pid, or the one that ended the program
    #[arg(long, value_name = "TID", value_parser = clap::value_parser!(i32).range(1..))]
    tid: Option<i32>,

    /// A function that calls on another stack and changes back before it returns; its name as
    /// the file has it. May be given more than once. Those of Go's runtime are known
    #[arg(long, value_name = "FUNCTION")]
    stack_switch: Vec<OsString>,

    /// How many frames to explain at most
    #[arg(long, value_name = "N", default_value_t = 510)]
    max_frames: u32,

    /// Where the files of the machine that the core comes from are, and debug files, in place
    /// of /
    #[arg(long, value_name = "DIR", requires = "core")]
    sysroot: Option<PathBuf>,

    /// Show functions of C++ without their parameters
    #[arg(long)]
    short: bool,

    /// Do not look for files, lines and inlined functions
    #[arg(long)]
    no_lines: bool,
}

const LONG_HELP: &str = "\
A row has the words of DWARF: the CFA is the stack pointer of the caller, RA the return
address, [CFA-8] the word that many bytes below the CFA. `all rules` has those of other
registers, as `readelf --debug-dump=frames-interp` shows them. `no row` and `bad row` are
said of what was looked up before. Offsets are those in the section, and addresses
those of the file, where nothing else is said.

What gdb would say follows from why the walk ends; gdb is not run.

`unwind --help` lists the exit codes.";

/// How long a process may be held still.
const HOLD: Duration = Duration::from_secs(30);

/// Runs `unwind explain`.
///
/// # Errors
///
/// [`Failure`] if the target cannot be read or has no such thread, or the output not be
/// written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut target = match (args.pid, &args.core) {
        (Some(pid), _) => {
            let limit = HoldLimit { time: HOLD, then: AfterLimit::Continue };
            Target::of_process(pid, limit, Look::InPlace)?
        }
        (None, Some(core)) => Target::of_core(core, args.exe.as_deref(), args.sysroot.as_deref())?,
        // The command line names one of them.
        (None, None) => return Ok(()),
    };
    choose_thread(&mut target, args)?;
    let Some(registers) = target.threads.first().map(|thread| thread.registers) else {
        return Ok(());
    };
    let switches = SwitchNames::new(&args.stack_switch);
    let Walked { stack, steps, failure } =
        walk(&mut target, &registers, &switches, args.max_frames);
    target.release()?;

    let is_64 = registers.code_mode() != Some(crate::target::registers::CodeMode::Ia32);
    let naming = Naming {
        debug_files: Rc::new(DebugFiles::new(&[], args.sysroot.as_deref())),
        parameters: if args.short { Parameters::LeftOut } else { Parameters::Shown },
        lines: !args.no_lines,
    };
    let report = Report::new(&target, vec![stack], Method::Auto, &naming);
    let mut out = coloured::stdout();
    let written = report.threads.iter().try_for_each(|thread| {
        write_heading(&mut out, thread)?;
        let modules = &target.modules;
        Explanation { thread, steps: &steps, failure, modules, is_64 }.write(&mut out)
    });
    written.and_then(|()| out.flush()).map_err(Failure::output)?;
    // With standard error gone there is no other place to tell it.
    let _ = write_warnings(&mut io::stderr().lock(), &report);
    Ok(())
}

/// Leaves the one thread that is asked for.
fn choose_thread(target: &mut Target, args: &Args) -> Result<(), TargetError> {
    let is_there = |wanted: &i32| target.threads.iter().any(|thread| thread.id == *wanted);
    // The first thread of a process may have ended; that of a core is the one that got the
    // signal.
    if let Some(wanted) = args.tid.or(args.pid.filter(is_there)) {
        target.keep_thread(wanted)?;
    }
    target.threads.truncate(1);
    Ok(())
}
