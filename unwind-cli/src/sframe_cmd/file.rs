//! Where the tables are in a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use object::elf;
use sframe::Sections;

use crate::elf::{ElfFile, Part};
use crate::error::Error;
use crate::sframe_cmd::SframeError;

/// The most bytes that a raw section may have. No table of 32-bit offsets is
/// larger.
const RAW_LIMIT: u64 = 1 << 33;

/// The file to read.
#[derive(Debug, clap::Args)]
pub(crate) struct Input {
    /// An ELF file: a program, a library or an object
    file: PathBuf,

    /// The file is not ELF, but the bytes of the section alone
    #[arg(long)]
    raw: bool,

    /// Where the raw section is loaded
    #[arg(long, value_name = "ADDR", requires = "raw", value_parser = parse_addr)]
    vaddr: Option<u64>,
}

/// The sections of a file that hold tables, none of them empty.
#[derive(Debug)]
pub(crate) struct SframeFile {
    pub(crate) path: PathBuf,
    pub(crate) sections: Vec<SectionBytes>,
    /// The file is a relocatable object, or looks like the section of one: the
    /// starts of functions are not resolved.
    pub(crate) relocatable: bool,
}

/// A section of tables.
#[derive(Debug)]
pub(crate) struct SectionBytes {
    pub(crate) name: String,
    pub(crate) addr: u64,
    pub(crate) bytes: Vec<u8>,
}

impl SectionBytes {
    pub(crate) fn tables(&self) -> Sections<'_> {
        Sections::new(&self.bytes).at(self.addr)
    }

    /// Whether all functions start inside the section itself, as they do where
    /// nobody applied the relocations of their starts.
    fn is_unlinked(&self) -> bool {
        let len = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        let mut starts = self.tables().tables().flatten().flat_map(|table| {
            (0..table.header().num_fdes).filter_map(move |index| table.range(index))
        });
        let mut some = false;
        starts.all(|range| {
            some = true;
            range.start.wrapping_sub(self.addr) < len
        }) && some
    }
}

impl Input {
    /// Reads the sections of the file.
    ///
    /// # Errors
    ///
    /// [`Error`] if it cannot be read, is not ELF, or has no tables.
    pub(crate) fn open(&self) -> Result<SframeFile, Error> {
        let path = &self.file;
        let file = File::open(path).map_err(|error| read_error(path, error))?;
        let (sections, relocatable) = if self.raw {
            let addr = self.vaddr.unwrap_or(0);
            (
                vec![SectionBytes { name: ".sframe".into(), addr, bytes: read_raw(path, file)? }],
                false,
            )
        } else {
            from_elf(file).map_err(|error| Error::Elf { path: path.clone(), error })?
        };
        if sections.is_empty() {
            return Err(SframeError::NoSection { path: path.clone() }.into());
        }
        let sections: Vec<_> =
            sections.into_iter().filter(|section| !section.bytes.is_empty()).collect();
        if sections.is_empty() {
            return Err(SframeError::Empty { path: path.clone() }.into());
        }
        if let [only] = sections.as_slice()
            && let Some(Err(error)) = only.tables().tables().next()
        {
            return Err(SframeError::Table { path: path.clone(), error }.into());
        }
        let relocatable = relocatable || sections.iter().all(SectionBytes::is_unlinked);
        Ok(SframeFile { path: path.clone(), sections, relocatable })
    }
}

fn read_raw(path: &Path, file: File) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = file.take(RAW_LIMIT).read_to_end(&mut bytes);
    match read.map(u64::try_from) {
        Ok(Ok(len)) if len < RAW_LIMIT => Ok(bytes),
        Ok(_) => Err(SframeError::TooLarge { path: path.to_path_buf() }.into()),
        Err(error) => Err(read_error(path, error)),
    }
}

/// The sections by name or type, else the segment, of a file; and whether it is
/// a relocatable object.
fn from_elf(file: File) -> Result<(Vec<SectionBytes>, bool), crate::elf::ElfError> {
    let elf = ElfFile::from_file(file)?;
    let relocatable = elf.kind == elf::ET_REL;
    let headers = elf.sections();
    let mut sections = Vec::new();
    for header in headers.as_deref().unwrap_or_default() {
        if header.name == b".sframe" || header.kind == elf::SHT_GNU_SFRAME {
            let name = String::from_utf8_lossy(&header.name).into_owned();
            let bytes = elf.section_bytes(Part::Sframe, header)?;
            sections.push(SectionBytes { name, addr: header.addr, bytes });
        }
    }
    if sections.is_empty() {
        for segment in elf.segments.iter().filter(|segment| segment.kind == elf::PT_GNU_SFRAME) {
            let bytes = elf.bytes(Part::Sframe, segment.offset, segment.file_size)?;
            sections.push(SectionBytes { name: ".sframe".into(), addr: segment.addr, bytes });
        }
    }
    // Bad section headers matter only if nothing else leads to the tables.
    if sections.is_empty() {
        headers?;
    }
    Ok((sections, relocatable))
}

fn read_error(path: &Path, error: io::Error) -> Error {
    Error::Read { path: path.to_path_buf(), error }
}

/// An address: hexadecimal behind `0x`, else decimal.
pub(crate) fn parse_addr(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match digits {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "an address is 0x and hexadecimal digits, or a decimal number".into())
}
