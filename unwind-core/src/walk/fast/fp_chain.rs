//! A walk along a chain of frame pointers: the fast form of [`crate::walk::step`] where
//! the row of all frames is that of a frame pointer.

use crate::addr::{FramePc, VirtAddr};
use crate::arch::Arch;
use crate::hint::cold_path;
use crate::memory::Memory;
use crate::return_addresses::ReturnAddresses;
use crate::walk::fast::compact_row::CompactRow;
use crate::walk::fast::fast_path::{Caller, FastPath, FrameSink, Stop};

impl FastPath<u64> {
    /// Follows the chain to callers, to CFAs up to `highest_cfa`, as
    /// [`run`](Self::run) does. `row` is the one of all frames.
    #[inline(never)]
    pub(crate) fn follow_chain<A: Arch, T: ReturnAddresses, M: Memory, L: FrameSink>(
        &mut self,
        arch: &A,
        code: &mut T,
        mem: &mut M,
        (row, highest_cfa): (CompactRow, u64),
        (room, log): (&mut [L::Kept], &mut L),
    ) -> usize {
        let slot = A::WORD.bytes();
        let pair = slot.wrapping_mul(2);
        let Some(highest) = highest_cfa.checked_sub(pair) else { return 0 };
        let Self { at: mut sp, mut fp, .. } = *self;
        let size = room.len();
        let mut refused = 0;
        let mut room = room.iter_mut();
        while room.len() != 0 {
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
            let caller = Caller { pc: addr, slot: A::WORD.slot_below(cfa), row };
            let Some(entry) = room.next() else { break };
            *entry = L::entry(caller);
            let ra_slot = arch.stack_addr(fp.wrapping_add(slot));
            let real = code.resolve(addr, Some(ra_slot));
            if real.is_none() && !code.is_code(FramePc::Return(addr).lookup_addr()) {
                refused = 1;
                break;
            }
            log.note(row);
            (sp, fp) = (cfa, caller_fp);
            if let Some(real) = real {
                self.stop = Stop::Trampoline(real);
                break;
            }
        }
        self.is_by_fp |= sp != self.at;
        (self.at, self.fp) = (sp, fp);
        size.wrapping_sub(room.len()).wrapping_sub(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SliceMemory;
    use crate::no_regs::Toy;
    use crate::return_addresses::Unchecked;
    use crate::source::Coverage;

    #[derive(Clone, Copy)]
    struct Pcs;

    impl FrameSink for Pcs {
        type Kept = u64;
        fn entry(caller: Caller) -> u64 {
            caller.pc.get()
        }
    }

    #[test]
    fn a_chain_is_followed_up_to_the_highest_cfa() {
        let words = [0x1010_u64, 0x11, 0x1020, 0x22, 0, 0x33].map(u64::to_le_bytes);
        let mem = &mut SliceMemory::new(VirtAddr::new(0x1000), words.as_flattened());
        for (fp, highest_cfa, steps) in [
            (0x1000, u64::MAX, 3),
            (0x1000, 0x1030, 3),
            (0x1000, 0x102f, 2),
            (0x1000, 0x1020, 2),
            (0x1000, 0x100f, 0),
            (0x1000, 8, 0),
            (0x1010, u64::MAX, 2),
            // Below the stack pointer, and between two words.
            (0xff0, u64::MAX, 0),
            (0x1004, u64::MAX, 0),
        ] {
            let mut walk = FastPath::new(0x1000, fp, false);
            let (mut room, code) = ([0; 8], &mut Unchecked);
            let found = walk.follow_chain(
                &Toy,
                code,
                mem,
                (
                    CompactRow::of_all(Coverage::FramePointer { is_guess: true }).unwrap(),
                    highest_cfa,
                ),
                (&mut room, &mut Pcs),
            );
            assert_eq!((found, walk.is_by_fp), (steps, steps != 0), "{fp:#x}, {highest_cfa:#x}");
            let pcs = [0x11, 0x22, 0x33];
            let from = if fp == 0x1010 { 1 } else { 0 };
            assert!(room.iter().zip(pcs.iter().skip(from)).take(steps).all(|(pc, ra)| pc == ra));
        }
    }
}
