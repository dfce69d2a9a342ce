//! The last walk of a task, kept with what it takes to go on from it.

use core::fmt;
use core::hint::cold_path;
use core::ops::Range;

use crate::short_walk::Log;
use crate::trace::Provenance;
use crate::{
    Arch, End, FramePc, Memory, Origin, ShortRow, TableError, TraceFrame, UnwindCache, VirtAddr,
    WordSize,
};

/// The frames of the last walk of a task, so that the next one,
/// [`Walker::retrace`](crate::Walker::retrace), has to find only those that are
/// new.
///
/// Of each frame it keeps the pc, the stack and the frame pointer, and how the
/// step that led there read the latter two: 32 bytes, `32 * N + 128` in all. `E`
/// is the error of the walk's tables.
///
/// It holds the stack of one task in one address space, walked by one set of
/// sources on one CPU: [`clear`](Self::clear) it when the task executes another
/// program, or is walked in another way.
#[derive(Clone)]
pub struct LastTrace<const N: usize, E> {
    /// The frames of the walk, innermost first. The last of a finished walk is in
    /// the last place, so that outer frames stay where they are when inner ones
    /// come and go.
    frames: [Kept; N],
    /// The first of them.
    start: usize,
    /// Behind the last one. Only while a walk is under way it is below `N`.
    frames_end: usize,
    /// During a walk, the first frame of the one before that may still be met:
    /// those from here on are as they were.
    old: usize,
    /// How often frames may still be moved for the sake of old ones.
    moves: u8,
    end: Option<End<E>>,
    /// When its steps would be taken again; `None` if that is not known.
    conditions: Option<Conditions>,
    taken_over: usize,
}

const _: () = {
    assert!(size_of::<LastTrace<510, [u64; 3]>>() <= 32 * 510 + 128, "the documented size");
    assert!(size_of::<LastTrace<16, [u64; 3]>>() <= 32 * 16 + 128, "the documented size");
};

/// What a step depends on besides the frame it starts from and the words it
/// reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// The generations of the source and the fallback, and of what is known of
    /// the code.
    pub(crate) generations: [u64; 3],
    /// The end of the stack.
    pub(crate) stack_end: Option<u64>,
}

/// A frame, and the step that led to it.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pc: u64,
    sp: u64,
    fp: u64,
    provenance: Provenance,
    /// How far below the return address its frame pointer was saved, in slots; 0
    /// if it is its callee's. The return address was just below its stack pointer.
    /// `OTHER` if there was no step, or not such a one.
    fp_slots: u8,
}

impl Kept {
    const OTHER: u8 = u8::MAX;

    const NONE: Self =
        Self { pc: 0, sp: 0, fp: 0, provenance: Provenance::of_return(0), fp_slots: Self::OTHER };

    /// A frame to which something else than a short step led.
    pub(crate) fn by_other(pc: FramePc, sp: u64, fp: Option<u64>, provenance: Provenance) -> Self {
        // No short step leads on from a frame without a frame pointer, so it may be
        // taken for one with any.
        let (pc, fp) = (pc.addr().get(), fp.unwrap_or(0));
        Self { pc, sp, fp, provenance, fp_slots: Self::OTHER }
    }

    pub(crate) fn frame(&self) -> TraceFrame {
        let provenance = self.provenance;
        let addr = VirtAddr::new(self.pc);
        let exact = provenance.is_exact();
        let pc = if exact { FramePc::Exact(addr) } else { FramePc::Return(addr) };
        TraceFrame { pc, provenance }
    }

    /// Its stack and frame pointer.
    pub(crate) const fn registers(&self) -> (u64, u64) {
        (self.sp, self.fp)
    }

    /// Whether short steps lead on from both alike. The stack pointers are known
    /// to be equal.
    #[inline]
    fn is_like(&self, other: &Self) -> bool {
        self.pc == other.pc
            && self.fp == other.fp
            && self.provenance.is_exact() == other.provenance.is_exact()
    }
}

/// What became of a frame that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The walk before was not there.
    Fresh,
    /// The walk before was there too, and went on with the frames of
    /// [`LastTrace::rest`].
    Met,
    /// There is no room for it.
    NoRoom,
}

