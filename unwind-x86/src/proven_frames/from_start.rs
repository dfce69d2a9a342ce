//! From the start of a function to the pc.

use core::ops::Range;

use arrayvec::ArrayVec;
use unwind_core::{CfaRule, Memory, RegRule, Row, VirtAddr, WordSize};

use super::reader::{InstructionReader, slot};
use crate::instruction::Effect;

/// The most instructions of a function before the pc and up to the next jump.
const MOST: u32 = 8192;

/// How many places without a frame are kept that jumps lead to.
const PLACES: usize = 16;

/// What is known of the frame at an address. Bytes are counted downwards from the stack pointer
/// with which the function was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The frame pointer is the caller's.
    Bare {
        sp: i32,
        /// Where a copy of the frame pointer is.
        saved: Option<i32>,
    },
    /// The frame pointer is the function's, but not where it stays.
    Moving { sp: i32, saved: i32, fp: i32 },
    /// The frame pointer is the address of the caller's, which is below the return address.
    SetUp,
    /// It is the caller's again.
    TornDown,
}

const ENTERED: State = State::Bare { sp: 0, saved: None };

/// Where a function begins and ends.
#[derive(Clone, Debug)]
pub(super) enum Extent {
    /// It was told, and whether it is called at its start and entered nowhere else.
    Told(Range<VirtAddr>, bool),
    /// By what it begins with. It ends where no jump leads any further.
    Found(VirtAddr),
}

/// How far from a found start a function is followed, in bytes.
const REACH: u64 = 64 << 10;

/// Whether a function that begins at `start` and sets up a frame comes to `pc`.
pub(super) fn comes_to<M: Memory>(
    word: WordSize,
    start: VirtAddr,
    pc: VirtAddr,
    mem: &mut M,
) -> bool {
    state_from_start(word, Extent::Found(start), pc, mem).is_some()
}

/// The row at `pc`, if the function sets up a frame before or after it and everything else agrees.
pub(super) fn row_from_start<M: Memory>(
    word: WordSize,
    extent: Extent,
    pc: VirtAddr,
    mem: &mut M,
) -> Option<Row> {
    let slot = slot(word);
    let ra = RegRule::Offset(slot.wrapping_neg());
    match state_from_start(word, extent, pc, mem)? {
        State::Bare { sp, .. } => {
            Some(Row::new(CfaRule::sp(sp.checked_add(slot)?), ra, RegRule::SameValue))
        }
        State::Moving { sp, saved, .. } => {
            let fp = RegRule::Offset(saved.checked_add(slot)?.checked_neg()?);
            Some(Row::new(CfaRule::sp(sp.checked_add(slot)?), ra, fp))
        }
        State::SetUp => Some(Row::frame_pointer(word)),
        State::TornDown => None,
    }
}

fn state_from_start<M: Memory>(
    word: WordSize,
    extent: Extent,
    pc: VirtAddr,
    mem: &mut M,
) -> Option<State> {
    let (bounds, is_told, is_called) = match extent {
        Extent::Told(bounds, is_called) => (bounds, true, is_called),
        Extent::Found(start) => (start..start.checked_add(REACH)?, false, false),
    };
    let end = Some(bounds.end).filter(|_| is_told);
    let reader = InstructionReader::new(word, mem, end, MOST);
    let slot = slot(word);
    let furthest = bounds.start;
    let call = bounds.start;
    let places = ArrayVec::new();
    let scan =
        Scan { reader, bounds, is_told, is_called, furthest, call, copied: None, slot, places };
    scan.state_at(pc)
}

/// A pass over the instructions of a function in the order of their addresses.
struct Scan<'m, M> {
    reader: InstructionReader<'m, M>,
    bounds: Range<VirtAddr>,
    /// Whether it ends there.
    is_told: bool,
    /// Whether it is called at its start, and entered nowhere else.
    is_called: bool,
    /// The last address that a jump leads to.
    furthest: VirtAddr,
    /// Where the last call is.
    call: VirtAddr,
    /// Where from the stack pointer a function that has its frame stored the frame pointer.
    copied: Option<i32>,
    slot: i32,
    /// Where jumps lead to from places at which the frame is not set up, ahead of these.
    places: ArrayVec<(VirtAddr, State), PLACES>,
}

