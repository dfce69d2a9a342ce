//! The process that reads DWARF: hidden from users, and given so much time and memory.

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use addr2line::Context;
use gimli::{DebugAranges, Dwarf, EndianSlice, SectionId};
use nix::sys::resource::{Resource, setrlimit};

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::failure::Failure;
use crate::input_error::InputError;
use crate::lines::common_part;
use crate::lines::dwarf_error::DwarfError;
use crate::lines::place::{Place, Places};
use crate::lines::sections::{Bytes, bytes_of, endian};
use crate::lines::split::SplitDwarf;
use crate::lines::unit_selection::UnitSelection;

/// The name of the hidden subcommand.
pub(crate) const NAME: &str = "read-lines";

/// How many seconds of CPU time it has.
pub(crate) const MOST_SECONDS: u64 = 10;

/// How much memory it has, in bytes.
pub(crate) const MOST_MEMORY: u64 = 2 << 30;

/// The longest name of a function or a file that is told, in bytes.
const NAME_LIMIT: usize = 16 << 10;

/// How many functions inlined in each other are told.
const DEPTH_LIMIT: usize = 64;

/// Tell the places of addresses, by the DWARF of the file that is standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Link-time addresses, hexadecimal
    #[arg(value_parser = |text: &str| u64::from_str_radix(text, 16))]
    addrs: Vec<u64>,
}

/// Writes a line of JSON for each address.
///
/// # Errors
///
/// [`Failure`] if standard input is no ELF file with sections of DWARF, or the output cannot
/// be written.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    limit();
    let failure = |error: ElfError| Failure::from(InputError::Elf { path: "-".into(), error });
    let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let file = ElfFile::from_file(file.map_err(Failure::output)?).map_err(failure)?;
    let units = UnitSelection::new(&aranges(&file).map_err(failure)?, &args.addrs);
    let path = std::fs::read_link("/proc/self/fd/0").ok();
    let split = SplitDwarf::of(path.clone());
    let whole = OnceCell::new();
    let find_in_whole = |addr| -> Result<Result<Places, DwarfError>, ElfError> {
        let context = whole.get_or_init(|| context(&file, path.as_deref(), None));
        Ok(match context.as_ref().map_err(|error| *error)? {
            Ok(context) => places(context, &split, addr).map_err(|_| DwarfError::Contents),
            Err(error) => Err(*error),
        })
    };
    // All errors of this one are of units that it passes over, or of the whole too.
    let part = if units.is_empty() {
        None
    } else {
        context(&file, path.as_deref(), Some(&units)).ok().and_then(Result::ok)
    };
    let mut out = io::stdout().lock();
    args.addrs.iter().try_for_each(|&addr| {
        let part = part.as_ref().filter(|_| units.has(addr));
        let found = part.and_then(|part| places(part, &split, addr).ok());
        let places = match found.filter(|places| !places.is_empty()) {
            Some(places) => Ok(places),
            None => find_in_whole(addr).map_err(failure)?,
        };
        serde_json::to_writer(&mut out, &places).map_err(|error| Failure::output(error.into()))?;
        out.write_all(b"\n").map_err(Failure::output)
    })
}

/// Which addresses each unit has, as far as the file says.
fn aranges(file: &ElfFile) -> Result<DebugAranges<Bytes>, ElfError> {
    let bytes = bytes_of(file, file.sections()?, Some(SectionId::DebugAranges.name()))?;
    Ok(DebugAranges::from(EndianSlice::new(&*bytes.leak(), endian(file))))
}

/// The DWARF of a file for lookups: of the selected units, or of all.
fn context(
    file: &ElfFile,
    path: Option<&Path>,
    units: Option<&UnitSelection>,
) -> Result<Result<Context<Bytes>, DwarfError>, ElfError> {
    let (all, endian) = (file.sections()?, endian(file));
    let mut is_selected = true;
    let mut dwarf = Dwarf::load(|id| {
        let name = Some(id).filter(|&id| is_read(id)).map(|id| id.name());
        let mut bytes = bytes_of(file, all, name)?;
        if let (Some(units), SectionId::DebugInfo) = (units, id) {
            is_selected = units.pass_over_others(&mut bytes, endian).is_some();
        }
        Ok::<_, ElfError>(EndianSlice::new(&*bytes.leak(), endian))
    })?;
    if !is_selected {
        return Ok(Err(DwarfError::Contents));
    }
    let link = bytes_of(file, all, Some(".gnu_debugaltlink"))?;
    if let Some(common) = common_part::find(&link, path) {
        dwarf.set_sup(common);
    }
    Ok(Context::from_dwarf(dwarf).map_err(|_| DwarfError::Contents))
}

/// Lets this process use no more than it has and so much.
fn limit() {
    let pages = std::fs::read("/proc/self/statm").ok();
    let pages = pages.and_then(|text| {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
        digits
            .map(|digit| u64::from(digit & 15))
            .reduce(|sum, digit| sum.saturating_mul(10).saturating_add(digit))
    });
    let used = pages.unwrap_or(0).saturating_mul(4096);
    let memory = used.saturating_add(MOST_MEMORY);
    // A kernel that refuses has stricter limits.
    let _ = setrlimit(Resource::RLIMIT_AS, memory, memory);
    let _ = setrlimit(Resource::RLIMIT_CPU, MOST_SECONDS, MOST_SECONDS.saturating_add(1));
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
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
fn places(context: &Context<Bytes>, split: &SplitDwarf, addr: u64) -> Result<Places, gimli::Error> {
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
