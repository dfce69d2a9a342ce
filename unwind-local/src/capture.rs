//! Where a value was made, for errors and panics.

use core::fmt;
use core::ops::ControlFlow;
use std::boxed::Box;
use std::vec::Vec;

use unwind_core::{End, FramePc, TraceFrame};

use crate::backtrace::{MAX_FRAMES, frames};
use crate::symbol::Symbol;

/// The stack at one place: addresses, whose names are looked up when it is shown.
///
/// It costs a walk and one allocation, where `std::backtrace::Backtrace` walks by libgcc
/// and locks. Each frame is shown with its functions, the inlined ones first; where the frames
/// are not all, the last line says why.
///
/// ```
/// use std::fmt;
/// use unwind_local::Capture;
///
/// #[derive(Debug)]
/// struct NotFound {
///     made_at: Capture,
/// }
///
/// impl fmt::Display for NotFound {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "not found, at\n{}", self.made_at)
///     }
/// }
///
/// impl std::error::Error for NotFound {}
///
/// #[inline(never)]
/// fn find() -> Result<(), NotFound> {
///     Err(NotFound { made_at: Capture::new() })
/// }
/// assert!(find().unwrap_err().to_string().contains("find"));
/// ```
///
/// Not for signal handlers: it allocates.
#[derive(Clone, PartialEq, Eq)]
pub struct Capture {
    frames: Box<[FramePc]>,
    end: End,
    is_complete: bool,
}

impl Capture {
    /// The stack of the caller, whose frame is the first one.
    #[inline(never)]
    #[must_use]
    pub fn new() -> Self {
        Self::take(MAX_FRAMES)
    }

    /// The stack of the caller, as [`new`](Self::new) finds it, of at most the `most` innermost frames.
    #[inline(never)]
    #[must_use]
    pub fn of_most(most: usize) -> Self {
        Self::take(most)
    }

    /// From the caller of the function on that this is a part of.
    #[inline(always)]
    fn take(most: usize) -> Self {
        let mut pcs = Vec::with_capacity(most.min(64));
        let (mut is_own, mut has_gap) = (true, false);
        let end = frames(|frame: TraceFrame| {
            has_gap |= frame.provenance.is_after_gap();
            if core::mem::take(&mut is_own) {
                return ControlFlow::Continue(());
            }
            if pcs.len() == most {
                return ControlFlow::Break(());
            }
            pcs.push(frame.pc);
            ControlFlow::Continue(())
        });
        let end = end.unwrap_or(End::FrameLimit);
        let is_complete = matches!(end, End::Outermost) && !has_gap;
        Self { frames: pcs.into_boxed_slice(), end, is_complete }
    }

    /// Where the frames stand, innermost first.
    #[must_use]
    pub fn frames(&self) -> &[FramePc] {
        &self.frames
    }

    /// Why there are no more frames.
    #[must_use]
    pub const fn end(&self) -> End {
        self.end
    }

    /// Whether these are all frames, as of [`Backtrace`](crate::Backtrace).
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl Default for Capture {
    #[inline(never)]
    fn default() -> Self {
        Self::take(MAX_FRAMES)
    }
}

/// Addresses alone.
impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("frames", &self.frames).field("end", &self.end).finish()
    }
}

/// Not for signal handlers: names are looked up, which locks, allocates and reads files.
impl fmt::Display for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, pc) in self.frames.iter().enumerate() {
            let symbols = Symbol::find_all(*pc);
            if symbols.is_empty() {
                writeln!(f, "{number:4}: {}", pc.addr())?;
            }
            for (inlined, symbol) in symbols.iter().enumerate() {
                match inlined {
                    0 => writeln!(f, "{number:4}: {symbol}")?,
                    _ => writeln!(f, "      {symbol}")?,
                }
            }
        }
        match (self.is_complete, self.end) {
            (true, _) => Ok(()),
            (false, End::Outermost) => writeln!(f, "not complete: callers may be missing"),
            (false, end) => writeln!(f, "not complete: {end}"),
        }
    }
}
