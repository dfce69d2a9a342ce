//! What all walks are made of.

use unwind_core::{End, Frames, Or, RowCache, RowSource as _, Unchecked, Walker};
use unwind_x86::SignalTrampolines;

use crate::memory::OwnMemory;
use crate::raw::loads;
use crate::raw::machine::{MACHINE, Machine, Registers, TableRows, table_rows};
use crate::raw::place::{MAX_FRAMES, ROWS, Taken};
use crate::raw::registers::{Start, StartPc};
use crate::raw::rows::{Guessed, Guesses, Instructions, ObjectRows};

/// Rows of earlier walks, where it is known when they are stale.
pub(crate) type Kept<'c> = Option<&'c mut RowCache<ROWS>>;

pub(crate) type Rows<'g> = Or<Or<TableRows<ObjectRows<'g>>, SignalTrampolines>, Instructions<'g>>;

/// What a walk is made of.
pub(crate) type OwnWalker<'g, 'c> = Walker<Machine, Rows<'g>, Guesses<'g>, Unchecked, Kept<'c>>;

/// The frames of a walk.
pub(crate) type OwnFrames<'w, 'g, 'c> = Frames<
    'w,
    Machine,
    Rows<'g>,
    Guesses<'g>,
    Unchecked,
    Kept<'c>,
    OwnMemory<'g>,
    &'w mut Registers,
>;

/// Walks from there by kept rows, if it is known when they are stale.
#[inline(always)]
pub(crate) fn walk<R>(start: &mut Start, run: impl FnOnce(&mut OwnFrames<'_, '_, '_>) -> R) -> R {
    let guessed = Guessed::default();
    let mut taken = if loads::count().is_some() { Taken::take() } else { None };
    let mut memory = OwnMemory::new(start.pc(), &guessed);
    memory.of_stack(start.sp(), Start::stack_pointer());
    let mut walker = walker(start.pc(), &guessed, taken.as_mut().map(Taken::rows));
    let has_called = start.has_called;
    let mut frames = walker.frames(start.registers(), &mut memory);
    if has_called {
        frames.begin_in_caller();
    }
    run(&mut frames)
}

/// Asks the tables of objects, then signal trampolines, the instructions, frame pointers.
#[inline]
pub(crate) fn walker<'g, 'c>(
    start: StartPc,
    guessed: &'g Guessed,
    kept: Kept<'c>,
) -> OwnWalker<'g, 'c> {
    let rows = table_rows(ObjectRows::new(start, guessed)).or(SignalTrampolines);
    let most = u32::try_from(MAX_FRAMES).unwrap_or(u32::MAX);
    Walker::new(MACHINE, rows.or(Instructions(guessed)))
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
