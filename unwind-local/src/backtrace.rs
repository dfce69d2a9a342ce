//! Backtraces: of the caller, and of what a signal interrupted.

use core::ops::ControlFlow;

use unwind_core::{End, Trace, TraceFrame};

use crate::addresses::fill;
use crate::raw::caller::backtrace_of_caller;
use crate::raw::listed_objects;
use crate::raw::loads;
use crate::raw::place;
use crate::raw::program_index;
use crate::raw::registers::{CallerRegisters, Start};
use crate::walker::walk;

use crate::addresses::Backtrace;
pub use crate::raw::place::MAX_FRAMES;

/// Makes later walks faster. Walks before it cache no rows, as they cannot know when these are stale.
///
/// It looks for the dynamic linker's count of loaded objects, and has a child process begin
/// with an empty pool. One call is enough, early in the program.
///
/// Some tables are found only then: with musl, those of the objects that are loaded at that time,
/// so call it again after each `dlopen`; in a static program without a search table, as linkers
/// make them by `-static`, those that are in the program's file.
///
/// Not for signal handlers: it locks, allocates, and loads and unloads an object.
pub fn prepare() {
    if let Some(changes) = listed_objects::refresh() {
        loads::set(changes);
    }
    program_index::make();
    loads::find_in_program();
    prepare_for_glibc();
}

/// [`prepare`] for a shared object that runs with glibc alone: it adds less code.
#[doc(hidden)]
pub fn prepare_for_glibc() {
    place::wipe_on_fork();
    loads::find();
    // What is bound lazily is bound, and the stack is known, before the first handler.
    fill(&mut Start::here(), 0, &mut [0; 2]);
}

/// Whether rows are cached: [`prepare`] has found the count of loaded objects, or has made a list of
/// them. With a later glibc it may not find the count; walks are right then, too, but look up each
/// row.
#[must_use]
pub fn keeps_rows() -> bool {
    loads::count().is_some()
}

/// Writes the return addresses of the callers to `out`, innermost first: the first one is in
/// the function that calls this.
///
/// For signal handlers at any point, too. `errno` is kept.
// A part of the function that calls it, so that no frame of this library is walked.
#[inline(always)]
pub fn backtrace(out: &mut [usize]) -> Backtrace {
    backtrace_of_caller(out)
}

/// Writes the return addresses of the callers to `out`, as [`backtrace`] does, but begins in the
/// function that the registers are of: for libraries that have a backtrace function of their own.
///
/// For signal handlers at any point, too. `errno` is kept.
///
/// # Safety
///
/// The registers are those of a function that has not returned, on this thread.
#[expect(unsafe_code, reason = "the caller knows whose registers these are")]
pub unsafe fn backtrace_from(registers: &CallerRegisters, out: &mut [usize]) -> Backtrace {
    // SAFETY: as the caller promises.
    fill(&mut unsafe { Start::of_caller(registers) }, 0, out)
}

/// [`backtrace`] without the `skipped` innermost frames, which [`Backtrace::len`] does not count.
#[inline(never)]
pub fn backtrace_skipping(skipped: usize, out: &mut [usize]) -> Backtrace {
    fill(&mut Start::here(), skipped.saturating_add(1), out)
}

/// Writes the address that a signal interrupted and the return addresses of its callers.
///
/// For signal handlers at any point, too. `errno` is kept.
///
/// # Safety
///
/// The context is the one that the kernel gave the handler in which this thread runs, or one
/// with the registers of a frame on this thread's stack.
#[expect(unsafe_code, reason = "the caller knows what the context is")]
pub unsafe fn backtrace_of(context: &libc::ucontext_t, out: &mut [usize]) -> Backtrace {
    // SAFETY: as the caller promises.
    fill(&mut unsafe { Start::of(context) }, 0, out)
}

/// Calls `visit` for each caller, innermost first, until it breaks; returns why there are no
/// more, or `None` if it broke. The first one is the function that calls this.
///
/// For signal handlers at any point, too, if `visit` is.
#[inline(never)]
pub fn frames(visit: impl FnMut(TraceFrame) -> ControlFlow<()>) -> Option<End> {
    visit_each(&mut Start::here(), 1, visit)
}

/// Calls `visit`, as [`frames`] does, for what a signal interrupted and for its callers.
///
/// # Safety
///
/// As for [`backtrace_of`].
#[expect(unsafe_code, reason = "the caller knows what the context is")]
pub unsafe fn frames_of(
    context: &libc::ucontext_t,
    visit: impl FnMut(TraceFrame) -> ControlFlow<()>,
) -> Option<End> {
    // SAFETY: as the caller promises.
    visit_each(&mut unsafe { Start::of(context) }, 0, visit)
}

/// Walks the callers into a trace, which is emptied first: the first frame is the function that
/// calls this. Where the trace has too little room its end is
/// [`FrameLimit`](End::FrameLimit).
///
/// For signal handlers at any point, too. It is what a delivery of
/// [`unwind_core::deferred`] asks for, as `examples/deferred_handler.rs` shows.
#[inline(never)]
pub fn trace(trace: &mut Trace) {
    walk(&mut Start::here(), |frames| {
        // This function's own.
        frames.next();
        frames.trace(trace);
    });
}

/// Walks into a trace, as [`trace()`] does, from a function that has saved its registers: the first
/// frame is that function, whatever it has called since. So a deferred walk finds the callers of the
/// function in which the request was made.
///
/// For signal handlers at any point, too.
///
/// # Safety
///
/// As for [`backtrace_from`].
#[expect(unsafe_code, reason = "the caller knows whose registers these are")]
pub unsafe fn trace_from(registers: &CallerRegisters, trace: &mut Trace) {
    // SAFETY: as the caller promises.
    walk(&mut unsafe { Start::of_caller(registers) }, |frames| frames.trace(trace));
}

/// Walks into a trace, as [`trace()`] does, from what a signal interrupted.
///
/// For signal handlers at any point, too.
///
/// # Safety
///
/// As for [`backtrace_of`].
#[expect(unsafe_code, reason = "the caller knows what the context is")]
pub unsafe fn trace_of(context: &libc::ucontext_t, trace: &mut Trace) {
    // SAFETY: as the caller promises.
    walk(&mut unsafe { Start::of(context) }, |frames| frames.trace(trace));
}

/// How many frames are found before the first of them is visited.
const AT_A_TIME: usize = 32;

/// Calls `visit` for each frame, less the `skipped` ones. Returns the end, unless it broke.
#[inline]
fn visit_each(
    start: &mut Start,
    skipped: usize,
    mut visit: impl FnMut(TraceFrame) -> ControlFlow<()>,
) -> Option<End> {
    walk(start, |frames| {
        for _ in 0..skipped {
            frames.next();
        }
        let trace: &mut Trace = &mut Trace::<[_; AT_A_TIME]>::new();
        loop {
            frames.trace(trace);
            if trace.frames().any(|frame| visit(frame).is_break()) {
                return None;
            }
            if frames.end().is_some() {
                return trace.end();
            }
        }
    })
}
