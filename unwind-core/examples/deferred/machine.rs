//! The machine under the kernel: CPUs, user code, system calls, NMIs.
//!
//! The user code is a chain of calls, one for each bit of a number: the
//! functions `user_zero` and `user_one` call the next one, and the last one
//! makes a system call. So a user stack that was walked right spells that
//! number.
//!
//! ```text
//!     user_syscall   return address in user_zero or user_one
//!     ...            one frame a bit, the highest one innermost
//!     user_main      return address zero, saved frame pointer zero
//! ```

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use unwind_core::{Memory, ReadError, VirtAddr};

/// How many bits a user stack spells.
pub(crate) const BITS: u32 = 16;

/// Bytes of a user stack.
const USER_STACK: usize = 16 << 10;

/// What the CPU knows when it enters the kernel. The user code keeps its
/// address in `r12`.
#[repr(C)]
pub(crate) struct Cpu {
    kernel_sp: AtomicU64,
    user_ip: AtomicU64,
    user_sp: AtomicU64,
    user_fp: AtomicU64,
    /// Whether user code runs.
    in_user: AtomicU64,
    /// The kernel's entry, called for each system call.
    entry: extern "C" fn(),
}

/// The user registers that a system call saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserRegs {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

global_asm!(
    ".pushsection .text.user_code, \"ax\", @progbits",
    ".globl user_code_start, user_code_end, user_zero_ret, user_one_ret, user_main_ret",
    ".globl enter_user_code",
    // enter_user_code(cpu, number, bits, top of the user stack)
    "enter_user_code:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov r12, rdi",
    "mov [r12], rsp",
    "mov rsp, rcx",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "xor ebp, ebp",
    "push 0",
    "jmp user_main",
    "leave_user_code:",
    "mov rsp, [r12]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    "user_code_start:",
    "user_main:",
    "push rbp",
    "mov rbp, rsp",
    "call user_next",
    "user_main_ret:",
    "jmp leave_user_code",
    "user_next:",
    "test rsi, rsi",
    "jz user_syscall",
    "dec rsi",
    "shr rdi",
    "jc user_one",
    "user_zero:",
    "push rbp",
    "mov rbp, rsp",
    "call user_next",
    "user_zero_ret:",
    "pop rbp",
    "ret",
    "user_one:",
    "push rbp",
    "mov rbp, rsp",
    "call user_next",
    "user_one_ret:",
    "pop rbp",
    "ret",
    // The registers are saved, the kernel runs on its own stack.
    "user_syscall:",
    "push rbp",
    "mov rbp, rsp",
    "lea rax, [rip + 2f]",
    "mov [r12 + 8], rax",
    "mov [r12 + 16], rsp",
    "mov [r12 + 24], rbp",
    "mov r13, rsp",
    "mov rsp, [r12]",
    "and rsp, -16",
    "call [r12 + 40]",
    "mov rsp, r13",
    "2:",
    "pop rbp",
    "ret",
    "user_code_end:",
    ".popsection",
);

unsafe extern "C" {
    fn enter_user_code(cpu: *const Cpu, number: u64, bits: u64, stack_top: u64);
    safe static user_zero_ret: u8;
    safe static user_one_ret: u8;
    safe static user_main_ret: u8;
}

/// Which number a stack spells, if it is whole.
pub(crate) fn number_of(pcs: impl ExactSizeIterator<Item = VirtAddr>) -> Option<u64> {
    let returns = [&user_zero_ret, &user_one_ret].map(|label| ptr::from_ref(label).addr() as u64);
    let end = ptr::from_ref(&user_main_ret).addr() as u64;
    let mut number = 0;
    let mut frames = pcs.map(VirtAddr::get).skip(1);
    // Innermost first is the last bit first.
    for _ in 0..BITS {
        let pc = frames.next()?;
        number = number << 1 | u64::try_from(returns.iter().position(|&it| it == pc)?).ok()?;
    }
    (frames.next() == Some(end) && frames.next().is_none()).then_some(number)
}

