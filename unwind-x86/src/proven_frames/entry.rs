//! The start of a function whose bounds are not told.

use unwind_core::{Memory, VirtAddr, WordSize};

use crate::code::Window;

/// How much is read at once, in bytes.
const WINDOW: usize = 256;

/// How far before a pc is looked.
const WINDOWS: u32 = 64;

/// Bytes of the longer form of the two instructions.
const LEN: u64 = 4;

/// Whether the instruction before an address may be a push: then it is not the first of its
/// function, and the return address is further up.
fn follows_push<M: Memory>(addr: VirtAddr, mem: &mut M) -> bool {
    let before = Window::<5>::before(addr, mem);
    matches!(before.bytes(), [.., 0x50..=0x57] | [.., 0x6a, _] | [0x68, _, _, _, _])
}

/// The nearest place before `pc`, or at it, where the frame pointer is pushed and set to the stack
/// pointer.
pub(super) fn entry_before<M: Memory>(
    word: WordSize,
    pc: VirtAddr,
    mem: &mut M,
) -> Option<VirtAddr> {
    let entries: [&[u8]; 2] = match word {
        WordSize::Eight => [&[0x55, 0x48, 0x89, 0xe5], &[0x55, 0x48, 0x8b, 0xec]],
        WordSize::Four => [&[0x55, 0x89, 0xe5], &[0x55, 0x8b, 0xec]],
    };
    let len = entries[0].len();
    // The last of them starts at the pc.
    let mut end = pc.checked_add(len.try_into().ok()?)?;
    for _ in 0..WINDOWS {
        let window = Window::<WINDOW>::before(end, mem);
        let bytes = window.bytes();
        let found = bytes.windows(len).rposition(|bytes| entries.contains(&bytes));
        if let Some(at) = found {
            let after = bytes.len().checked_sub(at)?;
            let start = end.checked_sub(after.try_into().ok()?)?;
            return (!follows_push(start, mem)).then_some(start);
        }
        // Those that reach over the edge are in the next one.
        let read = u64::try_from(bytes.len()).ok()?;
        end = end.checked_sub(read.checked_sub(LEN)?)?;
    }
    None
}