impl<const N: usize, E: Copy> LastTrace<N, E> {
    /// How often a walk moves its frames to where old ones go on. Each time costs
    /// as much as there are frames.
    const MOVES: u8 = 8;

    /// Without a walk.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            frames: [Kept::NONE; N],
            start: N,
            frames_end: N,
            old: N,
            moves: 0,
            end: None,
            conditions: None,
            taken_over: 0,
        }
    }

    /// Forgets the walk.
    pub const fn clear(&mut self) {
        (self.start, self.frames_end, self.old) = (N, N, N);
        self.end = None;
        self.conditions = None;
        self.taken_over = 0;
    }

    /// How many frames there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.frames_end.saturating_sub(self.start)
    }

    /// Whether there are no frames: no walk was done, or it found none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why the walk has no more frames; `None` if none was done.
    #[must_use]
    pub const fn end(&self) -> Option<End<E>> {
        self.end
    }

    /// Whether the last frame is known to be the outermost one.
    #[must_use]
    pub fn is_complete(&self) -> bool
    where
        E: TableError,
    {
        self.end.is_some_and(|end| end.is_complete())
    }

    /// How many of the frames are the walk's before, verified and not found
    /// again. Where it is less than two thirds of them most of the time,
    /// [`Walker::trace`](crate::Walker::trace) is faster.
    #[must_use]
    pub const fn taken_over(&self) -> usize {
        self.taken_over
    }

    /// The addresses of the frames as the target has them, innermost first.
    pub fn pcs(&self) -> impl DoubleEndedIterator<Item = VirtAddr> + ExactSizeIterator + Clone {
        self.used().iter().map(|frame| VirtAddr::new(frame.pc))
    }

    /// The frames, innermost first.
    pub fn frames(
        &self,
    ) -> impl DoubleEndedIterator<Item = TraceFrame> + ExactSizeIterator + Clone {
        self.used().iter().map(Kept::frame)
    }

    /// Copies the walk into `trace`, as far as there is room, as if it had been
    /// done there.
    pub fn copy_to<const M: usize>(&self, trace: &mut UnwindCache<M, E>) {
        trace.clear();
        let Some(end) = self.end else { return };
        for frame in self.used() {
            if !trace.push(VirtAddr::new(frame.pc), frame.provenance) {
                return trace.finish(End::Full);
            }
        }
        trace.finish(end);
    }

    fn used(&self) -> &[Kept] {
        self.frames.get(self.start..self.frames_end).unwrap_or_default()
    }

    /// Starts a walk under these conditions.
    pub(crate) fn begin(&mut self, conditions: Option<Conditions>) {
        let is_valid = conditions.is_some() && conditions == self.conditions;
        self.old = if is_valid { self.start } else { N };
        (self.start, self.frames_end) = (0, 0);
        self.moves = Self::MOVES;
        self.end = None;
        self.conditions = conditions;
        self.taken_over = 0;
    }

    /// Adds a frame that something else than a short step led to.
    pub(crate) fn arrive(&mut self, frame: Kept) -> Arrival {
        let old = self.frames.get(self.old..).unwrap_or_default();
        let mut olds = OldFrames::new(old);
        let is_met = olds.is_enough(&frame);
        self.old = N.saturating_sub(olds.len());
        if self.moves == 0 {
            self.old = N;
        } else if is_met {
            if let Some(old) = self.frames.get_mut(self.old) {
                *old = frame;
            }
            self.meet();
            return Arrival::Met;
        }
        if self.frames_end >= self.old && !self.make_room() {
            return Arrival::NoRoom;
        }
        if let Some(place) = self.frames.get_mut(self.frames_end) {
            *place = frame;
            self.frames_end = self.frames_end.wrapping_add(1);
        }
        Arrival::Fresh
    }

    /// The entries behind the last frame, at most `limit`, and the old frames that
    /// may still be met.
    #[inline]
    pub(crate) fn room(&mut self, limit: usize) -> (&mut [Kept], OldFrames<'_>) {
        let end = self.frames_end.saturating_add(limit).min(self.old);
        let from = self.frames_end.min(end);
        match self.frames.split_at_mut_checked(self.old) {
            Some((new, old)) => (new.get_mut(from..end).unwrap_or_default(), OldFrames::new(old)),
            None => (&mut [], OldFrames::new(&[])),
        }
    }

    /// Says that so many entries of the room are frames, that so many of the old
    /// ones may still be met, and whether the first of these was; returns whether
    /// that is to be made use of.
    #[inline]
    pub(crate) fn fill(&mut self, count: usize, old: usize, is_met: bool) -> bool {
        self.old = N.saturating_sub(old);
        self.frames_end = self.frames_end.wrapping_add(count).min(self.old);
        if self.moves == 0 {
            self.old = N;
            return false;
        }
        if is_met {
            // It is both the last one that was added and the first of the old.
            self.move_to(self.old.wrapping_sub(self.len().saturating_sub(1)));
            self.old = self.frames_end;
        }
        is_met
    }

    /// Makes the frames that were added those before the old one that was met and
    /// is in its place.
    fn meet(&mut self) {
        self.move_to(self.old.wrapping_sub(self.len()));
        self.old = self.old.wrapping_add(1);
        self.frames_end = self.old;
    }

    /// Makes room for one more frame before the old ones; `false` if there is
    /// none even without them.
    #[cold]
    pub(crate) fn make_room(&mut self) -> bool {
        if self.start == 0 || self.moves == 0 {
            self.old = N;
        }
        if self.frames_end == self.old {
            self.move_to(0);
        }
        self.frames_end < self.old
    }

    /// Moves the frames that were added, of which there may be none.
    #[inline]
    fn move_to(&mut self, start: usize) {
        let Range { start: from, end } = self.start..self.frames_end;
        if start == from {
            return;
        }
        let len = end.saturating_sub(from);
        let mut copy = |number: usize| {
            let frame = self.frames.get(from.wrapping_add(number)).copied();
            let place = self.frames.get_mut(start.wrapping_add(number));
            if let (Some(frame), Some(place)) = (frame, place) {
                *place = frame;
            }
        };
        if start < from {
            (0..len).for_each(&mut copy);
        } else {
            (0..len).rev().for_each(&mut copy);
        }
        if len != 0 {
            self.moves = self.moves.saturating_sub(1);
        }
        (self.start, self.frames_end) = (start, start.wrapping_add(len).min(N));
    }

    /// The last frame that was added.
    pub(crate) fn last(&self) -> Option<TraceFrame> {
        self.used().last().map(Kept::frame)
    }

    /// Whether a frame pointer alone led to one of so many last frames.
    pub(crate) fn is_by_fp(&self, count: usize) -> bool {
        let mut last = self.used().iter().rev().take(count);
        last.any(|frame| frame.provenance.origin() == Origin::FramePointer)
    }

    /// Takes the last frame back.
    pub(crate) fn pop(&mut self) {
        self.frames_end = self.frames_end.saturating_sub(1);
    }

    /// The old frames behind the one that was met, at most `limit`.
    #[inline]
    pub(crate) fn rest(&self, limit: usize) -> &[Kept] {
        let end = self.old.saturating_add(limit).min(N);
        self.frames.get(self.old..end).unwrap_or_default()
    }

    /// Adds so many of the rest, and returns the last of them. The frame behind
    /// them is not met unless something else than a short step leads to it.
    #[inline]
    pub(crate) fn take_over(&mut self, count: usize) -> Option<Kept> {
        let rest = self.frames.get(self.old..)?;
        let is_over = rest.get(count).is_some_and(|next| next.fp_slots != Kept::OTHER);
        let last = rest.get(..count)?.last().copied();
        self.frames_end = self.old.wrapping_add(count);
        self.old = self.frames_end.wrapping_add(usize::from(is_over));
        self.taken_over = self.taken_over.wrapping_add(count);
        last
    }

    /// Ends the walk.
    pub(crate) fn finish(&mut self, end: End<E>) {
        self.move_to(N.saturating_sub(self.len()));
        self.old = N;
        self.end = Some(end);
    }
}

