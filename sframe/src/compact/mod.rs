//! Compact images: a file's rows for a reader that has no time to decode a table, such as a BPF
//! program in the kernel.
//!
//! The format is this project's own. An image is an array of words of 8 bytes, all little-endian; of
//! two numbers of 32 bits in a word the first is in its low half. So it may be read as an array of
//! 16, 32 or 64-bit numbers, too. Addresses are the file's own, as in its program headers, and below
//! 2^48. A page is 64 KiB of code.
//!
//! | words | what |
//! |---|---|
//! | 0 | the bytes `UNWTABL1` |
//! | 1 | number of pages; number of rules |
//! | 2 | number of rows; number of the first page: the lowest address >> 16 |
//! | 3 | zero |
//! | page index | for each page the index of its first row, and last the number of rows; 32 bits each, padded with zeros to a word |
//! | rows | 32 bits each: start in the page in the low 16, number of the rule in the high 16; padded likewise |
//! | rules | three words each; the first is zero: no row |
//!
//! The rows of a page ascend by start, and the first starts at 0: it repeats what holds there. A row
//! that is not first in its page differs from the one before it. The row of an address is the last
//! one of its page that starts at or before it.
//!
//! # A rule
//!
//! | word | bytes | what |
//! |---|---|---|
//! | 0 | 0 | kind: 0 no row, 1 ordinary, 2 outermost, 3 signal context |
//! | 0 | 1 | the CFA: 1 sp + offset, 2 fp + offset, 3 \*(sp + offset) + addend, 4 \*(fp + offset) + addend, 5 register + offset, 6 \*(\*(sp + offset) + between) + addend, 7 \*(\*(fp + offset) + between) + addend |
//! | 0 | 2 | the caller's frame pointer: 0 the same value, 1 \*(CFA + offset), 2 undefined |
//! | 0 | 3 | the return address: 1 \*(CFA + offset), 2 the same value, as in a link register; 0, undefined, is for kind 2 only |
//! | 0 | 2, 3 | of either: 3 CFA + offset, 4 sp + offset, 5 fp + offset, 6 \*(sp + offset), 7 \*(fp + offset) |
//! | 0 | 4 | if byte 1 is 5: the register that the CFA is found from, by its DWARF number. Else the caller's value of register 3, `rbx` or `ebx`: 0 not known, 255 the same value, others \*(CFA - 4 * byte) |
//! | 0 | 5 | flags: 1 signal frame (the return address is the interrupted pc itself), 2 [guess](crate::Row::with_guess), 4 [may return to a handler](crate::Row::with_eh_return), 8 the return address is signed |
//! | 0 | 6, 7 | what is added between two loads, signed |
//! | 1 | | offset of the CFA; addend |
//! | 2 | | offset of the frame pointer; offset of the return address |
//!
//! Offsets and addends are signed, in bytes; `sp` and `fp` are the frame's own. What a rule does not
//! use is 0, and what it says of register 3 is 0 where it is not made of call frame information. In an
//! outermost frame all but the kind is, and in one of a
//! [signal context](crate::Row::signal_context) all but the kind and the flags: the caller's
//! registers are where the kernel saved them.
//!
//! # Limits
//!
//! 65,536 rules, and 2^20 pages from the first to the last: 64 GiB of code.

#[cfg(feature = "write")]
pub(crate) mod builder;
#[cfg(feature = "cfi")]
mod call_frames;
pub(crate) mod error;
mod format;
#[cfg(feature = "write")]
mod functions;
#[cfg(feature = "write")]
mod image;
pub(crate) mod omission;
#[cfg(feature = "write")]
mod overlay;
pub(crate) mod rbx;
#[cfg(feature = "write")]
mod recent;
mod rule;
#[cfg(feature = "write")]
mod rule_set;
pub(crate) mod table;
