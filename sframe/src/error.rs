//! What can be wrong with a section, and where.

use core::{convert::Infallible, fmt};

use unwind_core::TableError;

/// A byte offset from the start of a table's header, also where a
/// [`Section`](crate::Section) has several tables.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableOffset(pub u64);

impl TableOffset {
    /// The offset `bytes` further on.
    #[inline]
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for TableOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TableOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".sframe+{:#x}", self.0)
    }
}

/// A section, a function or a row could not be read.
///
/// Each variant carries what is needed to find the fault with a hex dump;
/// [`at`](Self::at) says where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end inside the item that starts here.
    Truncated(TableOffset),
    /// The first two bytes are not the magic number in either byte order.
    BadMagic([u8; 2]),
    /// A version that this crate does not read.
    UnsupportedVersion(u8),
    /// Flag bits that the version does not define.
    UnknownFlags(u8),
    /// The section is in the other byte order than its ABI.
    WrongByteOrder {
        /// The ABI identifier.
        abi: u8,
    },
    /// The function table ends after the bytes that there are.
    FdesOutside {
        /// Where the table ends by the header, in bytes.
        end: u64,
        /// How many bytes there are.
        len: u64,
    },
    /// The rows end after the bytes that there are.
    FresOutside {
        /// Where the rows end by the header, in bytes.
        end: u64,
        /// How many bytes there are.
        len: u64,
    },
    /// The function table reaches into the rows.
    TablesOverlap {
        /// Where the function table ends.
        fdes_end: u64,
        /// Where the rows start.
        fres_start: u64,
    },
    /// A function's rows start outside the rows of the section.
    RowsOutside {
        /// Where the function's entry is.
        at: TableOffset,
        /// Where its rows start, counted from the first row of the section.
        fre_offset: u32,
    },
    /// A function has a reserved width of its rows' starts.
    BadFreType {
        /// Where the function's entry is.
        at: TableOffset,
        /// Its info byte.
        info: u8,
    },
    /// A function made of equal blocks has none or an unknown block size.
    ZeroRepSize(TableOffset),
    /// A function of a type whose rows cannot be interpreted.
    UnknownFdeType {
        /// Where the function's entry is.
        at: TableOffset,
        /// Its second info byte.
        info2: u8,
    },
    /// A row has a reserved size of its words.
    BadWordSize {
        /// Where the row is.
        at: TableOffset,
        /// Its info byte.
        info: u8,
    },
    /// A row does not start after the row before it.
    UnsortedFres(TableOffset),
    /// A row of a flexible function has a number of words that has no meaning.
    BadWordCount {
        /// Where the row is.
        at: TableOffset,
        /// How many words it has.
        count: u8,
    },
    /// The CFA of a flexible row is not computed from a register.
    CfaWithoutRegister(TableOffset),
    /// The rows of this ABI cannot be used to unwind.
    UnknownAbi(u8),
    /// The CFA's offset, in bytes, does not fit 32 bits (s390x scales it).
    CfaOffsetOverflow(TableOffset),
}

const _: () = assert!(size_of::<Error>() <= 24);

impl Error {
    /// Where in the section the fault is.
    #[must_use]
    pub const fn at(self) -> TableOffset {
        match self {
            Self::BadMagic(_) => TableOffset(0),
            Self::UnsupportedVersion(_) => TableOffset(2),
            Self::UnknownFlags(_) => TableOffset(3),
            Self::WrongByteOrder { .. } | Self::UnknownAbi(_) => TableOffset(4),
            Self::FdesOutside { .. } => TableOffset(0x08),
            Self::FresOutside { .. } => TableOffset(0x10),
            Self::TablesOverlap { .. } => TableOffset(0x18),
            Self::Truncated(at)
            | Self::ZeroRepSize(at)
            | Self::UnsortedFres(at)
            | Self::CfaWithoutRegister(at)
            | Self::CfaOffsetOverflow(at)
            | Self::RowsOutside { at, .. }
            | Self::BadFreType { at, .. }
            | Self::UnknownFdeType { at, .. }
            | Self::BadWordSize { at, .. }
            | Self::BadWordCount { at, .. } => at,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at();
        match *self {
            Self::Truncated(_) => write!(f, "{at}: the bytes end inside this item"),
            Self::BadMagic([a, b]) => {
                write!(f, "{at}: bytes {a:#04x} {b:#04x} are not the sframe magic")
            }
            Self::UnsupportedVersion(version) => {
                write!(f, "{at}: version {version} is not one of 1, 2 and 3")
            }
            Self::UnknownFlags(bits) => write!(f, "{at}: undefined bits in flags {bits:#04x}"),
            Self::WrongByteOrder { abi } => {
                write!(f, "{at}: the byte order is not that of abi {abi}")
            }
            Self::FdesOutside { end, len } => write!(
                f,
                "{at}: the function table ends at {end:#x}, past the {len:#x} bytes there are"
            ),
            Self::FresOutside { end, len } => {
                write!(f, "{at}: the rows end at {end:#x}, past the {len:#x} bytes there are")
            }
            Self::TablesOverlap { fdes_end, fres_start } => write!(
                f,
                "{at}: the function table ends at {fdes_end:#x}, past the start of the rows at \
                 {fres_start:#x}"
            ),
            Self::RowsOutside { fre_offset, .. } => {
                write!(f, "{at}: the function's rows at {fre_offset:#x} are outside the section")
            }
            Self::BadFreType { info, .. } => {
                write!(f, "{at}: reserved row type in function info {info:#04x}")
            }
            Self::ZeroRepSize(_) => write!(f, "{at}: no block size for a function of blocks"),
            Self::UnknownFdeType { info2, .. } => {
                write!(f, "{at}: reserved function type in info {info2:#04x}")
            }
            Self::BadWordSize { info, .. } => {
                write!(f, "{at}: reserved word size in row info {info:#04x}")
            }
            Self::UnsortedFres(_) => write!(f, "{at}: the row does not start after the last one"),
            Self::BadWordCount { count, .. } => {
                write!(f, "{at}: {count} words in a row of a flexible function")
            }
            Self::CfaWithoutRegister(_) => {
                write!(f, "{at}: the cfa of the row is not computed from a register")
            }
            Self::UnknownAbi(abi) => write!(f, "{at}: no rules to unwind abi {abi} by"),
            Self::CfaOffsetOverflow(_) => {
                write!(f, "{at}: the offset of the cfa does not fit 32 bits")
            }
        }
    }
}

impl core::error::Error for Error {}

/// Codes are 1 to 18, in the order of the variants.
impl TableError for Error {
    fn code(&self) -> u16 {
        match self {
            Self::Truncated(_) => 1,
            Self::BadMagic(_) => 2,
            Self::UnsupportedVersion(_) => 3,
            Self::UnknownFlags(_) => 4,
            Self::WrongByteOrder { .. } => 5,
            Self::FdesOutside { .. } => 6,
            Self::FresOutside { .. } => 7,
            Self::TablesOverlap { .. } => 8,
            Self::RowsOutside { .. } => 9,
            Self::BadFreType { .. } => 10,
            Self::ZeroRepSize(_) => 11,
            Self::UnknownFdeType { .. } => 12,
            Self::BadWordSize { .. } => 13,
            Self::UnsortedFres(_) => 14,
            Self::BadWordCount { .. } => 15,
            Self::CfaWithoutRegister(_) => 16,
            Self::UnknownAbi(_) => 17,
            Self::CfaOffsetOverflow(_) => 18,
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
