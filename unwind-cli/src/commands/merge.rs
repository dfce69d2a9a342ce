//! `unwind merge`: a `perf.data` whose call chains are whole.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use unwind_profile::output_file::write_file;
use unwind_profile::recording::error::PerfError;
use unwind_profile::recording::error::RecordingError;
use unwind_profile::recording::pipeline::Options;
use unwind_profile::recording::reader::PerfReader;
use unwind_profile::walks::merged_file::{write_pipe, write_whole};
use unwind_target::files::same_file::is_same_file;
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::commands::summary::{Memory, report, stats_lines};
use crate::failure::Failure;
use crate::{notices, progress};

/// Write a perf.data file whose call chains are whole.
///
/// Every perf reads the result, also one that knows no deferred call chains:
/// the stacks are in the samples, their records are gone, and so are the
/// switches for them. The form stays: a file from a file, a pipe from a pipe.
///
/// Samples with registers and a copy of the stack (`perf record --call-graph dwarf`)
/// are walked as `unwind script` does, and have their stack in place of both.
///
/// With --stitch-lbr, calls that the CPU recorded are in the chains, as `unwind script
/// --stitch-lbr` shows them. The branches stay; that they are a call stack is no longer
/// said, so that a perf takes the chain.
#[derive(Debug, clap::Args)]
pub(crate) struct MergeArgs {
    /// The recording, in file or pipe form; `-` is standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,

    /// Where to write; `-` is standard output, for pipe form
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,

    /// Put calls that the CPU recorded (LBR) into the call chains: those of the samples
    /// before, too, joined with the rest of the recorded chain or a walk
    #[arg(long)]
    stitch_lbr: bool,

    /// Declare that all code without a table keeps frame pointers, so that in a stack that
    /// is walked a frame found by one is no guess
    #[arg(long)]
    trust_fp: bool,

    /// Say on standard error what became of the samples
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    memory: Memory,
}

/// Runs `unwind merge`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read whole, or the output not be written.
/// What could be read is in the output.
pub(crate) fn run(args: &MergeArgs) -> Result<(), Failure> {
    let input_error = |error| RecordingError { path: args.file.clone(), error };
    let output_error =
        |error: io::Error| RecordingError { path: args.output.clone(), error: error.into() };
    // The recording would be gone once it is merged.
    if is_same_file(&args.file, &args.output) {
        return Err(input_error(PerfError::SameFile).into());
    }
    let mut reader = PerfReader::open(&args.file).map_err(input_error)?;
    let options = Options {
        merge: true,
        memory: args.memory.bytes(),
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        stitch_lbr: args.stitch_lbr,
    };
    let to_stdout = args.output == Path::new("-");
    reader.tell_progress_to(progress::of_recordings(), &args.file);
    let (summary, notes) = match reader.header().copied() {
        Some(_) if to_stdout => return Err(input_error(PerfError::FileFormToPipe).into()),
        Some(header) => {
            let write = |out: &File| write_whole(&mut reader, header, options, notices::all(), out);
            write_file(&args.output, write).map_err(output_error)?
        }
        None if to_stdout => write_pipe(&mut reader, options, notices::all(), io::stdout().lock())
            .map_err(Failure::output)?,
        None => {
            let write = |out: &File| write_pipe(&mut reader, options, notices::all(), out);
            write_file(&args.output, write).map_err(output_error)?
        }
    };
    let mut lines = if args.stats { stats_lines(&summary) } else { Vec::new() };
    lines.extend(notes.lines());
    for line in lines {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "{line}");
    }
    report(summary, &args.file)
}
