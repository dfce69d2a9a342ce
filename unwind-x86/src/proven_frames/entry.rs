//! The start of a function whose bounds are not told.

use unwind_core::{Memory, VirtAddr, WordSize};

use crate::code::Window;

/// How much is read at once, in bytes.
const WINDOW: usize = 256;

/// How far before a pc is looked.
const WINDOWS: u32 = 64;

/// What compilers make functions start at multiples of, at least.
const ALIGNMENT: u64 = 16;

/// Bytes of the longer form of the two instructions.
const LEN: u64 = 4;

/// What is found of the start of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It starts here.
    At(VirtAddr),
    /// It starts with the push of another register. Code that is called does not do that: it makes room for a return
    /// address that is stored later, as code of the JVM does which a signal handler enters.
    AfterPush,
    /// None is near.
    Nowhere,
}

/// Whether the instruction before an address may be a push: then it is not the first of its
/// function, and the return address is further up.
fn follows_push<M: Memory>(addr: VirtAddr, mem: &mut M) -> bool {
    let before = Window::<5>::before(addr, mem);
    matches!(before.bytes(), [.., 0x50..=0x57] | [.., 0x6a, _] | [0x68, _, _, _, _])
}

/// The nearest place before `pc`, or at it, where the frame pointer is pushed and set to the stack
/// pointer.
pub(super) fn entry_before<M: Memory>(word: WordSize, pc: VirtAddr, mem: &mut M) -> Entry {
    find(word, pc, mem).unwrap_or(Entry::Nowhere)
}

fn find<M: Memory>(word: WordSize, pc: VirtAddr, mem: &mut M) -> Option<Entry> {
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
            if !follows_push(start, mem) {
                return Some(Entry::At(start));
            }
            // What looks like a push may be the end of another instruction, but not where functions start.
            let first = start.checked_sub(1)?;
            let is_first = first.get() % ALIGNMENT == 0;
            let is_push = matches!(Window::<1>::before(start, mem).bytes(), [0x50..=0x57]);
            return (is_first && is_push).then_some(Entry::AfterPush);
        }
        // Those that reach over the edge are in the next one.
        let read = u64::try_from(bytes.len()).ok()?;
        end = end.checked_sub(read.checked_sub(LEN)?)?;
    }
    None
}
