//! A walk by rows in short form: the fast twin of [`crate::step`].

use core::hint::cold_path;

use crate::short_stack::Stack;
use crate::{Arch, FramePc, KeptRow, RowSource, ShortRow, TargetCode, VirtAddr};

/// Where a walk stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortWalk<At> {
    /// The stack pointer, as the stack has it.
    pub(crate) at: At,
    pub(crate) fp: u64,
    /// A frame pointer alone led to one of the frames.
    pub(crate) is_by_fp: bool,
    /// Why it does not go on.
    pub(crate) stop: Stop,
}

/// Why a walk by rows in short form does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The last frame's row could not be applied, or there is no more room.
    Other,
    /// The last frame's row is not at hand, or is more than a step.
    AtRow,
    /// The last return address is a trampoline's, and this is the real one.
    Trampoline(VirtAddr),
    /// The log has [enough](Log::is_enough).
    Enough,
}

/// What becomes of the callers that a walk finds.
pub(crate) trait Log {
    /// What is kept of one.
    type Entry;

    /// The entry of the caller with this pc, stack and frame pointer to which `row`
    /// led.
    fn entry(pc: VirtAddr, sp: u64, fp: u64, row: ShortRow) -> Self::Entry;

    /// Whether the walk stops at this caller.
    fn is_enough(&mut self, entry: &Self::Entry) -> bool;
}

impl<At: Copy> ShortWalk<At> {
    /// Goes on to callers of the frame with this row, as far as that goes or is
    /// wanted, writes them to `room`, and returns how many they are. Changes `stop` from `Other`
    /// where it is another.
    ///
    /// Never inlined, and without calls: as arguments, the parts are known to lie
    /// apart, so that the loop keeps what it needs of them in registers.
    #[inline(never)]
    pub(crate) fn run<A: Arch, S: RowSource<A>, T: TargetCode, K: Stack<At = At>, L: Log>(
        &mut self,
        mut kept: KeptRow,
        arch: &A,
        source: &mut S,
        code: &mut T,
        stack: &mut K,
        (room, log): (&mut [L::Entry], &mut L),
    ) -> usize {
        let Self { mut at, mut fp, .. } = *self;
        let size = room.len();
        let mut refused = 0;
        let mut room = room.iter_mut();
        // How much room there was before the first step by a frame pointer alone.
        let mut before_by_fp = usize::MAX;
        loop {
            let row = kept.row;
            // A branch, not a select: guessed right, it keeps the load of a saved
            // frame pointer out of the chain from frame to frame.
            let cfa = if let Some(slots) = row.slots_from_sp() {
                stack.above(at, slots)
            } else {
                let slots = if let Some(slots) = row.slots_from_fp() {
                    slots
                } else if let Some(slots) = row.slots_by_fp() {
                    if !self.is_by_fp {
                        self.is_by_fp = true;
                        before_by_fp = room.len();
                    }
                    slots
                } else {
                    self.stop = Stop::AtRow;
                    break;
                };
                let Some(base) = stack.at_fp(at, fp) else { break };
                stack.above(base, slots)
            };
            let Some(ra) = stack.return_address(cfa) else { break };
            let caller_fp = match row.fp_slots() {
                0 => fp,
                slots => match stack.below_return_address(cfa, slots) {
                    Some(fp) => fp,
                    None => break,
                },
            };
            let addr = VirtAddr::new(ra);
            if !arch.is_plain_code_addr(ra) {
                cold_path();
                if ra == 0 || arch.code_addr(ra) != Some(addr) {
                    break;
                }
            }
            let Some(entry) = room.next() else { break };
            *entry = L::entry(addr, stack.sp(cfa), caller_fp, row);
            let call = FramePc::Return(addr).lookup_addr();
            let ra_slot = arch.stack_addr(stack.sp(cfa).wrapping_sub(A::WORD.bytes()));
            let real = code.real_return(addr, Some(ra_slot));
            if real.is_none() && !code.is_code(call) {
                refused = 1;
                break;
            }
            (at, fp) = (cfa, caller_fp);
            if let Some(real) = real {
                self.stop = Stop::Trampoline(real);
                break;
            }
            if log.is_enough(entry) {
                self.stop = Stop::Enough;
                break;
            }
            match source.quick(call, kept) {
                Some(caller) => kept = caller,
                None => {
                    self.stop = Stop::AtRow;
                    break;
                }
            }
        }
        (self.at, self.fp) = (at, fp);
        // With that of the one that was refused.
        let room = room.len().wrapping_add(refused);
        if room == before_by_fp {
            self.is_by_fp = false;
        }
        size.wrapping_sub(room)
    }
}
