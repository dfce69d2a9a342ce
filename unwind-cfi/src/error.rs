//! What is wrong with call frame information, and what of it no row can say.

use core::{convert::Infallible, fmt};

use unwind_core::TableError;

/// Why there is no row for an address that call frame information describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CfiError {
    /// The entry reaches past the end of the section. Nothing after it is
    /// read.
    Truncated,
    /// The entry ends inside the item at this offset of the section.
    TruncatedEntry {
        /// The offset in bytes.
        at: u64,
    },
    /// The CIE that the entry names is none.
    NotCie {
        /// The offset in bytes.
        at: u64,
    },
    /// The FDE that is looked for at this offset is none.
    NotFde {
        /// The offset in bytes.
        at: u64,
    },
    /// The CIE is of an unknown version.
    CieVersion(u8),
    /// The CIE has an augmentation that is not known.
    Augmentation(u8),
    /// The CIE, or all of the object, is of code whose addresses have another size, or
    /// segments.
    AddressSize(u8),
    /// An address has an encoding that is unknown, or relative to something
    /// that was not said.
    Pointer(u8),
    /// The entry is about no code.
    Empty,
    /// The entry is about 4 GiB of code or more.
    TooLong,
    /// The entry is about something that is not code: what a linker leaves of
    /// functions that it has dropped.
    NotCode,

    /// An instruction that is not known.
    Instruction(u8),
    /// An instruction that may not stand where it does: it changes a part of a
    /// CFA that has no such part, or restores in a CIE.
    Context(u8),
    /// A state is restored that was not remembered.
    NothingRemembered,
    /// More states are remembered than memory is lent to a malformed entry.
    TooManyRemembered,
    /// The location goes back.
    LocationBack,
    /// The CIE is longer than what is kept of one in memory that is read in parts.
    CieTooLong,
    /// There are more bytes of instructions than one lookup runs.
    TooManyInstructions,

    /// There is no rule for the CFA.
    NoCfa,
    /// The CFA is a word of memory and an offset: `*(register + offset) + plus`.
    CfaLoadPlus {
        /// The register's DWARF number.
        register: u16,
        /// Added to the register to find the word, in bytes.
        offset: i32,
        /// Added to the word, in bytes.
        plus: i32,
    },
    /// The CFA is an expression that no rule stands for.
    CfaExpression {
        /// The expression's offset in the section, in bytes.
        at: u64,
    },
    /// There is no rule for the return address, or its column is that of another register.
    NoReturnAddress,
    /// The return address is an expression that no rule stands for.
    RaExpression {
        /// The expression's offset in the section, in bytes.
        at: u64,
    },
    /// The return address is signed together with its address (`PAuth_LR`).
    RaSignedWithPc,
    /// Whether the return address is signed has a rule of its own.
    RaSignState,
    /// The frame pointer is an expression that no rule stands for.
    FpExpression {
        /// The expression's offset in the section, in bytes.
        at: u64,
    },
    /// The frame pointer is lost, but the return address is not.
    FpUndefined,
    /// The caller's stack pointer is not what the CFA says it is.
    StackPointer,
    /// A register that rows have no room for.
    Register(u16),
    /// An offset that does not fit 32 bits.
    Offset(i64),

    /// The search table is of an unknown version.
    SearchTableVersion(u8),
    /// The search table is shorter than its header says.
    SearchTableTruncated,
    /// The search table names an entry that is outside of the section.
    OutsideSection {
        /// The address that it names.
        addr: u64,
    },
}

const _: () = assert!(size_of::<CfiError>() <= 16);

