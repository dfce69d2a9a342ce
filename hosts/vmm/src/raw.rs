//! What is unsafe: system calls that have no safe wrapper here, and memory that the host's kernel shares.

use std::ffi::{c_int, c_void};
use std::io::{self, Read as _};
use std::mem::zeroed;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU8;
use std::time::Duration;
use std::{fs::File, process};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{VcpuFd, VmFd};
use unwind_perf::record::Task;

/// Gives a virtual machine its memory, which is that of a `GuestRam`.
pub(crate) fn set_memory(vm: &VmFd, region: kvm_userspace_memory_region) {
    // SAFETY: the range is one mapping of this process, in which only the guest and `vm-memory` write, by bytes that
    // may change at any time. `Machine` keeps it as long as vCPUs run.
    let set = unsafe { vm.set_user_memory_region(region) };
    set.expect("a range of pages");
}

/// The byte of a vCPU that keeps it from being entered.
pub(crate) fn immediate_exit(vcpu: &mut VcpuFd) -> &'static AtomicU8 {
    let byte = &raw mut vcpu.get_kvm_run().immediate_exit;
    // SAFETY: the caller never closes the vCPU, so that the page stays. KVM only reads the byte, once an entry; all else
    // that writes to it does so by this atomic.
    unsafe { AtomicU8::from_ptr(byte) }
}

/// This thread, as records name it.
pub(crate) fn this_thread() -> Task {
    // SAFETY: takes nothing and cannot fail.
    let tid = unsafe { libc::gettid() };
    Task { pid: process::id(), tid: tid.unsigned_abs() }
}

/// The signal of the timers.
const SIGNAL: c_int = libc::SIGUSR2;

static HANDLER: OnceLock<fn(&[usize])> = OnceLock::new();

/// Has `handler` called with the host's callers at each tick of a timer. It may interrupt anything.
pub(crate) fn handle_ticks(handler: fn(&[usize])) {
    HANDLER.get_or_init(|| handler);
    // SAFETY: all zeroes are an action, without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = on_tick as extern "C" fn(_, _, _) as usize;
    // `KVM_RUN` ends all the same.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the action is a whole one, and its handler calls what may be called in one.
    let set = unsafe { libc::sigaction(SIGNAL, &action, ptr::null_mut()) };
    assert_eq!(set, 0, "the signal can be handled");
}

extern "C" fn on_tick(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler such a context, which stays as long as the handler runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let mut callers = [0; 64];
    // SAFETY: it is the context of this handler.
    let found = unsafe { unwind_local::backtrace_of(context, &mut callers) };
    if let (Some(handler), Some(callers)) = (HANDLER.get(), callers.get(..found.len)) {
        handler(callers);
    }
}

/// A timer whose ticks interrupt the thread that has made it.
#[derive(Debug)]
pub(crate) struct Timer(libc::timer_t);

impl Timer {
    pub(crate) fn start(hertz: u32) -> Self {
        // SAFETY: all zeroes are such an event.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_notify_thread_id = this_thread().tid.cast_signed();
        let mut timer = ptr::null_mut();
        // SAFETY: both pointers are to values of this function.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        assert_eq!(made, 0, "a timer can be had");
        let period = libc::timespec { tv_sec: 0, tv_nsec: (1_000_000_000 / hertz).into() };
        let spec = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer was made above, and the pointer is to a value of this function.
        let set = unsafe { libc::timer_settime(timer, 0, &spec, ptr::null_mut()) };
        assert_eq!(set, 0, "less than a second");
        Self(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it was made by `start`, and is deleted once.
        let deleted = unsafe { libc::timer_delete(self.0) };
        debug_assert_eq!(deleted, 0);
    }
}

/// Frees pages of a `GuestRam`: the next one who touches them waits for their content.
pub(crate) fn discard(start: u64, len: u64) {
    let start = ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: these are whole pages of the mapping of a `GuestRam`, which is read and written as bytes that may change
    // at any time.
    let done = unsafe { libc::madvise(start, len as usize, libc::MADV_DONTNEED) };
    assert_eq!(done, 0, "pages that are mapped");
}

/// Faults of a `GuestRam`, handled by this process (`userfaultfd`).
#[derive(Debug)]
pub(crate) struct Userfault(File);

// Of `linux/userfaultfd.h`.
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00;
const UFFDIO_COPY: libc::Ioctl = 0xc028_aa03;
const API: u64 = 0xaa;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const REGISTER_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u64 = 0x12;

impl Userfault {
    /// Has faults on absent pages of a range wait.
    pub(crate) fn new(start: u64, len: u64) -> io::Result<Self> {
        // SAFETY: takes flags alone.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = c_int::try_from(fd).ok().filter(|&fd| fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the descriptor was made just now, for this alone.
        let this = Self(unsafe { File::from_raw_fd(fd) });
        this.ioctl(UFFDIO_API, &mut [API, FEATURE_THREAD_ID, 0])?;
        this.ioctl(UFFDIO_REGISTER, &mut [start, len, REGISTER_MISSING, 0])?;
        Ok(this)
    }

    /// The next fault: its address, and the thread that waits.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<(u64, u32)> {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let at_most = c_int::try_from(at_most.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is to one such value.
        let _ = unsafe { libc::poll(&mut poll, 1, at_most) };
        let mut message = [[0; 8]; 4];
        (&self.0).read_exact(message.as_flattened_mut()).ok()?;
        let [event, _flags, addr, thread] = message.map(u64::from_le_bytes);
        (event & 0xff == EVENT_PAGEFAULT).then_some((addr, thread as u32))
    }

    /// Fills an absent page; `false` if it is there already.
    pub(crate) fn fill(&self, page: u64, content: &[u8]) -> bool {
        let from = content.as_ptr().expose_provenance() as u64;
        self.ioctl(UFFDIO_COPY, &mut [page, from, content.len() as u64, 0, 0]).is_ok()
    }

    /// Each of these commands takes as many words as its structure has.
    fn ioctl<const N: usize>(&self, command: libc::Ioctl, words: &mut [u64; N]) -> io::Result<()> {
        debug_assert_eq!(
            usize::try_from(command >> 16 & 0x3fff),
            Ok(N * 8),
            "by the command's number"
        );
        // SAFETY: the pointer is to as many bytes as the command's number says. What it copies to is absent memory of a
        // `GuestRam`, which is read and written as bytes that may change at any time.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), command, words.as_mut_ptr()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
