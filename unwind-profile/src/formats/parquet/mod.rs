//! Tables for DuckDB, Spark, ClickHouse or Trino, which have the recordings of many machines: a
//! folder for each table, in it one for each day and host, in it a file for each recording.

mod place;
mod table;

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use chrono::DateTime;

use crate::collected::call_tree::FrameKind;
use crate::collected::view::View;
use crate::formats::parquet::place::folder;
use crate::formats::parquet::table::{Cell, Table};
use crate::output_file::write_file;
use crate::walks::found_by::FoundBy;

/// The tables. That of ledgers is written last: what a ledger is about is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Frames,
    Stacks,
    Samples,
    Ledger,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Frames, Self::Stacks, Self::Samples, Self::Ledger];

    const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Stacks => "stacks",
            Self::Samples => "samples",
            Self::Ledger => "ledger",
        }
    }

    /// Its columns.
    const fn message(self) -> &'static str {
        match self {
            Self::Frames => {
                "message frames {
                    REQUIRED BYTE_ARRAY recording (STRING);
                    REQUIRED INT64 frame;
                    REQUIRED BYTE_ARRAY name (STRING);
                    OPTIONAL BYTE_ARRAY file (STRING);
                    REQUIRED BYTE_ARRAY kind (STRING);
                }"
            }
            Self::Stacks => {
                "message stacks {
                    REQUIRED BYTE_ARRAY recording (STRING);
                    REQUIRED INT64 stack;
                    REQUIRED INT64 depth;
                    REQUIRED INT64 frame;
                    REQUIRED BYTE_ARRAY found (STRING);
                }"
            }
            Self::Samples => {
                "message samples {
                    REQUIRED BYTE_ARRAY recording (STRING);
                    OPTIONAL BYTE_ARRAY release (STRING);
                    OPTIONAL INT64 time (TIMESTAMP(MICROS,true));
                    OPTIONAL INT64 process;
                    OPTIONAL INT64 thread;
                    OPTIONAL BYTE_ARRAY thread_name (STRING);
                    REQUIRED INT64 stack;
                    REQUIRED INT64 samples;
                }"
            }
            Self::Ledger => {
                "message ledger {
                    REQUIRED BYTE_ARRAY recording (STRING);
                    OPTIONAL BYTE_ARRAY release (STRING);
                    OPTIONAL INT64 start (TIMESTAMP(MICROS,true));
                    REQUIRED INT64 nanoseconds;
                    REQUIRED BYTE_ARRAY class (STRING);
                    OPTIONAL BYTE_ARRAY reason (STRING);
                    REQUIRED INT64 samples;
                }"
            }
        }
    }
}

/// Writes all tables below a folder.
pub(crate) fn write(below: &Path, view: &View<'_>) -> io::Result<()> {
    let name = format!("{}.parquet", name(view));
    let start = microseconds(view, view.time_line.start());
    let day = start.and_then(DateTime::from_timestamp_micros);
    let day = day.map_or(view.labels.day, |time| time.date_naive());
    for kind in Kind::ALL {
        let folder = below.join(kind.name()).join(folder(day, &view.labels.host));
        fs::create_dir_all(&folder)?;
        // A reader sees all of it or nothing, and its name then is none that readers look for.
        write_file(&folder.join(&name), |file| {
            write_table(kind, view, BufWriter::new(file))?.flush()
        })?;
    }
    Ok(())
}

/// Writes all tables one after the other, as no reader wants them but for what they cost.
pub(crate) fn write_all(out: &mut impl Write, view: &View<'_>) -> io::Result<()> {
    let mut tables = Kind::ALL.into_iter().map(|kind| write_table(kind, view, Vec::new()));
    tables.try_for_each(|table| out.write_all(&table?))
}

/// Writes one table.
fn write_table<W: Write + Send>(kind: Kind, view: &View<'_>, out: W) -> io::Result<W> {
    let mut table = Table::begin(out, kind.message())?;
    let id = Cell::text(&name(view));
    match kind {
        Kind::Frames => write_frames(&mut table, view, &id)?,
        Kind::Stacks => write_stacks(&mut table, view, &id)?,
        Kind::Samples => write_samples(&mut table, view, &id)?,
        Kind::Ledger => write_ledger(&mut table, view, &id)?,
    }
    table.finish()
}

