//! The memory of the calling process, as a walk reads it.

use core::mem::take;
use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::{Memory, ReadError, VirtAddr, WordSize};

use crate::checked_reads::CheckedReads;
use crate::raw::loaded_object::read_code;
use crate::raw::machine;
use crate::raw::readable::{InUse, Readable};
use crate::raw::registers::StartPc;
use crate::raw::rows::Guessed;

/// Memory of which the parts that are this thread's stacks are read by plain loads, and all
/// else by calls that cannot fault.
#[derive(Debug)]
pub(crate) struct OwnMemory<'g> {
    start: StartPc,
    guessed: &'g Guessed,
    /// The thread's stack.
    stack: Readable,
    /// The one that the caller runs on, if that is another.
    current: Readable,
    /// The stack pointer there.
    sp: u64,
    /// That stack was not yet looked for among signal stacks.
    may_be_signal: bool,
    /// All of that stack that is known was known before this walk.
    is_kept: bool,
    /// The thread's stack may reach further down than is known.
    may_reach: bool,
    /// Of all other memory.
    elsewhere: CheckedReads,
}

/// Where it was found last.
static TRAMPOLINE: AtomicU64 = AtomicU64::new(0);

impl<'g> OwnMemory<'g> {
    /// For a walk from there.
    #[inline]
    pub(crate) fn new(start: StartPc, guessed: &'g Guessed) -> Self {
        Self {
            start,
            guessed,
            stack: Readable::own_stack(),
            current: Readable::NONE,
            sp: 0,
            may_be_signal: false,
            is_kept: false,
            may_reach: true,
            elsewhere: CheckedReads::new(),
        }
    }

    /// For a walk of the stack with this address, by a function with this stack pointer.
    #[inline]
    pub(crate) fn of_stack(&mut self, addr: u64, sp: u64) -> &mut Self {
        if !self.stack.contains(addr) {
            self.learn(sp);
        }
        self
    }

    /// Learns of the stack that the caller runs on.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, sp: u64) {
        self.keep(sp);
        if !self.is_kept {
            self.reach(sp, InUse::Yes);
            // That may have asked for the signal stack.
            self.keep(sp);
        }
        if !self.is_kept && !self.stack.contains(sp) {
            self.current = Readable::page_of(sp);
            self.may_be_signal = true;
        }
        self.may_reach = self.current.contains(sp);
        self.sp = sp;
    }

    /// Takes what is known of the signal stack, if the caller runs on it.
    fn keep(&mut self, sp: u64) {
        self.current = Readable::signal_stack(sp);
        self.is_kept = self.current.contains(sp);
    }

    /// Asks for the thread's stack from an address on, once in a walk.
    #[cold]
    fn reach(&mut self, addr: u64, is_in_use: InUse) {
        self.may_reach = false;
        if let Some(stack) = Readable::own_stack_from(addr, is_in_use) {
            self.stack = stack;
        }
    }

    /// Forgets what earlier walks have asked for of the stack that the caller runs on, once a guess has led to
    /// a frame: a program may have given up its signal stack and use a part of that memory as
    /// another stack. Frames that a table led to are on the stack in use all the same.
    #[inline]
    fn doubt_after_guess(&mut self) {
        if self.is_kept && self.guessed.is_set() {
            self.is_kept = false;
            self.current = Readable::page_of(self.sp);
        }
    }

    /// Adds pages to the stack that the caller runs on, up to this address. After a guess they may be of anything.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, end: u64) -> bool {
        if self.guessed.is_set() {
            return false;
        }
        let Some(pages) = self.current.pages_to(end) else { return false };
        if take(&mut self.may_be_signal) {
            let stack = Readable::signal_stack_from(self.sp);
            if stack.contains(self.sp) {
                self.current = stack;
                return true;
            }
        }
        self.elsewhere.pay_for_pages(pages) && self.current.grow(pages)
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
        self.doubt_after_guess();
        if self.stack.copy(addr, buf) || self.current.copy(addr, buf) {
            return Ok(());
        }
        // A stack that is in use continues above what is known.
        if self.grow(end) && self.current.copy(addr, buf) {
            return Ok(());
        }
        // Code is read in longer pieces.
        if self.may_reach && buf.len() <= size_of::<u64>() {
            self.reach(addr, InUse::Unknown);
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

impl Memory for OwnMemory<'_> {
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
        if self.stack.contains(addr.get()) {
            return self.stack.words();
        }
        self.doubt_after_guess();
        self.current.words()
    }

    #[inline]
    fn lends_words_alone(&self) -> bool {
        // A read elsewhere takes a call.
        true
    }

    #[inline]
    fn read_pair(&mut self, addr: VirtAddr, size: WordSize) -> Result<[u64; 2], ReadError> {
        let above = addr.wrapping_add(size.bytes());
        Ok([self.read_word(addr, size)?, self.read_word(above, size)?])
    }
}