/// The frames of the walk before that may still be met, innermost first.
pub(crate) struct OldFrames<'a> {
    rest: &'a [Kept],
    /// The stack pointer of the first of them; the highest if there is none.
    sp: u64,
}

impl<'a> OldFrames<'a> {
    #[inline]
    fn new(rest: &'a [Kept]) -> Self {
        Self { rest, sp: rest.first().map_or(u64::MAX, |first| first.sp) }
    }

    /// How many.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.rest.len()
    }
}

impl Log for OldFrames<'_> {
    type Entry = Kept;

    #[inline]
    fn entry(pc: VirtAddr, sp: u64, fp: u64, row: ShortRow) -> Kept {
        let provenance = Provenance::of_return(row.origin_code());
        let fp_slots = row.fp_slots();
        Kept { pc: pc.get(), sp, fp, provenance, fp_slots }
    }

    /// Whether the walk before was there too; it is then the first frame of the
    /// rest.
    // Frames come with rising stack pointers. Where they do not, at signals, some
    // are not met, and that is all.
    #[inline]
    fn is_enough(&mut self, frame: &Kept) -> bool {
        while self.sp <= frame.sp {
            let [old, rest @ ..] = self.rest else { return false };
            if old.sp == frame.sp && old.is_like(frame) {
                return true;
            }
            *self = Self::new(rest);
        }
        false
    }
}

