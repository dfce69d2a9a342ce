//! Instructions of the target, one after another.

use unwind_core::{Memory, VirtAddr, WordSize};

use crate::code::Window;
use crate::instruction::{Instruction, LONGEST, decode};

/// How much is read at once, in bytes.
const WINDOW: usize = 128;

/// The instructions of a target, as its memory has them.
pub(super) struct InstructionReader<'m, M> {
    word: WordSize,
    mem: &'m mut M,
    window: Window<WINDOW>,
    start: VirtAddr,
    /// Where the code ends, if that is known.
    end: Option<VirtAddr>,
    /// How many instructions may still be read.
    left: u32,
}

impl<'m, M: Memory> InstructionReader<'m, M> {
    /// Of at most `most` instructions of code that ends at `end`, if that is known.
    pub(super) fn new(word: WordSize, mem: &'m mut M, end: Option<VirtAddr>, most: u32) -> Self {
        let start = VirtAddr::new(0);
        Self { word, mem, window: Window::EMPTY, start, end, left: most }
    }

    /// The instruction at an address and the address after it; `None` if it cannot be read or is
    /// not known, or if there were too many.
    pub(super) fn read(&mut self, addr: VirtAddr) -> Option<(Instruction, VirtAddr)> {
        self.left = self.left.checked_sub(1)?;
        let instruction = decode(self.word, self.bytes(addr))?;
        Some((instruction, addr.checked_add(instruction.len.into())?))
    }

    /// Whether these bytes are at an address.
    pub(super) fn starts_with(&mut self, addr: VirtAddr, bytes: &[u8]) -> bool {
        self.bytes(addr).starts_with(bytes)
    }

    /// Whether no more may be read.
    pub(super) const fn is_at_its_end(&self) -> bool {
        self.left == 0
    }

    /// What is at an address: all bytes of an instruction, if these can be read.
    fn bytes(&mut self, addr: VirtAddr) -> &[u8] {
        if self.kept(addr).is_none_or(|bytes| bytes.len() < LONGEST) {
            self.window = match self.end {
                Some(end) => Window::between(addr, end, self.mem),
                None => Window::after(addr, self.mem),
            };
            self.start = addr;
        }
        self.kept(addr).unwrap_or_default()
    }

    fn kept(&self, addr: VirtAddr) -> Option<&[u8]> {
        let offset = addr.get().checked_sub(self.start.get())?;
        self.window.bytes().get(usize::try_from(offset).ok()?..)
    }
}

/// The size of a stack slot, in bytes.
pub(super) const fn slot(word: WordSize) -> i32 {
    match word {
        WordSize::Four => 4,
        WordSize::Eight => 8,
    }
}
