//! `unwind explain`: how one stack is walked, frame by frame.

mod json;
mod recorded;
mod recorded_code;
mod registers;
mod row_place;
mod sample;
mod text;
mod walk;
mod watched;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use unwind_profile::recording::reader::PerfReader;
use unwind_target::rows::sframe_tables::TableWarnings;
use unwind_target::rows::stack_switches::SwitchNames;
use unwind_target::target::{Look, Target};
use unwind_target::{DebugFiles, Method, Stacks, TargetError};

use crate::after_limit::AfterLimit;
use crate::coloured;
use crate::commands::explain::json::ExplanationReport;
use crate::commands::explain::recorded::RecordedFrame;
use crate::commands::explain::sample::{Sample, SampleName};
use crate::commands::explain::text::Explanation;
use crate::commands::explain::walk::{Walked, walk};
use crate::commands::stack::text::{write_heading, write_warnings};
use crate::debug_options::DebugDirectories;
use crate::failure::Failure;
use crate::naming::naming;
use crate::open_files;

/// Explain how the stack of one thread is walked, frame by frame.
///
/// For each frame: its registers as far as they are known, where its code is, the row
/// that says where its caller is and where in which file that row is, what was read and
/// what was checked. At the end: why there are no more frames, and what gdb would say.
///
/// The walk is that of `unwind stack`, with all that it asks for written down, and with the calls that an
/// interpreter executes before the frame that executes them. Of a sample without
/// its stack it is what the recording says, with the rows that the files have now.
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

    /// A sample of a recording: the N-th that `unwind script` shows
    #[arg(value_name = "FILE@N", group = "target")]
    sample: Option<OsString>,

    /// The program that the core file is from, if it is not where it was
    #[arg(long, value_name = "FILE", requires = "core", conflicts_with_all = ["pid", "sample"])]
    exe: Option<PathBuf>,

    /// The thread; if none is named, that of --pid, or the one that ended the program
    #[arg(long, value_name = "TID", conflicts_with = "sample",
          value_parser = clap::value_parser!(i32).range(1..))]
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

    #[command(flatten)]
    debug_directories: DebugDirectories,

    /// Ask the servers in `DEBUGINFOD_URLS` for what was stripped off and is not here, by elfutils'
    /// debuginfod-find
    #[arg(long)]
    debuginfod: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
A row has the words of DWARF: the CFA is the stack pointer of the caller, RA the return
address, [CFA-8] the word that many bytes below the CFA. `all rules` has those of other
registers, as `readelf --debug-dump=frames-interp` shows them. `no row` and `bad row` are
said of what was looked up before. Offsets are those in the section, and addresses
those of the file, where nothing else is said.

A sample of `unwind record --keep-stacks` or `perf record --call-graph dwarf` is walked again, by
its registers and its copy of the stack. Of others the addresses are known, and of those of
`unwind record` also how each frame was found.

JSON (its JSON Schema: docs/schema/explain.json), with names escaped as
`unwind --help` says: one object with
  schema    1; rises when a field changes its meaning or goes
  thread, name, arch, interpreted (as `unwind stack --json` has it, or null)
  frames    innermost first, each with all that `unwind stack --json` has of it, and
    registers   by name, as far as they are known; hexadecimal text, as all addresses
    cfa         the CFA, or null
    steps       what was asked for to find the caller, in order, each with `what`:
      `row`         by (`sframe`, `cfi`, `dump`, `start`, `signal`, `code`, `code-to-return`,
                    `fp` or `stack-switch`), at, row in the words above, problem, and place: section, section_at,
                    fde_at, cie_at, row_at (offsets or null), code, row (from, to; or null), rules
      `no-row`      by, at
      `bad-row`     by, at, problem
      `read`        at, and bytes as hexadecimal digits, or problem
      `code`        at, is_code
      `trampoline`  at, is_trampoline
  end, advice (or null), gdb, account (of a sample: what reports say of its stack)
Of a sample whose stack is not kept: schema, process, thread, account (what the ledger says) and
frames, each with pc, kernel (true or false), function, function_offset, object, found_by, row,
place, problem, where not known null; and interpreted, the calls that it executes, each with
language, function, file and line.

What gdb says follows from why the walk ends, where tests hold that against gdb; gdb is not run. Elsewhere it
says that this was not compared.

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
    open_files::allow_all();
    let sysroot = args.sysroot.as_deref();
    let debug_files = args.debug_directories.files_and_servers(sysroot, args.debuginfod)?;
    if let Some(sample) = &args.sample {
        return explain_sample(args, &SampleName::parse(sample)?, debug_files);
    }
    let mut target = match (args.pid, &args.core) {
        (Some(pid), _) => Target::of_process(pid, AfterLimit::Continue.limit(HOLD), Look::InPlace)?,
        (None, Some(core)) => Target::of_core(core, args.exe.as_deref(), args.sysroot.as_deref())?,
        // The command line names one of them.
        (None, None) => return Ok(()),
    };
    choose_thread(&mut target, args)?;
    let mut out = coloured::stdout();
    explain(&mut out, args, &mut target, debug_files, None)
}

/// Explains a sample, as far as the recording keeps it.
fn explain_sample(args: &Args, name: &SampleName, debug_files: DebugFiles) -> Result<(), Failure> {
    let sample = Sample::find(name, debug_files.clone())?;
    write_sample(&mut coloured::stdout(), args, name, sample, debug_files)
}

