//! Where the tables are in a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use object::elf;

use crate::elf::{ElfFile, SframeSection};
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
    pub(crate) sections: Vec<SframeSection>,
    /// The file is a relocatable object, or looks like the section of one: the
    /// starts of functions are not resolved.
    pub(crate) relocatable: bool,
}

impl Input {
    /// Which file.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// Whether the file is the section alone.
    pub(crate) fn is_raw(&self) -> bool {
        self.raw
    }

    /// Opens the file as ELF.
    ///
    /// # Errors
    ///
    /// [`Error`] if it cannot be read or is not ELF.
    pub(crate) fn elf(&self) -> Result<ElfFile, Error> {
        let path = &self.file;
        let file = File::open(path).map_err(|error| read_error(path, error))?;
        ElfFile::from_file(file).map_err(|error| Error::Elf { path: path.clone(), error })
    }

    /// Reads the sections of the file.
    ///
    /// # Errors
    ///
    /// [`Error`] if it cannot be read, is not ELF, or has no tables.
    pub(crate) fn open(&self) -> Result<SframeFile, Error> {
        let path = &self.file;
        let (mut sections, relocatable) = if self.raw {
            let file = File::open(path).map_err(|error| read_error(path, error))?;
            let section = SframeSection::new(self.vaddr.unwrap_or(0), read_raw(path, file)?);
            (vec![section], false)
        } else {
            let elf = self.elf()?;
            let sections =
                elf.sframe_sections().map_err(|error| Error::Elf { path: path.clone(), error })?;
            (sections, elf.kind == elf::ET_REL)
        };
        if sections.is_empty() {
            return Err(SframeError::NoSection { path: path.clone() }.into());
        }
        sections.retain(|section| !section.bytes.is_empty());
        if sections.is_empty() {
            return Err(SframeError::Empty { path: path.clone() }.into());
        }
        if let [only] = sections.as_slice()
            && let Some(Err(error)) = only.tables().tables().next()
        {
            return Err(SframeError::Table { path: path.clone(), error }.into());
        }
        let relocatable = relocatable || sections.iter().all(is_unlinked);
        Ok(SframeFile { path: path.clone(), sections, relocatable })
    }
}

/// Whether all functions start inside the section itself, as they do where
/// nobody applied the relocations of their starts.
fn is_unlinked(section: &SframeSection) -> bool {
    let len = u64::try_from(section.bytes.len()).unwrap_or(u64::MAX);
    let mut starts =
        section.tables().tables().flatten().flat_map(|table| {
            (0..table.header().num_fdes).filter_map(move |index| table.range(index))
        });
    let mut some = false;
    starts.all(|range| {
        some = true;
        range.start.wrapping_sub(section.addr) < len
    }) && some
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
