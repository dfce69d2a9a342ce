//! The addresses of a walk's frames.

use unwind_core::{Addresses, End, FramePc, VirtAddr};

use crate::raw::registers::{Start, words};
use crate::walker::{is_whole, walk};

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

/// Writes the addresses of a walk, less the `skipped` innermost ones.
pub(crate) fn fill(start: &mut Start, skipped: usize, out: &mut [usize]) -> Backtrace {
    walk(start, |frames| {
        for _ in 0..skipped {
            frames.next();
        }
        let Addresses { len, last, .. } = frames.addresses(words(out));
        if matches!(frames.end(), Some(End::Outermost)) {
            // Only guesses, and what follows a failure, leave gaps.
            return Backtrace { len, end: End::Outermost, is_complete: frames.is_complete() };
        }
        let last = last.map_or(VirtAddr::new(0), FramePc::lookup_addr);
        let end = frames.end().map_or(End::FrameLimit, |end| end.with_fault(last));
        Backtrace { len, end, is_complete: is_whole(Some(end)) && frames.is_complete() }
    })
}
