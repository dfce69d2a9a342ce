//! Deferred unwinding and stack walks for hosts that are written in C: kernels, modules of
//! kernels, hypervisors, programs.
//!
//! This is what [`include/unwind_ffi.h`](https://docs.rs/unwind-ffi) declares; a host links `lib`, the same as
//! one archive, and defines the hooks. The package's README says how.
//!
//! | module | what |
//! |---|---|
//! | `raw` | the functions and hooks, and all `unsafe` of the crate: pointers become references here |
//! | [`numbers`] | the numbers that C knows |
//! | [`types`] | the structures that C knows |
//! | `host` | the one [`DeferredUnwind`](unwind_core::deferred::DeferredUnwind), and what it asks of the host |
//! | `space` | the modules of an address space |
//! | `tables` | rows of their tables, wherever these are |
//! | `walk` | walks |
#![no_std]
#![deny(unsafe_code)]
#![expect(clippy::doc_markdown, reason = "these are the comments of a C header")]

mod host;
pub mod numbers;
#[expect(unsafe_code, reason = "what C hands over is pointers")]
pub mod raw;
mod space;
mod tables;
pub mod types;
mod walk;
