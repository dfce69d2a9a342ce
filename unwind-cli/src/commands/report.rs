//! `unwind report`: what a recording shows, as a table, as pictures and for other tools.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use unwind_profile::output_file::write_file;
use unwind_profile::{
    By, Difference, Ended, Format, InterpretedCalls, PerfError, ProfileOptions, RecordingError,
    WriteError,
};
use unwind_target::files::same_file::is_same_file;
use unwind_target::untrusted::escaped;
use unwind_target::{DebugFiles, Untrusted};

use crate::commands::summary::Memory;
use crate::debug_options::DebugDirectories;
use crate::failure::Failure;
use crate::{notices, progress, read_lines};

/// Show where the samples of a recording were taken.
///
/// Reads what `unwind record` wrote, and perf's own recordings: those with copies of stacks
/// (`--call-graph dwarf`) are walked as by `unwind script`.
///
/// Stacks that are not complete stand apart: under a frame that says why, outside of all
/// others. So do samples that were lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ReportArgs {
    /// The recording, or several that are put together, such as the parts of --every; `-` is standard
    /// input, for pipe form
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: Vec<PathBuf>,

    /// What differs from one recording to another: `text`, `folded`, `svg` or `html`
    ///
    /// Given several times, with recordings made in turn, it also tells by how much runs of one program
    /// differ, so smaller differences can be told from those.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "file")]
    diff: Vec<PathBuf>,

    /// The event whose samples are shown, of a recording with several, such as `page-faults`
    ///
    /// Without it the text has a table for each; other formats are of one.
    #[arg(long, value_name = "NAME",
          value_parser = OsStringValueParser::new().map(|name| Untrusted::from(&name)))]
    event: Option<Untrusted>,

    /// What to write
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    format: Format,

    /// Where to write; without it, or with `-`, on standard output. For `parquet` a folder, which is made
    /// and which has the tables of many recordings
    #[arg(short, long, value_name = "OUT", required_if_eq("format", "parquet"))]
    output: Option<PathBuf>,

    /// The machine that was recorded, for `parquet` and `otlp`; without it as the recording
    /// says
    #[arg(long, value_name = "NAME")]
    host: Option<OsString>,

    /// What was recorded, such as its version, for `parquet` and `otlp`
    #[arg(long, value_name = "NAME")]
    release: Option<OsString>,

    /// What stacks are put together under
    #[arg(long, value_enum, value_name = "GROUP", default_value = "name")]
    by: By,

    /// How many functions the table has at most
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    /// Show where threads wait, too, of a recording with `--off-cpu`
    ///
    /// A wait counts as many samples as the thread would have had if it had run meanwhile, so
    /// that widths are shares of the time that passed. Such stacks end in `[off CPU]`.
    #[arg(long, conflicts_with = "diff")]
    off_cpu: bool,

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    #[command(flatten)]
    debug_directories: DebugDirectories,

    /// Ask the servers in `DEBUGINFOD_URLS` for what was stripped off and is not here, by elfutils'
    /// debuginfod-find
    #[arg(long)]
    debuginfod: bool,

    /// Count functions that compilers have inlined as a part of those that have their code
    ///
    /// Without this they have frames of their own, where a file has debug information or what was
    /// stripped off it is here.
    #[arg(long)]
    no_inlined: bool,

    /// Show native frames only, and no calls of Python, JavaScript and WebAssembly
    #[arg(long, conflicts_with = "interpreted")]
    native: bool,

    /// Show only the calls of Python, JavaScript and WebAssembly, without the native frames between
    #[arg(long)]
    interpreted: bool,

    /// Show stacks that have gaps apart, below `[incomplete: gap]`
    ///
    /// Without it a stack that reaches its outermost frame stands where others do, with
    /// `[callers may be missing]` where a caller was guessed.
    #[arg(long)]
    gaps_apart: bool,

    /// Leave the text of source files out of the page; the numbers of lines stay
    #[arg(long)]
    no_source: bool,

    #[command(flatten)]
    memory: Memory,
}

const LONG_HELP: &str = "\
The share of a function is `self` where it was the innermost one, and `total` where it was
anywhere in a stack.

In the other formats a stack begins with what --by says: the name of its thread. A root
`[incomplete: REASON]` holds the stacks that do not reach their outermost frame, `[lost in a ring]` and `[dropped]`
the samples of which nothing is known, `[too many different stacks]` those for whose stacks
--memory has no room, with their innermost function alone. Functions of the kernel end in `_[k]`
in folded stacks and flame graphs.

What became of the samples is told in each format: under the table; on standard error beside
folded stacks; in the page; in the subtitle of a flame graph; as `ledger` in the JSON for
speedscope and Firefox; as comments for pprof; as a table for parquet. Of a recording of perf it
is what can be told from it: chains as their recorder found them are `unchecked`.";

/// Runs `unwind report`.
///
/// # Errors
///
/// [`Failure`] if a file cannot be read whole, the output not be written, or a ledger does not
/// add up.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let debug_files = args.debug_directories.files_and_servers(None, args.debuginfod)?;
    if !args.diff.is_empty() {
        return run_diff(args, &debug_files);
    }
    match (args.format, args.file.as_slice()) {
        // Each recording has rows of its own there.
        (format, files) if format.is_of_tables() => {
            let reported = files.iter().map(|file| report_one(args, &debug_files, &[file]));
            Failure::first_of(reported.filter_map(Result::err))
        }
        #[cfg(feature = "otlp")]
        (Format::Otlp, [_, _, ..]) => {
            Err(Failure::new("a profile of OpenTelemetry is of one recording", 2))
        }
        (_, files) => report_one(args, &debug_files, files),
    }
}

