//! `unwind sframe dump`: all functions and rows, in the layout of
//! `readelf --sframe`.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use sframe::{Fde, FdeType, FuncRange, Header, PauthKey, Table, Version, Violation};
use unwind_target::Untrusted;
use unwind_target::elf::sframe_section::SframeSection;
use unwind_target::untrusted::escaped;

use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::{
    code::SHOWN_NAME,
    columns::{Cells, flag_names},
    file::{SframeFile, Starts, unresolved_start},
    input::{Form, Image, each_image, members},
    json,
    names::{Name, Names},
    shared_rows::RowsLeft,
};
use crate::failure::Failure;

/// Print all functions and rows, in the layout of `readelf --sframe`.
///
/// A damaged function is shown as far as it can be, with what is wrong with it in its
/// place, and the exit code tells. Where many functions share rows, so that there are more
/// than one for each byte of rows (and 65,536), the rest are shown without.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// ELF files: programs, libraries, objects, archives; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    form: Form,

    /// Print no names of functions: the very text of readelf
    #[arg(long)]
    no_names: bool,

    /// Print one JSON object for each file instead of text; `--help` describes it
    #[arg(long)]
    json: bool,
}

const LONG_HELP: &str = "\
The columns say how the CFA (the caller's stack pointer), its frame pointer and
the return address are found:
  sp+8    the stack pointer plus 8       (fp-8)  loaded from that address
  c-16    saved at the CFA less 16       =c-16   that address itself
  r10+0   register 10 by DWARF           [s]     signed
  u       unchanged                      f       where the header fixes it
  U       not said
Starts of functions of equal blocks, STARTPC[m], count from a block's start. In
a relocatable object, functions start at offsets in their sections, of which the
names are shown where there are several.

A name is that of the symbol at a function's start, or of the one around it with
an offset, at most 256 characters.

JSON (its JSON Schema: docs/schema/sframe-dump.json): one object with
  schema        1; rises when a field changes its meaning or goes
  file, relocatable
  tables        a list, each with
    section, addr       addresses are hexadecimal text
    version, flags (a list), abi, byte_order
    fixed_fp_offset, fixed_ra_offset    a number or null
    num_fdes, num_fres
    functions   a list, each with
      index, name (or null), section (of code, in a relocatable object, or
      null), pc, size, pc_type (`inc`, `mask`), type (`default`, `flex` or a
      number), signal, pauth_key (`a`, `b` or null), rep_size
      rows      a list, each with
        start   bytes from the start of the function or block
        info, words     as they are in the table
        cfa, fp, ra     in the notation above; null for an outermost frame
      error     what is wrong with the function, or null
    error       why the next table cannot be opened (in an entry of its own)

`unwind --help` lists the exit codes.";

/// Runs `unwind sframe dump`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read, or something in it not be shown.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    each_image(&args.files, args.form, |image| dump(args, image))
}

fn dump(args: &Args, image: &Image) -> Result<(), Failure> {
    let file = SframeFile::open(image)?;
    let names = if args.no_names { Names::NONE } else { file.names() };
    if let Some(error) = names.error {
        let path = escaped(&file.path);
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(io::stderr(), "unwind: {path}: no names of functions: {error}");
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let faults = match args.json {
        true => json::write(&mut out, &file, &names),
        false => image.write_heading(&mut out).and_then(|()| write(&mut out, &file, &names)),
    }
    .and_then(|faults| out.flush().map(|()| faults))
    .map_err(Failure::output)?;
    if file.starts == Starts::Unknown && !args.json {
        // With standard error gone there is no other place to tell it.
        let _ = writeln!(
            io::stderr(),
            "unwind: {} is the section of a relocatable object: where its functions start is \
             not resolved",
            escaped(&file.path)
        );
    }
    match faults {
        0 => Ok(()),
        count => Err(SframeError::Damaged { path: file.path, count }.into()),
    }
}

/// Writes the tables of all members of an archive, as text and as JSON. Returns how many bytes
/// that are; `None` if it is no archive with tables.
pub(crate) fn dumped_len(archive: &[u8]) -> Option<usize> {
    let mut out = Vec::new();
    members(archive, |image| {
        let file = SframeFile::open(image)?;
        let names = file.names();
        image
            .write_heading(&mut out)
            .and_then(|()| write(&mut out, &file, &names))
            .and_then(|_| json::write(&mut out, &file, &names))
            .map_err(Failure::output)?;
        Ok(())
    })?;
    Some(out.len())
}

/// Writes all tables. Returns how many functions and tables could not be
/// written whole.
fn write(out: &mut impl Write, file: &SframeFile<'_>, names: &Names<'_>) -> io::Result<u64> {
    let mut faults = 0_u64;
    for section in &file.sections {
        for (index, table) in section.tables().tables().enumerate() {
            writeln!(out, "Contents of the SFrame section {}{}:", section.name, nth(index))?;
            let more = match table {
                Ok(table) => write_table(out, file, section, &table, names)?,
                Err(error) => {
                    writeln!(out, "  error: {error}\n")?;
                    1
                }
            };
            faults = faults.saturating_add(more);
        }
    }
    Ok(faults)
}

/// Readers of merged sections expect no number.
fn nth(index: usize) -> String {
    match index {
        0 => String::new(),
        _ => format!(", table {}", index.saturating_add(1)),
    }
}

fn write_table(
    out: &mut impl Write,
    file: &SframeFile<'_>,
    section: &SframeSection,
    table: &Table<'_>,
    names: &Names<'_>,
) -> io::Result<u64> {
    let header = table.header();
    write_header(out, &header)?;
    writeln!(out, "  Function Index :\n")?;
    let mut faults = 0_u64;
    let mut rows_left = RowsLeft::printed(table);
    for (index, fde) in (0..header.num_fdes).zip(table.fdes()) {
        let Some(mut range) = table.range(index) else { continue };
        let unresolved = unresolved_start(section, table, index);
        let label = match unresolved {
            None => Label::of(file, names, range.start),
            Some(_) => Label { name: None, section: None },
        };
        range.start = file.shown_start(range.start);
        write!(
            out,
            "    func idx [{index}]: pc = {:#x}, size = {} bytes{label}",
            range.start, range.size
        )?;
        let error = match fde {
            Ok(fde) => write_function(out, table, &fde, range, &mut rows_left)?,
            Err(error) => {
                writeln!(out)?;
                Some(Violation::Malformed(error))
            }
        };
        if let Some(unresolved) = unresolved {
            writeln!(out, "    error: {unresolved}")?;
        }
        if let Some(error) = &error {
            writeln!(out, "    error: {error}")?;
        }
        if error.is_some() || unresolved.is_some() {
            faults = faults.saturating_add(1);
        }
        writeln!(out)?;
    }
    Ok(faults)
}

/// What a function is called, and in an object of several code sections in which of
/// them it is.
struct Label<'a> {
    name: Option<Name>,
    section: Option<&'a Untrusted>,
}

