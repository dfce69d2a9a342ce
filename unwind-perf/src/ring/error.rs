//! What can be wrong with a ring.

use core::fmt;

/// What is wrong with a ring, or with the memory that was lent for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The first page has fewer bytes than its fields take.
    ShortPage {
        /// How many words were lent.
        words: usize,
    },
    /// The number of words is not a power of two.
    BadLength {
        /// How many words were lent.
        words: usize,
    },
    /// The head and the tail are further apart than the ring is long. What lies between them
    /// is skipped.
    Overrun {
        /// Up to where was written.
        head: u64,
        /// Up to where was read.
        tail: u64,
    },
    /// No record has this size, or it would end after the head. What lies up to the head is
    /// skipped.
    BadRecord {
        /// The position of the record.
        at: u64,
        /// The size that its header has, in bytes.
        size: u16,
    },
    /// The record does not fit the buffer. It stays in the ring.
    ShortBuffer {
        /// The size of the record in bytes, at most 65,528.
        needed: u16,
    },
    /// The writer wrote while its ring was read backwards: what was read may be mixed up.
    Overwritten {
        /// Where the head was at the start.
        head: u64,
        /// Where it is now.
        now: u64,
    },
    /// The bytes are no longer in the AUX area, or not yet.
    NotInAux {
        /// The position of the first byte that was asked for.
        at: u64,
    },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShortPage { words } => {
                write!(f, "the first page of the ring has only {words} words")
            }
            Self::BadLength { words } => {
                write!(f, "a ring of {words} words, which is not a power of two")
            }
            Self::Overrun { head, tail } => {
                write!(f, "the head {head:#x} and the tail {tail:#x} are too far apart")
            }
            Self::BadRecord { at, size } => {
                write!(f, "no record at {at:#x} can have a size of {size} bytes")
            }
            Self::ShortBuffer { needed } => write!(f, "the record takes {needed} bytes"),
            Self::Overwritten { head, now } => {
                write!(f, "records came while the ring was read: {head:#x} to {now:#x}")
            }
            Self::NotInAux { at } => write!(f, "the AUX area does not hold position {at:#x}"),
        }
    }
}

impl core::error::Error for RingError {}