/// Reports recordings together.
fn report_one<P: AsRef<Path>>(
    args: &ReportArgs,
    debug_files: &DebugFiles,
    files: &[P],
) -> Result<(), Failure> {
    let profile = args.options(debug_files).open_all(files)?;
    if args.format != Format::Text {
        profile.only()?;
    }
    for problem in profile.problems() {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {problem}");
    }
    #[cfg(feature = "parquet")]
    if let (Format::Parquet, Some(folder)) = (args.format, &args.output) {
        profile.save_tables(folder).map_err(|error| output_error(folder, error))?;
        return ended(profile.ended());
    }
    let inputs: Vec<&Path> = files.iter().map(AsRef::as_ref).collect();
    write_to(args, &inputs, |out| {
        if args.format == Format::Folded {
            // With standard error gone there is no other place to tell it.
            let _ = write!(io::stderr(), "{}", profile.notes());
        }
        Ok(profile.write_top(args.format, args.top, out)?)
    })?;
    ended(profile.ended())
}

/// Writes the difference of recordings before and after.
fn run_diff(args: &ReportArgs, debug_files: &DebugFiles) -> Result<(), Failure> {
    if !args.format.is_of_difference() {
        return Err(Failure::new("--diff is written as text, folded, svg or html", 2));
    }
    let files = [0, 1].map(|side| args.diff.iter().skip(side).step_by(2).collect::<Vec<_>>());
    for files in &files {
        let is_twice = |(at, file): &(usize, &&PathBuf)| {
            files.iter().take(*at).any(|other| other == *file || is_same_file(other, file))
        };
        if let Some((_, file)) = files.iter().enumerate().find(is_twice) {
            let path = escaped(file.as_path());
            return Err(Failure::new(format!("{path} is given twice to --diff on one side"), 2));
        }
    }
    let [before, after] = files;
    let difference = Difference::open(before, after, &args.options(debug_files))?;
    let inputs: Vec<&Path> = args.diff.iter().map(PathBuf::as_path).collect();
    write_to(args, &inputs, |out| difference.write_top(args.format, args.top, out))?;
    ended(difference.ended())
}

/// Tells how the reading ended.
fn ended(ended: Ended) -> Result<(), Failure> {
    for warning in ended.warnings {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {warning}");
    }
    Failure::first_of(ended.errors.into_iter().map(Failure::from))
}

/// Why a file cannot be written.
fn output_error(path: &Path, error: WriteError) -> Failure {
    match error {
        WriteError::SeveralEvents(error) => error.into(),
        WriteError::Output(error) => {
            RecordingError { path: path.to_owned(), error: error.into() }.into()
        }
        error => Failure::new(error, 1),
    }
}

impl ReportArgs {
    /// Which frames are shown of stacks with calls of interpreters.
    const fn calls(&self) -> InterpretedCalls {
        match (self.native, self.interpreted) {
            (true, _) => InterpretedCalls::Without,
            (false, true) => InterpretedCalls::Only,
            (false, false) => InterpretedCalls::Among,
        }
    }

    fn options(&self, debug_files: &DebugFiles) -> ProfileOptions {
        let options = ProfileOptions::new(self.format)
            .by(self.by)
            .off_cpu(self.off_cpu)
            .trust_frame_pointers(self.trust_fp)
            .memory(self.memory.bytes())
            .debug_files(debug_files.clone())
            .lines(read_lines::reader())
            .inlined(!self.no_inlined)
            .interpreted(self.calls())
            .sources(!self.no_source)
            .gaps_apart(self.gaps_apart)
            .notices(notices::all().clone())
            .progress(progress::of_recordings());
        let options = match &self.event {
            Some(event) => options.event(event.clone()),
            None => options,
        };
        let options = match &self.host {
            Some(host) => options.host(host),
            None => options,
        };
        match &self.release {
            Some(release) => options.release(release),
            None => options,
        }
    }
}

/// Has the output written, to a file that is not one of the inputs.
fn write_to(
    args: &ReportArgs,
    inputs: &[&Path],
    write: impl FnOnce(&mut dyn Write) -> Result<(), WriteError>,
) -> Result<(), Failure> {
    // A format of one event was refused before.
    let write = |out: &mut dyn Write| match write(out) {
        Err(WriteError::Output(error)) => Err(error),
        other => other.map_err(io::Error::other),
    };
    let Some(path) = args.output.as_ref().filter(|path| path.as_os_str() != "-") else {
        return write(&mut BufWriter::new(io::stdout().lock())).map_err(Failure::output);
    };
    // The recording would be gone once it is read.
    if let Some(&input) = inputs.iter().find(|input| is_same_file(input, path)) {
        return Err(RecordingError { path: input.to_owned(), error: PerfError::SameFile }.into());
    }
    let written = write_file(path, |file| write(&mut BufWriter::new(file)));
    written.map_err(|error| output_error(path, error.into()))
}