/// What a recording is called, so that its tables are not there twice.
fn name(view: &View<'_>) -> String {
    view.labels.id(view.ledger, view.time_line).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Microseconds since 1970.
fn microseconds(view: &View<'_>, time: u64) -> Option<i64> {
    i64::try_from(view.labels.since_epoch(time)? / 1_000).ok()
}

fn time(view: &View<'_>, time: u64) -> Cell {
    microseconds(view, time).map_or(Cell::Nothing, Cell::Number)
}

fn release(view: &View<'_>) -> Cell {
    view.labels.release.as_deref().map_or(Cell::Nothing, Cell::text)
}

fn write_frames<W: Write + Send>(
    table: &mut Table<W>,
    view: &View<'_>,
    id: &Cell,
) -> io::Result<()> {
    for (at, frame) in view.profile.frames.iter().enumerate() {
        let kind = match frame.kind {
            FrameKind::User => "user",
            FrameKind::Kernel => "kernel",
            FrameKind::Interpreted(_) => "interpreted",
            FrameKind::Note => "note",
        };
        table.push([
            id.clone(),
            Cell::count(at),
            Cell::text(&frame.name),
            frame.file.as_deref().map_or(Cell::Nothing, Cell::text),
            Cell::text(kind),
        ])?;
    }
    Ok(())
}

fn write_stacks<W: Write + Send>(
    table: &mut Table<W>,
    view: &View<'_>,
    id: &Cell,
) -> io::Result<()> {
    let words = FoundBy::ALL.map(|found| Cell::text(found.words().0));
    for (end, _) in view.profile.ends() {
        for (depth, node) in view.profile.nodes_to(end).enumerate() {
            let found = words.get(node.found.shown()).cloned().unwrap_or(Cell::Nothing);
            table.push([
                id.clone(),
                Cell::count(end),
                Cell::count(depth),
                Cell::count(node.frame),
                found,
            ])?;
        }
    }
    Ok(())
}

fn write_samples<W: Write + Send>(
    table: &mut Table<W>,
    view: &View<'_>,
    id: &Cell,
) -> io::Result<()> {
    let View { profile, time_line, .. } = *view;
    let release = release(view);
    let names: Vec<Cell> =
        time_line.threads.iter().map(|thread| Cell::text(&thread.name)).collect();
    // Those of each stack that are not on the time line.
    let mut rest: HashMap<usize, u64> = profile.ends().map(|(end, node)| (end, node.own)).collect();
    for (cell, count) in time_line.cells() {
        // Others are in the rest.
        let Some(end) = cell.stack.end() else { continue };
        let thread = time_line.threads.get(cell.thread());
        let number = |number: Option<u32>| number.map_or(Cell::Nothing, Cell::count);
        let time = time_line.start().saturating_add(cell.span().saturating_mul(time_line.width));
        table.push([
            id.clone(),
            release.clone(),
            self::time(view, time),
            number(thread.map(|thread| thread.process)),
            number(thread.map(|thread| thread.thread)),
            names.get(cell.thread()).cloned().unwrap_or(Cell::Nothing),
            Cell::count(end),
            Cell::count(count),
        ])?;
        if let Some(rest) = rest.get_mut(&end) {
            *rest = rest.saturating_sub(count.into());
        }
    }
    for (end, _) in profile.ends() {
        let count = rest.get(&end).copied().unwrap_or(0);
        if count > 0 {
            let [nothing, process, thread, name] = [const { Cell::Nothing }; 4];
            let (stack, count) = (Cell::count(end), Cell::count(count));
            let row = [id.clone(), release.clone(), nothing, process, thread, name, stack, count];
            table.push(row)?;
        }
    }
    Ok(())
}

fn write_ledger<W: Write + Send>(
    table: &mut Table<W>,
    view: &View<'_>,
    id: &Cell,
) -> io::Result<()> {
    for (class, reason, count) in view.ledger.classes() {
        table.push([
            id.clone(),
            release(view),
            time(view, view.time_line.start()),
            Cell::count(view.time_line.duration()),
            Cell::text(class),
            reason.map_or(Cell::Nothing, Cell::text),
            Cell::count(count),
        ])?;
    }
    Ok(())
}
