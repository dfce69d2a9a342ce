//! `unwind verify`: stacks of a recording beside those of other unwinders.

mod agreement;
mod comparison;
pub(crate) mod perf_script;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use unwind_profile::mapped::files::RecordedFiles;
use unwind_profile::mapped::kernel::SampledKernel;
use unwind_profile::mapped::layout::Layout;
use unwind_profile::mapped::names::Names;
use unwind_profile::mapped::origin::Origin;
use unwind_profile::recording::error::{PerfError, RecordingError};
use unwind_profile::recording::pipeline::Options;
use unwind_profile::recording::reader::PerfReader;
use unwind_profile::walks::call_stacks::CallStacks;
use unwind_profile::walks::chosen_event::ChosenEvent;
use unwind_profile::walks::printed::print;
use unwind_target::Untrusted;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::untrusted::escaped;

use crate::coloured;
use crate::commands::summary::{Memory, report};
use crate::commands::verify::agreement::Agreement;
use crate::commands::verify::comparison::{Comparison, Counts, Verifier};
use crate::commands::verify::perf_script::PerfScript;
use crate::failure::{Failure, exit_code_of};
use crate::{notices, progress};

/// Compare the stacks of a recording with those that perf and the kernel find.
///
/// The recording has to have registers and bytes of stacks, as those of `unwind record
/// --keep-stacks` and of `perf record --call-graph dwarf`. Its stacks are walked by the tables of
/// the mapped files, as for reports, and by perf's own unwinder, from the same bytes. Where a
/// recording has the kernel's own chain of user frames, too, that is compared as well: `unwind
/// record --keep-stacks --uretprobes` has it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct VerifyArgs {
    /// The recording
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,

    /// The event whose samples are compared, of a recording with several, such as `page-faults`
    #[arg(long, value_name = "NAME",
          value_parser = OsStringValueParser::new().map(|name| Untrusted::from(&name)))]
    event: Option<Untrusted>,

    /// Which perf to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "perf")]
    perf: OsString,

    /// Compare with the kernel's chains alone
    #[arg(long, conflicts_with = "perf")]
    no_perf: bool,

    /// How many samples to list at most in which another unwinder has frames that are not here
    #[arg(long, value_name = "N", default_value_t = 20)]
    list: usize,

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    memory: Memory,
}

const LONG_HELP: &str = "\
Each sample with a stack is in one class for each of the others:
  equal           the same frames
  ours further    the other one ends earlier
  ours more       the other one leaves out frames in between
  theirs further  the other one continues where the walk ends here
  differ          the other one has frames that are not here
  nothing         the other one has no frame of the user's part
Those of `theirs further` and `differ` are listed, with the first frame that is not the same,
counted from 0; `unwind explain FILE@N` shows how it was found here. That stacks differ does not
tell who is wrong.

The kernel's chain counts up to the first word that is no address of code: the kernel takes what
it finds along frame pointers. Where all code keeps them it leaves out the caller of a function
that was interrupted before it had set its own, and is else the same.

JSON (its JSON Schema: docs/schema/verify.json): one object with
  schema     1; rises when a field changes its meaning or goes
  samples    with a stack
  complete   how many of them are complete here
  beside     for each of the others its name (`perf` or `kernel`), version (of perf), and counts by
             class: equal, ours_further, ours_more, theirs_further, differ, nothing; complete: the
             same of samples that are complete here; left_out: samples of 32-bit code, which
             perf's unwinder takes for that of 64 bits
  listed     sample (the number for `unwind explain`), beside, agreement, frame, here and there
             (addresses as hexadecimal text, or null; perf 6.1 has those in the file), function
             (at `here`, or null), complete

The exit code is 0 also if stacks differ.";

