//! Backtraces of the calling process that cannot hurt it: no lock, no allocation, no lazy
//! thread-local, no fault, `errno` kept. Linux, x86-64 or i386, glibc 2.35 or
//! later, or musl.
//!
//! | what | function | in a signal handler |
//! |---|---|---|
//! | addresses of the callers | [`backtrace`] | at any point |
//! | of what a signal interrupted | [`backtrace_of`] | at any point |
//! | each frame with how it was found | [`frames`], [`frames_of`] | at any point |
//! | all frames in a [`Trace`](unwind_core::Trace) | [`trace`], [`trace_of`] | at any point |
//! | of a function that has kept its registers | [`backtrace_from`], [`trace_from`] | at any point |
//! | a frame at a time, with registers | [`Cursor`] | at any point |
//! | past code that the program made | [`ProgramCode`] | at any point |
//! | what has stayed of a deep stack taken over | [`trace_incremental`] | at any point |
//! | of another thread | [`ThreadSignal`] | the asked one answers at any point |
//! | faster walks from then on | [`prepare`] | never |
//! | the name of a function | [`name_of`] | never |
//! | names of frames, by feature `symbols` | `Symbol`, `Capture` | never |
//!
//! "At any point" says: also where the handler has interrupted `malloc`, `dlopen`, `dlclose`,
//! `fork`, the start or end of a thread, an exception being thrown, or another backtrace. Functions
//! that begin at registers which they are given, and [`name_of`], are `unsafe`: each says what it
//! relies on.
//!
//! # How
//!
//! glibc's `_dl_find_object` tells which object has the code of a frame, without a lock. musl has no
//! such function: [`prepare`] makes a list, and is called again after a `dlopen`. The object's
//! `.sframe` or `.eh_frame` is read where it is, for the addresses that occur. Code that nothing
//! tells of, as a JIT compiler's that has not [told](ProgramCode) of it, is walked by frame
//! pointers; such a stack is never complete. Rows are kept in a pool: the first 16 threads that
//! walk have a place of their own, other threads and handlers that interrupt a walk take one of 16
//! more by an exchange, and where none is free a walk does without.
//!
//! The thread's own stack is read by plain loads: it is asked for once, a page at a time, and
//! stays as long as the thread runs. So is its signal stack, until the program gives it another. A fiber's
//! is asked for at each walk, at most 1.5 MiB. All other memory is read by system calls that cannot fault, at most
//! 96 in a walk, so that threads that are interrupted often still do something: where that is too
//! few the stack ends with [`NotResident`](ReadError::NotResident).
//!
//! # Limits
//!
//! A walk has at most [`MAX_FRAMES`] frames. A `longjmp` out of a handler that interrupted a walk leaves
//! that walk's place taken; once all are, walks do without. So does a `fork` in such a
//! handler to the child, whose interrupted walk has fewer frames.
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
    keeps_rows, prepare, prepare_for_glibc, trace, trace_from, trace_incremental, trace_of,
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
    DwarfReg, End, FramePc, IncrementalTrace, Origin, Provenance, ReadError, StepError, TraceFrame,
};

pub use thread_error::ThreadError;
pub use thread_signal::{BadSignal, ThreadSignal};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
