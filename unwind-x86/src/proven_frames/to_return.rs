//! From the pc to a return.

use core::ops::Range;

use arrayvec::ArrayVec;
use unwind_core::{CfaRule, Memory, RegRule, Row, VirtAddr, WordSize};

use super::reader::{InstructionReader, slot};
use crate::instruction::Effect;

/// The most instructions that are looked at, on all ways.
const MOST: u32 = 1024;

/// How many ways wait at most, and how many places are kept that ways have led through.
const WAYS: usize = 16;
const SEEN: usize = 64;

/// What a way to a return proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The row at its start.
    Row(Row),
    /// A row by the frame pointer, if that is the stack pointer plus these bytes: the way has calls,
    /// which leave the stack pointer where it was unless they take arguments off the stack.
    FramePointerAt(i32, Row),
}

/// A place of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Bytes from the stack pointer at the pc.
    Sp(i32),
    /// Bytes from the frame pointer at the pc.
    Fp(i32),
}

impl Place {
    const fn plus(self, bytes: i32) -> Option<Self> {
        match self {
            Self::Sp(at) => match at.checked_add(bytes) {
                Some(at) => Some(Self::Sp(at)),
                None => None,
            },
            Self::Fp(at) => match at.checked_add(bytes) {
                Some(at) => Some(Self::Fp(at)),
                None => None,
            },
        }
    }
}

/// What the frame pointer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fp {
    /// What it had at the pc.
    Kept,
    /// The address of a place.
    At(Place),
    /// What was in memory at a place, at the pc already.
    From(Place),
    Lost,
}

/// How far a way has come.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: VirtAddr,
    /// The stack pointer; `None` if it cannot be told.
    sp: Option<Place>,
    fp: Fp,
    /// Where the frame pointer that is kept was pushed.
    pushed: Option<Place>,
    /// The way has a call that the stack pointer is counted across.
    has_called: bool,
}

/// What an instruction makes of a way.
enum Next {
    On(Step),
    /// After a call, which may be one that does not return.
    Later(Step),
    /// Two ways.
    Both(Step, Step),
    Found(Way),
    /// It proves nothing.
    End,
}

/// Follows the code from `pc` on until a way comes to a return. Jumps out of `bounds` are not
/// followed, if those are known.
pub(super) fn way_to_return<M: Memory>(
    word: WordSize,
    bounds: Option<Range<VirtAddr>>,
    pc: VirtAddr,
    mem: &mut M,
) -> Option<Way> {
    let start =
        Step { at: pc, sp: Some(Place::Sp(0)), fp: Fp::Kept, pushed: None, has_called: false };
    let end = bounds.as_ref().map(|bounds| bounds.end);
    let reader = InstructionReader::new(word, mem, end, MOST);
    let mut search = Search {
        slot: slot(word),
        word,
        bounds,
        reader,
        ways: ArrayVec::new(),
        seen: ArrayVec::new(),
    };
    let mut step = start;
    loop {
        let next = match search.reader.read(step.at) {
            Some((instruction, end)) => search.after(step, instruction.effect, end),
            None if search.reader.is_at_its_end() => return None,
            None => Next::End,
        };
        step = match next {
            Next::Found(way) => return Some(way),
            Next::On(step) => step,
            Next::Both(step, other) => {
                search.wait(other);
                step
            }
            Next::Later(step) => {
                search.wait(step);
                search.next_way()?
            }
            Next::End => search.next_way()?,
        };
    }
}

struct Search<'m, M> {
    slot: i32,
    word: WordSize,
    bounds: Option<Range<VirtAddr>>,
    reader: InstructionReader<'m, M>,
    /// Those that wait, the first of which is next.
    ways: ArrayVec<Step, WAYS>,
    /// Where jumps have led to.
    seen: ArrayVec<VirtAddr, SEEN>,
}

