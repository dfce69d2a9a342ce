//! Stacks as text for people.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use anstyle::Style;
use unwind_core::CacheStats;

use crate::coloured::{LESS_SURE, MISSING, SURE};
use crate::commands::stack::frame_report::{FoundBy, FrameReport, InlinedReport, file_name};
use crate::commands::stack::report::{Report, ThreadReport};
use crate::commands::stack::walk::StackEnd;
use crate::counted::counted;
use crate::untrusted::Untrusted;

/// Writes a report.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let count = report.threads.len();
    let threads = if count == 1 { "thread" } else { "threads" };
    let how = if report.no_stop { ", not stopped" } else { "" };
    writeln!(out, "process {} ({}), {count} {threads}{how}", report.process, report.program)?;
    for thread in &report.threads {
        writeln!(out)?;
        write_thread(out, thread)?;
    }
    Ok(())
}

/// Writes the warnings of a report, a line each.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_warnings(out: &mut impl Write, report: &Report) -> io::Result<()> {
    report.warnings.iter().try_for_each(|warning| writeln!(out, "unwind: {}", warning))
}

fn write_thread(out: &mut impl Write, thread: &ThreadReport) -> io::Result<()> {
    write_heading(out, thread)?;
    write_frames(out, thread.arch, &thread.frames, &thread.end)
}

/// Writes whose stack follows.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_heading(out: &mut impl Write, thread: &ThreadReport) -> io::Result<()> {
    write!(out, "thread {}", thread.thread)?;
    if let Some(name) = &thread.name {
        write!(out, " ({})", name)?;
    }
    if let Some(arch) = thread.arch {
        write!(out, ", {arch}")?;
    }
    if let Some(signal) = thread.signal {
        write!(out, ", ended by {}", SignalName(signal))?;
    }
    writeln!(out)
}

/// Writes the frames of a stack of code for `arch`, and why there are no more.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_frames(
    out: &mut impl Write,
    arch: Option<&str>,
    frames: &[FrameReport],
    end: &StackEnd,
) -> io::Result<()> {
    for (number, frame) in frames.iter().enumerate() {
        write_frame(out, number, arch, frame)?;
    }
    let completeness = if end.complete { "complete" } else { "incomplete" };
    let style = if end.complete { SURE } else { MISSING };
    writeln!(out, "  {style}{completeness}{style:#}: {}", end.text)
}

/// Writes one frame of code for `arch`, and what is inlined in it.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_frame(
    out: &mut impl Write,
    number: usize,
    arch: Option<&str>,
    frame: &FrameReport,
) -> io::Result<()> {
    let width = if arch == Some("ia32") { 8 } else { 16 };
    if frame.after_gap {
        writeln!(out, "       {MISSING}callers may be missing here{MISSING:#}")?;
    }
    for inlined in &frame.source.inlined {
        let blank = "";
        writeln!(out, "  {blank:<4}   {blank:width$}  inlined    {}", InlinedPlace(inlined))?;
    }
    let (pc, style, found_by) = (frame.pc, style(frame), found_by(frame));
    writeln!(out, "  #{number:<3} 0x{pc:0width$x}  {style}{found_by:<9}{style:#}  {}", Place(frame))
}

/// Green for what tables and the kernel say, yellow for what was taken on weaker grounds.
const fn style(frame: &FrameReport) -> Style {
    match frame.found_by {
        _ if frame.after_failure || frame.fp_assumed => LESS_SURE,
        FoundBy::Registers | FoundBy::Sframe | FoundBy::Cfi | FoundBy::Signal => SURE,
        FoundBy::Fp | FoundBy::Code | FoundBy::Other => LESS_SURE,
    }
}

/// How a frame was found, marked where that was the second choice or took the frame
/// pointer as unchanged.
fn found_by(frame: &FrameReport) -> Cow<'static, str> {
    let found_by = match frame.found_by {
        FoundBy::Registers => "registers",
        FoundBy::Sframe => "sframe",
        FoundBy::Cfi => "cfi",
        FoundBy::Fp => "fp",
        FoundBy::Code => "code",
        FoundBy::Signal => "signal",
        FoundBy::Other => "other",
    };
    let marks = match (frame.after_failure, frame.fp_assumed) {
        (false, false) => return Cow::Borrowed(found_by),
        (true, false) => "!",
        (false, true) => "~",
        (true, true) => "!~",
    };
    Cow::Owned(format!("{found_by}{marks}"))
}

/// Function, offset and object, as far as they are known.
struct Place<'a>(&'a FrameReport);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = self.0;
        let object = frame.object.as_ref().map(file_name);
        match (&frame.function, object, frame.object_pc) {
            (Some(function), Some(object), _) => {
                write!(f, "{function}")?;
                // DWARF has names of functions that no symbol has.
                if let Some(offset) = frame.function_offset {
                    write!(f, "+{offset:#x}")?;
                }
                write!(f, " ({object})")?;
                write_line(f, &frame.source.file, frame.source.line)
            }
            (_, Some(object), Some(pc)) => write!(f, "?? ({object}+{pc:#x})"),
            (_, Some(object), None) => write!(f, "?? ({object})"),
            (_, None, _) => f.write_str("??"),
        }
    }
}

/// A function without a frame of its own.
struct InlinedPlace<'a>(&'a InlinedReport);

impl fmt::Display for InlinedPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.function {
            Some(function) => write!(f, "{function}")?,
            None => f.write_str("??")?,
        }
        write_line(f, &self.0.file, self.0.line)
    }
}

/// Writes a file and a line after what is there, if they are known.
fn write_line(
    f: &mut fmt::Formatter<'_>,
    file: &Option<Untrusted>,
    line: Option<u32>,
) -> fmt::Result {
    match (file, line) {
        (Some(file), Some(line)) => write!(f, " at {file}:{line}"),
        (Some(file), None) => write!(f, " at {file}"),
        (None, _) => Ok(()),
    }
}

/// How often a row was kept, and how often it was looked up, in a line.
pub(crate) fn row_counts(CacheStats { hits, misses, unkept, .. }: CacheStats) -> String {
    let looked_up = counted(misses, "row was", "rows were");
    format!("{looked_up} looked up, {hits} found in the cache; {unkept} could not be kept")
}

/// A signal by name and number.
struct SignalName(i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::sys::signal::Signal::try_from(self.0) {
            Ok(signal) => write!(f, "{signal} (signal {})", self.0),
            Err(_) => write!(f, "signal {}", self.0),
        }
    }
}
