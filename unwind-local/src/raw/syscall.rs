//! System calls, which leave `errno` alone.

use core::arch::asm;

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
    // SAFETY: it touches no memory.
    let thread = unsafe { call(libc::SYS_gettid, [0; 6]) };
    u64::try_from(thread) == Ok(process_id())
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
