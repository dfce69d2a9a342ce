//! A target's memory that is laid out by an input and remembers what was read.

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::input::Input;

/// Where the stack, the code and the table are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) stack: u64,
    pub(crate) code: u64,
    /// What separates a word of the stack from the next.
    pub(crate) slot: u64,
}

/// Memory with a stack and code.
#[derive(Clone, Debug)]
pub(crate) struct TargetMemory {
    places: Places,
    stack: Vec<u8>,
    code: Vec<u8>,
    /// A bit for each 64 bytes of stack that are absent for the moment.
    absent: u64,
    /// Every word of the target that was read, at any alignment.
    pub(crate) seen: Vec<u64>,
    pub(crate) reads: usize,
    pub(crate) missed: bool,
}

impl TargetMemory {
    /// A stack of words that look like those of stacks, and some code.
    pub(crate) fn new(places: Places, input: &mut Input<'_>) -> Self {
        let absent = if input.bool() { input.u64() & input.u64() } else { 0 };
        let words = usize::from(input.u8()) % 96;
        let mut stack = Vec::new();
        for _ in 0..words {
            let word = Self::word(places, input).to_le_bytes();
            stack.extend(&word[..places.slot as usize]);
        }
        let len = usize::from(input.u8() % 64);
        let code = input.take(len).to_vec();
        Self { places, stack, code, absent, seen: Vec::new(), reads: 0, missed: false }
    }

    /// An address of code or of the stack, or anything.
    pub(crate) fn word(places: Places, input: &mut Input<'_>) -> u64 {
        let offset = input.u16();
        match offset >> 14 {
            0 => places.code + u64::from(offset & 0x3fff),
            1 | 2 => places.stack + u64::from(offset & 0x3ff) * places.slot / 2,
            _ if offset & 1 == 0 => u64::from(offset & 0xff),
            _ => input.u64(),
        }
    }
}

impl Memory for TargetMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        let at = |start: u64, bytes: &[u8]| {
            let at = usize::try_from(addr.get().checked_sub(start)?).ok()?;
            bytes.get(at..at.checked_add(buf.len())?).map(|bytes| (at, bytes.to_vec()))
        };
        // A signal frame can put the stack anywhere, so also into code.
        let bytes = if let Some((_, bytes)) = at(self.places.code, &self.code) {
            bytes
        } else {
            let (at, bytes) = at(self.places.stack, &self.stack).ok_or(ReadError::Invalid)?;
            for line in [at, at + buf.len().saturating_sub(1)] {
                if self.absent >> (line / 64).min(63) & 1 == 1 {
                    self.missed = true;
                    return Err(ReadError::NotResident);
                }
            }
            bytes
        };
        buf.copy_from_slice(&bytes);
        for word in bytes.windows(self.places.slot as usize) {
            let mut wide = [0; 8];
            wide[..word.len()].copy_from_slice(word);
            self.seen.push(u64::from_le_bytes(wide));
        }
        Ok(())
    }
}
