//! Stacks as text for people.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use anstyle::Style;
use unwind_core::CacheStats;
use unwind_target::counted::counted;
use unwind_target::{FoundBy, Frame, InterpretedFrame, StackEnd, Stacks, ThreadStack, Untrusted};

use crate::coloured::{INTERPRETED, LESS_SURE, MISSING, SURE};

/// Writes a report, or of each stack only the calls that an interpreter executes.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write(out: &mut impl Write, report: &Stacks, is_interpreted: bool) -> io::Result<()> {
    let count = report.threads.len();
    let threads = if count == 1 { "thread" } else { "threads" };
    let how = if report.no_stop { ", not stopped" } else { "" };
    writeln!(out, "process {} ({}), {count} {threads}{how}", report.process, report.program)?;
    for thread in &report.threads {
        writeln!(out)?;
        write_thread(out, thread, is_interpreted)?;
    }
    Ok(())
}

/// Writes the warnings of a report, a line each.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_warnings(out: &mut impl Write, report: &Stacks) -> io::Result<()> {
    report.warnings.iter().try_for_each(|warning| writeln!(out, "unwind: {}", warning))
}

fn write_thread(
    out: &mut impl Write,
    thread: &ThreadStack,
    is_interpreted: bool,
) -> io::Result<()> {
    write_heading(out, thread)?;
    for (number, frame) in thread.frames.iter().enumerate() {
        write_interpreted(out, &frame.interpreted)?;
        if !is_interpreted {
            write_frame(out, number, thread.arch, frame)?;
        }
    }
    write_doubt(out, thread)?;
    write_end(out, &thread.end)
}

/// Writes what is in doubt of the calls of an interpreter: those without a frame, and why.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_doubt(out: &mut impl Write, thread: &ThreadStack) -> io::Result<()> {
    let Some(doubt) = thread.interpreted.as_ref().filter(|interpreted| !interpreted.complete)
    else {
        return Ok(());
    };
    write_interpreted(out, &doubt.unplaced)?;
    writeln!(out, "  {MISSING}{}{MISSING:#}: {}", doubt.interpreter, doubt.text)
}

/// Writes calls that an interpreter executes.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_interpreted(
    out: &mut impl Write,
    frames: &[InterpretedFrame],
) -> io::Result<()> {
    for frame in frames {
        write_call(out, frame.language, frame)?;
        write_source(out, 16, frame.text.as_ref())?;
    }
    Ok(())
}

/// Writes a call of an interpreter, as a line.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_call(
    out: &mut impl Write,
    language: &str,
    call: &impl fmt::Display,
) -> io::Result<()> {
    let blank = "";
    writeln!(out, "  {blank:<25}{INTERPRETED}{language:<10}{INTERPRETED:#} {call}")
}

/// Writes whose stack follows.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write_heading(out: &mut impl Write, thread: &ThreadStack) -> io::Result<()> {
    write!(out, "thread {}", thread.id)?;
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
    frames: &[Frame],
    end: &StackEnd,
) -> io::Result<()> {
    for (number, frame) in frames.iter().enumerate() {
        write_frame(out, number, arch, frame)?;
    }
    write_end(out, end)
}

fn write_end(out: &mut impl Write, end: &StackEnd) -> io::Result<()> {
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
    frame: &Frame,
) -> io::Result<()> {
    let width = if arch == Some("ia32") { 8 } else { 16 };
    if frame.after_gap {
        writeln!(out, "       {MISSING}callers may be missing here{MISSING:#}")?;
    }
    for inlined in &frame.symbol.source.inlined {
        let blank = "";
        writeln!(out, "  {blank:<4}   {blank:width$}  inlined    {}", inlined)?;
        write_source(out, width, inlined.text.as_ref())?;
    }
    let (pc, style, found_by) = (frame.pc, style(frame), found_by(frame));
    writeln!(
        out,
        "  #{number:<3} 0x{pc:0width$x}  {style}{found_by:<9}{style:#}  {}",
        frame.symbol
    )?;
    write_source(out, width, frame.symbol.source.text.as_ref())
}

/// Writes the text of a line, further in than the functions of code whose addresses have `width` digits.
fn write_source(out: &mut impl Write, width: usize, text: Option<&Untrusted>) -> io::Result<()> {
    let column = width.saturating_add(24);
    text.map_or(Ok(()), |text| writeln!(out, "{:column$}{text}", ""))
}

/// Green for what tables and the kernel say, yellow for what was taken on weaker grounds.
const fn style(frame: &Frame) -> Style {
    match frame.found_by {
        _ if frame.after_failure || frame.fp_assumed => LESS_SURE,
        FoundBy::Registers | FoundBy::Sframe | FoundBy::Orc | FoundBy::Cfi | FoundBy::Signal => {
            SURE
        }
        _ => LESS_SURE,
    }
}

/// How a frame was found, marked where that was the second choice or took the frame
/// pointer as unchanged.
fn found_by(frame: &Frame) -> Cow<'static, str> {
    let found_by = frame.found_by.word();
    let marks = match (frame.after_failure, frame.fp_assumed) {
        (false, false) => return Cow::Borrowed(found_by),
        (true, false) => "!",
        (false, true) => "~",
        (true, true) => "!~",
    };
    Cow::Owned(format!("{found_by}{marks}"))
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