/// Runs `unwind verify`.
///
/// # Errors
///
/// [`Failure`] if the recording cannot be read, there is nothing to compare, or perf fails.
pub(crate) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let error = |error: PerfError| Failure::from(RecordingError { path: args.file.clone(), error });
    let mut reader = PerfReader::open(&args.file).map_err(error)?;
    reader.tell_progress_to(progress::of_recordings(), &args.file);
    let perf = if args.no_perf { None } else { Some(PerfScript::start(&args.perf, &args.file)) };
    let perf = perf.transpose().map_err(|error| {
        let code = error.start().map_or(1, exit_code_of);
        Failure::new(format!("{}: {error}; see --no-perf", escaped(&args.perf)), code)
    })?;
    let version = perf.as_ref().map(|perf| perf.version.clone());
    let build_ids = reader.build_ids();
    let options = Options {
        merge: true,
        memory: args.memory.bytes(),
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        stitch_lbr: false,
    };
    let names =
        Names::new(SampledKernel::Running, Layout::Perf7_2, notices::all()).without_kernel();
    let verifier = ChosenEvent::new(args.event.as_ref(), Verifier::new(perf, names, args.list));
    let call_stacks = CallStacks::new(false, reader.branch_entries());
    // A recording whose sections cannot be read says nothing of its time.
    let origin = Origin::read(&mut reader).unwrap_or_default();
    let files = RecordedFiles::new(build_ids).of_origin(&origin);
    let files = files.with_notices(notices::all());
    let (mut verifier, ended) = print(&mut reader, options, files, call_stacks, verifier);
    if let Some(error) = verifier.missing(reader.events(), escaped(&args.file).to_string()) {
        return Err(Failure::new(error, 2));
    }
    let (comparison, perf) = verifier.printer.finish(version);
    let mut out = coloured::stdout();
    let written = if args.json {
        serde_json::to_writer(&mut out, &comparison)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out))
    } else {
        write_text(&mut out, args, &comparison)
    };
    written.and_then(|()| out.flush()).map_err(Failure::output)?;
    report(ended.map_err(|cause| error(cause.into()))?, &args.file)?;
    perf.map_err(|error| Failure::new(error, 1))?;
    if comparison.samples == 0 {
        let file = escaped(&args.file);
        let text = format!("{file}: no sample has its stack: see unwind record --keep-stacks");
        return Err(Failure::new(text, 5));
    }
    Ok(())
}

fn write_text(out: &mut impl Write, args: &VerifyArgs, comparison: &Comparison) -> io::Result<()> {
    let Comparison { samples, complete, beside, listed, .. } = comparison;
    writeln!(out, "{samples} samples with a stack, {complete} of them complete")?;
    for other in beside {
        match &other.version {
            Some(version) => writeln!(out, "\nbeside perf's unwinder ({version})")?,
            None => writeln!(out, "\nbeside the kernel's chains along frame pointers")?,
        }
        writeln!(out, "{:16} {:>9} {:>14}", "", "samples", "complete here")?;
        for agreement in Agreement::ALL {
            let of = |counts: &Counts| counts.of(agreement);
            let (all, complete) = (of(&other.counts), of(&other.complete));
            writeln!(out, "{:16} {all:>9} {complete:>14}", agreement.words())?;
        }
        if other.left_out > 0 {
            writeln!(out, "{:16} {:>9}", "32-bit, left out", other.left_out)?;
        }
    }
    if !listed.is_empty() {
        writeln!(out, "\n{:>8} {:>7} {:>6}  {:<18} there", "sample", "beside", "frame", "here")?;
    }
    for sample in listed {
        let here = sample.here.as_deref().unwrap_or("(no frame)");
        let there = sample.there.as_deref().unwrap_or("(no frame)");
        write!(out, "{:>8} {:>7} {:>6}  ", sample.sample, sample.beside, sample.frame)?;
        write!(out, "{here:<18} {there:<18}")?;
        match &sample.function {
            Some(function) => writeln!(out, "  {function}")?,
            None => writeln!(out)?,
        }
    }
    if let Some(sample) = listed.first() {
        let file = escaped(&args.file);
        writeln!(out, "\nunwind explain {file}@{} shows how a stack is walked.", sample.sample)?;
    }
    Ok(())
}
