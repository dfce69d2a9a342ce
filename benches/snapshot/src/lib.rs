//! Files of captured stacks, for measuring and testing unwinders.
//!
//! A file holds points of time of running programs: the registers of one
//! thread, a copy of its stack from the stack pointer upwards, and which code
//! was mapped where. The tool `snapshot` of this package writes such files where stacks
//! may be longer than the 64 KiB that a `perf.data` has room for; other stacks it keeps
//! in a `perf.data`. [`Recording`] reads them.
//!
//! # Format
//!
//! All numbers are little-endian. A file starts with the eight bytes
//! [`MAGIC`] and a 32-bit [`VERSION`]; records follow, without gaps. A record
//! is its kind (32 bits), the length of its body in bytes (32 bits), and the
//! body:
//!
//! | kind | body |
//! |---|---|
//! | 1, image | length of the build id (8 bits, 0 if there is none), the build id, the path |
//! | 2, space | for each range of code: start, end, bias (64 bits each), image (32 bits), 0 (32 bits) |
//! | 3, snapshot | space, process, thread, flags (32 bits each), time in nanoseconds, rip, the 16 general registers in the order of their DWARF numbers, the address of the first stack byte (64 bits each), the stack bytes |
//! | 4, call frame information | image (32 bits), 0 (32 bits), link-time address (64 bits), the bytes of `.eh_frame` |
//!
//! Images and spaces are numbered from 0 in their order in the file, and a
//! record refers only to earlier ones. The ranges of a space ascend and do not
//! overlap; a bias is how far the image is loaded above its link-time
//! addresses, wrapping. Bit 0 of a snapshot's flags says that the stack bytes
//! reach to the end of the stack. Records of other kinds are skipped.
//!
//! # Untrusted input
//!
//! A file may hold anything: every length and reference is checked before it
//! is used, nothing is allocated by a number that the file claims, and reading
//! never panics.
#![forbid(unsafe_code)]

mod error;
mod recording;
mod writer;

pub use error::Error;
pub use recording::{Cfi, Image, Mapping, Recording, Snapshot, Space};
pub use writer::Writer;

/// The first bytes of a file.
pub const MAGIC: [u8; 8] = *b"unwsnaps";

/// The version of the format that is read and written.
pub const VERSION: u32 = 1;

/// The kinds of records.
mod kind {
    pub(crate) const IMAGE: u32 = 1;
    pub(crate) const SPACE: u32 = 2;
    pub(crate) const SNAPSHOT: u32 = 3;
    pub(crate) const CFI: u32 = 4;
}

/// Of a snapshot's flags: the stack bytes reach to the end of the stack.
const WHOLE: u32 = 1;
