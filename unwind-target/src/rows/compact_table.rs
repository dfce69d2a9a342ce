//! The rows of a whole file as a compact image, for a walk in the kernel.

use object::Endianness;
use object::elf;
use sframe::{CfiAbi, CompactBuilder, WriteError};
use unwind_core::{CfaRule, RegRule, Row, WordSize};
use unwind_x86::{LinkageRows, StackCheck};

use crate::elf::ElfFile;
use crate::elf::error::{ElfError, Part};
use crate::rows::call_frame_rows::CallFrameRows;
use crate::rows::call_frames::FrameSections;
use crate::rows::stack_switches::{FileSwitches, SwitchNames, end_of_goroutines};
use crate::symbols::data::functions_named;

/// Why a file has no compact table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompactTableError {
    /// Its call frame information cannot be read.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The table cannot be made.
    #[error("no compact table: {0}")]
    Write(WriteError),
}

/// Bytes of call frame information at most, of which a table is made: the largest programs have some 40 MiB.
const MOST: usize = 64 << 20;

/// Makes the image of a file of x86, as [`CompactTable`](sframe::CompactTable) reads it: of its call frame
/// information, then of its SFrame tables, and of the instructions of linkage entries that neither covers. `None` if it has neither, or more than 64 MiB of
/// the former, or is of another CPU.
///
/// # Errors
///
/// [`CompactTableError`] if the call frame information is not inside the file, or there is too much
/// of it.
pub fn compact_table(file: &ElfFile) -> Result<Option<Vec<u8>>, CompactTableError> {
    let abi = match (file.machine, file.is_64, file.endian) {
        (elf::EM_X86_64, true, Endianness::Little) => CfiAbi::X86_64,
        (elf::EM_386, false, Endianness::Little) => CfiAbi::Ia32,
        _ => return Ok(None),
    };
    let mut builder = CompactBuilder::new();
    add_goroutines(&mut builder, file).map_err(CompactTableError::Write)?;
    if abi == CfiAbi::X86_64 {
        add_stack_checks(&mut builder, file).map_err(CompactTableError::Write)?;
    }
    let frames = FrameSections::read(file)?;
    if let Some(frames) = &frames {
        let len = frames.list.iter().fold(0, |sum: usize, it| sum.saturating_add(it.bytes.len()));
        if len > MOST {
            return Ok(None);
        }
        for section in &frames.list {
            let cfi = frames.cfi(section, &frames.code);
            builder.add_cfi(cfi, abi).map_err(CompactTableError::Write)?;
        }
    }
    // What the other sections tell is as good without a damaged table.
    let sframe = file.sframe().ok().flatten().filter(|_| abi == CfiAbi::X86_64);
    if let Some(section) = &sframe {
        builder.add_section(&section.tables()).map_err(CompactTableError::Write)?;
    }
    if frames.is_none() && sframe.is_none() {
        return Ok(None);
    }
    // Some linkers write no call frame information for what they make themselves.
    let word = if file.is_64 { WordSize::Eight } else { WordSize::Four };
    for section in file.sections().unwrap_or_default() {
        if !section.executable || !section.name.starts_with(b".plt") {
            continue;
        }
        // One that cannot be read has no rows.
        let code = file.section_bytes(Part::LinkageTable, section).unwrap_or_default();
        for (range, row) in LinkageRows::new(word, section.addr, &code) {
            builder.add(range, &row).map_err(CompactTableError::Write)?;
        }
    }
    let (image, _) = builder.finish().map_err(CompactTableError::Write)?;
    Ok(Some(image))
}

/// What OCaml's call frame information says otherwise: where functions ask for a larger stack.
fn add_stack_checks(builder: &mut CompactBuilder, file: &ElfFile) -> Result<(), WriteError> {
    const ASKS: [&[u8]; 1] = [b"caml_call_realloc_stack"];
    if !matches!(functions_named(file, &ASKS), Ok([Some(_)])) {
        return Ok(());
    }
    let rows = CallFrameRows::new(file);
    for section in file.sections().unwrap_or_default() {
        if !section.executable {
            continue;
        }
        let code = file.section_bytes(Part::Memory, section).unwrap_or_default();
        for check in StackCheck::all(section.addr, &code) {
            let at_start = rows.row(file, check.start).ok().flatten();
            let real = at_start.and_then(|row| check.rows(&row)).into_iter().flatten();
            real.into_iter().try_for_each(|(code, row)| builder.add(code, &row))?;
        }
    }
    Ok(())
}

/// What Go's tables do not tell: where the stack of a goroutine ends, and which functions call on another one. The
/// caller of those is not above their frame, so that row is a guess.
fn add_goroutines(builder: &mut CompactBuilder, file: &ElfFile) -> Result<(), WriteError> {
    if let Some(code) = end_of_goroutines(file) {
        builder.add(code, &Row::outermost())?;
    }
    let above = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue).with_guess();
    let switches = FileSwitches::read(file, SwitchNames::NONE);
    switches.code().try_for_each(|code| builder.add(code, &above))
}