impl<const N: usize, E: Copy> Default for LastTrace<N, E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize, E: Copy + fmt::Debug> fmt::Debug for LastTrace<N, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastTrace")
            .field("frames", &fmt::from_fn(|f| f.debug_list().entries(self.frames()).finish()))
            .field("end", &self.end)
            .field("taken_over", &self.taken_over)
            .finish()
    }
}

/// How many of `frames`, to which the walk before went from one whose stack
/// pointer is `sp`, short steps would find again: the words that they would read
/// are compared, and each is read once.
#[inline]
pub(crate) fn verify<A: Arch, M: Memory>(frames: &[Kept], sp: u64, arch: &A, mem: &mut M) -> usize {
    let mut count = 0;
    if A::WORD == WordSize::Eight
        && let Some((start, words)) = mem.words(arch.stack_addr(sp))
    {
        count = verify_at_hand(frames, arch, start, words);
    }
    // What is not at hand may be there all the same.
    match frames.get(count..) {
        Some(rest @ [_, ..]) => count.wrapping_add(verify_by_reading(rest, arch, mem)),
        _ => count,
    }
}

/// The same by words at hand, from `start` on.
#[inline(never)]
fn verify_at_hand<A: Arch>(frames: &[Kept], arch: &A, start: VirtAddr, words: &[[u8; 8]]) -> usize {
    let first = start.get().wrapping_add(8);
    // The number of the word with the return address. What is left of the division
    // goes to the highest bits.
    let ra_at = |frame: &Kept| {
        let at = arch.stack_addr(frame.sp).get().wrapping_sub(first);
        usize::try_from(at.rotate_right(3)).unwrap_or(usize::MAX)
    };
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    // What differs, `None` if a word is not at hand.
    let ra = |frame: &Kept| Some(word(ra_at(frame))? ^ frame.pc);
    let fp =
        |frame: &Kept, slots: u8| Some(word(ra_at(frame).wrapping_sub(slots.into()))? ^ frame.fp);
    let either = |frame: &Kept| match frame.fp_slots {
        0 => ra(frame),
        Kept::OTHER => None,
        slots => Some(ra(frame)? | fp(frame, slots)?),
    };
    // Of several frames in one: the words do not depend on each other, so one branch
    // for all of them is enough. Mostly all frames of a program are of a kind.
    let of_group = |group: &[Kept; 4]| {
        let [a, b, c, d] = group;
        if a.fp_slots | b.fp_slots | c.fp_slots | d.fp_slots == 0 {
            return Some(ra(a)? | ra(b)? | ra(c)? | ra(d)?);
        }
        let differ = |frame: &Kept| frame.fp_slots ^ 1;
        if differ(a) | differ(b) | differ(c) | differ(d) == 0 {
            let ra = ra(a)? | ra(b)? | ra(c)? | ra(d)?;
            return Some(ra | fp(a, 1)? | fp(b, 1)? | fp(c, 1)? | fp(d, 1)?);
        }
        cold_path();
        Some(either(a)? | either(b)? | either(c)? | either(d)?)
    };
    let (groups, _) = frames.as_chunks();
    let count = groups.iter().take_while(|group| of_group(group) == Some(0)).count();
    let count = count.wrapping_mul(4);
    let rest = frames.get(count..).unwrap_or_default();
    count.wrapping_add(rest.iter().take_while(|frame| either(frame) == Some(0)).count())
}

