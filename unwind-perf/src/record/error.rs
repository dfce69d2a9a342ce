//! What can be wrong with a record.

use core::fmt;

/// A record, or a `perf_event_attr`, could not be decoded or encoded.
///
/// Offsets count bytes from the start of the record (its header included) or
/// of the attr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end inside the field at this offset.
    Truncated {
        /// Where the field starts.
        at: u32,
        /// How many bytes it takes.
        needed: u32,
    },
    /// The header gives a size that no record has: below eight bytes, or not
    /// a multiple of eight in a record that the kernel writes.
    BadSize(u16),
    /// A count of items is larger than the rest of the record.
    BadCount {
        /// Where the count is.
        at: u32,
        /// How many items would fit after it.
        room: u32,
        /// The count itself.
        count: u64,
    },
    /// Bytes after the last field that the attr asks for.
    Trailing {
        /// Where they start.
        at: u32,
        /// How many there are.
        len: u32,
    },
    /// The record is not of the type that the decoder reads.
    WrongType {
        /// The type that the decoder reads.
        expected: u32,
        /// The type in the header.
        found: u32,
    },
    /// The first entry of a stack in the first proposal's layout is not the
    /// user context marker.
    NoUserMarker(u64),
    /// A `perf_event_attr` gives a size below the first published one.
    BadAttrSize(u32),
    /// The attr asks for fields that the encoder does not write, as a mask of
    /// `sample_type` bits.
    UnsupportedFields(u64),
    /// The attr asks for fields that the value to encode lacks, as a mask of
    /// `sample_type` bits.
    MissingFields(u64),
    /// The record would be longer than its 16-bit size field can say.
    TooLong {
        /// The length in bytes.
        len: u32,
    },
    /// Several events share a stream, but no field at a common place tells
    /// their records apart.
    NoCommonId,
}

// Returned by value from every field read.
const _: () = assert!(size_of::<Error>() <= 24);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { at, needed } => {
                write!(f, "truncated: the field at +{at:#x} needs {needed} bytes")
            }
            Self::BadSize(size) => write!(f, "a record cannot be {size} bytes long"),
            Self::BadCount { at, room, count } => {
                write!(f, "the count at +{at:#x} says {count}, but at most {room} fit")
            }
            Self::Trailing { at, len } => write!(f, "{len} bytes at +{at:#x} belong to no field"),
            Self::WrongType { expected, found } => {
                write!(f, "expected a record of type {expected}, found {found}")
            }
            Self::NoUserMarker(found) => {
                write!(f, "the stack starts with {found:#x} instead of the user marker")
            }
            Self::BadAttrSize(size) => write!(f, "an attr cannot be {size} bytes long"),
            Self::UnsupportedFields(mask) => {
                write!(f, "cannot encode the sample fields {mask:#x}")
            }
            Self::MissingFields(mask) => write!(f, "no value for the sample fields {mask:#x}"),
            Self::TooLong { len } => write!(f, "a record of {len} bytes does not fit its size"),
            Self::NoCommonId => f.write_str("no common field tells the events apart"),
        }
    }
}

impl core::error::Error for Error {}
