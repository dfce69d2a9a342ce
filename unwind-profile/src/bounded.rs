//! Recordings read and written with little memory: what fuzz targets call.

use std::path::Path;

use crate::collected::grouping::By;
use crate::collected::interpreted_calls::InterpretedCalls;
use crate::collected::labels::Labels;
use crate::collected::reading::Reading;
use crate::collected::source_lines::SourceLines;
use crate::collected::time_line::Detail;
use crate::collected::together::read_from;
use crate::collected::view::View;
use crate::formats::format::Format;
use crate::formats::{difference, write};
use crate::recording::reader::PerfReader;
use crate::session::ledger_section::ledger_of;
use crate::walks::found_frames::FoundFrames;

/// How recordings are read with little memory, for bounds.
const BOUNDED: Reading<'_> = Reading {
    event: None,
    by: By::Process,
    off_cpu: true,
    trust_fp: false,
    memory: 1 << 20,
    names_kernel: false,
    keeps_lines: true,
    debug_info: None,
    shows_inlined: false,
    interpreted: InterpretedCalls::Among,
    detail: Detail::OfTimes(1 << 10),
    is_compared: false,
    keeps_gaps_apart: false,
    notices: None,
    progress: None,
};

/// Reads a recording and reports it in each format with little memory. Returns the lengths of
/// all outputs in bytes, or `None` if it is no recording.
#[must_use]
pub fn reported_len(bytes: &[u8]) -> Option<Vec<usize>> {
    let mut reader = PerfReader::from_bytes(bytes.to_vec()).ok()?;
    let read = read_from(&mut reader, BOUNDED).ok()?;
    let mut lengths = Vec::new();
    for event in &read.events {
        let view = View {
            title: "-",
            profile: &event.profile,
            time_line: &event.time_line,
            ledger: &event.ledger,
            labels: &Labels::default(),
            lines: &SourceLines::default(),
            names_options: true,
        };
        for &format in Format::ALL {
            let mut out = Vec::new();
            write(format, &view, 40, BOUNDED.memory, &mut out).ok()?;
            lengths.push(out.len());
        }
        let counts: Vec<u64> = event.profile.nodes.iter().map(|node| node.own).collect();
        let recordings = [&counts[..]];
        let side = event.side("-", &recordings, true);
        // Another target writes all of them.
        let of_difference = [
            Format::Text,
            #[cfg(feature = "html")]
            Format::Html,
        ];
        for format in of_difference {
            let mut out = Vec::new();
            difference::write(&mut out, format, &[side, side], 40, BOUNDED.memory).ok()?;
            lengths.push(out.len());
        }
    }
    Some(lengths)
}

fn formats_of_differences() -> impl Iterator<Item = &'static Format> {
    Format::ALL.iter().filter(|format| format.is_of_difference())
}

/// Reads two recordings and writes their difference in each format, with little memory. Returns
/// the lengths of all outputs in bytes, or `None` if one of them is no recording.
#[must_use]
pub fn compared_len(before: &[u8], after: &[u8]) -> Option<Vec<usize>> {
    let (by, off_cpu, keeps_lines, is_compared) = (By::Thread, false, false, true);
    let reading = Reading { by, off_cpu, keeps_lines, is_compared, ..BOUNDED };
    let read =
        |bytes: &[u8]| read_from(&mut PerfReader::from_bytes(bytes.to_vec()).ok()?, reading).ok();
    let reads = [read(before)?, read(after)?];
    let [first, second] = reads.each_ref().map(|read| read.events.first());
    let events = [first?, second?];
    let recordings =
        events.map(|event| event.counts(Path::new("-")).into_iter().collect::<Vec<_>>());
    let ([event_before, event_after], [of_before, of_after]) = (events, &recordings);
    let sides = [event_before.side("-", of_before, true), event_after.side("-", of_after, true)];
    let mut lengths = Vec::new();
    for &format in formats_of_differences() {
        let mut out = Vec::new();
        difference::write(&mut out, format, &sides, 40, BOUNDED.memory).ok()?;
        lengths.push(out.len());
    }
    Some(lengths)
}

/// How many bytes the records of a recording have together.
#[must_use]
pub fn records_len(bytes: &[u8]) -> usize {
    let Ok(mut reader) = PerfReader::from_bytes(bytes.to_vec()) else { return 0 };
    let mut len = 0_usize;
    while let Ok(true) = reader.read() {
        len = len.saturating_add(reader.record().map_or(0, |record| record.bytes().len()));
    }
    len
}

/// Reads the sections that `unwind record` adds to a recording: its ledger, and how frames were
/// found, of which up to 1,024 of each sample are looked at. Returns how many bytes the ledger
/// takes as text, and how many frames there are.
#[must_use]
pub fn recorded_sections_len(ledger: &[u8], found_frames: &[u8]) -> (usize, usize) {
    let told = ledger_of(ledger);
    let text = told.map_or(0, |told| {
        let notes = [told.ledger.to_string(), told.ledger.summary()];
        notes.iter().map(String::len).fold(0, usize::saturating_add)
    });
    let found = FoundFrames::of_section(found_frames);
    let frames = found.map_or(0, |found| {
        let samples = (0..found.samples()).map_while(|number| u64::try_from(number).ok());
        samples.map(|number| found.of_sample(number).take(1 << 10).count()).sum()
    });
    (text, frames)
}