impl<M: Memory> Search<'_, M> {
    fn next_way(&mut self) -> Option<Step> {
        self.ways.pop_at(0)
    }

    /// A way without room is not followed.
    fn wait(&mut self, step: Step) {
        _ = self.ways.try_push(step);
    }

    /// Where a jump leads, unless one led there before.
    fn target(&mut self, end: VirtAddr, distance: i32) -> Option<VirtAddr> {
        let target = VirtAddr::new(end.get().wrapping_add_signed(distance.into()));
        let is_inside = self.bounds.as_ref().is_none_or(|bounds| bounds.contains(&target));
        let is_new = is_inside && !self.seen.contains(&target);
        (is_new && self.seen.try_push(target).is_ok()).then_some(target)
    }

    fn after(&mut self, step: Step, effect: Effect, end: VirtAddr) -> Next {
        let mut next = Step { at: end, ..step };
        match effect {
            Effect::Other => {}
            Effect::MoveSp(bytes) => next.sp = step.sp.and_then(|sp| sp.plus(bytes)),
            Effect::PushFp => {
                next.sp = step.sp.and_then(|sp| sp.plus(self.slot.wrapping_neg()));
                next.pushed = if step.fp == Fp::Kept { next.sp } else { step.pushed };
            }
            Effect::PopFp => {
                next.fp = step.sp.map_or(Fp::Lost, |sp| self.popped(&step, sp));
                next.sp = step.sp.and_then(|sp| sp.plus(self.slot));
            }
            Effect::StoreFpAtSp(bytes) if step.fp == Fp::Kept => {
                next.pushed = step.sp.and_then(|sp| sp.plus(bytes));
            }
            Effect::StoreFpAtSp(_) => {}
            Effect::LoadFpAtSp(bytes) => {
                let place = step.sp.and_then(|sp| sp.plus(bytes));
                next.fp = place.map_or(Fp::Lost, |place| self.popped(&step, place));
            }
            Effect::MoveFp(bytes) => {
                next.fp = Self::address(step.fp, bytes).map_or(Fp::Lost, Fp::At);
            }
            Effect::FpFromSp(bytes) => {
                next.fp = step.sp.and_then(|sp| sp.plus(bytes)).map_or(Fp::Lost, Fp::At);
            }
            Effect::SpFromFp(bytes) => next.sp = Self::address(step.fp, bytes),
            Effect::Leave => {
                let Some(frame) = Self::address(step.fp, 0) else { return Next::End };
                next.has_called &= matches!(frame, Place::Sp(_));
                next.fp = self.popped(&step, frame);
                next.sp = frame.plus(self.slot);
            }
            // Code that finds its stack pointer in its frame has one: the frame pointer is not
            // its caller's.
            Effect::LoadSpAtFp(bytes) if bytes < 0 && step.fp == Fp::Kept => {
                return Next::Found(Way::Row(Row::frame_pointer(self.word)));
            }
            Effect::LoadSpAtFp(_) | Effect::LoseSp => next.sp = None,
            Effect::LoseFp => next.fp = Fp::Lost,
            Effect::Return => return self.returned(&step).map_or(Next::End, Next::Found),
            Effect::Call => {
                next.has_called = true;
                return Next::Later(next);
            }
            Effect::Jump(distance) => match self.target(end, distance) {
                Some(target) => next.at = target,
                None => return Next::End,
            },
            Effect::Branch(distance) => {
                if let Some(target) = self.target(end, distance) {
                    return Next::Both(next, Step { at: target, ..next });
                }
            }
            Effect::JumpAway | Effect::Stop => return Next::End,
        }
        Next::On(next)
    }

    /// The address of a place at the frame pointer.
    const fn address(fp: Fp, bytes: i32) -> Option<Place> {
        match fp {
            Fp::Kept => Some(Place::Fp(bytes)),
            Fp::At(place) => place.plus(bytes),
            Fp::From(_) | Fp::Lost => None,
        }
    }

    /// What a pop from a place gives.
    fn popped(&self, step: &Step, place: Place) -> Fp {
        match place {
            _ if step.pushed == Some(place) => Fp::Kept,
            // What is below was written on the way, or may have been.
            Place::Sp(at) if at >= 0 => Fp::From(place),
            Place::Fp(0) => Fp::From(place),
            Place::Sp(_) | Place::Fp(_) => Fp::Lost,
        }
    }

    /// What a return proves whose stack pointer this is.
    fn returned(&self, step: &Step) -> Option<Way> {
        let ra = RegRule::Offset(self.slot.wrapping_neg());
        match (step.sp?, step.fp) {
            (Place::Fp(at), Fp::From(Place::Fp(0))) if at == self.slot => {
                Some(Way::Row(Row::frame_pointer(self.word)))
            }
            (Place::Sp(at), Fp::Kept) if at >= 0 && !step.has_called => {
                let cfa = CfaRule::sp(at.checked_add(self.slot)?);
                Some(Way::Row(Row::new(cfa, ra, RegRule::SameValue)))
            }
            (Place::Sp(at), Fp::From(Place::Sp(saved))) if saved < at => {
                if step.has_called {
                    let is_below = at.checked_sub(saved) == Some(self.slot);
                    let row = Row::frame_pointer(self.word);
                    return is_below.then_some(Way::FramePointerAt(saved, row));
                }
                let cfa = at.checked_add(self.slot)?;
                let fp = RegRule::Offset(saved.checked_sub(cfa)?);
                Some(Way::Row(Row::new(CfaRule::sp(cfa), ra, fp)))
            }
            _ => None,
        }
    }
}
