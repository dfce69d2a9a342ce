//! `unwind sframe build`: a table made of a file's call frame information.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use object::elf;
use sframe::Format;
use unwind_profile::output_file::{write_file, write_file_as};
use unwind_target::InputError;
use unwind_target::counted::{bytes_in_ranges, counted};
use unwind_target::elf::ElfFile;
use unwind_target::files::same_file::{is_same_file, is_standard_output};
use unwind_target::rows::call_frames::{BuiltTable, CallFrames};
use unwind_target::untrusted::escaped;

use crate::commands::sframe::embed::Embedder;
use crate::commands::sframe::error::SframeError;
use crate::commands::sframe::format::FormatArg;
use crate::commands::sframe::input::parse_addr;
use crate::failure::Failure;
use crate::progress::Progress;

/// Make an SFrame table of a file's call frame information.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// An ELF file: a program or a library
    file: PathBuf,

    /// Where to write the result
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The form of the table
    #[arg(long, value_name = "FORMAT", default_value_t = FormatArg::V3)]
    format: FormatArg,

    /// Write a copy of the file with the table in it, in a section .sframe that
    /// is loaded and a program header that leads to it
    #[arg(long)]
    embed: bool,

    /// Where the bytes of the section will be loaded
    #[arg(
        long,
        value_name = "ADDR",
        default_value = "0",
        value_parser = parse_addr,
        conflicts_with = "embed"
    )]
    vaddr: u64,
}

const LONG_HELP: &str = "\
Without --embed the output is the section alone: `unwind sframe dump --raw` shows
it. The starts of functions count from where the section is, so give --vaddr, if
it is to be loaded somewhere.

With --embed the output is a program or library that runs as before. Nothing in
it moves: the table and the program headers come after its end. Where no segment
can be added safely, the section alone is written, and the exit code is 5.

Code whose rules the table cannot say is left out and counted; `unwind sframe
check --built` names each range.";

/// Runs `unwind sframe build`.
///
/// # Errors
///
/// [`Failure`] if the file cannot be read, or the result not be written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = &args.file;
    if is_same_file(path, &args.output) {
        return Err(SframeError::SameFile { path: path.clone() }.into());
    }
    let file = File::open(path).map_err(|error| InputError::Read { path: path.clone(), error })?;
    let elf_error = |error| InputError::Elf { path: path.clone(), error };
    let elf = ElfFile::from_file(file).map_err(elf_error)?;
    if elf.kind == elf::ET_REL {
        return Err(SframeError::Relocatable { path: path.clone() }.into());
    }
    let frames = CallFrames::read(&elf).map_err(elf_error)?;
    let frames = frames.ok_or_else(|| SframeError::NoFrames { path: path.clone() })?;
    let embedder = args.embed.then(|| Embedder::new(&elf));
    let addr = match &embedder {
        Some(Ok(embedder)) => embedder.section_addr(),
        _ => args.vaddr,
    };
    let progress = Progress::new(path, elf.byte_len());
    let built = frames
        .build(args.format.format(), addr, |done| progress.set(done, frames.byte_len()))
        .map_err(|error| SframeError::Write { path: path.clone(), error })?;
    progress.finish();
    let written = match &embedder {
        Some(Ok(embedder)) => write_copy(args, embedder, &built),
        _ => write_file(&args.output, |mut file| file.write_all(&built.bytes)),
    };
    written.map_err(|error| SframeError::Output { path: args.output.clone(), error })?;
    if is_standard_output(&args.output) {
        // With standard error gone there is no other place to tell it.
        let _ = print(&mut io::stderr().lock(), args, &built);
    } else {
        print(&mut io::stdout().lock(), args, &built).map_err(Failure::output)?;
    }
    match embedder {
        Some(Err(error)) => {
            Err(SframeError::NotEmbedded { path: path.clone(), error, output: args.output.clone() }
                .into())
        }
        _ => Ok(()),
    }
}

/// Says what was made.
fn print(out: &mut impl Write, args: &Args, built: &BuiltTable) -> io::Result<()> {
    let report = built.report;
    let lost = report.lost_bytes.saturating_add(built.overlaps.iter().map(|lost| lost.size).sum());
    writeln!(
        out,
        "{}: {} for {} of {} of code, at {:#x}",
        escaped(&args.output),
        counted(built.bytes.len(), "byte", "bytes"),
        report.code_bytes.saturating_sub(lost),
        counted(report.code_bytes, "byte", "bytes"),
        built.addr
    )?;
    for (name, (ranges, bytes)) in built.lost_by_reason() {
        writeln!(out, "  left out: {}: {name}", bytes_in_ranges(bytes, ranges))?;
    }
    out.flush()
}

/// Writes a copy of the file with the table in it.
fn write_copy(args: &Args, embedder: &Embedder, built: &BuiltTable) -> io::Result<()> {
    // GNU tools before 2.45 do not know the type of their own.
    let kind = match args.format.format() {
        Format::V2 => elf::SHT_PROGBITS,
        _ => elf::SHT_GNU_SFRAME,
    };
    let original = File::open(&args.file)?;
    // It is executed as the original is.
    let mode = original.metadata()?.mode();
    write_file_as(&args.output, mode, |mut copy| {
        io::copy(&mut &original, &mut copy)?;
        embedder.write(copy, &built.bytes, kind)
    })
}
