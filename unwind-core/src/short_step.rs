//! One step by a row in short form: the fast twin of [`crate::step`].

use crate::{Arch, Memory, ShortRow, VirtAddr, WordSize};

/// What is known of a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortCaller {
    /// The CFA of the frame, which is the stack pointer of its caller.
    pub(crate) cfa: u64,
    /// The return address, not zero.
    pub(crate) ra: u64,
    /// Where it was saved.
    pub(crate) ra_slot: VirtAddr,
    /// The caller's frame pointer.
    pub(crate) fp: u64,
}

/// Applies `row`. `None` where anything at all is out of the ordinary: the full
/// step then finds out what, or that it is all right.
///
/// `stack_end` is the highest CFA that is still on the stack.
#[inline]
pub(crate) fn step_short<A: Arch, M: Memory>(
    arch: &A,
    row: ShortRow,
    sp: u64,
    fp: u64,
    stack_end: u64,
    mem: &mut M,
) -> Option<ShortCaller> {
    // A branch, not a select: guessed right, it keeps the load of a saved frame
    // pointer out of the chain from frame to frame.
    let base = if row.is_from_fp() {
        if fp < sp {
            return None;
        }
        fp
    } else {
        sp
    };
    // The base is not below the stack pointer and the offset at least a slot,
    // so a sum that does not overflow is progress.
    let cfa = base.checked_add(row.cfa_offset())?;
    let slot = A::WORD.bytes();
    if cfa > stack_end || cfa & slot.wrapping_sub(1) != 0 {
        return None;
    }
    // No slot is below the base, so nothing wraps.
    let at = |below: u64| arch.stack_addr(cfa.wrapping_sub(below));
    let ra_slot = at(slot);
    let (ra, fp) = match (A::WORD, row.fp_below()) {
        (_, 0) => (mem.read_word(ra_slot, A::WORD).ok()?, fp),
        // Saved next to each other, as most are.
        (WordSize::Eight, 16) => {
            let [fp, ra] = mem.read_u64_pair(at(16)).ok()?;
            (ra, fp)
        }
        (_, below) => {
            let fp = mem.read_word(at(below.into()), A::WORD).ok()?;
            (mem.read_word(ra_slot, A::WORD).ok()?, fp)
        }
    };
    if ra == 0 {
        return None;
    }
    Some(ShortCaller { cfa, ra, ra_slot, fp })
}
