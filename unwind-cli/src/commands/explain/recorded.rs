//! A sample whose stack was walked when it was recorded: of each frame how it was found then,
//! and the row that says now where its caller is.

use std::io::{self, Write};

use serde::Serialize;
use unwind_core::WordSize;
use unwind_target::Untrusted;
use unwind_target::loaded::loaded_file::LoadedImage;
use unwind_target::loaded::module::Modules;
use unwind_target::untrusted::escaped;

use crate::commands::explain::row_place::{RowPlace, in_call_frames, in_sframe};
use crate::commands::explain::sample::{Place, Sample};
use crate::commands::explain::text::{label, row_text, write_row_place};
use crate::commands::recorded_call::RecordedCall;
use crate::commands::stack::text::write_call;

/// A frame of a sample.
#[derive(Debug, Serialize)]
pub(super) struct RecordedFrame {
    /// Hexadecimal.
    pc: String,
    kernel: bool,
    function: Option<Untrusted>,
    function_offset: Option<u64>,
    object: Option<Untrusted>,
    /// The calls of an interpreter that it executes.
    interpreted: Vec<RecordedCall>,
    /// How it was found, in the words of reports; nothing if the recording does not say.
    found_by: Option<&'static str>,
    /// The row of its code in the file as it is now.
    row: Option<String>,
    place: Option<RowPlace>,
    /// Why that cannot be told.
    problem: Option<String>,
}

/// How many characters of a name are shown of a call.
const MAX_NAME: usize = 512;

/// The frames of a sample.
pub(super) fn frames(sample: &Sample, modules: &Modules) -> Vec<RecordedFrame> {
    let places = sample.places();
    let mut found = sample.found.iter();
    let frame = |place: Place| {
        let way = if place.is_user { found.next().copied() } else { None };
        let (row, at, problem) = match (place.is_user, modules.find(place.lookup)) {
            (false, _) | (true, None) => (None, None, None),
            (true, Some(module)) => match module.image() {
                Ok(image) => row_of(image, place.lookup),
                Err(error) => (None, None, Some(format!("{}: {error}", escaped(&module.path)))),
            },
        };
        let (function, function_offset) = place.function.unzip();
        RecordedFrame {
            pc: format!("{:#x}", place.addr),
            kernel: !place.is_user,
            function,
            function_offset,
            object: place.file,
            interpreted: place.calls.iter().map(|call| RecordedCall::new(call, MAX_NAME)).collect(),
            found_by: way.map(|way| way.words().0),
            row,
            place: at,
            problem,
        }
    };
    places.into_iter().map(frame).collect()
}

/// The row of an address, where it is, and what is wrong with it.
fn row_of(image: &LoadedImage, addr: u64) -> (Option<String>, Option<RowPlace>, Option<String>) {
    if let Some(place) = in_sframe(image, addr) {
        return (None, Some(place), None);
    }
    let is_64 = image.file.elf.is_64;
    let word = if is_64 { WordSize::Eight } else { WordSize::Four };
    let row = match image.call_frame_row(addr, word) {
        Ok(row) => row.map(|row| row_text(&row, is_64)),
        Err(error) => return (None, None, Some(error.to_string())),
    };
    match in_call_frames(image, addr) {
        Ok(place) => (row, place, None),
        Err(error) => (row, None, Some(error)),
    }
}

/// Writes the frames. The files of a guest are elsewhere, so nothing is said of their tables.
///
/// # Errors
///
/// As writing to `out`.
pub(super) fn write(
    out: &mut impl Write,
    frames: &[RecordedFrame],
    is_of_guest: bool,
) -> io::Result<()> {
    for (number, frame) in frames.iter().enumerate() {
        if number == 0 || !is_of_guest {
            writeln!(out)?;
        }
        for call in &frame.interpreted {
            write_call(out, call.language, call)?;
        }
        let way = frame.found_by.unwrap_or(if frame.kernel { "kernel" } else { "unknown" });
        let pc = frame.pc.trim_start_matches("0x");
        write!(out, "  #{number:<3} 0x{pc:0>16}  {way:<12}")?;
        if let Some(function) = &frame.function {
            write!(out, "  {function}+{:#x}", frame.function_offset.unwrap_or(0))?;
        }
        match &frame.object {
            Some(object) => writeln!(out, " ({object})")?,
            None => writeln!(out)?,
        }
        if let Some(problem) = &frame.problem {
            label(out, "problem", problem)?;
        }
        match (&frame.row, &frame.place) {
            (Some(row), _) => label(out, "row", row)?,
            (None, None) if !frame.kernel && !is_of_guest => {
                label(out, "no row", "in a table of its file")?
            }
            _ => {}
        }
        if let Some(place) = &frame.place {
            write_row_place(out, place)?;
        }
    }
    Ok(())
}
