//! SFrame stack trace tables, versions 1, 2 and 3: read in place, without
//! allocation and without panics.
//!
//! A `.sframe` section says, for every address of a program's code, how to get
//! from a frame to its caller: the CFA, the return address and the frame
//! pointer, as offsets from registers.
//!
//! | what | type |
//! |---|---|
//! | the section: one table, or several where a linker joins its inputs | [`Section`] |
//! | a table: a header, functions, rows | [`Table`], [`Header`] |
//! | a function, and one of its rows | [`Fde`], [`Fre`] |
//! | the function and the row that cover a pc | [`Lookup`] |
//! | the rules of a row | [`Row`], [`CfaRule`], [`RegRule`] |
//! | what is malformed, and where | [`Error`] |
//!
//! [`RemoteTable`] is a table in another program's memory, which may be absent in
//! parts and may change at any time. [`Table::validate`] checks a table against all
//! rules of the format. [`Table::index`] makes lookups faster, in memory that the
//! caller lends. [`CompactTable`] has the rows of a file in another form, which takes less to read than
//! SFrame's; [`compact`] describes it.
//!
//! # Units
//!
//! Offsets, sizes and lengths are bytes. Addresses are those of the target; row
//! starts count from the function's start.
//!
//! # Untrusted input
//!
//! Any bytes may be given. No function panics, recurses or allocates, each number
//! from a table is checked before it is used, and one malformed function does not
//! harm lookups in another. A lookup takes time logarithmic in the number of
//! functions and linear in the rows of one. In a table that is not sorted, or where
//! functions of size zero or of equal starts follow one another, it may look at all
//! functions once.
//!
//! # Features
//!
//! Reading needs none. `write` brings `Builder`, which encodes tables and
//! merges them, and `CompactBuilder`; they allocate. `cfi` makes tables of `.eh_frame` and
//! `.debug_frame` (`CfiSection`, `Builder::add_cfi`, `CompactBuilder::add_cfi`), with gimli.
//!
//! # Example
//!
//! ```
//! use sframe::{CfaRule, RegRule, Section};
//!
//! // A section with one table, of one function: `push %rbp; mov %rsp,%rbp; ...`.
//! let bytes = [
//!     0xe2, 0xde, 2, 0x01, // magic, version, flags: sorted
//!     3, 0, 0xf8, 0, // AMD64, FP anywhere, RA at CFA-8, no auxiliary header
//!     1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, // 1 function, 2 rows, 7 bytes of rows
//!     0, 0, 0, 0, 20, 0, 0, 0, // offsets of functions and rows
//!     0x40, 0xf0, 0xff, 0xff, // start: section - 0xfc0
//!     0x20, 0, 0, 0, // size
//!     0, 0, 0, 0, 2, 0, 0, 0, // rows at 0, two of them
//!     0, 0, 0, 0, // row starts take 1 byte
//!     0x00, 0x03, 8, // from +0: CFA = SP+8
//!     0x01, 0x05, 16, 0xf0, // from +1: CFA = SP+16, FP at CFA-16
//! ];
//! let section = Section::new(&bytes).at(0x2000);
//!
//! // From a pc to its rules.
//! let found = section.find(0x1044)?.expect("the function covers it");
//! assert_eq!(found.fde.range.start, 0x1040);
//! let row = found.row()?;
//! assert_eq!(row.cfa(), CfaRule::sp(16));
//! assert_eq!((row.ra(), row.fp()), (RegRule::Offset(-8), RegRule::Offset(-16)));
//!
//! // All functions and rows, in the order of the tables.
//! for table in section.tables() {
//!     let table = table?;
//!     for fde in table.fdes() {
//!         let fde = fde?;
//!         for fre in table.fres(&fde)? {
//!             let fre = fre?;
//!             println!("{:#x}+{}: {:?}", fde.range.start, fre.start, fde.row(&fre)?);
//!         }
//!     }
//! }
//! # Ok::<(), sframe::Error>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "write")]
extern crate alloc;

#[cfg(feature = "cfi")]
mod cfi;
pub mod compact;
mod error;
mod format;
mod read;
mod sign;
mod validate;
#[cfg(feature = "write")]
mod write;

#[cfg(feature = "cfi")]
pub use cfi::{
    convert::{CfiConverter, CfiReport},
    lost::{CfiOmission, CfiOmissionReason},
};
#[cfg(feature = "write")]
pub use compact::builder::CompactBuilder;
pub use compact::{
    error::CompactError,
    omission::{CompactOmission, CompactOmissionReason, CompactOmissions},
    table::{CompactRows, CompactTable},
};
pub use error::{Error, TableOffset};
pub use format::{
    bytes::Endian,
    fde::{Fde, FdeType, FreType, FuncRange, PauthKey, PcType},
    flags::Flags,
    flex::{Control, Flex, FlexRules},
    fre::{Fre, FreInfo, Fres},
    header::{Abi, Header, Version},
};
pub use read::{
    index::{IndexShape, IndexedTable},
    lookup::Lookup,
    remote::{RemoteBuffer, RemoteError, RemoteTable},
    section::{Section, Tables},
    table::{Fdes, Table},
};
#[cfg(feature = "cfi")]
pub use unwind_cfi::{CfiAbi, CfiError, CfiSection};
pub use validate::diagnostic::{Diagnostic, Severity, Summary, Violation};
// A user who only reads tables needs no other crate.
pub use unwind_core::{BaseReg, CfaRule, DwarfReg, Memory, ReadError, RegRule, Row, VirtAddr};
#[cfg(feature = "write")]
pub use write::{
    builder::Builder,
    function::{Format, Function},
    lost::{Omission, OmissionReason, WriteError},
};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
