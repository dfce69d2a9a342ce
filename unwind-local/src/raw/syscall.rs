//! System calls, which leave `errno` alone.

use core::arch::asm;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// Calls the kernel, and returns what it returns.
///
/// # Safety
///
/// The call may read and write what the arguments say.
unsafe fn call(number: i64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: as the caller promises; the kernel changes no other registers.
    unsafe {
        asm!(
            "syscall",
            inout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Whether the eight bytes at an address can be read.
pub(crate) fn is_readable(addr: u64) -> bool {
    // The kernel reads the set before it refuses an unknown kind of change: the shortest
    // call that touches memory and changes nothing.
    const NO_SUCH_CHANGE: u64 = u64::MAX;
    let arguments = [NO_SUCH_CHANGE, addr, 0, 8, 0, 0];
    // SAFETY: it writes nothing, and reads by the kernel's own check.
    let result = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
    result.checked_neg() == Some(libc::EINVAL.into())
}

/// Fills `buf` from an address; `false` if not all of it can be read.
pub(crate) fn copy(addr: u64, buf: &mut [u8]) -> bool {
    let pointer = |value: *const u8| u64::try_from(value.addr()).unwrap_or(0);
    let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
    let to = [pointer(buf.as_mut_ptr()), len];
    let from = [addr, len];
    let [to, from] = [&to, &from].map(|parts| pointer(parts.as_ptr().cast()));
    let arguments = [process_id(), to, 1, from, 1, 0];
    // SAFETY: it writes to `buf` only, and reads by the kernel's own check.
    let result = unsafe { call(libc::SYS_process_vm_readv, arguments) };
    u64::try_from(result) == Ok(len)
}

fn process_id() -> u64 {
    // SAFETY: it touches no memory.
    u64::try_from(unsafe { call(libc::SYS_getpid, [0; 6]) }).unwrap_or(0)
}

/// Whether this is the thread that the process began with, or has after a fork.
pub(crate) fn is_first_thread() -> bool {
    u64::try_from(thread_id()) == Ok(process_id())
}

/// Whether a stack pointer is on the thread's alternate signal stack.
pub(crate) fn is_signal_stack(sp: u64) -> bool {
    // `stack_t`: where it is, flags, size.
    let mut state = [0_u64; 3];
    let to = u64::try_from(state.as_mut_ptr().addr()).unwrap_or(0);
    // SAFETY: it writes these three words.
    let result = unsafe { call(libc::SYS_sigaltstack, [0, to, 0, 0, 0, 0]) };
    let [start, _, size] = state;
    result != 0 || sp.checked_sub(start).is_some_and(|at| at <= size && size != 0)
}

/// Sends a signal to a thread of this process; the kernel's error if it refuses.
pub(crate) fn send_signal(thread: libc::pid_t, signal: i32) -> Result<(), i32> {
    let (thread, signal) = (thread.cast_unsigned().into(), signal.cast_unsigned().into());
    // SAFETY: it touches no memory.
    let result = unsafe { call(libc::SYS_tgkill, [process_id(), thread, signal, 0, 0, 0]) };
    match i32::try_from(result) {
        Ok(0) => Ok(()),
        Ok(error) => Err(error.wrapping_neg()),
        Err(_) => Err(0),
    }
}

/// The number of this thread.
pub(crate) fn thread_id() -> libc::pid_t {
    // SAFETY: it touches no memory.
    libc::pid_t::try_from(unsafe { call(libc::SYS_gettid, [0; 6]) }).unwrap_or(0)
}

/// The time since some moment in the past.
pub(crate) fn now() -> Duration {
    let mut time = [0_u64; 2];
    let to = u64::try_from(time.as_mut_ptr().addr()).unwrap_or(0);
    let clock = libc::CLOCK_MONOTONIC.cast_unsigned().into();
    // SAFETY: it writes these two words.
    unsafe { call(libc::SYS_clock_gettime, [clock, to, 0, 0, 0, 0]) };
    let [seconds, nanoseconds] = time;
    Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or(0))
}

const fn addr_of(word: &AtomicU32) -> *const u32 {
    word.as_ptr().cast_const()
}

/// Waits while a word has this value, for `most` at most.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, most: Duration) {
    let time = [most.as_secs(), most.subsec_nanos().into()];
    let pointer = |addr: usize| u64::try_from(addr).unwrap_or(0);
    let (word, time) = (pointer(addr_of(word).addr()), pointer(time.as_ptr().addr()));
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG).cast_unsigned().into();
    // SAFETY: it reads the word and the time.
    unsafe { call(libc::SYS_futex, [word, operation, value.into(), time, 0, 0]) };
}

/// Wakes who waits for a word to change.
pub(crate) fn wake(word: &AtomicU32) {
    let word = u64::try_from(addr_of(word).addr()).unwrap_or(0);
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG).cast_unsigned().into();
    // SAFETY: it reads the word.
    unsafe { call(libc::SYS_futex, [word, operation, 1, 0, 0, 0]) };
}
