//! What a table cannot hold, and why.

use core::fmt;

use unwind_core::{BaseReg, RegRule};

use crate::{error::Error, format::header::Abi};

/// A range of code that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Omission {
    /// The start of the function that it belongs to.
    pub function: u64,
    /// Address of its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// What the table cannot say of it.
    pub reason: OmissionReason,
}

impl Omission {
    pub(crate) const fn new(function: u64, start: u64, size: u64, reason: OmissionReason) -> Self {
        Self { function, start, size, reason }
    }
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, start, size, reason } = *self;
        write!(f, "{size} bytes at {start:#x} of the function at {function:#x}: {reason}")
    }
}

impl core::error::Error for Omission {}

/// Why code is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OmissionReason {
    /// The function has no bytes.
    Empty,
    /// The function continues after the end of the address space.
    Wraps,
    /// The function has no row inside it.
    NoRows,
    /// A row does not start after the one before it.
    Unsorted {
        /// The row's offset in bytes.
        offset: u32,
    },
    /// V2 cannot mark a signal trampoline.
    SignalFrame,
    /// V2, and V3 in a function of blocks, cannot say that only the signal
    /// context tells the caller.
    SignalContext,
    /// Another function, which starts here, covers the same code.
    Overlap {
        /// The start of the function that is in the table.
        other: u64,
    },
    /// V2: the function is more than 2 GiB away from the section. V3: the place that is half an
    /// address space away from the section is inside it.
    TooFar,

    /// V2: the CFA is computed from a register that is neither SP nor FP.
    CfaRegister(BaseReg),
    /// V2: the CFA is loaded from memory. V3: something is added to what is loaded.
    CfaLoaded,
    /// The CFA is on [another stack](unwind_core::Row::other_stack) than the frame.
    OtherStack,
    /// s390x: the offset of the CFA less 160 is not a multiple of 8.
    CfaScale(i32),
    /// The return address is found in a way that the format cannot say, or
    /// where no call leaves one.
    Ra(RegRule),
    /// The frame pointer is found in a way that the format cannot say.
    Fp(RegRule),
    /// V2: the frame pointer is saved and the return address is not.
    FpWithoutRa,
    /// Only AArch64 signs return addresses.
    SignedRa,

    /// The table that the function was to be copied from is malformed there.
    Malformed(Error),
    /// Functions of that table share rows, and copies of these would be far larger than the table.
    SharedRows,
}

const _: () = assert!(size_of::<OmissionReason>() <= 32);

impl OmissionReason {
    /// A short name, to count reasons by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Wraps => "wraps",
            Self::NoRows => "no-rows",
            Self::Unsorted { .. } => "unsorted",
            Self::SignalFrame => "signal-frame",
            Self::SignalContext => "signal-context",
            Self::Overlap { .. } => "overlap",
            Self::TooFar => "too-far",
            Self::CfaRegister(_) => "cfa-register",
            Self::CfaLoaded => "cfa-loaded",
            Self::OtherStack => "other-stack",
            Self::CfaScale(_) => "cfa-scale",
            Self::Ra(_) => "ra-rule",
            Self::Fp(_) => "fp-rule",
            Self::FpWithoutRa => "fp-without-ra",
            Self::SignedRa => "signed-ra",
            Self::Malformed(_) => "malformed",
            Self::SharedRows => "shared-rows",
        }
    }
}

impl fmt::Display for OmissionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("the function is empty"),
            Self::Wraps => f.write_str("the function goes past the end of the address space"),
            Self::NoRows => f.write_str("the function has no row"),
            Self::Unsorted { offset } => {
                write!(f, "the row at +{offset:#x} does not start after the last one")
            }
            Self::SignalFrame => f.write_str("version 2 has no mark for signal trampolines"),
            Self::SignalContext => f.write_str("only the signal context tells the caller"),
            Self::Overlap { other } => {
                write!(f, "the function at {other:#x} covers the same code")
            }
            Self::TooFar => f.write_str("the section is too far away"),
            Self::CfaRegister(base) => {
                write!(f, "the cfa comes from {}", Register(base))
            }
            Self::CfaLoaded => f.write_str("the cfa is loaded from memory"),
            Self::OtherStack => f.write_str("the cfa is on another stack"),
            Self::CfaScale(offset) => {
                write!(f, "the cfa's offset {offset} is not 160 and a multiple of 8")
            }
            Self::Ra(rule) => write!(f, "the return address is {}", Rule(rule)),
            Self::Fp(rule) => write!(f, "the frame pointer is {}", Rule(rule)),
            Self::FpWithoutRa => {
                f.write_str("the frame pointer is saved without the return address")
            }
            Self::SignedRa => f.write_str("a signed return address on a cpu that signs none"),
            Self::Malformed(error) => write!(f, "{error}"),
            Self::SharedRows => f.write_str("too many functions share rows to copy them"),
        }
    }
}

/// A register, for text.
pub(crate) struct Register(pub(crate) BaseReg);

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            BaseReg::Sp => f.write_str("sp"),
            BaseReg::Fp => f.write_str("fp"),
            BaseReg::Reg(reg) => write!(f, "{reg}"),
        }
    }
}

/// A rule, for text.
struct Rule(RegRule);

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            RegRule::SameValue => f.write_str("unchanged"),
            RegRule::Undefined => f.write_str("undefined"),
            RegRule::Offset(offset) => write!(f, "at cfa{offset:+}"),
            RegRule::ValOffset(offset) => write!(f, "cfa{offset:+}"),
            RegRule::Register(base, offset) => write!(f, "{}{offset:+}", Register(base)),
            RegRule::AtRegister(base, offset) => write!(f, "at {}{offset:+}", Register(base)),
        }
    }
}

/// A table could not be written at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// The allocator has no memory left.
    OutOfMemory,
    /// The table has more functions, rows or bytes than its 32-bit counts hold.
    TooLarge,
    /// No table can be written for this ABI.
    UnknownAbi(Abi),
    /// The table to be merged is of another ABI.
    OtherAbi(Abi),
    /// A compact table would have more pages than it can.
    TooFarApart {
        /// The pages of 64 KiB from the first address to the last.
        pages: u64,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::TooLarge => f.write_str("too many functions or rows for one table"),
            Self::UnknownAbi(abi) => write!(f, "no tables are written for abi {}", abi.id()),
            Self::OtherAbi(abi) => write!(f, "the table is of another abi ({})", abi.id()),
            Self::TooFarApart { pages } => {
                write!(f, "the code is {pages} pages of 64 KiB from its first address to its last")
            }
        }
    }
}

impl core::error::Error for WriteError {}

impl From<alloc::collections::TryReserveError> for WriteError {
    fn from(_: alloc::collections::TryReserveError) -> Self {
        Self::OutOfMemory
    }
}
