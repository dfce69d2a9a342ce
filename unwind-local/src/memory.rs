//! The memory of the own process, as a walk reads it.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::{Memory, ReadError, VirtAddr, WordSize};

use crate::checked_reads::CheckedReads;
use crate::raw::loaded_object::read_code;
use crate::raw::machine;
use crate::raw::readable::Readable;
use crate::raw::registers::StartPc;

/// Memory of which the parts that are this thread's stacks are read by plain loads, and all
/// else by calls that cannot fault.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    start: StartPc,
    /// The thread's stack.
    stack: Readable,
    /// The one that the caller runs on, if that is another.
    current: Readable,
    /// The thread's stack may reach further down than is known.
    may_reach: bool,
    /// Of all other memory.
    elsewhere: CheckedReads,
}

/// Where it was found last.
static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);

impl OwnMemory {
    /// For a walk from there.
    #[inline]
    pub(crate) fn new(start: StartPc) -> Self {
        let stack = Readable::own_stack();
        let elsewhere = CheckedReads::new();
        Self { start, stack, current: Readable::NONE, may_reach: true, elsewhere }
    }

    /// For a function with this stack pointer.
    #[inline]
    pub(crate) fn of_caller(&mut self, sp: u64) -> &mut Self {
        if !self.stack.contains(sp) {
            self.learn(sp);
        }
        self
    }

    /// Learns of the stack that the caller runs on.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, sp: u64) {
        self.reach(sp);
        if !self.stack.contains(sp) {
            self.current = Readable::current_page(sp);
            self.may_reach = true;
        }
    }

    /// Asks for the thread's stack from an address on, once in a walk.
    #[cold]
    fn reach(&mut self, addr: u64) {
        self.may_reach = false;
        if let Some(stack) = Readable::own_stack_from(addr) {
            self.stack = stack;
        }
    }

    #[cold]
    #[inline(never)]
    fn read_slowly(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        let is_trampoline = addr == TRAMPOLINE.load(Ordering::Relaxed) && addr != 0;
        if is_trampoline
            && let Ok(code) = <&mut [u8; machine::TRAMPOLINE.len()]>::try_from(&mut *buf)
        {
            *code = machine::TRAMPOLINE;
            return Ok(());
        }
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        let end = addr.checked_add(len).ok_or(ReadError::Invalid)?;
        if self.stack.copy(addr, buf) || self.current.copy(addr, buf) {
            return Ok(());
        }
        // A stack that is in use continues above what is known.
        if self.current.grow(end) && self.current.copy(addr, buf) {
            return Ok(());
        }
        if self.may_reach {
            self.reach(addr);
            if self.stack.copy(addr, buf) {
                return Ok(());
            }
        }
        self.read_elsewhere(addr, buf)
    }

    #[inline(never)]
    fn read_elsewhere(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        if !read_code(self.start, addr, buf) {
            self.elsewhere.read(addr, buf)?;
        }
        if buf == machine::TRAMPOLINE {
            TRAMPOLINE.store(addr, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Memory for OwnMemory {
    #[inline]
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.read_slowly(addr.get(), buf)
    }

    #[inline]
    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        if let Some(word) = self.stack.word(addr.get()) {
            return Ok(word);
        }
        let mut word = [0; 8];
        self.read_slowly(addr.get(), &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    #[inline]
    fn read_u32(&mut self, addr: VirtAddr) -> Result<u32, ReadError> {
        if let Some(word) = self.stack.half_word(addr.get()) {
            return Ok(word);
        }
        let mut word = [0; 4];
        self.read_slowly(addr.get(), &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    #[inline]
    fn shared_words(&mut self, addr: VirtAddr) -> Option<(VirtAddr, &[AtomicU64])> {
        if self.stack.contains(addr.get()) { self.stack.words() } else { self.current.words() }
    }

    #[inline]
    fn read_pair(&mut self, addr: VirtAddr, size: WordSize) -> Result<[u64; 2], ReadError> {
        let above = addr.wrapping_add(size.bytes());
        Ok([self.read_word(addr, size)?, self.read_word(above, size)?])
    }
}
