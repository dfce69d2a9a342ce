//! `unwind sframe check`: whether tables keep the rules of their format, and say
//! what the file's call frame information says.

mod compare;
mod comparison;
mod expression;
mod machine;
mod report;

pub(crate) use report::percent;

use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::PathBuf;

use sframe::{Severity, Table};
use unwind_target::InputError;
use unwind_target::elf::sframe_section::SframeSection;
use unwind_target::rows::call_frame_rows::CallFrameRows;
use unwind_target::rows::call_frames::CallFrames;

use crate::commands::sframe::check::report::{Losses, Report, Validation};
use crate::commands::sframe::code::Code;
use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::file::{SframeFile, unresolved_start};
use crate::commands::sframe::format::FormatArg;
use crate::commands::sframe::input::{Content, Form, Image, each_image};
use crate::failure::Failure;
use crate::progress::Progress;

/// Check the tables of files.
///
/// First whether they keep the rules of the format, and are about code. Then, where the file has call
/// frame information, whether they find the same caller: the CFA, the
/// return address, the frame pointer and the stack pointer, wherever either
/// begins to say something else.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// ELF files: programs, libraries, objects, archives; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    form: Form,

    /// Check a table that is made of the file's call frame information instead
    #[arg(long, value_name = "FORMAT", conflicts_with = "raw")]
    built: Option<FormatArg>,

    /// How many differences, findings and missing ranges to print of each kind
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    first: usize,

    /// Print one JSON object for each file instead of text; `--help` describes it
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
Exit code 1 says that a table is against the format, differs from the call frame
information, or has a function that is not all code. Code without a row is no difference: it is counted and, in a
table made here, named by what its rules are that the table cannot say.

Of the table in .eh_frame_hdr by which debuggers and unwinders search the call frame information it
is said whether its entries are in order. That is no fault of the tables that are checked.

In a relocatable object, places are offsets in sections: `.text+0x10`.

JSON (its JSON Schema: docs/schema/sframe-check.json): one object with
  schema        1; rises when a field changes its meaning or goes
  file
  built         the format of the table made here, or null
  tables        a list, each with version, functions, rows, bytes
  validation    errors, notes, and the first findings
  search_table_disorder
                the number of the first entry of .eh_frame_hdr that is not in
                order, or null
  comparison    null, or entries, rows, code_bytes, covered_bytes, places,
                differences, and the first differences; unreadable counts
                entries that gimli cannot read, context_bytes is code whose
                caller only the signal context tells
  missing       a list of reasons for which code has no row: reason, bytes,
                ranges, and the first of the ranges (start, size, why); in a
                table made here, the reason `no-row` is a fault
  expressible   of the code whose rules the format can say, how much has a row:
                bytes and covered_bytes; null for a table of the file itself";

/// Runs `unwind sframe check`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read, or a table is wrong.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    each_image(&args.files, args.form, |image| check(args, image))
}

fn check(args: &Args, image: &Image) -> Result<(), Failure> {
    let path = image.path.as_path();
    let elf_error = |error| InputError::Elf { path: path.into(), error };
    let (frames, len) = match &image.content {
        Content::Raw(..) => (None, 0),
        Content::Elf(elf) => (CallFrames::read(elf).map_err(elf_error)?, elf.byte_len()),
    };
    let progress = Progress::new(path, len);
    let (sections, losses, code) = match (args.built, &image.content) {
        (Some(format), Content::Elf(elf)) => {
            let frames = frames.as_ref().ok_or(SframeError::NoFrames { path: path.into() })?;
            let built = frames
                .build(format.format(), TABLE_ADDR, |done| progress.set(done, frames.byte_len()))
                .map_err(|error| SframeError::Write { path: path.into(), error })?;
            let losses = Losses::new(&built, frames);
            let code = Code::of(elf).map_err(elf_error)?;
            (vec![SframeSection::new(built.addr, built.bytes)], Some(losses), code)
        }
        _ => {
            let file = SframeFile::open(image)?;
            (file.sections, None, file.code)
        }
    };
    let mut tables = Vec::new();
    let mut validation = Validation::default();
    for section in &sections {
        for table in section.tables().tables() {
            let table = table.map_err(|error| SframeError::Table { path: path.into(), error })?;
            validate(&table, args.first, &mut validation);
            look_at_code(section, &table, &code, args.first, &mut validation);
            tables.push(table);
        }
    }
    let report = Report {
        file: path.to_path_buf(),
        built: args.built,
        tables: &tables,
        validation,
        comparison: frames.as_ref().map(|frames| compare::compare(frames, &tables, &progress)),
        losses,
        disorder: match &image.content {
            Content::Raw(..) => None,
            Content::Elf(elf) => CallFrameRows::new(elf).disorder(elf),
        },
        code: &code,
        first: args.first,
    };
    progress.finish();
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json { report.write_json(&mut out) } else { report.write(&mut out) }
        .and_then(|()| out.flush())
        .map_err(Failure::output)?;
    match report.faults() {
        0 => Ok(()),
        count => Err(SframeError::Wrong { path: path.into(), count }.into()),
    }
}

/// Where a table that is made here is said to be. Any address does that is
/// within 2 GiB of the code, which V2 asks for.
const TABLE_ADDR: u64 = 0;

/// Validates a table.
fn validate(table: &Table<'_>, first: usize, validation: &mut Validation) {
    let functions = usize::try_from(table.header().num_fdes).unwrap_or(0);
    // The table's length bounds the number.
    let mut buffer = vec![0; functions];
    let summary = table.validate(&mut buffer, |finding| {
        let findings = match finding.fault.severity() {
            Severity::Error => &mut validation.first_errors,
            Severity::Note => &mut validation.first_notes,
        };
        if findings.len() < first {
            findings.push(finding.to_string());
        }
        ControlFlow::<()>::Continue(())
    });
    if let ControlFlow::Continue(summary) = summary {
        validation.errors = validation.errors.saturating_add(summary.errors);
        validation.notes = validation.notes.saturating_add(summary.notes);
        validation.rows.push(summary.rows);
    }
}

/// Looks whether the functions of a table are where the file has code, and whether
/// that is known.
fn look_at_code(
    section: &SframeSection,
    table: &Table<'_>,
    code: &Code,
    first: usize,
    validation: &mut Validation,
) {
    for index in 0..table.header().num_fdes {
        let Some(range) = table.range(index) else { continue };
        let fault = match unresolved_start(section, table, index) {
            Some(unresolved) => unresolved.to_string(),
            None if code.is_unknown() || code.holds(range) => continue,
            None => {
                format!("{}+{:#x} is not all code", code.place(range.start), range.size)
            }
        };
        validation.errors = validation.errors.saturating_add(1);
        if validation.first_errors.len() < first {
            validation.first_errors.push(format!("function {index}: {fault}"));
        }
    }
}
