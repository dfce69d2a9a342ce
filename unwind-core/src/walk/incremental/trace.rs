//! The last walk of a task, with the stack words that say whether its frames are still true.

use core::fmt;

use super::previous::PreviousRest;
use super::words::{RecordedFrames, StackWord, Words};
use crate::addr::VirtAddr;
use crate::end::End;
use crate::table_error::TableFault;
use crate::trace::{Trace, TraceFrame};
use crate::walk::fast::fast_error::SimpleEnd;

/// The frames of the last walk of a task, so that the next one,
/// [`Walker::trace_incremental`](crate::Walker::trace_incremental), has to find only those that are
/// new.
///
/// Of each frame it keeps the one or two words of the stack that the step that led
/// there read, and where: at most 34 bytes, `34 * N + 192` in all.
///
/// It holds the stack of one task in one address space, walked by one set of
/// sources on one CPU: [`clear`](Self::clear) it when the task executes another
/// program, or is walked in another way.
#[derive(Clone)]
pub struct IncrementalTrace<const N: usize> {
    /// The words of the frames, innermost first: the return address of each, after
    /// the frame pointer if that was saved. The last of a finished walk is in the
    /// last place, so that outer frames stay where they are when inner ones come
    /// and go.
    pub(super) words: [[StackWord; 2]; N],
    /// The first of them.
    pub(super) start: usize,
    /// After the last one.
    pub(super) words_end: usize,
    /// How many frames they are.
    pub(super) len: usize,
    /// During a walk, the frames of the one before that may still be met: they are
    /// as they were.
    pub(super) old: PreviousRest,
    pub(super) end: Option<End>,
    /// The same, if it can be seen again by a look.
    pub(super) simple_end: Option<SimpleEnd>,
    /// That of the walk before, for as long as its last frame may be met.
    pub(super) old_end: Option<SimpleEnd>,
    /// When its steps would be taken again; `None` if that is not known.
    pub(super) conditions: Option<ValidityKey>,
    pub(super) reused: usize,
}

const _: () = {
    assert!(size_of::<IncrementalTrace<510>>() <= 34 * 510 + 192, "the documented size");
    assert!(size_of::<IncrementalTrace<16>>() <= 34 * 16 + 192, "the documented size");
};

/// What a step depends on besides the frame it starts from and the words it
/// reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValidityKey {
    /// The generation of the source.
    pub(crate) source: u64,
    /// That of the fallback.
    pub(crate) fallback: u64,
    /// That of what is known of the code.
    pub(crate) code: u64,
    /// The end of the stack.
    pub(crate) stack_end: Option<u64>,
}

impl<const N: usize> IncrementalTrace<N> {
    /// How many words there is room for: each frame has at most two.
    pub(super) const WORDS: usize = N.saturating_mul(2);

    pub(super) const NO_OLD: PreviousRest = PreviousRest { words: 0, fp: 0 };

    /// Without a walk.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            words: [[StackWord::NONE; 2]; N],
            start: Self::WORDS,
            words_end: Self::WORDS,
            len: 0,
            old: Self::NO_OLD,
            end: None,
            simple_end: None,
            old_end: None,
            conditions: None,
            reused: 0,
        }
    }

    /// Forgets the walk.
    pub const fn clear(&mut self) {
        (self.start, self.words_end, self.len) = (Self::WORDS, Self::WORDS, 0);
        self.forget_old();
        self.end = None;
        self.simple_end = None;
        self.conditions = None;
        self.reused = 0;
    }

    /// How many frames there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no frames: no walk was done, or it found none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why the walk has no more frames; `None` if none was done.
    #[must_use]
    pub const fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether these are all frames of the stack: the last one is known to be the
    /// outermost one, and none comes
    /// [after a gap](crate::Provenance::is_after_gap). It looks at each frame.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| end.is_outermost())
            && !self.frames().any(|frame| frame.provenance.is_after_gap())
    }

    /// How many of the frames are the walk's before, verified and not found
    /// again. Where it is less than four fifths of them most of the time,
    /// [`Walker::trace`](crate::Walker::trace) is faster.
    #[must_use]
    pub const fn reused(&self) -> usize {
        self.reused
    }

    /// The addresses of the frames as the target has them, innermost first.
    #[must_use]
    pub fn pcs(&self) -> impl DoubleEndedIterator<Item = VirtAddr> + ExactSizeIterator + Clone {
        self.frames().map(|frame| frame.pc.addr())
    }

    /// The frames, innermost first.
    #[must_use]
    pub fn frames(
        &self,
    ) -> impl DoubleEndedIterator<Item = TraceFrame> + ExactSizeIterator + Clone {
        RecordedFrames::new(self.used(), self.len)
    }

    /// Copies the walk into `trace`, as far as there is room, as if it had been
    /// done there.
    pub fn copy_to(&self, trace: &mut Trace) {
        trace.clear();
        let Some(end) = self.end else { return };
        for TraceFrame { pc, provenance } in self.frames() {
            if !trace.push(pc.addr(), provenance) {
                return trace.finish(End::<TableFault>::FrameLimit);
            }
        }
        trace.finish(end);
    }

    #[inline]
    pub(super) fn words(&self, start: usize, end: usize) -> Words<'_> {
        Words(self.words.as_flattened().get(start..end).unwrap_or_default())
    }

    pub(super) fn used(&self) -> Words<'_> {
        self.words(self.start, self.words_end)
    }
}

impl<const N: usize> Default for IncrementalTrace<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows the items of an iterator as a list.
struct List<I>(I);

impl<I: Iterator<Item: fmt::Debug> + Clone> fmt::Debug for List<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.clone()).finish()
    }
}

impl<const N: usize> fmt::Debug for IncrementalTrace<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncrementalTrace")
            .field("frames", &List(self.frames()))
            .field("end", &self.end)
            .field("reused", &self.reused)
            .finish()
    }
}
