//! Backtraces of the calling process that are safe at any point of it, in signal handlers too:
//! they take no lock, allocate nothing, use no thread-local that is made at its first use, cause
//! no fault and keep `errno`. For Linux on x86-64 or i386, with glibc 2.35 or later, or musl.
//!
//! | what | function | in a signal handler |
//! |---|---|---|
//! | addresses of the callers | [`backtrace`] | at any point |
//! | of what a signal interrupted: the address, then the callers | [`backtrace_of`] | at any point |
//! | each frame with how it was found | [`frames`], [`frames_of`] | at any point |
//! | all frames in a [`Trace`](unwind_core::Trace) | [`trace`], [`trace_of`] | at any point |
//! | the same, beginning in a function that has saved its registers | [`backtrace_from`], [`trace_from`] | at any point |
//! | a frame at a time, with registers | [`Cursor`] | at any point |
//! | through code that the program has generated | [`ProgramCode`] | at any point |
//! | of another thread | [`ThreadSignal`] | the other thread answers at any point |
//! | makes later walks faster | [`prepare`] | never |
//! | the name of a function | [`name_of`] | never |
//! | names of frames, by feature `symbols` | `Symbol`, `Capture` | never |
//!
//! "At any point" means: also if the handler has interrupted `malloc`, `dlopen`, `dlclose`,
//! `fork`, the start or end of a thread, an exception being thrown, or another backtrace. Functions
//! that take the registers to begin at, and [`name_of`], are `unsafe`: each says what it relies on.
//!
//! # How
//!
//! glibc's `_dl_find_object` says without a lock which object has the code of a frame. musl has no
//! such function: [`prepare`] makes a list, so call it again after each `dlopen`. The object's
//! `.sframe` or `.eh_frame` is read in place, only for the addresses that a walk meets. Code without
//! a table, such as that of a JIT compiler which has not [registered](ProgramCode) it, is walked by
//! frame pointers; such a stack is never complete. Rows are cached in a pool: each of the first 16
//! threads that walk has a cache of its own. Other threads, and handlers that interrupt a walk, take
//! one of 16 more by an atomic exchange; if none is free, the walk caches nothing.
//!
//! The thread's own stack is read by plain loads: the kernel is asked once for each page whether it
//! can be read, which then holds as long as the thread runs. The same holds for its signal stack,
//! until the program sets another one. Of a fiber's stack, at most 1.5 MiB, the pages are asked for
//! in each walk. All other memory is read by system calls that cannot fault, at most 96 in a walk,
//! so that a thread which is interrupted often still makes progress: a stack that needs more ends
//! with [`NotResident`](ReadError::NotResident).
//!
//! # Limits
//!
//! A walk has at most [`MAX_FRAMES`] frames. After a `longjmp` out of a handler that interrupted a
//! walk, that walk's cache stays taken; once all are taken, walks cache nothing. The same holds in
//! the child of a `fork` in such a handler, and the child's interrupted walk finds fewer frames.
//!
//! # Example
//!
//! ```
//! let mut callers = [0; 64];
//! let found = unwind_local::backtrace(&mut callers);
//! for caller in &callers[..found.len] {
//!     println!("{caller:#x}");
//! }
//! println!("{}", found.end);
//! ```
#![no_std]
#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "x86"))))]
compile_error!("unwind-local knows Linux on x86-64 and i386");

#[cfg(feature = "symbols")]
extern crate std;

mod addresses;
mod backtrace;
#[cfg(feature = "symbols")]
mod capture;
mod checked_reads;
mod cursor;
mod memory;
mod name;
mod program_code;
#[expect(unsafe_code, reason = "what the rest is safe by")]
mod raw;
#[cfg(feature = "symbols")]
mod symbol;
mod thread_error;
mod thread_signal;
mod walker;

pub use addresses::Backtrace;
pub use backtrace::{
    MAX_FRAMES, backtrace, backtrace_from, backtrace_of, backtrace_skipping, frames, frames_of,
    keeps_rows, prepare, prepare_for_glibc, trace, trace_from, trace_of,
};
#[cfg(feature = "symbols")]
pub use capture::Capture;
pub use cursor::Cursor;
pub use name::name_of;
pub use program_code::{CodeTable, ProgramCode, TooMuchCode};
pub use raw::registers::CallerRegisters;
#[cfg(feature = "symbols")]
pub use symbol::Symbol;
pub use unwind_core::{
    DwarfReg, End, FramePc, Origin, Provenance, ReadError, StepError, TraceFrame,
};

pub use thread_error::ThreadError;
pub use thread_signal::{BadSignal, ThreadSignal};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
