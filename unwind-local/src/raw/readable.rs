//! Ranges of memory that plain loads can read while a walk lasts.
//!
//! A walk of the own stack reads memory that may be unmapped at any moment, unless something is using
//! it. So plain loads are for what this thread uses: its own stack, which is asked for once up to an
//! end that does not move while the thread runs, and the stack that the walk itself runs on. The tables
//! of an object are read in place while each frame before has led there by a table, since its code is
//! on this stack then. After a guess a system call reads what could fault.

use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::VirtAddr;

use super::c_library;
use super::place::process_id;
use super::syscall;
use super::thread::thread_words;

/// In bytes.
pub(crate) const PAGE: u64 = 4096;

/// The most of a stack that is asked for at once, in bytes.
const MOST: u64 = 16 << 20;

/// The most between what is known of a stack and what is read next, in bytes.
const GAP: u64 = 16 * PAGE;

/// The page that an address is in.
pub(crate) const fn page(addr: u64) -> u64 {
    addr & !(PAGE - 1)
}

/// A range of addresses that can be read: one that is in use as this thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable {
    start: u64,
    end: u64,
}

impl Readable {
    /// No addresses.
    pub(crate) const NONE: Self = Self { start: 0, end: 0 };

    /// The thread's own stack, as far as it is known.
    #[inline]
    pub(crate) fn own_stack() -> Self {
        let words = thread_words();
        let start = words.start.load(Ordering::Relaxed);
        let end = if start == 0 { 0 } else { words.end.load(Ordering::Relaxed) };
        Self { start, end }
    }

    /// The same from an address on; `None` if that is not on the thread's own stack.
    ///
    /// The pages up to what is known are asked for. What is readable up to the thread's
    /// [upper end](c_library::stack_end) stays as long as the thread runs.
    ///
    /// Where the address [is the stack pointer](InUse) and on the signal stack, that is kept.
    #[cold]
    #[inline(never)]
    pub(crate) fn own_stack_from(addr: u64, is_in_use: InUse) -> Option<Self> {
        let words = thread_words();
        let known = words.start.load(Ordering::Relaxed);
        let end = match words.end.load(Ordering::Relaxed) {
            0 => page(c_library::stack_end()).checked_add(PAGE)?,
            end => end,
        };
        let start = page(addr);
        let unknown = if known == 0 { end } else { known };
        let is_near = start < unknown && unknown.wrapping_sub(start) <= MOST;
        // A signal stack is no part of it, even if nothing lies between.
        if !is_near || is_signal_stack(addr, is_in_use) || !are_readable(start, unknown) {
            return None;
        }
        // A handler in between stores other true words.
        words.end.store(end, Ordering::Relaxed);
        words.start.store(start, Ordering::Relaxed);
        Some(Self { start, end })
    }

    /// The thread's signal stack from a stack pointer on, as far as it is known; no addresses if
    /// that is elsewhere.
    #[inline(never)]
    pub(crate) fn signal_stack(sp: u64) -> Self {
        let known = Self::known_signal_stack();
        if known.contains(sp) { Self { start: page(sp), end: known.end } } else { Self::NONE }
    }

    fn known_signal_stack() -> Self {
        let word = thread_words().signal_stack.load(Ordering::Relaxed);
        let start = page(word);
        let len = word.wrapping_sub(start).wrapping_mul(PAGE);
        Self { start, end: start.saturating_add(len) }
    }

    /// The same, asked for.
    #[cold]
    #[inline(never)]
    pub(crate) fn signal_stack_from(sp: u64) -> Self {
        is_signal_stack(sp, InUse::Yes);
        Self::signal_stack(sp)
    }

    /// The page of the stack pointer that the caller runs on.
    pub(crate) const fn page_of(sp: u64) -> Self {
        let start = page(sp);
        Self { start, end: start.saturating_add(PAGE) }
    }

    /// How many pages there are from its end up to this address, if it is not far above.
    #[inline]
    pub(crate) fn pages_to(&self, end: u64) -> Option<u64> {
        let more = page(end.saturating_add(PAGE - 1)).checked_sub(self.end)?;
        (self.start != 0 && more != 0 && more <= GAP).then_some(more / PAGE)
    }

    /// Adds this many pages, if they can be read: a stack that is in use continues there.
    #[cold]
    #[inline(never)]
    pub(crate) fn grow(&mut self, pages: u64) -> bool {
        let end = self.end.saturating_add(pages.saturating_mul(PAGE));
        if !are_readable(self.end, end) {
            return false;
        }
        self.end = end;
        true
    }

