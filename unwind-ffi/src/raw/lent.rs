//! Memory that the host lends to one call at a time.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use sframe::RemoteBuffer;
use unwind_cfi::CfiScratch;
use unwind_core::deferred::UnwindCache;
use unwind_core::{PackedFrame, RowCache};
use unwind_x86::X86_64Regs;

use super::check;
use crate::numbers::unwind_error;
use crate::types::unwind_trace;
use crate::walk::{ROWS, Rows, Scratch};

/// The mark of memory that a call has. It finds a call that has interrupted that one on its CPU, or is made in
/// it. Calls on two CPUs with the same memory are a mistake of the host that nobody sees.
pub(super) struct Lent<'a>(&'a AtomicU64);

impl<'a> Lent<'a> {
    /// Takes the memory that begins with this word.
    ///
    /// # Safety
    ///
    /// If the pointer is neither NULL nor misaligned, there is a word that stays for `'a`, and that all
    /// use as an atomic.
    unsafe fn take(word: *mut u64) -> Result<Self, unwind_error> {
        check(word)?;
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU64::from_ptr(word) };
        // What interrupts this puts the word back, so no exchange is needed.
        if word.load(Ordering::Relaxed) != 0 {
            return Err(unwind_error::InUse);
        }
        word.store(1, Ordering::Relaxed);
        // What interrupts the use on this CPU sees the mark.
        compiler_fence(Ordering::SeqCst);
        Ok(Self(word))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A scratch as C keeps it.
#[repr(C)]
pub(super) struct ScratchBlock {
    in_use: u64,
    /// Zero until it is first used.
    is_made: u64,
    scratch: Scratch,
}

/// Takes a scratch, and makes it if it is all zeroes.
///
/// # Safety
///
/// If the pointer is neither NULL nor misaligned, it is one to memory that stays for `'a`, was all zeroes
/// at first, and is used by these calls alone.
pub(super) unsafe fn scratch<'a>(
    block: *mut ScratchBlock,
) -> Result<(Lent<'a>, &'a mut Scratch), unwind_error> {
    check(block)?;
    // SAFETY: there is a block, and its first word is the mark.
    let lent = unsafe { Lent::take(block.cast()) }?;
    // SAFETY: within the block, which is lent to this call.
    let place = unsafe { &raw mut (*block).scratch };
    // SAFETY: likewise.
    if unsafe { (*block).is_made } == 0 {
        // SAFETY: likewise.
        unsafe { make_scratch(place) };
        // SAFETY: within the block.
        unsafe { (*block).is_made = 1 };
    }
    // SAFETY: it was made, here or before.
    Ok((lent, unsafe { &mut *place }))
}

/// Makes a scratch, one part after the other.
///
/// # Safety
///
/// There is room for one.
#[cold]
unsafe fn make_scratch(place: *mut Scratch) {
    // SAFETY: within the scratch.
    let tables = unsafe { &raw mut (*place).tables };
    // SAFETY: likewise.
    let registers = unsafe { &raw mut (*place).registers };
    // SAFETY: likewise.
    let last = unsafe { &raw mut (*tables).last };
    // SAFETY: likewise.
    let sframe = unsafe { &raw mut (*tables).sframe };
    // SAFETY: likewise.
    let cfi = unsafe { &raw mut (*tables).cfi };
    // SAFETY: there is room.
    unsafe { make(registers, X86_64Regs::new(0, 0, 0)) };
    // SAFETY: likewise.
    unsafe { make(last, None) };
    // SAFETY: likewise.
    unsafe { make(sframe, RemoteBuffer::new()) };
    // SAFETY: likewise.
    unsafe { make(cfi, CfiScratch::new()) };
}

/// # Safety
///
/// There is room for one.
#[inline(never)]
unsafe fn make<T>(place: *mut T, value: T) {
    // SAFETY: there is room, and nothing is in it that has to be dropped.
    unsafe { place.write(value) };
}

/// Rows as C keeps them.
#[repr(C)]
pub(super) struct RowsBlock {
    in_use: u64,
    of: u64,
    cache: RowCache<ROWS>,
}

