//! `unwind script`: the samples of a `perf.data`, with their stacks.

mod allowance;
mod branches;
mod fields;
mod json;
mod text;

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use unwind_profile::mapped::files::RecordedFiles;
use unwind_profile::mapped::layout::Layout;
use unwind_profile::mapped::names::Names;
use unwind_profile::mapped::origin::Origin;
use unwind_profile::recording::error::RecordingError;
use unwind_profile::recording::pipeline::{Options, Summary};
use unwind_profile::recording::reader::PerfReader;
use unwind_profile::session::ledger_section::{told, unfinished};
use unwind_profile::session::recorded_stacks::RecordedStacks;
use unwind_profile::walks::call_stacks::CallStacks;
use unwind_profile::walks::chosen_event::{ChosenEvent, NoEvent};
use unwind_profile::walks::printed::print;
use unwind_target::Untrusted;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::untrusted::escaped;

use crate::commands::script::fields::Fields;
use crate::commands::script::json::JsonPrinter;
use crate::commands::script::text::{Style, TextPrinter};
use crate::commands::summary::{Memory, report, stats_lines};
use crate::debug_options::DebugDirectories;
use crate::failure::Failure;
use crate::{notices, progress};

/// Print the samples of a perf.data file, their call chains made whole.
///
/// Samples of `perf record --call-graph fp,defer` leave the user part of their
/// call chains to later records. The two are put together also where the
/// record came first, came from another CPU or is older than its sample.
///
/// Samples of `perf record --call-graph dwarf` have registers and a copy of the
/// stack. They are walked by the tables of the mapped files, as far as these are
/// still here, on all CPUs.
///
/// Recordings made with `--threads` (a folder) are refused.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ScriptArgs {
    /// The file, in file or pipe form; `-` is standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,

    /// The event whose samples are shown, of a recording with several, such as `page-faults`
    #[arg(long, value_name = "NAME",
          value_parser = OsStringValueParser::new().map(|name| Untrusted::from(&name)))]
    event: Option<Untrusted>,

    /// Show samples and stacks as they were recorded
    #[arg(long)]
    no_merge_callchains: bool,

    /// What to print of each sample: of comm,tid,pid,time,cpu,event,period,ip,sym,symoff,dso,
    /// brstack,brstacksym those that are listed; or the usual ones and a change, as in
    /// +pid,-period
    #[arg(
        short = 'F',
        long,
        value_name = "FIELDS",
        allow_hyphen_values = true,
        default_value = "comm,tid,cpu,time,period,event,ip,sym,symoff,dso"
    )]
    fields: Fields,

    /// Which perf's columns and addresses to print
    #[arg(long, value_enum, value_name = "VERSION", default_value = "7.2")]
    layout: Layout,

    /// Print times with nine digits of a second, not six
    #[arg(long)]
    ns: bool,

    /// How many frames to print at most of the kernel's and the user's part of a recorded
    /// call chain together, and of a stack that is walked
    #[arg(long, value_name = "N", default_value_t = 127)]
    max_stack: usize,

    /// Make call stacks that the CPU recorded (LBR) longer by the samples before, join them
    /// with the rest of the recorded chain or a walk, and say from where each frame is known
    #[arg(long)]
    stitch_lbr: bool,

    /// Show the calls of Python, JavaScript and WebAssembly that `unwind record` has read, each
    /// before the native frame that executes it
    #[arg(long)]
    calls: bool,

    /// Declare that all code without a table keeps frame pointers, so that in a stack that
    /// is walked a frame found by one is no guess
    #[arg(long)]
    trust_fp: bool,

    /// Print JSON, an object a line, instead of text; `--help` describes it
    #[arg(long, conflicts_with_all = ["fields", "layout", "ns"])]
    json: bool,

    /// Say on standard error what became of the samples
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    debug_directories: DebugDirectories,

    #[command(flatten)]
    memory: Memory,
}

const LONG_HELP: &str = "\
The text is that of `perf script --no-inline` with the same -F, --ns and --max-stack,
except that
  - samples get their stack which perf does not find, and a sample without its stack does
    not show the cookie as an address;
  - of names, what is not a visible character is escaped, and a backslash doubled;
  - code of linkage tables is called `function@plt` also where perf 6.1 takes it for a
    part of `_init`, as in programs with few entries, or for another one's, as in 32-bit
    files; with --layout 6.1 code of .plt.sec and .plt.got is `[unknown]`, since that
    version knows the entries of .plt alone;
  - lines in parentheses say where a stack is cut by --max-stack, where it is not complete
    and why, where callers may be missing, and which word of a chain is no address, for
    which the chain is left out (JSON has it);
  - with --calls a call of an interpreter is a line like that of the frame which executes it,
    with the same address, and _[p], _[js] or _[wasm] after its name, and its line after its
    file, as many as --max-stack says; perf has none;
  - names are cut to 24 characters while the text is over 64 times as long as what was
    read, and a MiB.
