//! Rows of stack frames straight from call frame information: `.eh_frame` and
//! `.debug_frame`, in place, without allocation and without panics.
//!
//! Compilers leave this information in nearly every program, in DWARF's format (DWARF 5,
//! section 6.4; `.eh_frame` as in the Linux Standard Base). It says of each function, for
//! each pc, how to get from a frame to its caller: here as a [`Row`](unwind_core::Row) of
//! [`unwind_core`]. One lookup finds the entry of a pc and runs its instructions up to that pc. No
//! table has to be made before.
//!
//! | what | type |
//! |---|---|
//! | the section, as bytes | [`CfiSection`] |
//! | a loaded object: finds the row of a pc | [`CfiTable`] |
//! | all loaded objects, for a walk | [`CfiSource`] |
//! | the same in another program's memory, or in a file that is read in parts | [`RemoteCfi`], [`RemoteCfiSource`] |
//! | rules that come to a row in one frame alone | [`FrameRules`] |
//! | an index, where the linker left no search table | [`index`] |
//! | what is malformed, or what no row can express | [`CfiError`] |
//! | all entries and all their rows, one after the other | [`Entries`], [`Rows`] |
//!
//! Code of x86-64, of 32-bit x86, AArch64 and s390x is understood: [`CfiAbi`].
//!
//! # What a row cannot express
//!
//! A row has rules for the CFA, the return address and the frame pointer. A DWARF expression is
//! a rule if that can express it: the sum of a register and constants, a word of memory at such
//! a sum and a few slots more, and the CFA of lazy linkage tables, which grows by a step within each
//! entry. Any other is evaluated in the frame, by [`FrameRules`]: the sources do so on their own.
//! A signal trampoline with such rules has the row of a
//! [signal context](unwind_core::Row::signal_context) if no frame is known. For everything else
//! a lookup returns a [`CfiError`] that is no [fault](CfiError::is_fault).
//!
//! # Untrusted input
//!
//! Any bytes may be given, and those in another program may change while they are read. No
//! function panics, recurses or allocates. A lookup runs at most [`MAX_INSTRUCTIONS`] bytes
//! of instructions of an FDE and as many of its CIE, which remember at most
//! [`MAX_REMEMBERED`] states at a time.
//!
//! # Example
//!
//! ```
//! use unwind_cfi::{CfiAbi, CfiSection, CfiTable};
//! use unwind_core::{CfaRule, RegRule};
//!
//! let eh_frame = [
//!     0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
//!     1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, // code 1, data -8, RA 16, pc-relative
//!     0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
//!     0x10, 0, 0, 0, 0x1c, 0, 0, 0, // FDE of 16 bytes, CIE 28 bytes back
//!     0xe0, 0x0f, 0, 0, 8, 0, 0, 0, // from 0x1000 on, 8 bytes
//!     0, 0x44, 0x0e, 16, // 4 bytes on: CFA = rsp+16
//! ];
//! // At address 0, and its search table at 0x100.
//! let eh_frame_hdr = [
//!     1, 0x1b, 3, 0x3b, // version, encodings
//!     0xfc, 0xfe, 0xff, 0xff, // .eh_frame is 0x104 bytes before this
//!     1, 0, 0, 0, // one entry
//!     0x00, 0x0f, 0, 0, 0x18, 0xff, 0xff, 0xff, // code at 0x1000, FDE at 24
//! ];
//! let section = CfiSection::eh_frame(&eh_frame, 0);
//! let table = CfiTable::with_search_table(section, CfiAbi::X86_64, &eh_frame_hdr, 0x100)?
//!     .expect("the encodings are those of linkers");
//!
//! let row = table.find_row(0x1004)?.expect("the FDE covers it");
//! assert_eq!(row.cfa(), CfaRule::sp(16));
//! assert_eq!((row.ra(), row.fp()), (RegRule::Offset(-8), RegRule::SameValue));
//! assert_eq!(table.find_row(0x1008)?, None);
//! # Ok::<(), unwind_cfi::CfiError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod abi;
mod entry;
mod error;
mod evaluation;
mod execute;
mod expression;
mod frame_rules;
mod frequent;
mod index;
mod operations;
mod plain_rules;
mod reader;
mod remote;
mod rows;
mod rules;
mod rules_in_frame;
mod search_table;
mod section;
mod source;
mod states;
mod table;
#[doc(hidden)]
pub mod work_counter;

pub use abi::CfiAbi;
pub use entry::{Body, Cie, EncodedPointer, Entries, ExceptionData, Fde};
pub use error::CfiError;
pub use evaluation::{MAX_INSTRUCTIONS, MAX_REMEMBERED};
pub use expression::Step;
pub use frame_rules::FrameRules;
pub use index::{IndexEntry, TooFewSlots, index};
pub use remote::{CfiScratch, RemoteCfi, RemoteCfiError};
pub use rows::{RowChange, Rows};
pub use rules::{Leaving, NoRow, Rules};
pub use section::CfiSection;
pub use source::{CfiSource, RemoteCfiSource};
pub use states::States;
pub use table::CfiTable;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