impl<M: Memory> Scan<'_, M> {
    /// The state at `pc`. `None` if the code is not that of a function with one frame, as far as
    /// that was seen: up to the first jump or return after the pc and after the frame is set up. Where
    /// a function that is called has not set its frame up on the way from its start, that way is enough.
    fn state_at(mut self, pc: VirtAddr) -> Option<State> {
        if !self.bounds.contains(&pc) {
            return None;
        }
        let mut at = self.bounds.start;
        let mut state = ENTERED;
        let (mut found, mut was_set_up) = (None, false);
        let mut is_on_the_way = self.is_called;
        // Each pass takes an instruction, of which the reader allows a number.
        while at < self.bounds.end {
            if at == pc {
                found = Some(state);
            } else if at > pc && found.is_none() {
                // It is inside of what was taken for an instruction.
                return None;
            }
            let Ok(()) = self.check_place(at, state) else { return None };
            if at == pc && is_on_the_way && matches!(state, State::Bare { .. }) {
                // Each instruction from where it is called up to here leads to the next one.
                return Some(state);
            }
            let (instruction, next) = self.reader.read(at)?;
            let next_state = self.after(state, instruction.effect, next)?;
            was_set_up |= next_state == Some(State::SetUp);
            if instruction.effect == Effect::Call {
                self.call = at;
                // It may set the frame up for its caller.
                is_on_the_way = false;
            }
            at = next;
            let may_end = next_state.is_none() && found.is_none() && !self.is_told;
            if may_end && self.furthest < at && !self.is_entered_later(instruction.effect) {
                // Another function follows.
                return None;
            }
            state = match next_state {
                Some(state) => state,
                None if found.is_some() && was_set_up => return found,
                None => {
                    is_on_the_way = false;
                    let entry = if was_set_up { None } else { self.overwritten_entry(at) };
                    at = entry.unwrap_or(at);
                    // Most code is executed with the frame.
                    let other = entry.map_or(State::SetUp, |_| ENTERED);
                    self.place(at).unwrap_or(other)
                }
            };
        }
        found.filter(|_| was_set_up)
    }

    /// Whether an instruction is that after the call with which V8's code for a loop begins, and
    /// which only a wrong entry comes to: the interpreter enters that code after it.
    fn is_entered_later(&mut self, effect: Effect) -> bool {
        // `call [r13+n]`, to a function by V8's own register.
        effect == Effect::Stop
            && self.slot == 8
            && self.reader.starts_with(self.call, &[0x41, 0xff, 0x95])
    }

    /// Where a function begins to set up its frame whose first instruction was overwritten by a
    /// jump: it is called no more, but may still be executed. What is left of that
    /// instruction follows the jump.
    fn overwritten_entry(&mut self, at: VirtAddr) -> Option<VirtAddr> {
        let starts = (0..4).filter_map(|skipped| at.checked_add(skipped));
        let mut starts = starts.filter(|&start| {
            let Some((first, next)) = self.reader.read(start) else { return false };
            first.effect == Effect::PushFp
                && self
                    .reader
                    .read(next)
                    .is_some_and(|(second, _)| second.effect == Effect::FpFromSp(0))
        });
        starts.next()
    }

    /// The state at a place that jumps lead to.
    fn place(&self, at: VirtAddr) -> Option<State> {
        self.places.iter().find(|(place, _)| *place == at).map(|(_, state)| *state)
    }

    /// Each address has one state.
    fn check_place(&self, at: VirtAddr, state: State) -> Result<(), ()> {
        if self.place(at).is_none_or(|known| known == state) { Ok(()) } else { Err(()) }
    }

    /// The state after an instruction whose end is `next`: `Some(None)` if that does not lead on,
    /// `None` if a function with one frame does not have it there.
    fn after(&mut self, state: State, effect: Effect, next: VirtAddr) -> Option<Option<State>> {
        let next_state = match (state, effect) {
            (_, Effect::Stop) => None,
            (_, Effect::Branch(distance)) => {
                self.leave(state, next, distance)?;
                Some(state)
            }
            (_, Effect::Jump(distance)) => {
                let furthest = self.furthest;
                self.leave(state, next, distance)?;
                if state != State::SetUp {
                    // To another function, as far as is known.
                    self.furthest = furthest;
                }
                None
            }
            (State::SetUp, Effect::JumpAway) => None,
            // What it leads to may have no frame.
            (_, Effect::JumpAway) => return None,
            (_, Effect::Other) => Some(state),
            (State::TornDown, Effect::Return) => None,
            (State::Bare { sp: 0, .. }, Effect::Return) => None,
            (_, Effect::Return) => return None,
            (State::Bare { sp, saved }, effect) => Some(self.bare(sp, saved, effect)?),
            (State::Moving { sp, saved, fp }, Effect::MoveFp(bytes)) => {
                Some(self.moved(sp, saved, fp.checked_sub(bytes)?))
            }
            (State::Moving { .. }, _) => return None,
            (State::SetUp, Effect::PopFp | Effect::Leave) => Some(State::TornDown),
            (State::TornDown, Effect::PopFp | Effect::Leave) => return None,
            (_, Effect::PushFp | Effect::LoseFp) => return None,
            (_, Effect::FpFromSp(_) | Effect::MoveFp(_)) => return None,
            (_, Effect::Call | Effect::MoveSp(_) | Effect::LoseSp) => Some(state),
            (_, Effect::SpFromFp(_) | Effect::LoadSpAtFp(_)) => Some(state),
            (State::SetUp, Effect::StoreFpAtSp(offset)) => {
                self.copied = Some(offset);
                Some(state)
            }
            (_, Effect::StoreFpAtSp(_)) => Some(state),
            // With all other registers around a call.
            (State::SetUp, Effect::LoadFpAtSp(offset)) if self.copied == Some(offset) => {
                Some(state)
            }
            (_, Effect::LoadFpAtSp(_)) => return None,
        };
        Some(next_state)
    }

    /// The state after an instruction where the frame pointer is the caller's.
    fn bare(&self, sp: i32, saved: Option<i32>, effect: Effect) -> Option<State> {
        Some(match effect {
            Effect::MoveSp(bytes) => {
                let sp = sp.checked_sub(bytes).filter(|&sp| sp >= 0)?;
                State::Bare { sp, saved: saved.filter(|&saved| saved <= sp) }
            }
            Effect::PushFp => {
                let sp = sp.checked_add(self.slot)?;
                State::Bare { sp, saved: Some(sp) }
            }
            Effect::PopFp if saved == Some(sp) => {
                State::Bare { sp: sp.checked_sub(self.slot)?, saved: None }
            }
            Effect::StoreFpAtSp(offset) => {
                let at = sp.checked_sub(offset).filter(|&at| at >= self.slot);
                State::Bare { sp, saved: at.or(saved) }
            }
            Effect::LoadFpAtSp(offset) if saved == sp.checked_sub(offset) => {
                State::Bare { sp, saved }
            }
            Effect::FpFromSp(offset) => self.moved(sp, saved?, sp.checked_sub(offset)?),
            // One that takes arguments off the stack would leave another stack pointer.
            Effect::Call if sp == 0 => State::Bare { sp, saved },
            _ => return None,
        })
    }

    /// The state where the frame pointer is the function's.
    fn moved(&self, sp: i32, saved: i32, fp: i32) -> State {
        if fp == saved && saved == self.slot {
            State::SetUp
        } else {
            State::Moving { sp, saved, fp }
        }
    }

    /// A jump from a place in this state.
    fn leave(&mut self, state: State, next: VirtAddr, distance: i32) -> Option<()> {
        let target = VirtAddr::new(next.get().wrapping_add_signed(distance.into()));
        let is_inside = self.bounds.contains(&target);
        if is_inside {
            self.furthest = self.furthest.max(target);
        }
        match state {
            State::SetUp => match self.place(target) {
                None | Some(State::SetUp) => Some(()),
                Some(_) => None,
            },
            _ if !is_inside => Some(()),
            // What was passed had another state.
            _ if target < next => None,
            _ if self.place(target).is_some_and(|known| known != state) => None,
            _ => self.places.try_push((target, state)).ok(),
        }
    }
}