impl Cpu {
    pub(crate) fn new(entry: extern "C" fn()) -> Self {
        Self {
            kernel_sp: AtomicU64::new(0),
            user_ip: AtomicU64::new(0),
            user_sp: AtomicU64::new(0),
            user_fp: AtomicU64::new(0),
            in_user: AtomicU64::new(0),
            entry,
        }
    }

    /// Whether user code runs, or would if nothing had interrupted it.
    pub(crate) fn is_in_user(&self) -> bool {
        self.in_user.load(Ordering::Relaxed) != 0
    }

    /// Marks the border between kernel and user code.
    pub(crate) fn set_in_user(&self, in_user: bool) {
        self.in_user.store(u64::from(in_user), Ordering::Relaxed);
        // An NMI of this CPU sees this before what comes after it.
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn user_regs(&self) -> UserRegs {
        UserRegs {
            ip: self.user_ip.load(Ordering::Relaxed),
            sp: self.user_sp.load(Ordering::Relaxed),
            fp: self.user_fp.load(Ordering::Relaxed),
        }
    }

    /// Runs the user code until its system call has returned.
    pub(crate) fn run_user_code(&self, number: u64, stack: &UserStack) {
        // SAFETY: the stack is larger than the frames of `BITS` calls, no one
        // else runs on it, and the kernel's entry returns normally.
        unsafe { enter_user_code(self, number, u64::from(BITS), stack.end()) }
    }
}

/// Memory for the stack of one task.
pub(crate) struct UserStack(UnsafeCell<[u64; USER_STACK / 8]>);

// SAFETY: only the CPU that runs the task uses it, and the user code and the
// kernel take turns.
unsafe impl Sync for UserStack {}

impl UserStack {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new([0; USER_STACK / 8]))
    }

    fn start(&self) -> u64 {
        self.0.get().addr() as u64
    }

    fn end(&self) -> u64 {
        self.start() + USER_STACK as u64
    }
}

/// Reads user memory while its task is in the kernel. What is not the task's
/// stack is refused.
impl Memory for &UserStack {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let at = addr.get().checked_sub(self.start()).ok_or(ReadError::Invalid)?;
        let at = usize::try_from(at).map_err(|_| ReadError::Invalid)?;
        let end = at.checked_add(buf.len()).ok_or(ReadError::Invalid)?;
        if end > USER_STACK {
            return Err(ReadError::Invalid);
        }
        let from = self.0.get().cast::<u8>().cast_const();
        // SAFETY: within the stack, as checked.
        let from = unsafe { from.add(at) };
        // SAFETY: `buf.len()` bytes from there are within the stack too, and
        // the task that writes there is in the kernel.
        unsafe { ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }
}

/// Has `handler` run in an NMI: a timer signal of the calling thread, `hertz`
/// times a second, until the result is dropped.
pub(crate) fn start_nmi_timer(hertz: u32, handler: extern "C" fn(libc::c_int)) -> NmiTimer {
    // SAFETY: all zeros is a valid value of these C structures.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: a valid signal and action.
    let set = unsafe { libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()) };
    assert_eq!(set, 0, "sigaction");

    // SAFETY: as above.
    let mut event: libc::sigevent = unsafe { core::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = libc::SIGPROF;
    // SAFETY: no arguments.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer = ptr::null_mut();
    // SAFETY: valid pointers for the call.
    let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
    assert_eq!(made, 0, "timer_create");
    let period = libc::timespec { tv_sec: 0, tv_nsec: i64::from(1_000_000_000 / hertz) };
    let times = libc::itimerspec { it_interval: period, it_value: period };
    // SAFETY: the timer was made above.
    let started = unsafe { libc::timer_settime(timer, 0, &times, ptr::null_mut()) };
    assert_eq!(started, 0, "timer_settime");
    NmiTimer(timer)
}

/// A running timer.
pub(crate) struct NmiTimer(libc::timer_t);

impl Drop for NmiTimer {
    fn drop(&mut self) {
        // SAFETY: made by `start_nmi_timer`, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}
