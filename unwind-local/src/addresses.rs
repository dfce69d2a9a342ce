//! The addresses of a walk's frames.

use unwind_core::{End, FramePc, VirtAddr};

use crate::raw::registers::Start;
#[cfg(target_pointer_width = "64")]
use crate::raw::registers::words;
use crate::walker::{OwnFrames, is_whole, walk};

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
        let (len, last) = write(frames, out);
        if matches!(frames.end(), Some(End::Outermost)) {
            // Only guesses, and what follows a failure, leave gaps.
            return Backtrace { len, end: End::Outermost, is_complete: frames.is_complete() };
        }
        let last = last.map_or(VirtAddr::new(0), FramePc::lookup_addr);
        let end = frames.end().map_or(End::FrameLimit, |end| end.with_fault(last));
        Backtrace { len, end, is_complete: is_whole(Some(end)) && frames.is_complete() }
    })
}

/// Writes the addresses that there is room for. Returns how many, and the last one.
#[cfg(target_pointer_width = "64")]
#[inline(always)]
fn write(frames: &mut OwnFrames<'_, '_, '_>, out: &mut [usize]) -> (usize, Option<FramePc>) {
    let found = frames.addresses(words(out));
    (found.len, found.last)
}

#[cfg(target_pointer_width = "32")]
fn write(frames: &mut OwnFrames<'_, '_, '_>, out: &mut [usize]) -> (usize, Option<FramePc>) {
    /// How many are found at a time.
    const SOME: usize = 32;
    let (mut len, mut last) = (0_usize, None);
    for part in out.chunks_mut(SOME) {
        let mut words = [0; SOME];
        let found = frames.addresses(words.get_mut(..part.len()).unwrap_or_default());
        for (to, word) in part.iter_mut().zip(words) {
            *to = usize::try_from(word).unwrap_or(0);
        }
        len = len.saturating_add(found.len);
        last = found.last.or(last);
        if found.len < part.len() {
            break;
        }
    }
    (len, last)
}
