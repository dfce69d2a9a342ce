//! The demonstration's stacks, side by side.

use std::io::{self, Write};

use crate::chain::{Kind, Object};
use crate::comparison::{Comparison, Verdict, Walk};

/// What stands in place of a frame that is not there.
const NONE: &str = "-";

/// Writes all comparisons and a verdict.
///
/// # Errors
///
/// As writing to `out`.
pub(crate) fn write(
    out: &mut impl Write,
    object: Object,
    comparisons: &[Comparison],
) -> io::Result<()> {
    let made = if object.is_compiled() { "compiled with this program" } else { "prebuilt" };
    writeln!(
        out,
        "A copy of this program has two threads that wait, each at the end of a known\n\
         chain of calls ({made}). Below are their stacks as walked\n\
         from outside, a column for each method. The truth is what the functions of the\n\
         chain noted on their way."
    )?;
    for comparison in comparisons {
        writeln!(out)?;
        write_table(out, comparison)?;
    }
    writeln!(out)?;
    write_verdict(out, comparisons)
}

fn write_table(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let frame_pointers = match comparison.kind {
        Kind::FramePointers => "with frame pointers",
        Kind::NoFramePointers => "without frame pointers",
    };
    let option = comparison.kind.compiler_option();
    writeln!(out, "Thread {}, {frame_pointers} ({option}):", comparison.thread)?;
    writeln!(out)?;

    let mut columns: Vec<_> =
        comparison.walks.iter().map(|walk| column(comparison, walk)).collect();
    columns.push(truth_column(comparison));
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let header = columns.iter().map(|column| (column.width(), column.title));
    write_row(out, "#", header)?;
    for row in 0..rows {
        let cells = columns
            .iter()
            .map(|column| (column.width(), column.cells.get(row).map_or(NONE, String::as_str)));
        write_row(out, &row.to_string(), cells)?;
    }
    let verdicts = columns.iter().map(|column| (column.width(), column.verdict.as_str()));
    write_row(out, "", verdicts)?;
    for walk in comparison.failures() {
        writeln!(out, "{} ended: {}", walk.method.word(), walk.end)?;
    }
    Ok(())
}

fn write_row<'a>(
    out: &mut impl Write,
    number: &str,
    cells: impl Iterator<Item = (usize, &'a str)>,
) -> io::Result<()> {
    let mut line = format!("{number:>2}");
    for (width, cell) in cells {
        line.push_str(&format!("  {cell:<width$}"));
    }
    writeln!(out, "{}", line.trim_end())
}

/// One method, or the truth.
struct Column {
    title: &'static str,
    cells: Vec<String>,
    verdict: String,
}

impl Column {
    fn width(&self) -> usize {
        let texts = self.cells.iter().map(String::as_str).chain([self.title, &self.verdict]);
        texts.map(str::len).max().unwrap_or(0)
    }
}

fn column(comparison: &Comparison, walk: &Walk) -> Column {
    let cells = walk.frames.iter().map(|frame| match &frame.place {
        Some(place) => place.to_string(),
        None => format!("{:#x}", frame.pc),
    });
    let verdict = match comparison.verdict(walk) {
        Verdict::Equal => "equal".into(),
        Verdict::DoesNotApply => "does not apply".into(),
        Verdict::DiffersAt(frame) => format!("differs at #{frame}"),
        Verdict::Incomplete => "incomplete".into(),
    };
    Column { title: walk.method.word(), cells: cells.collect(), verdict }
}

fn truth_column(comparison: &Comparison) -> Column {
    let cells = comparison.truth.iter().map(|(frame, place)| match place {
        Some(place) if place.function.as_bytes() == frame.function.as_bytes() => place.to_string(),
        _ => frame.function.clone(),
    });
    let verdict = format!("{} frames", comparison.truth.len());
    Column { title: "truth", cells: cells.collect(), verdict }
}

fn write_verdict(out: &mut impl Write, comparisons: &[Comparison]) -> io::Result<()> {
    let (mut equal, mut differing) = (0_usize, 0_usize);
    for comparison in comparisons {
        for walk in &comparison.walks {
            match comparison.verdict(walk) {
                Verdict::Equal => equal = equal.saturating_add(1),
                Verdict::DiffersAt(_) | Verdict::Incomplete => {
                    differing = differing.saturating_add(1);
                }
                Verdict::DoesNotApply => writeln!(
                    out,
                    "{} does not apply to thread {}, whose functions keep data in rbp: it\n\
                     finds {} of {} callers.",
                    walk.method.word(),
                    comparison.thread,
                    comparison.callers_found(walk),
                    comparison.truth.len().saturating_sub(1)
                )?,
            }
        }
    }
    if differing == 0 {
        writeln!(out, "All {equal} walks by a method that applies are equal to the truth.")
    } else {
        writeln!(out, "{differing} walks DIFFER from the truth, {equal} are equal to it.")
    }
}