    /// Whether the range has an address.
    #[inline]
    pub(crate) const fn contains(&self, addr: u64) -> bool {
        addr >= self.start && addr < self.end
    }

    #[inline]
    pub(crate) const fn has(&self, addr: u64, len: u64) -> bool {
        addr >= self.start && addr < self.end && len <= self.end.wrapping_sub(addr)
    }

    /// The words of the range, and the address of the first.
    #[inline]
    pub(crate) fn words(&self) -> Option<(VirtAddr, &[AtomicU64])> {
        let first =
            core::ptr::with_exposed_provenance::<AtomicU64>(usize::try_from(self.start).ok()?);
        let count = usize::try_from(self.end.wrapping_sub(self.start) / 8).ok()?;
        if self.start == 0 {
            return None;
        }
        // SAFETY: whole pages that are readable, so words that are aligned, of which any value
        // is one.
        Some((VirtAddr::new(self.start), unsafe { slice::from_raw_parts(first, count) }))
    }

    /// Fills `buf` from an address; `false` if the range has not all of it.
    #[inline(never)]
    pub(crate) fn copy(&self, addr: u64, buf: &mut [u8]) -> bool {
        if !u64::try_from(buf.len()).is_ok_and(|len| self.has(addr, len)) {
            return false;
        }
        let first = usize::try_from(addr).unwrap_or(0);
        let bytes = core::ptr::with_exposed_provenance::<u8>(first);
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *buf) {
            // SAFETY: it is readable, and volatile reads may see any memory.
            *word = unsafe { bytes.cast::<[u8; 8]>().read_volatile() };
            return true;
        }
        for (at, byte) in buf.iter_mut().enumerate() {
            // SAFETY: likewise.
            *byte = unsafe { bytes.wrapping_add(at).read_volatile() };
        }
        true
    }

    /// Four bytes at an address.
    #[inline]
    pub(crate) fn half_word(&self, addr: u64) -> Option<u32> {
        if !self.has(addr, 4) {
            return None;
        }
        let word = core::ptr::with_exposed_provenance::<[u8; 4]>(usize::try_from(addr).ok()?);
        // SAFETY: it is readable, and volatile reads may see any memory.
        Some(u32::from_le_bytes(unsafe { word.read_volatile() }))
    }

    /// The word at an address.
    #[inline]
    pub(crate) fn word(&self, addr: u64) -> Option<u64> {
        if !self.has(addr, 8) {
            return None;
        }
        let word = core::ptr::with_exposed_provenance::<[u8; 8]>(usize::try_from(addr).ok()?);
        // SAFETY: it is readable, and volatile reads may see any memory.
        Some(u64::from_le_bytes(unsafe { word.read_volatile() }))
    }
}

/// Whether an address is the stack pointer that this thread has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    Yes,
    Unknown,
}

/// Whether an address is on the thread's signal stack.
///
/// A stack that is in use is the thread's until a handler returns, and the next handler begins at its
/// upper end again: so it is kept, with the pages from the address on, if these can be read.
fn is_signal_stack(addr: u64, is_in_use: InUse) -> bool {
    let Some(stack) = syscall::signal_stack() else { return true };
    let is_on = !stack.is_empty() && addr >= stack.start && addr <= stack.end;
    if !is_on || is_in_use == InUse::Unknown {
        return is_on;
    }
    let known = Readable::known_signal_stack();
    let (start, end) = (page(addr), page(stack.end.saturating_add(PAGE - 1)));
    let unknown = if known.end == end && known.start >= start { known.start } else { end };
    let pages = end.wrapping_sub(start) / PAGE;
    if pages < PAGE && are_readable(start, unknown) {
        thread_words().signal_stack.store(start | pages, Ordering::Relaxed);
    }
    true
}

/// Whether all pages from that of an address on can be read, up to an end.
#[cold]
#[inline(never)]
pub(super) fn are_readable(start: u64, end: u64) -> bool {
    let mut start = page(start);
    while start < end {
        if !syscall::is_readable(start) {
            return false;
        }
        start = start.saturating_add(PAGE);
    }
    true
}

/// Reads memory of which nothing is known; `false` if it cannot be read.
#[cold]
#[inline(never)]
pub(crate) fn read_any(addr: u64, buf: &mut [u8]) -> bool {
    syscall::copy(process_id(), addr, buf)
}