/// The same by reading word by word.
#[inline(never)]
fn verify_by_reading<A: Arch, M: Memory>(frames: &[Kept], arch: &A, mem: &mut M) -> usize {
    let slot = A::WORD.bytes();
    let mut is_same = |frame: &Kept| {
        let ra_at = frame.sp.wrapping_sub(slot);
        let mut holds = |slots: u8, value: u64| {
            let at = ra_at.wrapping_sub(u64::from(slots).wrapping_mul(slot));
            mem.read_word(arch.stack_addr(at), A::WORD) == Ok(value)
        };
        let slots = frame.fp_slots;
        slots != Kept::OTHER && holds(0, frame.pc) && (slots == 0 || holds(slots, frame.fp))
    };
    frames.iter().take_while(|frame| is_same(frame)).count()
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests")]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use super::*;
    use crate::SliceMemory;
    use crate::no_regs::Toy;

    const START: u64 = 0x1000;
    /// How many words of the stack a frame takes, the last of which is the
    /// return address.
    const WORDS: usize = 4;

    /// Frames to which steps of these kinds led, and their stack.
    fn stack(kinds: &[u8]) -> (Vec<Kept>, Vec<u64>) {
        let words: Vec<u64> = (0..kinds.len() * WORDS).map(|word| 0x40 << word).collect();
        let frame = |(number, &fp_slots): (usize, &u8)| {
            let ra_at = number * WORDS + WORDS - 1;
            let fp = words.get(ra_at - usize::from(fp_slots).min(3)).copied().unwrap_or(0);
            let sp = START + 8 * u64::try_from(ra_at + 1).unwrap_or(0);
            Kept { pc: words[ra_at], sp, fp, fp_slots, ..Kept::NONE }
        };
        (kinds.iter().enumerate().map(frame).collect(), words)
    }

    /// How many frames are as they were, by either way.
    fn verified(frames: &[Kept], words: &[u64]) -> (usize, usize) {
        let words: Vec<[u8; 8]> = words.iter().map(|word| word.to_le_bytes()).collect();
        let start = VirtAddr::new(START);
        let at_hand = verify_at_hand(frames, &Toy, start, &words);
        let mut mem = SliceMemory::new(start, words.as_flattened());
        (at_hand, verify_by_reading(frames, &Toy, &mut mem))
    }

    #[test]
    fn words_at_hand_tell_as_much_as_words_that_are_read() {
        const KINDS: [u8; 4] = [0, 1, 2, Kept::OTHER];
        for number in 0..4_usize.pow(5) {
            let kinds = [0, 2, 4, 6, 8].map(|bit| KINDS[number >> bit & 3]);
            let (frames, words) = stack(&kinds);
            let whole = kinds.iter().take_while(|kind| **kind != Kept::OTHER).count();
            assert_eq!(verified(&frames, &words), (whole, whole), "{kinds:?}");
            for cut in 0..words.len() {
                let (at_hand, read) = verified(&frames, &words[..cut]);
                assert_eq!(at_hand, read, "{kinds:?}, {cut} words");
            }
            for one in 0..words.len() {
                // The same bit in another one, too, or in it alone: nothing makes
                // up for it.
                for other in one..words.len() {
                    let mut words = words.clone();
                    words[one] |= 1;
                    words[other] |= 1;
                    let (at_hand, read) = verified(&frames, &words);
                    assert_eq!(at_hand, read, "{kinds:?}, {one}, {other}");
                }
            }
        }
    }
}
