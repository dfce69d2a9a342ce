//! What each thread has: its control block, and three words that begin as zero.

use core::arch::{asm, global_asm};
use core::sync::atomic::AtomicU64;

// In the storage that a thread has from its start on, which nothing has to allocate: the
// model is that of libraries that are loaded with the program.
global_asm!(
    ".pushsection .tbss.unwind_local, \"awT\", @nobits",
    ".globl unwind_local_thread",
    ".hidden unwind_local_thread",
    ".type unwind_local_thread, @object",
    ".balign 8",
    "unwind_local_thread:",
    ".zero 24",
    ".size unwind_local_thread, 24",
    ".popsection",
);

/// What is kept of the thread.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadWords {
    /// From here on its own stack can be read; zero if nothing is known.
    pub(crate) start: AtomicU64,
    /// To here, which does not change while the thread runs.
    pub(crate) end: AtomicU64,
    /// The number of its place, if that says so, too.
    pub(crate) place: AtomicU64,
}

/// The words of this thread.
#[inline]
pub(crate) fn thread_words() -> &'static ThreadWords {
    let words: *const ThreadWords;
    // SAFETY: the two instructions that the ABI has for such a variable.
    unsafe {
        asm!(
            "mov {words}, qword ptr fs:[0]",
            "add {words}, qword ptr [rip + unwind_local_thread@GOTTPOFF]",
            words = out(reg) words,
            options(nostack, pure, readonly),
        );
    }
    // SAFETY: they are there, zero or what was stored, for as long as the thread runs; the
    // reference does not leave it.
    unsafe { &*words }
}

/// The address of the thread's control block, which no other running thread has.
#[inline]
pub(crate) fn control_block() -> u64 {
    let block;
    // SAFETY: its first word is its address.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) block, options(nostack, pure, readonly));
    }
    block
}
