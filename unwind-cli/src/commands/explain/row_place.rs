//! Where in a file a row is, and what else the file says there.

use std::fmt;

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EndianSlice, Register, RegisterRule,
    RunTimeEndian, UnwindContext, UnwindSection,
};
use object::Endianness;
use serde::Serialize;
use sframe::Section;
use unwind_target::elf::ElfFile;
use unwind_target::elf::error::Part;
use unwind_target::loaded::loaded_file::LoadedImage;
use unwind_target::rows::call_frames::{FrameSection, FrameSections};

use crate::commands::explain::registers::register_name;

/// A row and where it is. Addresses are link-time ones, offsets are those in the section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RowPlace {
    /// `.sframe`, `.eh_frame` or `.debug_frame`.
    pub(super) section: &'static str,
    /// Where the section starts in the file, where it is there as it is read.
    pub(super) section_at: Option<u64>,
    /// Where the entry of the function is.
    pub(super) fde_at: u64,
    /// Where the entry is that it shares with others.
    pub(super) cie_at: Option<u64>,
    /// The code that the entry is about.
    pub(super) code: (u64, u64),
    /// The code that the row is about, as far as that is known.
    pub(super) row: Option<(u64, Option<u64>)>,
    /// Where the row is, if it has a place of its own.
    pub(super) row_at: Option<u64>,
    /// All rules, in the words of DWARF.
    pub(super) rules: Option<String>,
}

/// Where the row of an address of the target is in the file's `.sframe`.
pub(super) fn in_sframe(image: &LoadedImage, addr: u64) -> Option<RowPlace> {
    let section = image.sframe().ok()??;
    let loaded = section.addr.wrapping_add(image.bias);
    let found = Section::new(&section.bytes).at(loaded).find(addr).ok()??;
    let range = found.fde.range;
    let start = range.start.wrapping_sub(image.bias);
    let row = found.fre.as_ref().map(|fre| (start.wrapping_add(fre.start.into()), None));
    let sections = image.file.elf.sections().unwrap_or_default();
    Some(RowPlace {
        section: ".sframe",
        section_at: sections.iter().find(|at| at.name == b".sframe").map(|at| at.offset),
        fde_at: found.fde.at.0,
        cie_at: None,
        code: (start, start.wrapping_add(range.size.into())),
        row,
        row_at: found.fre.map(|fre| fre.at.0),
        rules: None,
    })
}

/// Where the row of an address of the target is in the file's call frame information, or what
/// is wrong with that.
pub(super) fn in_call_frames(image: &LoadedImage, addr: u64) -> Result<Option<RowPlace>, String> {
    let elf = &image.file.elf;
    let sections = FrameSections::read(elf).map_err(|error| error.to_string())?;
    let Some(sections) = sections else { return Ok(None) };
    let linked = addr.wrapping_sub(image.bias);
    for section in &sections.list {
        let endian = match elf.endian {
            Endianness::Little => RunTimeEndian::Little,
            Endianness::Big => RunTimeEndian::Big,
        };
        let word = if elf.is_64 { 8 } else { 4 };
        let bases = bases(&sections, section);
        let found = if section.part == Part::EhFrame {
            let mut entries = EhFrame::new(&section.bytes, endian);
            entries.set_address_size(word);
            find(&entries, &bases, linked, elf)
        } else {
            let mut entries = DebugFrame::new(&section.bytes, endian);
            entries.set_address_size(word);
            find(&entries, &bases, linked, elf)
        };
        let found = found.map_err(|error| format!("{}: {error}", section.part))?;
        if let Some(mut place) = found {
            let is_eh_frame = section.part == Part::EhFrame;
            place.section = if is_eh_frame { ".eh_frame" } else { ".debug_frame" };
            place.section_at = elf.place_of(section.addr).map(|(at, _)| at).filter(|_| is_eh_frame);
            return Ok(Some(place));
        }
    }
    Ok(None)
}

fn bases(sections: &FrameSections, section: &FrameSection) -> BaseAddresses {
    let bases = BaseAddresses::default().set_eh_frame(section.addr);
    let bases = match sections.text {
        Some(text) => bases.set_text(text),
        None => bases,
    };
    match sections.got {
        Some(got) => bases.set_got(got),
        None => bases,
    }
}

type Bytes<'a> = EndianSlice<'a, RunTimeEndian>;

/// Finds the entry and the row of a link-time address.
fn find<'a, S>(
    entries: &S,
    bases: &BaseAddresses,
    addr: u64,
    elf: &ElfFile,
) -> Result<Option<RowPlace>, gimli::Error>
where
    S: UnwindSection<Bytes<'a>>,
    S::Offset: gimli::UnwindOffset<usize>,
{
    let get_cie =
        |section: &S, bases: &BaseAddresses, offset| section.cie_from_offset(bases, offset);
    let fde = match entries.fde_for_address(bases, addr, get_cie) {
        Ok(fde) => fde,
        Err(gimli::Error::NoUnwindInfoForAddress) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(entries, bases, &mut context, addr);
    let (row, rules) = match row {
        Ok(row) => {
            let range = (row.start_address(), Some(row.end_address()));
            (Some(range), Some(rules(row, fde.cie().return_address_register(), elf)))
        }
        Err(error) => (None, Some(format!("cannot be read: {error}"))),
    };
    Ok(Some(RowPlace {
        section: "",
        section_at: None,
        fde_at: u64::try_from(fde.offset()).unwrap_or(u64::MAX),
        cie_at: u64::try_from(fde.cie().offset()).ok(),
        code: (fde.initial_address(), fde.end_address()),
        row,
        row_at: None,
        rules,
    }))
}

/// The rules of a row, as `readelf --debug-dump=frames-interp` has them, more or less.
fn rules(row: &gimli::UnwindTableRow<usize>, ra: Register, elf: &ElfFile) -> String {
    let name = |register: Register| {
        if register == ra { "RA".to_owned() } else { register_name(register.0, elf.is_64) }
    };
    let mut text = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            format!("CFA = {}{}", name(*register), Signed(*offset))
        }
        CfaRule::Expression(_) => "CFA = a DWARF expression".to_owned(),
    };
    for (register, rule) in row.registers() {
        let rule = match rule {
            RegisterRule::Undefined => "undefined".to_owned(),
            RegisterRule::SameValue => "same value".to_owned(),
            RegisterRule::Offset(offset) => format!("[CFA{}]", Signed(*offset)),
            RegisterRule::ValOffset(offset) => format!("CFA{}", Signed(*offset)),
            RegisterRule::Register(other) => name(*other),
            RegisterRule::Expression(_) => "[a DWARF expression]".to_owned(),
            RegisterRule::ValExpression(_) => "a DWARF expression".to_owned(),
            _ => "another rule".to_owned(),
        };
        text.push_str(&format!(", {} = {rule}", name(*register)));
    }
    text
}

/// An offset with its sign; nothing for zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed(pub(super) i64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            offset if offset < 0 => write!(f, "-{}", offset.unsigned_abs()),
            offset => write!(f, "+{offset}"),
        }
    }
}
