//! A sampling profiler inside of the program, in the manner of pprof-rs: a timer interrupts
//! whatever thread uses the CPU, its handler keeps a backtrace in a ring without locks, and the
//! main thread writes folded stacks, as flame graphs are made of.
//!
//! ```sh
//! cargo run --release -p unwind-local --features symbols --example sampling > folded.txt
//! ```
#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "an example")]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use unwind_core::{FramePc, VirtAddr};
use unwind_local::Symbol;

const FRAMES: usize = 64;
const SLOTS: usize = 256;

/// Who may use a slot: a handler that finds it free, then the reader once it is full.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const FULL: u32 = 2;

struct Slot {
    state: AtomicU32,
    len: AtomicUsize,
    is_complete: AtomicBool,
    frames: [AtomicUsize; FRAMES],
}

static RING: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU32::new(FREE),
        len: AtomicUsize::new(0),
        is_complete: AtomicBool::new(false),
        frames: [const { AtomicUsize::new(0) }; FRAMES],
    }
}; SLOTS];
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Keeps the stack of what was interrupted; where the reader is late it is lost, and counted.
extern "C" fn sample(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes it to a handler with `SA_SIGINFO`.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_ref() }) else { return };
    let slot = &RING[NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS];
    if slot.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let mut frames = [0; FRAMES];
    // SAFETY: it is the context of this handler.
    let found = unsafe { unwind_local::backtrace_of(context, &mut frames) };
    for (to, frame) in slot.frames.iter().zip(&frames[..found.len]) {
        to.store(*frame, Ordering::Relaxed);
    }
    slot.len.store(found.len, Ordering::Relaxed);
    slot.is_complete.store(found.is_complete, Ordering::Relaxed);
    slot.state.store(FULL, Ordering::Release);
}

/// Stacks and how often each was met.
type Counts = BTreeMap<(Vec<usize>, bool), usize>;

/// Takes all that is full.
fn drain(counts: &mut Counts) {
    for slot in &RING {
        if slot.state.load(Ordering::Acquire) != FULL {
            continue;
        }
        let frames = &slot.frames[..slot.len.load(Ordering::Relaxed)];
        let stack = frames.iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
        *counts.entry((stack, slot.is_complete.load(Ordering::Relaxed))).or_default() += 1;
        slot.state.store(FREE, Ordering::Release);
    }
}

/// The names of a stack, outermost first. One that was cut begins with a mark of it.
fn folded(stack: &[usize], is_complete: bool) -> String {
    let mut names = if is_complete { Vec::new() } else { vec!["[cut]".to_owned()] };
    for (number, &addr) in stack.iter().enumerate().rev() {
        let addr = VirtAddr::new(addr.try_into().unwrap_or(0));
        // The first one is where the signal came.
        let pc = if number == 0 { FramePc::Exact(addr) } else { FramePc::Return(addr) };
        let symbols = Symbol::find_all(pc);
        if symbols.is_empty() {
            names.push(addr.to_string());
        }
        // Inlined functions are called by those after them.
        names.extend(symbols.into_iter().rev().map(|mut symbol| {
            (symbol.file, symbol.line) = (None, None);
            symbol.to_string().replace(';', ":")
        }));
    }
    names.join(";")
}

/// Has the process signalled each time that it has used so much of the CPU, or no longer.
fn set_timer(period: Duration) {
    let micros = libc::suseconds_t::from(period.subsec_micros().cast_signed());
    let every = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the old one is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
}

fn install() {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = sample;
    // SAFETY: all zeroes is a value of it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    #[expect(clippy::as_conversions, reason = "a function's address")]
    {
        action.sa_sigaction = handler as libc::sighandler_t;
    }
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler does only what a handler may.
    unsafe { libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()) };
}

/// How long the process has had a CPU.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is one for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[inline(never)]
fn fibonacci(number: u32) -> u64 {
    if number < 2 { number.into() } else { fibonacci(number - 1) + fibonacci(number - 2) }
}

#[inline(never)]
fn work() -> u64 {
    let mut sum = 0_u64;
    while cpu_time() < Duration::from_secs(2) {
        sum = sum.wrapping_add(fibonacci(20));
    }
    sum
}

fn main() {
    unwind_local::prepare();
    install();
    set_timer(Duration::from_millis(1));
    let threads = [(); 2].map(|()| std::thread::spawn(work));
    let mut counts = Counts::new();
    while threads.iter().any(|thread| !thread.is_finished()) {
        std::thread::sleep(Duration::from_millis(20));
        drain(&mut counts);
    }
    for thread in threads {
        _ = thread.join();
    }
    set_timer(Duration::ZERO);
    drain(&mut counts);
    let mut by_name = BTreeMap::<String, usize>::new();
    for ((stack, is_complete), count) in counts {
        *by_name.entry(folded(&stack, is_complete)).or_default() += count;
    }
    for (stack, count) in &by_name {
        println!("{stack} {count}");
    }
    let samples: usize = by_name.values().sum();
    let in_work: usize =
        by_name.iter().filter(|(stack, _)| stack.contains("work")).map(|(_, count)| count).sum();
    eprintln!(
        "{samples} samples, {in_work} of them in work, {} lost",
        LOST.load(Ordering::Relaxed)
    );
    assert!(samples > 20 && in_work * 10 > samples * 9, "the program does hardly anything else");
}