impl<'a> Label<'a> {
    fn of(file: &'a SframeFile<'_>, names: &Names<'_>, start: u64) -> Self {
        let section = file.code_section(start).filter(|_| file.code.part_count() > 1);
        Self { name: names.at(start), section: section.filter(|_| names.are_shown()) }
    }
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let section = self.section.map(|section| section.escaped().at_most(SHOWN_NAME));
        match (&self.name, section) {
            (Some(name), Some(section)) => write!(f, " <{name} in {section}>"),
            (Some(name), None) => write!(f, " <{name}>"),
            (None, Some(section)) => write!(f, " <in {section}>"),
            (None, None) => Ok(()),
        }
    }
}

fn write_header(out: &mut impl Write, header: &Header) -> io::Result<()> {
    writeln!(out, "  Header :\n")?;
    writeln!(out, "    Version: SFRAME_VERSION_{}", header.version.number())?;
    let names = flag_names(header);
    let flags = if names.is_empty() { "NONE".into() } else { names.join(",\n           ") };
    writeln!(out, "    Flags: {flags}")?;
    if header.version != Version::V1 {
        if let Some(offset) = header.fixed_fp_offset {
            writeln!(out, "    CFA fixed FP offset: {offset}")?;
        }
        if let Some(offset) = header.fixed_ra_offset {
            writeln!(out, "    CFA fixed RA offset: {offset}")?;
        }
    }
    writeln!(out, "    Num FDEs: {}", header.num_fdes)?;
    writeln!(out, "    Num FREs: {}\n", header.num_fres)
}

/// Ends the function's line and writes its rows. Returns what is wrong with
/// it.
fn write_function(
    out: &mut impl Write,
    table: &Table<'_>,
    fde: &Fde,
    range: FuncRange,
    rows_left: &mut RowsLeft,
) -> io::Result<Option<Violation>> {
    let mut attributes = String::new();
    if fde.is_signal() {
        attributes.push('S');
    }
    if fde.fde_type() == FdeType::Flexible {
        attributes.push('F');
    }
    if !attributes.is_empty() {
        write!(out, ", attr = \"{attributes}\"")?;
    }
    if fde.pauth_key() == Some(PauthKey::B) {
        write!(out, ", pauth = B key")?;
    }
    let (mark, base) = if fde.is_mask() { ("[m]", 0) } else { ("   ", range.start) };
    writeln!(out, "\n    STARTPC{mark}      CFA       FP        RA           ")?;
    if let FdeType::Unknown(_) = fde.fde_type() {
        let error = sframe::Error::UnknownFdeType { at: fde.at, info2: fde.info2 };
        return Ok(Some(Violation::Malformed(error)));
    }
    let rows = match rows_left.of(table, fde) {
        Ok(rows) => rows,
        Err(fault) => return Ok(Some(fault)),
    };
    for row in rows {
        let cells = row.and_then(|fre| {
            let cells = Cells::new(&table.header(), fde, &fre).map_err(Violation::Malformed)?;
            Ok((fre.start, cells))
        });
        let cells = match cells {
            Ok(cells) => cells,
            Err(fault) => return Ok(Some(fault)),
        };
        let start = base.wrapping_add(cells.0.into());
        match cells.1 {
            Some(Cells { cfa, fp, ra }) => {
                writeln!(out, "    {start:016x}  {cfa:<10}{fp:<10}{ra:<13}")?;
            }
            None => writeln!(out, "    {start:016x}  RA undefined")?,
        }
    }
    // Blocks of an unknown size are found by no lookup.
    Ok(fde.pc_type().err().map(Violation::Malformed))
}
