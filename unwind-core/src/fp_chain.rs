//! A walk along a chain of frame pointers: the fast twin of [`crate::step`] where
//! the row of all frames is [`ShortRow::FRAME_POINTER`].

use core::hint::cold_path;

use crate::short_walk::{Log, ShortWalk, Stop};
use crate::{Arch, FramePc, Memory, ShortRow, TargetCode, VirtAddr};

impl ShortWalk<u64> {
    /// Goes on to callers along the chain, to CFAs up to `highest_cfa`, as
    /// [`run`](Self::run) does.
    #[inline(never)]
    pub(crate) fn follow_chain<A: Arch, T: TargetCode, M: Memory, L: Log>(
        &mut self,
        arch: &A,
        code: &mut T,
        mem: &mut M,
        highest_cfa: u64,
        (room, log): (&mut [L::Entry], &mut L),
    ) -> usize {
        let slot = A::WORD.bytes();
        let pair = slot.wrapping_mul(2);
        let Some(highest) = highest_cfa.checked_sub(pair) else { return 0 };
        let Self { at: mut sp, mut fp, .. } = *self;
        let mut steps = 0_usize;
        for entry in room {
            if fp < sp || fp > highest || fp & slot.wrapping_sub(1) != 0 {
                break;
            }
            let Ok([caller_fp, ra]) = mem.read_pair(arch.stack_addr(fp), A::WORD) else { break };
            let addr = VirtAddr::new(ra);
            if !arch.is_plain_code_addr(ra) {
                cold_path();
                if ra == 0 || arch.code_addr(ra) != Some(addr) {
                    break;
                }
            }
            // Not above the highest, so nothing wraps.
            let cfa = fp.wrapping_add(pair);
            *entry = L::entry(addr, cfa, caller_fp, ShortRow::FRAME_POINTER);
            let ra_slot = arch.stack_addr(fp.wrapping_add(slot));
            let real = code.real_return(addr, Some(ra_slot));
            if real.is_none() && !code.is_code(FramePc::Return(addr).lookup_addr()) {
                break;
            }
            steps = steps.wrapping_add(1);
            (sp, fp) = (cfa, caller_fp);
            if let Some(real) = real {
                self.stop = Stop::Trampoline(real);
                break;
            }
            if log.is_enough(entry) {
                self.stop = Stop::Enough;
                break;
            }
        }
        (self.at, self.fp) = (sp, fp);
        self.is_by_fp |= steps != 0;
        steps
    }
}