Branches (brstack, brstacksym) are those that the CPU recorded, the newest first. Of samples
with a call stack that the CPU recorded (perf record --call-graph lbr) the user part is that,
as for perf; where the record is empty, the chain. It begins at the pc, of samples in the kernel
and with --layout 6.1 where the last call went. With --stitch-lbr the calls of samples
before are added, which are found as by perf unless cycles were recorded: then equal calls
have to have equal cycles as well. Where none were, a chain may be wrong after a function was
left and called again from the same place. The calls are joined with the recorded chain, or
with the walk, and each frame says from where it is known: [sampled], [lbr], [stitched],
[walk], [lbr+walk], [stitched+walk].
The event of --event may be named without the modes after its colon, if no other one has that name;
`unwind explain` counts the samples of all events.
Samples come in the order in which they become whole. Functions are those of the mapped
files, whose build ids must be those of the recording where it has them, else their
inodes; files that are gone are those that were kept by build id (~/.debug); those of the
kernel are /proc/kallsyms', if its build id is that of the recording, or kept likewise. The callers in a walked stack are shown by the last byte of their call.

JSON (its JSON Schema: docs/schema/script.json), a line each:
  {\"type\": \"recording\", \"schema\": 1, \"file\"}
      first; `schema` rises when a field changes its meaning or goes
  {\"type\": \"sample\", \"comm\", \"pid\", \"tid\", \"time\", \"event\", \"ip\", \"end\", …}
      time      nanoseconds, or null
      ip        hexadecimal text, or null
      end       `inline`, `merged`, `unmatched` or `walked`
      cookie    of a sample whose user part was deferred, hexadecimal text, or null;
                null with `merged`: records have no cookies, the stack was found by time
      reason    why it is unmatched: `no-cookie`, `evicted`, `exit`, `lost`, `exec`,
                `newer-cookie` or `end`; else null
      across_exec  the stack is that of the program after an exec, the sample from
                before it
      late      the stack was recorded before the sample
      chain     a list of parts, innermost first, each with
                context  `kernel`, `user`, `user-deferred`, `hv`, `guest`,
                         `guest-kernel`, `guest-user` or null
                ips      a list of hexadecimal texts
                from     where calls that the CPU recorded are among them, for each of
                         these: `sampled`, `lbr` (this sample's record), `stitched` (the
                         record of one before), `walk`, `lbr+walk` or `stitched+walk`; the
                         address is that of the call but for `sampled` and `walk`
      left_out  how many addresses --max-stack left out
      account   of a sample of `unwind record` whose stack is not complete why, in a word, as
                reports have it; null of others, and where that is not known, which standard
                error says
      calls     with --calls only: those of interpreters, the innermost first, as far as the
                recording has them, each with
                place     of the native frame that executes it, in `ips` of the last part
                language  `python`, `javascript` or `wasm`
                function  null if that is not known; all null of what may be inlined in the next
                file      of the source, or null
                line      from 1, or null
      calls_left_out  with --calls only: how many calls --max-stack left out
      walk      of a sample whose stack was walked here, else null:
                complete    whether no frame is missing
                incomplete  why there are no more frames, or null
                gaps        the frames of the last part before which callers may be
                            missing, by their places in `ips`
  {\"type\": \"stack\", \"comm\", \"pid\", \"tid\", \"time\", \"cookie\", \"ips\", \"left_out\"}
      a recorded stack, with --no-merge-callchains; `cookie` is null if it has none
  {\"type\": \"end\", \"counts\": {…}, \"error\"}
      last; `error` is null, or says why not all could be read

`unwind --help` lists the exit codes.";

/// Runs `unwind script`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read whole, or the output not be written.
pub(crate) fn run(args: &ScriptArgs) -> Result<(), Failure> {
    let perf_error = |error| RecordingError { path: args.file.clone(), error };
    let mut reader = PerfReader::open(&args.file).map_err(perf_error)?;
    if !io::stdout().is_terminal() {
        reader.tell_progress_to(progress::of_recordings(), &args.file);
    }
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let (summary, missing) =
        args.print(&mut reader, &args.file, true, out).map_err(Failure::output)?;
    if args.stats {
        for line in stats_lines(&summary) {
            // With standard error gone there is no other place to tell it.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
    report(summary, &args.file)?;
    missing.map_or(Ok(()), |missing| Err(Failure::new(missing, 2)))
}

impl ScriptArgs {
    /// Prints what `reader` has of the file at `path`, with the functions of the running
    /// kernel or without. Returns also why there is nothing of the event that was asked for.
    fn print(
        &self,
        reader: &mut PerfReader,
        path: &Path,
        knows_kernel: bool,
        mut out: impl Write,
    ) -> io::Result<(Summary, Option<NoEvent>)> {
        let options = Options {
            merge: !self.no_merge_callchains,
            memory: self.memory.bytes(),
            frame_pointers: FramePointerRows { is_trusted: self.trust_fp },
            stitch_lbr: self.stitch_lbr,
        };
        let recorded = recorded_stacks(reader, path);
        // A recording whose sections cannot be read says nothing of its time.
        let origin = Origin::read(reader).unwrap_or_default();
        let build_ids = reader.build_ids();
        let call_stacks = CallStacks::new(options.stitch_lbr, reader.branch_entries());
        let call_stacks = match self.layout {
            Layout::Perf6_1 => call_stacks.starting_at_last_call(),
            Layout::Perf7_2 => call_stacks,
        };
        let names = Names::new(origin.kernel(&build_ids), self.layout, notices::all());
        let names = if knows_kernel { names } else { names.without_kernel() };
        let files = RecordedFiles::new(build_ids).of_origin(&origin);
        let files = files.with_notices(notices::all());
        let files = files.with_debug_files(self.debug_directories.files(None));
        let name = escaped(path).to_string();
        let of_event = self.event.as_ref();
        let printed = if self.json {
            let printer = JsonPrinter::new(&mut out, path, self.max_stack, recorded)?;
            let printer = if self.calls { printer.with_calls() } else { printer };
            let printer = ChosenEvent::new(of_event, printer);
            let (mut printer, ended) = print(reader, options, files, call_stacks, printer);
            let summary = ended?;
            printer.printer.end(&summary)?;
            (summary, printer.missing(reader.events(), name))
        } else {
            let style = Style {
                fields: self.fields,
                layout: self.layout,
                nanoseconds: self.ns,
                max_stack: self.max_stack,
                sources: self.stitch_lbr,
                calls: self.calls,
            };
            let printer = TextPrinter::new(&mut out, style, names, recorded);
            let printer = ChosenEvent::new(of_event, printer);
            let (mut printer, ended) = print(reader, options, files, call_stacks, printer);
            (ended?, printer.missing(reader.events(), name))
        };
        out.flush()?;
        Ok(printed)
    }
}

/// What a recording says of its stacks. What it does not say is told.
fn recorded_stacks(reader: &mut PerfReader, path: &Path) -> RecordedStacks {
    let of_path = |what: &str| notices::add(format!("{}: {what}", escaped(path)));
    let ledger = told(reader).unwrap_or_else(|error| {
        of_path(&format!("it is not known which stacks are not complete: {error}"));
        None
    });
    let (recorded, error) = RecordedStacks::read(reader, ledger.as_ref());
    if let Some(error) = error {
        of_path(&format!("calls of interpreters are missing, and marks of guesses: {error}"));
    }
    if let Some(ledger) = ledger {
        if ledger.is_unfinished {
            notices::add(unfinished(path));
        }
        if !recorded.others_are_complete() {
            of_path("of stacks without a reason it is not known whether they are complete");
        }
    }
    recorded
}

/// Prints a recording that is in memory, as text with all fields and as JSON. Returns the
/// lengths of both in bytes.
pub(crate) fn printed_len(bytes: &[u8]) -> Option<(usize, usize)> {
    let print = |json: bool, layout| {
        let mut reader = PerfReader::from_bytes(bytes.to_vec()).ok()?;
        let args = ScriptArgs {
            file: PathBuf::new(),
            event: None,
            no_merge_callchains: false,
            fields: Fields::DEFAULT,
            layout,
            ns: false,
            max_stack: 127,
            stitch_lbr: json,
            calls: true,
            trust_fp: false,
            json,
            stats: false,
            debug_directories: DebugDirectories::default(),
            memory: Memory::of_mib(1),
        };
        let mut out = Vec::new();
        args.print(&mut reader, Path::new("-"), false, &mut out).ok()?;
        Some(out.len())
    };
    print(false, Layout::Perf6_1)?;
    Some((print(false, Layout::Perf7_2)?, print(true, Layout::Perf7_2)?))
}