/// Writes what there is to explain of a sample.
fn write_sample(
    out: &mut impl Write,
    args: &Args,
    name: &SampleName,
    sample: Sample,
    debug_files: DebugFiles,
) -> Result<(), Failure> {
    let heading = sample.heading(name);
    let account = account(&sample);
    if let Some(mut target) = sample.target() {
        let note = SampleNote { heading: &heading, account: &account, sample: &sample };
        return explain(out, args, &mut target, debug_files, Some(note));
    }
    let files = sample.files();
    let (thread, process) = sample.task();
    let frames = recorded::frames(&sample, &files.modules);
    let written = if args.json {
        let report = RecordedReport { schema: json::SCHEMA, process, thread, frames, account };
        write_json(out, &report)
    } else {
        // Of a guest there is no such option.
        let why = if sample.is_of_guest() { "" } else { ", see unwind record --keep-stacks" };
        writeln!(out, "{heading}; its stack is not kept{why}")
            .and_then(|()| recorded::write(out, &frames, sample.is_of_guest()))
            .and_then(|()| writeln!(out, "\n{account}"))
    };
    written.and_then(|()| out.flush()).map_err(Failure::output)
}

/// What the recording, or a report of it, says of the stack of a sample.
fn account(sample: &Sample) -> String {
    match (&sample.walked, &sample.reason) {
        (Some(walked), _) => match (&walked.cut, walked.incomplete()) {
            (Some(cut), Some(reason)) => format!("in reports: incomplete, {reason}: {cut}"),
            (_, Some(reason)) => format!("in reports: incomplete, {reason}"),
            (_, None) => format!("in reports: complete, {} frames", walked.frames.len()),
        },
        (None, Some(Some(reason))) => format!("in the ledger: incomplete, {reason}"),
        (None, Some(None)) => "in the ledger: complete".to_owned(),
        (None, None) => "unchecked: as the recorder found it".to_owned(),
    }
}

/// A sample whose stack is not kept, for programs.
#[derive(Serialize)]
struct RecordedReport {
    schema: u32,
    process: u32,
    thread: u32,
    frames: Vec<RecordedFrame>,
    account: String,
}

fn write_json(out: &mut impl Write, report: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

/// What there is to know of a sample beside its target.
#[derive(Clone, Copy)]
struct SampleNote<'s> {
    heading: &'s str,
    /// What is said of its stack elsewhere.
    account: &'s str,
    sample: &'s Sample,
}

/// Walks the stack of the target's first thread, and writes all that the walk asks for. Of a
/// sample also what it is, and what is said of its stack elsewhere.
fn explain(
    out: &mut impl Write,
    args: &Args,
    target: &mut Target,
    debug_files: DebugFiles,
    sample: Option<SampleNote<'_>>,
) -> Result<(), Failure> {
    // A thread of a process that is held, or of a core, has its registers.
    let Some(registers) = target.threads.first().and_then(|thread| thread.registers.ok()) else {
        return Ok(());
    };
    let switches = SwitchNames::new(&args.stack_switch);
    let Walked { stack, steps, failure } =
        walk(target, &registers, &switches, args.max_frames, sample.map(|note| &note.sample.space));
    target.read_interpreters(std::slice::from_ref(&stack));
    target.release()?;
    let mut warnings = TableWarnings::default();
    warnings.add(&target.modules);
    target.warnings.extend_from_slice(warnings.lines());

    let is_64 = registers.code_mode() != Some(unwind_target::target::registers::CodeMode::Ia32);
    let naming = naming(debug_files, !args.no_lines, args.short);
    let mut report = Stacks::new(target, vec![stack], Method::Auto, &naming);
    if let Some(note) = sample {
        for frame in report.threads.iter_mut().flat_map(|thread| &mut thread.frames) {
            note.sample.name_made_code(frame);
            if let Some(path) = &frame.symbol.object
                && note.sample.tells_of_file(frame)
            {
                // It is told with what was recorded, and what to do.
                let begin = format!("{path}: ");
                report.warnings.retain(|warning| !warning.starts_with(&begin));
            }
        }
    }
    let written = report.threads.iter().try_for_each(|thread| {
        let modules = &target.modules;
        let explanation = Explanation { thread, steps: &steps, failure, modules, is_64 };
        if args.json {
            return write_json(
                out,
                &ExplanationReport::new(&explanation, sample.map(|sample| sample.account)),
            );
        }
        match sample {
            Some(sample) => writeln!(out, "{}", sample.heading)?,
            None => write_heading(out, thread)?,
        }
        explanation.write(out)?;
        sample.map_or(Ok(()), |sample| writeln!(out, "{}", sample.account))
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

/// Explains a sample of a recording as text and as JSON, with little memory and without lines of
/// the source. Returns how many bytes that are, or `None` if there is no such sample.
pub(crate) fn explained_len(bytes: &[u8], number: u64) -> Option<usize> {
    const MEMORY: usize = 1 << 20;
    let name = SampleName { file: "-".into(), number };
    let mut args = Args {
        pid: None,
        core: None,
        sample: None,
        exe: None,
        tid: None,
        stack_switch: Vec::new(),
        max_frames: 510,
        sysroot: None,
        short: false,
        no_lines: true,
        debug_directories: DebugDirectories::default(),
        debuginfod: false,
        json: false,
    };
    let mut out = Vec::new();
    for is_json in [false, true] {
        let mut reader = PerfReader::from_bytes(bytes.to_vec()).ok()?;
        args.json = is_json;
        let debug_files = DebugFiles::default();
        let sample = Sample::find_in(&mut reader, &name, MEMORY, debug_files).ok()?;
        let sample = sample.without_kernel();
        write_sample(&mut out, &args, &name, sample, DebugFiles::default()).ok()?;
    }
    Some(out.len())
}
