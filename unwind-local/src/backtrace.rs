//! Backtraces: of the caller, and of what a signal interrupted.

use core::ops::ControlFlow;

use unwind_core::{End, RowCache, Trace, TraceFrame};

use crate::cursor::Cursor;
use crate::memory::OwnMemory;
use crate::raw::loads;
use crate::raw::place::{self, ROWS, Taken, Workspace};
use crate::raw::registers::Start;
use crate::raw::rows::Guessed;
use crate::walker::{is_whole, walker};

pub use crate::raw::place::MAX_FRAMES;

/// What a backtrace found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backtrace {
    /// How many addresses were written.
    pub len: usize,
    /// Why there are no more. [`FrameLimit`](End::FrameLimit) where there was no room.
    pub end: End,
    /// The addresses are all frames up to the outermost one, which its table says it is, and
    /// each was found by a table or by instructions that prove it.
    pub is_complete: bool,
}

/// Makes walks fast: those before keep no rows, as they cannot know when these are stale.
///
/// It looks for the dynamic linker's count of loaded objects, and has a child process begin
/// with an empty pool. One call is enough, early in the program.
///
/// Not for signal handlers: it locks, and loads and unloads an object.
pub fn prepare() {
    place::wipe_on_fork();
    loads::find();
    // What is bound lazily is bound, and the stack is known, before the first handler.
    backtrace(&mut [0; 2]);
}

/// Whether rows are kept: [`prepare`] has found the dynamic linker's count. It is not found
/// where the C library is another than glibc, or a later one that hides it; walks are right
/// there, too, but look each row up.
#[must_use]
pub fn keeps_rows() -> bool {
    loads::count().is_some()
}

/// Writes the return addresses of the callers to `out`, innermost first: the first one is in
/// the function that calls this.
///
/// For signal handlers at any point, too. `errno` is kept.
#[inline(never)]
pub fn backtrace(out: &mut [usize]) -> Backtrace {
    fill(&mut Start::here(), 1, out)
}

/// The same without the `skipped` innermost frames, which [`Backtrace::len`] does not count.
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
    walk(&mut Start::here(), 1, MAX_FRAMES, &mut Visit(visit)).0
}

/// The same for what a signal interrupted.
///
/// # Safety
///
/// As of [`backtrace_of`].
#[expect(unsafe_code, reason = "the caller knows what the context is")]
pub unsafe fn frames_of(
    context: &libc::ucontext_t,
    visit: impl FnMut(TraceFrame) -> ControlFlow<()>,
) -> Option<End> {
    // SAFETY: as the caller promises.
    walk(&mut unsafe { Start::of(context) }, 0, MAX_FRAMES, &mut Visit(visit)).0
}

/// What takes the frames of a walk.
trait Sink {
    /// Takes them from a trace; `false` if it broke.
    fn take(&mut self, trace: &Trace, skipped: usize) -> bool;

    /// Takes one; `false` if it breaks.
    fn take_one(&mut self, frame: TraceFrame) -> bool;
}

/// Addresses, in the order of the frames.
struct Addresses<'o> {
    out: &'o mut [usize],
    len: usize,
}

impl Sink for Addresses<'_> {
    #[inline]
    fn take(&mut self, trace: &Trace, skipped: usize) -> bool {
        let shown = self.out.iter_mut().zip(trace.pcs().skip(skipped));
        self.len = trace.len().saturating_sub(skipped).min(shown.len());
        for (slot, pc) in shown {
            *slot = usize::try_from(pc.get()).unwrap_or(0);
        }
        true
    }

    fn take_one(&mut self, frame: TraceFrame) -> bool {
        if let Some(slot) = self.out.get_mut(self.len) {
            *slot = usize::try_from(frame.pc.addr().get()).unwrap_or(0);
            self.len = self.len.saturating_add(1);
        }
        true
    }
}

/// A function that is called for each.
struct Visit<F>(F);

impl<F: FnMut(TraceFrame) -> ControlFlow<()>> Sink for Visit<F> {
    fn take(&mut self, trace: &Trace, skipped: usize) -> bool {
        trace.frames().skip(skipped).all(|frame| self.take_one(frame))
    }

    fn take_one(&mut self, frame: TraceFrame) -> bool {
        (self.0)(frame).is_continue()
    }
}

#[inline]
fn fill(start: &mut Start, skipped: usize, out: &mut [usize]) -> Backtrace {
    let most = out.len().saturating_add(skipped);
    let mut addresses = Addresses { out, len: 0 };
    let (end, is_complete) = walk(start, skipped, most, &mut addresses);
    Backtrace { len: addresses.len, end: end.unwrap_or(End::FrameLimit), is_complete }
}

/// Has the sink take at most `most` frames, less the `skipped` ones. Returns the end, unless
/// it broke, and whether these are all frames.
#[inline]
fn walk(
    start: &mut Start,
    skipped: usize,
    most: usize,
    sink: &mut impl Sink,
) -> (Option<End>, bool) {
    let guessed = Guessed::default();
    let Some(mut taken) = Taken::take() else {
        return walk_without_place(start, skipped, most, sink);
    };
    let Workspace { rows, trace } = taken.workspace();
    trace_from(start, most, &guessed, rows, trace);
    if !sink.take(trace, skipped) {
        return (None, false);
    }
    let end = trace.end();
    // Only guesses, and what follows a failure, leave gaps.
    (end, is_whole(end) && (!guessed.is_set() || trace.is_complete()))
}

/// Walks into a trace, by kept rows if it is known when they are stale.
#[inline(never)]
fn trace_from(
    start: &mut Start,
    most: usize,
    guessed: &Guessed,
    rows: &mut RowCache<ROWS>,
    trace: &mut Trace,
) {
    let mut memory = OwnMemory::new(start.pc(), Start::stack_pointer());
    let rows = loads::count().map(|_| rows);
    walker(start.pc(), most, guessed, rows).trace(start.registers(), &mut memory, trace);
}

/// As [`walk`], frame by frame and without kept rows.
#[cold]
#[inline(never)]
fn walk_without_place(
    start: &Start,
    skipped: usize,
    most: usize,
    sink: &mut impl Sink,
) -> (Option<End>, bool) {
    let mut cursor = Cursor::at(*start);
    let mut number = 0_usize;
    while let Some(frame) = cursor.frame() {
        if number == most {
            return (Some(End::FrameLimit), false);
        }
        if number >= skipped && !sink.take_one(frame) {
            return (None, false);
        }
        number = number.saturating_add(1);
        cursor.step();
    }
    (cursor.end(), cursor.is_complete())
}
