//! Walks the stack of another program, the *target*: a process under a kernel, a guest under a
//! hypervisor, a core file, a copy of a stack. The program that does so is the *host*.
//!
//! A [`Row`] says how to get from a frame to its caller: where the CFA (the stack pointer of the
//! caller just before its call), the return address and the caller's frame pointer are. Three
//! traits answer what a walk has to ask:
//!
//! | question | trait |
//! |---|---|
//! | which [`Row`] covers this pc? | [`RowSource`] |
//! | given the row, what are the caller's registers? | [`Arch`] |
//! | how is the target's memory read? | [`Memory`] |
//!
//! A [`Walker`] joins them. It hands out one [`Frame`] at a time and says at
//! the end why there are no more; [`Trace`] keeps the result of one walk in a fixed
//! amount of memory.
//!
//! [`deferred`] is for contexts that cannot walk a stack, such as an NMI: there a stack is only
//! requested, and it is walked on the way back to user code. That module does not depend on this
//! crate's walk: a closure of the host fills the [`Trace`].
//!
//! Rows of real programs come from `unwind-sframe` (`.sframe`) and `unwind-cfi` (`.eh_frame`,
//! `.debug_frame`), implementations of [`Arch`] from `unwind-x86`. `unwind-kit` joins them all into
//! an unwinder for one address space.
//!
//! # Units
//!
//! Addresses and register values are in bytes of the target's address space.
//! A [`VirtAddr`] is a linear address; a bare `u64` is a register value. On ia32 a register
//! value is an offset within a segment, whose base is added to get the linear address.
//!
//! # Untrusted input
//!
//! Registers, stacks and tables may hold anything. No function of this crate
//! panics, allocates, locks or loops without a bound; what is wrong ends the
//! walk with a typed reason, and the frames that were found before are kept.
//!
//! # Example
//!
//! A made-up machine whose functions all keep a frame pointer, and a stack of two frames:
//!
//! ```
//! use core::convert::Infallible;
//! use unwind_core::*;
//!
//! #[derive(Clone, Copy, Debug)]
//! struct Regs { pc: u64, sp: u64, fp: u64 }
//! impl Registers for Regs {
//!     fn pc(&self) -> u64 { self.pc }
//!     fn sp(&self) -> u64 { self.sp }
//!     fn fp(&self) -> Option<u64> { Some(self.fp) }
//!     fn get(&self, _: DwarfReg) -> Option<u64> { None }
//! }
//!
//! struct Toy;
//! impl Arch for Toy {
//!     type Regs = Regs;
//!     const WORD: WordSize = WordSize::Eight;
//! }
//!
//! struct FramePointers;
//! impl RowSource<Toy> for FramePointers {
//!     type Error = Infallible;
//!     fn row<M: Memory>(
//!         &mut self, _: &FrameContext<'_, Regs>, _: &mut M,
//!     ) -> Result<Option<Row>, Infallible> {
//!         Ok(Some(Row::frame_pointer(WordSize::Eight)))
//!     }
//! }
//!
//! // At 0x1000: the caller's frame pointer, then the return address.
//! let words = [0x1010_u64, 0x40_0123, 0, 0];
//! let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
//! let mut memory = SliceMemory::new(VirtAddr::new(0x1000), &stack);
//!
//! let mut walker = Walker::new(Toy, FramePointers);
//! let mut frames = walker.frames(Regs { pc: 0x40_0500, sp: 0x1000, fp: 0x1000 }, &mut memory);
//! let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
//! assert_eq!(pcs, [0x40_0500, 0x40_0123]);
//! // The zero may be the end or a damaged stack: frame pointers alone do not say which.
//! assert!(matches!(frames.end(), Some(End::Step(StepError::ZeroReturnAddress { .. }))));
//! ```
#![no_std]
#![forbid(unsafe_code)]

// Under the name that integration tests know it by, with which they share a CPU.
#[cfg(test)]
extern crate self as unwind_core;

mod addr;
mod arch;
pub mod deferred;
mod end;
mod hint;
mod memory;
mod modules;
#[cfg(test)]
#[path = "../tests/support/no_regs.rs"]
mod no_regs;
mod origin;
mod register;
mod register_rules;
mod return_addresses;
mod row;
mod rule;
#[doc(hidden)]
pub mod sort;
mod source;
mod step_error;
#[doc(hidden)]
pub mod sync;
mod table_error;
mod trace;
mod walk;

pub use addr::{FramePc, VirtAddr};
pub use arch::Arch;
pub use end::End;
pub use memory::{Memory, ReadError, SliceMemory};
pub use modules::map::{MapError, Module, ModuleIter, ModuleMap};
pub use modules::shared::{Contended, SharedModuleMap, TableLocation};
pub use origin::Origin;
pub use register::{BaseReg, DwarfReg, Registers, WordSize};
pub use register_rules::RegisterRules;
pub use return_addresses::{ReturnAddresses, Unchecked};
pub use row::{Needs, Row};
pub use rule::{Addend, CfaLoads, CfaRule, RegRule};
pub use source::{Coverage, Empty, FrameContext, Or, RowKey, RowSource};
pub use step_error::StepError;
pub use table_error::{TableError, TableFault};
pub use trace::{PackedFrame, Provenance, Trace, TraceFrame};
pub use walk::fast::addresses::Addresses;
pub use walk::fast::callers::CallerFrame;
pub use walk::fast::row_cache::{CacheStats, NoCache, RowCache, RowStore};
pub use walk::fast::rows_by_key::{KeyedRange, RowKeys, RowsByKey};
pub use walk::frames::{Frame, Frames};
pub use walk::position::{Place, Position};
pub use walk::walker::Walker;
