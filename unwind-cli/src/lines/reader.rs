//! The process that reads DWARF: hidden from users, and given so much time and memory.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use addr2line::Context;
use gimli::{Dwarf, EndianSlice, SectionId};
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
    let all = file.sections().map_err(failure)?;
    let dwarf = Dwarf::load(|id| {
        let name = Some(id).filter(|&id| is_read(id)).map(|id| id.name());
        Ok(EndianSlice::new(&*bytes_of(&file, all, name)?.leak(), endian(&file)))
    });
    let mut dwarf = dwarf.map_err(failure)?;
    let path = std::fs::read_link("/proc/self/fd/0").ok();
    let link = bytes_of(&file, all, Some(".gnu_debugaltlink")).map_err(failure)?;
    if let Some(common) = common_part::find(&link, path.as_deref()) {
        dwarf.set_sup(common);
    }
    let context = Context::from_dwarf(dwarf);
    let split = SplitDwarf::of(path);
    let mut out = io::stdout().lock();
    args.addrs.iter().try_for_each(|&addr| {
        let places = match &context {
            Ok(context) => places(context, &split, addr).map_err(|_| DwarfError::Contents),
            Err(_) => Err(DwarfError::Contents),
        };
        serde_json::to_writer(&mut out, &places).map_err(|error| Failure::output(error.into()))?;
        out.write_all(b"\n").map_err(Failure::output)
    })
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
