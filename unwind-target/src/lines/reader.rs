//! What reads DWARF.

use std::cell::OnceCell;
use std::io;
use std::path::{Path, PathBuf};

use addr2line::Context;
use gimli::{DebugAranges, Dwarf, EndianSlice, SectionId};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::lines::common_part;
use crate::lines::dwarf_error::DwarfError;
use crate::lines::place::{Place, Places};
use crate::lines::sections::{Bytes, Kept, bytes_of, endian};
use crate::lines::split::SplitDwarf;
use crate::lines::unit_selection::UnitSelection;

/// The longest name of a function or a file that is told, in bytes.
const NAME_LIMIT: usize = 16 << 10;

/// How many functions inlined in each other are told.
const DEPTH_LIMIT: usize = 64;

/// Hands out what there is at each link-time address of a file, until `take` fails. `path` is
/// where the file is, if that is known: what belongs to its DWARF may be beside it.
///
/// # Errors
///
/// [`ElfError`] if it has no sections of DWARF that can be read.
pub(super) fn read(
    file: &ElfFile,
    path: Option<PathBuf>,
    addrs: &[u64],
    mut take: impl FnMut(Result<Places, DwarfError>) -> io::Result<()>,
) -> Result<io::Result<()>, ElfError> {
    let kept = Kept::new();
    let units = UnitSelection::new(&aranges(file, &kept)?, addrs);
    let split = SplitDwarf::of(path.clone(), &kept);
    let whole = OnceCell::new();
    let find_in_whole = |addr| -> Result<Result<Places, DwarfError>, ElfError> {
        let context = whole.get_or_init(|| context(file, path.as_deref(), None, &kept));
        Ok(match context.as_ref().map_err(|error| *error)? {
            Ok(context) => places(context, &split, addr).map_err(|_| DwarfError::Contents),
            Err(error) => Err(*error),
        })
    };
    // All errors of this one are of units that it passes over, or of the whole too.
    let part = if units.is_empty() {
        None
    } else {
        context(file, path.as_deref(), Some(&units), &kept).ok().and_then(Result::ok)
    };
    for &addr in addrs {
        let part = part.as_ref().filter(|_| units.has(addr));
        let found = part.and_then(|part| places(part, &split, addr).ok());
        let places = match found.filter(|places| !places.is_empty()) {
            Some(places) => Ok(places),
            None => find_in_whole(addr)?,
        };
        if let Err(error) = take(places) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// Which addresses each unit has, as far as the file says.
fn aranges<'k>(file: &ElfFile, kept: &'k Kept) -> Result<DebugAranges<Bytes<'k>>, ElfError> {
    let bytes = bytes_of(file, file.sections()?, Some(SectionId::DebugAranges.name()))?;
    Ok(DebugAranges::from(EndianSlice::new(kept.keep(bytes), endian(file))))
}

/// The DWARF of a file for lookups: of the selected units, or of all.
fn context<'k>(
    file: &ElfFile,
    path: Option<&Path>,
    units: Option<&UnitSelection>,
    kept: &'k Kept,
) -> Result<Result<Context<Bytes<'k>>, DwarfError>, ElfError> {
    let (all, endian) = (file.sections()?, endian(file));
    let mut is_selected = true;
    let mut dwarf = Dwarf::load(|id| {
        let name = Some(id).filter(|&id| is_read(id)).map(|id| id.name());
        let mut bytes = bytes_of(file, all, name)?;
        if let (Some(units), SectionId::DebugInfo) = (units, id) {
            is_selected = units.pass_over_others(&mut bytes, endian).is_some();
        }
        Ok::<_, ElfError>(EndianSlice::new(kept.keep(bytes), endian))
    })?;
    if !is_selected {
        return Ok(Err(DwarfError::Contents));
    }
    let link = bytes_of(file, all, Some(".gnu_debugaltlink"))?;
    if let Some(common) = common_part::find(&link, path, kept) {
        dwarf.set_sup(common);
    }
    Ok(Context::from_dwarf(dwarf).map_err(|_| DwarfError::Contents))
}

/// Whether places need a section.
const fn is_read(id: SectionId) -> bool {
    matches!(
        id,
        SectionId::DebugAbbrev
            | SectionId::DebugAddr
            | SectionId::DebugAranges
            | SectionId::DebugInfo
            | SectionId::DebugLine
            | SectionId::DebugLineStr
            | SectionId::DebugRanges
            | SectionId::DebugRngLists
            | SectionId::DebugStr
            | SectionId::DebugStrOffsets
    )
}

/// The places of an address.
fn places<'k>(
    context: &Context<Bytes<'k>>,
    split: &SplitDwarf<'k>,
    addr: u64,
) -> Result<Places, gimli::Error> {
    let mut frames = split.complete(context.find_frames(addr))?;
    let mut places = Places::new();
    while let Some(frame) = frames.next()? {
        let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
        let location = frame.location.as_ref();
        let place = Place {
            function: name.filter(|name| name.len() <= NAME_LIMIT).map(Into::into),
            file: location
                .and_then(|location| location.file)
                .filter(|file| file.len() <= NAME_LIMIT)
                .map(Into::into),
            line: location.and_then(|location| location.line),
            column: location.and_then(|location| location.column).filter(|&column| column != 0),
        };
        if places.len() < DEPTH_LIMIT {
            places.push(place);
        } else if let Some(last) = places.last_mut() {
            // The last one is that which has the code.
            *last = place;
        }
    }
    Ok(places)
}
