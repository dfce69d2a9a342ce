//! `unwind script`: the samples of a `perf.data`, with their stacks.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use crate::error::Error;
use crate::perf_cmd::json::JsonSink;
use crate::perf_cmd::pipeline::{self, Options};
use crate::perf_cmd::reader::PerfReader;
use crate::perf_cmd::summary::{Memory, report, stats_lines};
use crate::perf_cmd::text::{Field, TextSink};

/// Print the samples of a perf.data file, their call chains made whole.
///
/// Samples of `perf record --call-graph fp,defer` leave the user part of their
/// call chains to later records. The two are put together also where the
/// record came first, came from another CPU or is older than its sample.
///
/// Recordings made with `-z` (compressed) or `--threads` (a folder) are refused.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ScriptArgs {
    /// The file, in file or pipe form; `-` is standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,

    /// Show samples and stacks as they were recorded
    #[arg(long)]
    no_merge_callchains: bool,

    /// What to print of each sample
    #[arg(
        short = 'F',
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "FIELDS",
        default_value = "comm,pid,tid,time,event,ip"
    )]
    fields: Vec<Field>,

    /// Print JSON, an object a line, instead of text; `--help` describes it
    #[arg(long, conflicts_with = "fields")]
    json: bool,

    /// Say on standard error what became of the samples
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    memory: Memory,
}

const LONG_HELP: &str = "\
The text is that of `perf script --ns --no-inline -F …`, except that samples get
their stack which perf does not find, and that a sample without its stack does not
show the cookie as an address. Samples come in the order in which they become
whole. The name of a thread is the one that it has then.

JSON, a line each:
  {\"type\": \"recording\", \"schema\": 1, \"file\"}
      first; `schema` rises when a field changes its meaning or goes
  {\"type\": \"sample\", \"comm\", \"pid\", \"tid\", \"time\", \"event\", \"ip\", \"end\", …}
      time      nanoseconds, or null
      ip        hexadecimal text, or null
      end       `inline`, `merged` or `unmatched`
      cookie    of a sample whose user part was deferred, hexadecimal text, or null
      reason    why it is unmatched: `no-cookie`, `evicted`, `exit`, `lost`, `exec`,
                `newer-cookie` or `end`; else null
      across_exec  the stack is that of the program after an exec, the sample from
                before it
      late      the stack was recorded before the sample
      chain     a list of parts, innermost first, each with
                context  `kernel`, `user`, `user-deferred`, `hv`, `guest`,
                         `guest-kernel`, `guest-user` or null
                ips      a list of hexadecimal texts
  {\"type\": \"stack\", \"comm\", \"pid\", \"tid\", \"time\", \"cookie\", \"ips\"}
      a recorded stack, with --no-merge-callchains
  {\"type\": \"end\", \"counts\": {…}, \"error\"}
      last; `error` is null, or says why not all could be read

`unwind --help` lists the exit codes.";

/// Runs `unwind script`.
///
/// # Errors
///
/// [`Error`] if the file cannot be read whole, or the output not be written.
pub(crate) fn run(args: &ScriptArgs) -> Result<(), Error> {
    let perf_error = |error| Error::Perf { path: args.file.clone(), error };
    let mut reader = PerfReader::open(&args.file).map_err(perf_error)?;
    let options = Options { merge: !args.no_merge_callchains, memory: args.memory.bytes() };
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let summary = if args.json {
        let mut sink = JsonSink::new(&mut out, &args.file).map_err(Error::Output)?;
        let summary = pipeline::run(&mut reader, options, &mut sink).map_err(Error::Output)?;
        sink.end(&summary).map_err(Error::Output)?;
        summary
    } else {
        let mut sink = TextSink::new(&mut out, &args.fields);
        pipeline::run(&mut reader, options, &mut sink).map_err(Error::Output)?
    };
    out.flush().map_err(Error::Output)?;
    if args.stats {
        for line in stats_lines(&summary) {
            // With standard error gone there is nobody left to tell.
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
    report(summary, &args.file)
}