/// Takes rows, of which all zeroes are empty ones.
///
/// # Safety
///
/// As [`scratch`].
pub(super) unsafe fn rows<'a>(block: *mut RowsBlock) -> Result<(Lent<'a>, Rows<'a>), unwind_error> {
    check(block)?;
    // SAFETY: there is a block, and its first word is the mark.
    let lent = unsafe { Lent::take(block.cast()) }?;
    // SAFETY: within the block, which is lent to this call.
    let of = unsafe { &mut (*block).of };
    // SAFETY: likewise.
    let cache = unsafe { &mut (*block).cache };
    Ok((lent, Rows { of, cache }))
}

/// The memory of a trace: a head, the cache of one kernel entry, and room for what C sees of its stack.
pub(super) struct TraceBlock<'a> {
    pub(super) cache: &'a mut UnwindCache,
    pub(super) pcs: &'a mut [u64],
    pub(super) provenance: &'a mut [u8],
}

/// The head of a trace.
#[repr(C)]
struct TraceHead {
    in_use: u64,
    /// How many frames there is room for, a multiple of eight.
    room: usize,
}

const HEAD: usize = size_of::<TraceHead>();
/// What a cache takes beside its frames.
const CACHE_HEAD: usize = 48;
/// What eight frames take: nine bytes each in the cache, and nine for C.
const EIGHT: usize = 144;

const _: () = {
    assert!(HEAD + CACHE_HEAD == size_of::<unwind_trace>(), "the documented size");
    assert!(
        size_of::<UnwindCache<[PackedFrame; 8]>>() == CACHE_HEAD + 72,
        "what eight frames take"
    );
    assert!(size_of::<UnwindCache<[PackedFrame; 128]>>() == CACHE_HEAD + 72 * 16, "and more");
};

/// Makes a trace in `bytes` bytes of memory.
///
/// # Safety
///
/// If the pointer is neither NULL nor misaligned, there are as many bytes, which nobody else uses now.
pub(super) unsafe fn make_trace(memory: *mut u64, bytes: usize) -> Result<(), unwind_error> {
    check(memory)?;
    let eights = bytes.checked_sub(size_of::<unwind_trace>()).map_or(0, |left| left / EIGHT);
    if eights == 0 {
        return Err(unwind_error::TooSmall);
    }
    // SAFETY: there are as many bytes.
    unsafe { memory.cast::<u8>().write_bytes(0, bytes) };
    let head = TraceHead { in_use: 0, room: eights.wrapping_mul(8) };
    // SAFETY: there is room for it, as the length was looked at.
    unsafe { memory.cast::<TraceHead>().write(head) };
    Ok(())
}

/// Takes a trace.
///
/// # Safety
///
/// If the pointer is neither NULL nor misaligned, it is one to memory of [`make_trace`] that stays for
/// `'a` and is used by these calls alone.
pub(super) unsafe fn trace<'a>(
    memory: *mut u64,
) -> Result<(Lent<'a>, TraceBlock<'a>), unwind_error> {
    // SAFETY: the first word is the mark.
    let lent = unsafe { Lent::take(memory) }?;
    // SAFETY: within the head.
    let room = unsafe { (*memory.cast::<TraceHead>()).room };
    if room == 0 {
        return Err(unwind_error::Invalid);
    }
    // The sums do not wrap: `make_trace` had as many bytes.
    let cache_len = (room / 8).wrapping_mul(72).wrapping_add(CACHE_HEAD);
    // SAFETY: within the memory that `make_trace` had for as many frames.
    let cache = unsafe { memory.cast::<u8>().add(HEAD) };
    // SAFETY: likewise.
    let pcs = unsafe { cache.add(cache_len) }.cast::<u64>();
    // SAFETY: likewise.
    let provenance = unsafe { pcs.add(room) }.cast::<u8>();
    let cache: *mut [PackedFrame] = ptr::slice_from_raw_parts_mut(cache.cast(), room);
    #[expect(
        clippy::as_conversions,
        reason = "nothing else makes a pointer to a type without a size"
    )]
    let cache = cache as *mut UnwindCache;
    // SAFETY: zeroes are a new cache, aligned to eight bytes, and it is lent to this call.
    let cache = unsafe { &mut *cache };
    // SAFETY: room for as many words, apart from the cache.
    let pcs = unsafe { core::slice::from_raw_parts_mut(pcs, room) };
    // SAFETY: room for as many bytes, apart from the words.
    let provenance = unsafe { core::slice::from_raw_parts_mut(provenance, room) };
    Ok((lent, TraceBlock { cache, pcs, provenance }))
}