impl CfiError {
    /// A short name, to count reasons by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::TruncatedEntry { .. } => "truncated-entry",
            Self::NotCie { .. } => "not-cie",
            Self::NotFde { .. } => "not-fde",
            Self::CieVersion(_) => "cie-version",
            Self::Augmentation(_) => "augmentation",
            Self::AddressSize(_) => "address-size",
            Self::Pointer(_) => "pointer",
            Self::Empty => "empty",
            Self::TooLong => "too-long",
            Self::NotCode => "not-code",
            Self::Instruction(_) => "instruction",
            Self::Context(_) => "context",
            Self::NothingRemembered => "nothing-remembered",
            Self::TooManyRemembered => "too-many-remembered",
            Self::LocationBack => "location-back",
            Self::CieTooLong => "cie-too-long",
            Self::TooManyInstructions => "too-many-instructions",
            Self::NoCfa => "no-cfa",
            Self::CfaLoadPlus { .. } => "cfa-load-plus",
            Self::CfaExpression { .. } => "cfa-expression",
            Self::NoReturnAddress => "no-return-address",
            Self::RaExpression { .. } => "ra-expression",
            Self::RaSignedWithPc => "ra-signed-with-pc",
            Self::RaSignState => "ra-sign-state",
            Self::FpExpression { .. } => "fp-expression",
            Self::FpUndefined => "fp-undefined",
            Self::StackPointer => "stack-pointer",
            Self::Register(_) => "register",
            Self::Offset(_) => "offset",
            Self::SearchTableVersion(_) => "search-table-version",
            Self::SearchTableTruncated => "search-table-truncated",
            Self::OutsideSection { .. } => "outside-section",
        }
    }

    /// The same error, about a section that starts this many bytes before, wrapping.
    pub(crate) const fn moved(mut self, by: u64) -> Self {
        match &mut self {
            Self::TruncatedEntry { at }
            | Self::NotCie { at }
            | Self::NotFde { at }
            | Self::CfaExpression { at }
            | Self::RaExpression { at }
            | Self::FpExpression { at } => *at = at.wrapping_add(by),
            _ => {}
        }
        self
    }

    /// A number for records and other languages, which stays the same in later versions.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::Truncated => 1,
            Self::TruncatedEntry { .. } => 2,
            Self::NotCie { .. } => 3,
            Self::NotFde { .. } => 4,
            Self::CieVersion(_) => 5,
            Self::Augmentation(_) => 6,
            Self::AddressSize(_) => 7,
            Self::Pointer(_) => 8,
            Self::Empty => 9,
            Self::TooLong => 10,
            Self::NotCode => 11,
            Self::Instruction(_) => 12,
            Self::Context(_) => 13,
            Self::NothingRemembered => 14,
            Self::TooManyRemembered => 15,
            Self::LocationBack => 16,
            Self::TooManyInstructions => 17,
            Self::NoCfa => 18,
            Self::CfaLoadPlus { .. } => 19,
            Self::CfaExpression { .. } => 20,
            Self::NoReturnAddress => 21,
            Self::RaExpression { .. } => 22,
            Self::RaSignedWithPc => 23,
            Self::RaSignState => 24,
            Self::FpExpression { .. } => 25,
            Self::FpUndefined => 26,
            Self::StackPointer => 27,
            Self::Register(_) => 28,
            Self::Offset(_) => 29,
            Self::SearchTableVersion(_) => 30,
            Self::SearchTableTruncated => 31,
            Self::OutsideSection { .. } => 32,
            Self::CieTooLong => 33,
        }
    }

    /// Whether the entry is malformed, or about nothing. All other reasons are
    /// rules that are fine and that rows, or the format, cannot say.
    #[must_use]
    pub const fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Truncated
                | Self::TruncatedEntry { .. }
                | Self::NotCie { .. }
                | Self::NotFde { .. }
                | Self::CieVersion(_)
                | Self::Augmentation(_)
                | Self::AddressSize(_)
                | Self::Pointer(_)
                | Self::Empty
                | Self::TooLong
                | Self::NotCode
                | Self::Instruction(_)
                | Self::Context(_)
                | Self::NothingRemembered
                | Self::TooManyRemembered
                | Self::LocationBack
                | Self::CieTooLong
                | Self::TooManyInstructions
                | Self::SearchTableVersion(_)
                | Self::SearchTableTruncated
                | Self::OutsideSection { .. }
        )
    }
}

impl fmt::Display for CfiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated => f.write_str("the entry reaches past the end of the section"),
            Self::TruncatedEntry { at } => write!(f, "the entry ends inside the item at {at:#x}"),
            Self::NotCie { at } => write!(f, "there is no cie at {at:#x}"),
            Self::NotFde { at } => write!(f, "there is no fde at {at:#x}"),
            Self::CieVersion(version) => write!(f, "unknown cie version {version}"),
            Self::Augmentation(letter) => {
                write!(f, "unknown augmentation {:?}", char::from(letter))
            }
            Self::AddressSize(size) => write!(f, "addresses of {size} bytes, or segments"),
            Self::Pointer(encoding) => write!(f, "unusable pointer encoding {encoding:#04x}"),
            Self::Empty => f.write_str("the entry is about no code"),
            Self::TooLong => f.write_str("the entry is about 4 GiB of code or more"),
            Self::NotCode => f.write_str("the entry is about no code of this file"),
            Self::Instruction(byte) => write!(f, "unknown instruction {byte:#04x}"),
            Self::Context(byte) => write!(f, "instruction {byte:#04x} in a wrong place"),
            Self::NothingRemembered => f.write_str("no state is remembered that is restored"),
            Self::TooManyRemembered => f.write_str("too many states are remembered"),
            Self::CieTooLong => f.write_str("the cie is too long"),
            Self::TooManyInstructions => f.write_str("there are too many instructions"),
            Self::LocationBack => f.write_str("the location goes back"),
            Self::NoCfa => f.write_str("there is no rule for the cfa"),
            Self::CfaLoadPlus { register, offset, plus } => {
                write!(f, "cfa = *(r{register}{offset:+}){plus:+}")
            }
            Self::CfaExpression { at } => write!(f, "the cfa is the expression at {at:#x}"),
            Self::NoReturnAddress => f.write_str("there is no rule for the return address"),
            Self::RaExpression { at } => {
                write!(f, "the return address is the expression at {at:#x}")
            }
            Self::RaSignedWithPc => f.write_str("the return address is signed with its address"),
            Self::RaSignState => {
                f.write_str("whether the return address is signed has a rule of its own")
            }
            Self::FpExpression { at } => {
                write!(f, "the frame pointer is the expression at {at:#x}")
            }
            Self::FpUndefined => f.write_str("the frame pointer is lost"),
            Self::StackPointer => f.write_str("the caller's stack pointer is not the cfa"),
            Self::Register(number) => write!(f, "register {number} in a rule"),
            Self::Offset(offset) => write!(f, "offset {offset} in a rule"),
            Self::SearchTableVersion(version) => {
                write!(f, "unknown version {version} of the search table")
            }
            Self::SearchTableTruncated => f.write_str("the search table ends too early"),
            Self::OutsideSection { addr } => {
                write!(f, "the search table names an entry at {addr:#x}, outside of the section")
            }
        }
    }
}

impl core::error::Error for CfiError {}

impl From<Infallible> for CfiError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl TableError for CfiError {
    fn code(&self) -> u16 {
        (*self).code()
    }
}
