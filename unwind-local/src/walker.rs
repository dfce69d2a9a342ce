//! What all walks are made of.

use unwind_core::{End, Or, RowCache, RowSource as _, Unchecked, Walker};
use unwind_x86::{SignalTrampolines, X86_64};

use crate::raw::place::{MAX_FRAMES, ROWS};
use crate::raw::registers::StartPc;
use crate::raw::rows::{Guessed, Guesses, Instructions, ObjectRows};

/// Rows of earlier walks, where it is known when they are stale.
pub(crate) type Kept<'c> = Option<&'c mut RowCache<ROWS>>;

pub(crate) type Rows<'g> = Or<Or<ObjectRows<'g>, SignalTrampolines>, Instructions<'g>>;

/// Asks the tables of objects, then signal trampolines, the instructions, frame pointers.
#[inline]
pub(crate) fn walker<'g, 'c>(
    start: StartPc,
    most: usize,
    guessed: &'g Guessed,
    kept: Kept<'c>,
) -> Walker<X86_64, Rows<'g>, Guesses<'g>, Unchecked, Kept<'c>> {
    let rows = ObjectRows::new(start, guessed).or(SignalTrampolines);
    let most = u32::try_from(most.min(MAX_FRAMES)).unwrap_or(u32::MAX);
    Walker::new(X86_64::FOUR_LEVEL, rows.or(Instructions(guessed)))
        .fallback(Guesses(guessed))
        .max_frames(most)
        .cache_if_any(kept)
}

/// Whether a table says that the last frame is the outermost one, as those of the C library
/// do. A return address of zero proves less than elsewhere: while an exception is on its way
/// from libgcc to where it is caught, no table tells where the stack is.
pub(crate) fn is_whole(end: Option<End>) -> bool {
    matches!(end, Some(End::Outermost))
}
