//! Call instructions, seen from where they return to.

use unwind_core::{Memory, VirtAddr};

use crate::code::Window;

/// Whether the instruction before `pc` is a call; `None` if the code there cannot be read.
///
/// Code that looks like one may be a part of another instruction: so `true` is no proof that there
/// is a call, and `false` one that there is none.
#[inline(never)]
pub(crate) fn follows_call<M: Memory>(pc: VirtAddr, mem: &mut M) -> Option<bool> {
    // As long as that of others, which is compiled for it then.
    let preceding = Window::<16>::before(pc, mem);
    let bytes = preceding.bytes();
    // At the start of what is mapped the call may be on the page before.
    (!bytes.is_empty()).then(|| ends_with_call(bytes))
}

/// Whether the last bytes are those of a call, in 32- or 64-bit code: relative, by a register or by
/// memory. Prefixes come before and tell nothing.
#[inline(never)]
fn ends_with_call(bytes: &[u8]) -> bool {
    let last = |len: usize| bytes.len().checked_sub(len).and_then(|at| bytes.get(at..));
    if let Some([0xe8, ..]) = last(5) {
        return true;
    }
    indirect_calls(bytes).next().is_some()
}

/// The calls by a register or by memory that the last bytes may be: what comes before, the ModR/M byte and what follows it.
pub(crate) fn indirect_calls(bytes: &[u8]) -> impl Iterator<Item = (&[u8], u8, &[u8])> {
    // `ff /2`, whose second byte says how long it is.
    (2..=7).filter_map(|len| {
        let (before, call) = bytes.split_at_checked(bytes.len().checked_sub(len)?)?;
        let &[0xff, modrm, ref rest @ ..] = call else { return None };
        let is_whole = operand_len(modrm, rest.first().copied()) == rest.len();
        (modrm >> 3 & 7 == 2 && is_whole).then_some((before, modrm, rest))
    })
}

/// How many bytes follow a ModR/M byte, of which the next is the SIB byte if there is one.
fn operand_len(modrm: u8, next: Option<u8>) -> usize {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && rm == 4;
    let base = next.filter(|_| has_sib).map(|sib| sib & 7);
    let displacement = match mode {
        0 if rm == 5 || base == Some(5) => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    usize::from(has_sib).wrapping_add(displacement)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn u1_the_calls_of_an_assembler_are_known_as_such() {
        // As GNU as writes them.
        for call in [
            &[0xe8, 0x12, 0x34, 0x56, 0x78][..], // call rel32
            &[0xff, 0xd0],                       // call *%rax
            &[0x41, 0xff, 0xd3],                 // call *%r11
            &[0xff, 0x10],                       // call *(%rax)
            &[0xff, 0x14, 0x24],                 // call *(%rsp)
            &[0xff, 0x55, 0x08],                 // call *8(%rbp)
            &[0xff, 0x54, 0x24, 0x08],           // call *8(%rsp)
            &[0xff, 0x15, 1, 2, 3, 4],           // call *x(%rip)
            &[0xff, 0x90, 1, 2, 3, 4],           // call *x(%rax)
            &[0xff, 0x94, 0x24, 1, 2, 3, 4],     // call *x(%rsp)
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4],     // call *x(,%rax,8)
            &[0x3e, 0xff, 0xd0],                 // notrack call *%rax
        ] {
            assert!(ends_with_call(call), "{call:x?}");
            let mut after_others = [0x90; 7];
            let start = after_others.len() - call.len();
            after_others[start..].copy_from_slice(call);
            assert!(ends_with_call(&after_others), "{call:x?}");
        }
        for other in [
            &[][..],
            &[0x90; 7],
            &[0xff, 0xe0],             // jmp *%rax
            &[0xff, 0x25, 1, 2, 3, 4], // jmp *x(%rip)
            &[0xff, 0x70, 0x08],       // push 8(%rax)
            &[0xe9, 1, 2, 3, 4],       // jmp rel32
            &[0xe8, 1, 2, 3],          // cut
            &[0xff, 0x14],             // cut
            &[0xff, 0x15, 1, 2, 3],    // cut
            &[0xc3],
        ] {
            assert!(!ends_with_call(other), "{other:x?}");
        }
    }
}
