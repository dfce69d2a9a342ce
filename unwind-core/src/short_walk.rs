//! A walk by rows in short form: the fast twin of [`crate::step`].

use core::hint::cold_path;

use crate::trace::{Entry, Provenance};
use crate::{
    Arch, CacheSlot, FramePc, Memory, RowSource, ShortRow, TargetCode, VirtAddr, WordSize,
};

/// Where a walk stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortWalk {
    /// At most `stack_end`, and a multiple of a slot.
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    /// A frame pointer alone led to one of the frames.
    pub(crate) is_by_fp: bool,
    /// As [`highest_cfa`] says.
    pub(crate) stack_end: u64,
}

/// How far a walk came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShortRun {
    /// How many callers were found.
    pub(crate) steps: usize,
    /// The last frame has no caller.
    pub(crate) is_outermost: bool,
    /// The row of the last frame is not at hand.
    pub(crate) is_missing: bool,
    /// The last return address is a trampoline's, and this is the real one.
    pub(crate) real: Option<VirtAddr>,
}

impl ShortWalk {
    /// Goes on to callers of the frame at `pc`, as far as that goes, and writes
    /// them to `room`.
    ///
    /// Never inlined: as arguments, the parts are known to lie apart, so that
    /// the loop keeps what it needs of them in registers.
    #[inline(never)]
    pub(crate) fn run<A: Arch, S: RowSource<A>, T: TargetCode, M: Memory>(
        &mut self,
        pc: FramePc,
        (arch, source, code): (&A, &mut S, &mut T),
        mem: &mut M,
        room: &mut [Entry],
    ) -> ShortRun {
        let Self { mut sp, mut fp, mut is_by_fp, stack_end } = *self;
        let mut lookup = pc.lookup_addr();
        let mut slot = CacheSlot::NONE;
        let mut run = ShortRun::default();
        let size = room.len();
        let mut room = room.iter_mut();
        loop {
            let Some((row, here)) = source.quick(lookup, slot) else {
                run.is_missing = true;
                break;
            };
            if row.is_special() {
                cold_path();
                if !row.is_some() {
                    run.is_missing = true;
                    break;
                }
                if !row.is_used() {
                    source.used(here);
                }
                if row.is_outermost() {
                    run.is_outermost = true;
                    break;
                }
            }
            let Some(cfa) = cfa(row, sp, fp, stack_end, A::WORD, &mut is_by_fp) else { break };
            let Some([ra, caller_fp]) = saved(arch, row, cfa, fp, mem) else { break };
            if !arch.is_plain_code_addr(ra) && !is_code_addr(arch, ra) {
                break;
            }
            let Some(entry) = room.next() else { break };
            let addr = VirtAddr::new(ra);
            *entry = Entry::new(addr, Provenance::of_return(row.origin_code()));
            let call = FramePc::Return(addr).lookup_addr();
            let ra_slot = arch.stack_addr(cfa.wrapping_sub(A::WORD.bytes()));
            run.real = code.real_return(addr, Some(ra_slot));
            if run.real.is_none() && !code.is_code(call) {
                run.steps = 1;
                break;
            }
            (lookup, sp, fp, slot) = (call, cfa, caller_fp, here);
            if run.real.is_some() {
                break;
            }
        }
        // Less the one that was refused.
        run.steps = size.wrapping_sub(room.len()).wrapping_sub(run.steps);
        source.answered(run.steps.wrapping_add(usize::from(run.is_outermost)));
        *self = Self { sp, fp, is_by_fp, stack_end };
        run
    }
}

/// Whether a return address is not zero and this CPU can have code there, at the
/// same linear address.
#[cold]
fn is_code_addr<A: Arch>(arch: &A, ra: u64) -> bool {
    ra != 0 && arch.code_addr(ra) == Some(VirtAddr::new(ra))
}

/// The CFA by `row`, which is not special, in a frame whose stack pointer is at
/// most `stack_end` and a multiple of a slot. `None` where anything at all is
/// out of the ordinary: the full step then finds out what, or that it is all
/// right.
///
/// `stack_end` is the highest CFA that is still on the stack, at most
/// [`highest_cfa`].
#[inline]
fn cfa(
    row: ShortRow,
    sp: u64,
    fp: u64,
    stack_end: u64,
    word: WordSize,
    is_by_fp: &mut bool,
) -> Option<u64> {
    // A branch, not a select: guessed right, it keeps the load of a saved frame
    // pointer out of the chain from frame to frame. The offset is below 2^32
    // and a multiple of a slot, so that what it is added to does not overflow,
    // and stays a multiple if it is one.
    let cfa = if row.is_from_fp() {
        // One look at the high bits: what is left of the division goes there.
        let slots = fp.wrapping_sub(sp).rotate_right(word.bytes().trailing_zeros());
        if slots >> MAX_SLOTS_BITS != 0 {
            return None;
        }
        if row.is_by_fp() {
            *is_by_fp = true;
        }
        fp.wrapping_add(row.cfa_offset())
    } else {
        sp.wrapping_add(row.cfa_offset())
    };
    (cfa <= stack_end).then_some(cfa)
}

/// The return address and the caller's frame pointer, of which `fp` is the value
/// here.
#[inline]
fn saved<A: Arch, M: Memory>(
    arch: &A,
    row: ShortRow,
    cfa: u64,
    fp: u64,
    mem: &mut M,
) -> Option<[u64; 2]> {
    // No slot is below the base, so nothing wraps.
    let at = |below: u64| arch.stack_addr(cfa.wrapping_sub(below));
    let slot = A::WORD.bytes();
    match (A::WORD, row.fp_slots()) {
        (_, 0) => Some([mem.read_word(at(slot), A::WORD).ok()?, fp]),
        (WordSize::Eight, slots) => mem.read_u64_below(at(0), slots).ok(),
        (WordSize::Four, slots) => {
            let fp = mem.read_word(at(u64::from(slots).wrapping_mul(slot)), A::WORD).ok()?;
            Some([mem.read_word(at(slot), A::WORD).ok()?, fp])
        }
    }
}

/// A frame pointer this many slots above the stack pointer is left to the full
/// step, as a power of two.
const MAX_SLOTS_BITS: u32 = 32;

/// The highest CFA that is stepped from and to, of those on a stack that ends at
/// `stack_end`: an offset can be added to it.
#[inline]
pub(crate) fn highest_cfa(word: WordSize, stack_end: Option<u64>) -> u64 {
    // Room for `MAX_SLOTS_BITS` and the offset of a row.
    let highest = word.max_value().min(u64::MAX << (MAX_SLOTS_BITS + 4));
    stack_end.map_or(highest, |end| end.min(highest))
}
