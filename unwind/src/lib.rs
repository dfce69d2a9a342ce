//! Walks the stack of another program (a process under a
//! kernel, a guest under a hypervisor, a core file, a copy of a stack), and defers
//! walks from places where no memory may be read to places where it may.
//!
//! | to | use | here |
//! |---|---|---|
//! | walk a stack | [`Unwinder`] | the root |
//! | defer a walk from an NMI, or from a signal handler by `unwind-local` | [`deferred::DeferredUnwind`] | [`deferred`] |
//! | find rows in `.eh_frame` | `cfi::CfiTable` (feature `cfi`) | `cfi` |
//! | read an SFrame section | [`sframe::Section`] | [`sframe`](mod@sframe) |
//! | choose where rows come from, or add a CPU | [`walk::Walker`], [`walk::RowSource`], [`walk::Arch`] | [`walk`], [`x86`] |
//! | write or merge records of deferred call chains | `perf::Merger` (feature `merge`) | `perf` (feature `perf`) |
//!
//! The modules are crates of their own, which can be used without this one:
//! `unwind-core` ([`walk`], [`deferred`]), `unwind-x86`, `unwind-sframe`, `unwind-cfi` and
//! `unwind-perf`.
//!
//! # Features
//!
//! | feature | brings | with it | allocates | Rust |
//! |---|---|---|---|---|
//! | `x86`, on unless turned off | [`Unwinder`], `x86` | `sframe` | no | 1.85 |
//! | `sframe` | `sframe`: tables are read | | no | 1.85 |
//! | `write` | tables are written, as in the example below | `sframe` | yes | 1.85 |
//! | `cfi` | `cfi`: rows straight from `.eh_frame` and `.debug_frame` | | no | 1.88 |
//! | `convert` | tables are made of `.eh_frame` and `.debug_frame` | `write` | yes | 1.88 |
//! | `perf` | `perf`: records, events, PMU data of tasks | | no | 1.85 |
//! | `framehop` | [`framehop`](https://docs.rs/framehop)'s interface, for profilers that are written for it | `x86`, `cfi` | yes | 1.88 |
//! | `merge` | the merge of deferred call chains | `perf` | yes | 1.85 |
//!
//! # Untrusted input
//!
//! Registers, stacks, tables and records may hold anything. Nothing here panics,
//! locks or loops without a bound. Only these features allocate: `write`,
//! `convert`, `framehop` and `merge`. What is wrong ends a walk with a reason, and the frames
//! before it stand.
//!
//! # Example
//!
//! A function at `0x40_1000` has pushed 8 bytes, as its table says; it was called from
//! `0x40_2010`, in a function whose row says that it has no caller. It needs the feature
//! `write`:
//!
//! ```
//! use unwind::sframe::{Abi, Builder, Format, Function};
//! use unwind::walk::{CfaRule, RegRule, Row};
//! use unwind::{End, SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs};
//!
//! // Programs have a table in `.sframe`. This one is made here, for address 0x40_4000.
//! let mut table = Builder::new(Format::V3, Abi::Amd64Little)?;
//! let pushed = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue);
//! table.add(&Function::new(0x40_1000, 0x20, &[(0, pushed)]), |lost| panic!("{lost}"))?;
//! table.add(&Function::new(0x40_2000, 0x20, &[(0, Row::outermost())]), |lost| panic!("{lost}"))?;
//! let table = table.finish(0x40_4000, |lost| panic!("{lost}"))?;
//!
//! let mut unwinder = Unwinder::<64>::new();
//! unwinder.add_module(0x40_1000..0x40_3000, &table, 0x40_4000)?;
//!
//! let stack: Vec<u8> = [7_u64, 0x40_2010].iter().flat_map(|word| word.to_le_bytes()).collect();
//! let mut memory = SliceMemory::new(VirtAddr::new(0x7ff0), &stack);
//! let mut trace = Trace::<[_; 510]>::new();
//! unwinder.walk(X86_64Regs::new(0x40_1008, 0x7ff0, 0), &mut memory, &mut trace);
//!
//! let pcs: Vec<u64> = trace.pcs().map(VirtAddr::get).collect();
//! assert_eq!(pcs, [0x40_1008, 0x40_2010]);
//! assert_eq!(trace.end(), Some(End::Outermost));
//! assert!(trace.is_complete());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

// The examples of both README files are tests.
#[cfg(all(doctest, feature = "x86"))]
#[doc = include_str!("../../README.md")]
struct Readme;
#[cfg(all(doctest, feature = "x86"))]
#[doc = include_str!("../README.md")]
struct PackageReadme;

#[cfg(feature = "framehop")]
extern crate alloc;

#[cfg(feature = "framehop")]
pub mod framehop;
#[cfg(feature = "x86")]
mod tables;
#[cfg(feature = "x86")]
mod unwinder;

#[cfg(feature = "sframe")]
pub use sframe;
#[cfg(feature = "cfi")]
pub use unwind_cfi as cfi;
pub use unwind_core as walk;
pub use unwind_core::deferred;
#[doc(inline)]
pub use unwind_core::{
    End, FramePc, Memory, Origin, Provenance, ReadError, SliceMemory, StepError, Trace, TraceFrame,
    VirtAddr,
};
#[cfg(feature = "perf")]
pub use unwind_perf as perf;
#[cfg(feature = "x86")]
pub use unwind_x86 as x86;
#[cfg(feature = "x86")]
#[doc(inline)]
pub use unwind_x86::X86_64Regs;
#[cfg(feature = "x86")]
pub use unwinder::{ModuleError, Unwinder};
