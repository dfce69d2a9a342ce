//! System calls, which leave `errno` alone.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

use super::machine::call;

/// Whether the eight bytes at an address can be read.
#[inline(never)]
pub(crate) fn is_readable(addr: u64) -> bool {
    // The kernel reads the set before it refuses an unknown kind of change: the shortest
    // call that touches memory and changes nothing.
    const NO_SUCH_CHANGE: usize = usize::MAX;
    let Ok(addr) = usize::try_from(addr) else { return false };
    let arguments = [NO_SUCH_CHANGE, addr, 0, 8, 0, 0];
    // SAFETY: it writes nothing, and reads by the kernel's own check.
    let result = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
    error_of(result) == Some(libc::EINVAL)
}

/// The error in a call's result.
fn error_of(result: isize) -> Option<i32> {
    i32::try_from(result.wrapping_neg()).ok().filter(|error| *error > 0)
}

/// Fills `buf` from an address of the process, which is this one; `false` if not all of it can
/// be read.
pub(crate) fn copy(process: u64, addr: u64, buf: &mut [u8]) -> bool {
    let (Ok(process), Ok(addr)) = (usize::try_from(process), usize::try_from(addr)) else {
        return false;
    };
    let to = [buf.as_mut_ptr().addr(), buf.len()];
    let from = [addr, buf.len()];
    let [to, from] = [&to, &from].map(|parts| parts.as_ptr().addr());
    let arguments = [process, to, 1, from, 1, 0];
    // SAFETY: it writes to `buf` only, and reads by the kernel's own check.
    let result = unsafe { call(libc::SYS_process_vm_readv, arguments) };
    usize::try_from(result) == Ok(buf.len())
}

/// The number of this process.
pub(crate) fn process_id() -> u64 {
    // SAFETY: it touches no memory.
    u64::try_from(unsafe { call(libc::SYS_getpid, [0; 6]) }).unwrap_or(0)
}

/// Whether this is the thread that the process began with, or has after a fork.
pub(crate) fn is_first_thread() -> bool {
    u64::try_from(thread_id()) == Ok(process_id())
}

/// The thread's signal stack, from its first address to the one after its last; empty if it has none.
/// `None` if the kernel does not tell.
pub(crate) fn signal_stack() -> Option<Range<u64>> {
    // `stack_t`: where it is, flags, size.
    let mut state = [0_usize; 3];
    let to = state.as_mut_ptr().addr();
    // SAFETY: it writes these three words.
    let result = unsafe { call(libc::SYS_sigaltstack, [0, to, 0, 0, 0, 0]) };
    let [start, _, size] = state.map(|word| u64::try_from(word).unwrap_or(0));
    if result == 0 { Some(start..start.saturating_add(size)) } else { None }
}

/// Sends a signal to a thread of this process; the kernel's error if it refuses.
pub(crate) fn send_signal(thread: libc::pid_t, signal: i32) -> Result<(), i32> {
    let word = |value: i32| usize::try_from(value).unwrap_or(usize::MAX);
    let process = usize::try_from(process_id()).unwrap_or(0);
    let arguments = [process, word(thread), word(signal), 0, 0, 0];
    // SAFETY: it touches no memory.
    let result = unsafe { call(libc::SYS_tgkill, arguments) };
    if result == 0 { Ok(()) } else { Err(error_of(result).unwrap_or(0)) }
}

/// The number of this thread.
pub(crate) fn thread_id() -> libc::pid_t {
    // SAFETY: it touches no memory.
    libc::pid_t::try_from(unsafe { call(libc::SYS_gettid, [0; 6]) }).unwrap_or(0)
}

/// The time since some moment in the past.
pub(crate) fn now() -> Duration {
    // On 32 bits too: the time since the machine has started is short.
    let mut time = [0_usize; 2];
    let to = time.as_mut_ptr().addr();
    let clock = usize::try_from(libc::CLOCK_MONOTONIC).unwrap_or(0);
    // SAFETY: it writes these two words.
    unsafe { call(libc::SYS_clock_gettime, [clock, to, 0, 0, 0, 0]) };
    let [seconds, nanoseconds] = time;
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or(0))
}

/// Waits while a word has this value, for `most` at most.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, most: Duration) {
    let seconds = isize::try_from(most.as_secs()).unwrap_or(isize::MAX);
    let time = [seconds, isize::try_from(most.subsec_nanos()).unwrap_or(0)];
    let (word, time) = (word.as_ptr().addr(), time.as_ptr().addr());
    let operation = futex(libc::FUTEX_WAIT);
    let value = usize::try_from(value).unwrap_or(0);
    // SAFETY: it reads the word and the time.
    unsafe { call(libc::SYS_futex, [word, operation, value, time, 0, 0]) };
}

/// Wakes who waits for a word to change.
pub(crate) fn wake(word: &AtomicU32) {
    let arguments = [word.as_ptr().addr(), futex(libc::FUTEX_WAKE), 1, 0, 0, 0];
    // SAFETY: it reads the word.
    unsafe { call(libc::SYS_futex, arguments) };
}

/// What is done with a word that no other process has.
fn futex(operation: i32) -> usize {
    usize::try_from(operation | libc::FUTEX_PRIVATE_FLAG).unwrap_or(0)
}
