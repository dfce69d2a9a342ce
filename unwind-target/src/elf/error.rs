//! What can be wrong with an ELF file, and in which part of it.

use std::fmt;

use crate::system_error::SystemError;

/// What is wrong with an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// No ELF magic at its start.
    #[error("not an ELF file")]
    NotElf,
    /// A class, byte order or version that does not exist.
    #[error("unknown ELF class, byte order or version")]
    UnknownForm,
    /// A part reaches past the end of the file.
    #[error("{part} at {at:#x} is {len:#x} bytes long, but the file ends at {end:#x}")]
    Truncated {
        /// What was read.
        part: Part,
        /// Where in the file it starts.
        at: u64,
        /// How many bytes it has.
        len: u64,
        /// The length of the file in bytes.
        end: u64,
    },
    /// A table's entries are of another size than the format's.
    #[error("{part} has entries of {size} bytes")]
    EntrySize {
        /// Which table.
        part: Part,
        /// What the file says, in bytes.
        size: u64,
    },
    /// More than is copied of a file at once, 256 MiB.
    #[error("{part} of {len:#x} bytes is larger than any known")]
    TooLarge {
        /// What was to be read.
        part: Part,
        /// How many bytes it claims.
        len: u64,
    },
    /// A reference to a section that the file does not have.
    #[error("{part} is said to be section {index}, which does not exist")]
    NoSuchSection {
        /// What was looked for.
        part: Part,
        /// The index that the file gives.
        index: u32,
    },
    /// Sections of relocations or symbols that share bytes with others.
    #[error("{0} shares bytes with other parts of the file")]
    Shared(Part),
    /// Two parts that a file has beside each other have the same bytes.
    #[error("{part} at {at:#x} has bytes that another one has before it")]
    SameBytes {
        /// What was to be read.
        part: Part,
        /// Where in the file it starts.
        at: u64,
    },
    /// Tables of objects that a linker has joined without knowing what they are: the functions
    /// start elsewhere than they say.
    #[error(".sframe was joined by a linker that does not know it, its functions start elsewhere")]
    UnmergedSframe,
    /// The bytes are compressed in a way that is not known.
    #[error("{part} is compressed in an unknown way ({kind})")]
    UnknownCompression {
        /// What was to be read.
        part: Part,
        /// `ch_type`, as the file has it.
        kind: u32,
    },
    /// The bytes are said to be compressed, and are not those of what they claim.
    #[error("{part} is compressed, and damaged")]
    Compression {
        /// What was to be read.
        part: Part,
    },
    /// Decompressed it would be larger than any of its compressed size.
    #[error("{part} is said to have {len:#x} bytes, compressed to {compressed:#x}")]
    Expansion {
        /// What was to be read.
        part: Part,
        /// How many bytes it claims to have.
        len: u64,
        /// How many bytes the file has of it.
        compressed: u64,
    },
    /// The operating system could not read it.
    #[error("cannot read {part}: {error}")]
    Read {
        /// What was to be read.
        part: Part,
        /// Why not.
        error: SystemError,
    },
}

/// A part of an ELF file, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Header,
    ProgramHeaders,
    SectionHeaders,
    SectionNames,
    Notes,
    Sframe,
    Orc,
    EhFrame,
    DebugFrame,
    Relocations,
    LinkageTable,
    Symbols,
    SymbolNames,
    DebugLink,
    Dwarf,
    Memory,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "the ELF header",
            Self::ProgramHeaders => "the program header table",
            Self::SectionHeaders => "the section header table",
            Self::SectionNames => "the section name table",
            Self::Notes => "a note segment",
            Self::Orc => "ORC tables",
            Self::Sframe => ".sframe",
            Self::EhFrame => ".eh_frame",
            Self::DebugFrame => ".debug_frame",
            Self::Relocations => "a relocation section",
            Self::LinkageTable => "a linkage table",
            Self::Symbols => "the symbol table",
            Self::SymbolNames => "the symbol name table",
            Self::DebugLink => ".gnu_debuglink",
            Self::Dwarf => "a section of DWARF",
            Self::Memory => "a memory segment",
        })
    }
}
