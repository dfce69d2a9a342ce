//! Deferral inside of a program: a library is sampled by a timer, and the stack of its caller
//! is walked once per call, before the library returns.
//!
//! The signal handler only asks for the stack: a few instructions that neither read memory
//! which may be absent nor look a row up. Each sample keeps a cookie, the number of the call
//! that it fell into; the stack comes later, with the same cookie. The call stands for a
//! kernel entry, the handler for an NMI.
//!
//! ```sh
//! cargo run --release -p unwind-local --features symbols --example deferred_handler
//! ```
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "an example"
)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use unwind_core::deferred::{
    ClientId, DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies,
    TaskKind, TaskState, UnwindCache, UserReturn,
};
use unwind_core::{FramePc, Trace};
use unwind_local::{CallerRegisters, Symbol, trace_from};

/// The thread that calls the library; a library for several threads keeps one for each.
struct Thread {
    unwind: TaskState,
    /// Whether it is in a call that has not begun to return.
    is_in_call: AtomicBool,
}

static THREAD: Thread = Thread { unwind: TaskState::new(), is_in_call: AtomicBool::new(false) };

/// What the core asks of the program.
struct Program;

impl Host for Program {
    type Task = Thread;

    fn state<'t>(&self, thread: &'t Thread) -> &'t TaskState {
        &thread.unwind
    }

    /// Outside of a call nothing would deliver, so a request is refused there.
    fn task_kind(&self, thread: &Thread) -> TaskKind {
        if thread.is_in_call.load(Ordering::Relaxed) {
            TaskKind::User
        } else {
            TaskKind::NoUserRegisters
        }
    }

    /// A handler interrupts the thread at any instruction, as an NMI does.
    fn in_nmi(&self) -> bool {
        true
    }

    fn cpu(&self) -> u32 {
        0
    }

    /// Each call looks for requests before it returns: there is nothing more to arrange.
    fn schedule(&self, _: &Thread, _: RequestContext) -> Result<(), ScheduleError> {
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        std::thread::yield_now();
    }
}

static UNWIND: DeferredUnwind<Program> = DeferredUnwind::new(Program, SerialCookies::new());

/// The cookies of the samples, in the order of their signals.
static SAMPLES: [AtomicU64; 8192] = [const { AtomicU64::new(0) }; 8192];
static SAMPLED: AtomicUsize = AtomicUsize::new(0);
static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
static CLIENT: std::sync::OnceLock<ClientId> = std::sync::OnceLock::new();

extern "C" fn sample(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let Some(&client) = CLIENT.get() else { return };
    match UNWIND.request(&THREAD, client).cookie() {
        Some(cookie) => {
            let number = SAMPLED.fetch_add(1, Ordering::Relaxed);
            if let Some(slot) = SAMPLES.get(number) {
                slot.store(cookie.get(), Ordering::Relaxed);
            }
        }
        // Refused. A profiler would walk at once, by `unwind_local::backtrace_of`.
        None => _ = OUTSIDE.fetch_add(1, Ordering::Relaxed),
    }
}

/// A library's state: the stacks that it has delivered, by their cookies.
#[derive(Default)]
struct Library {
    stacks: BTreeMap<u64, (Vec<FramePc>, bool)>,
    cache: UnwindCache<[unwind_core::PackedFrame; 64]>,
}

impl Library {
    /// The function whose callers are to be seen: it takes long, and is sampled meanwhile.
    #[inline(never)]
    fn compress(&mut self, rounds: u64) -> u64 {
        let registers = CallerRegisters::here();
        THREAD.is_in_call.store(true, Ordering::Relaxed);
        let sum = (0..rounds).fold(0, |sum, round| black_box(sum ^ round));
        self.leave(&registers);
        sum
    }

    /// What a kernel does on its way to user code. The registers are those of the function that
    /// is to return, as a kernel has those of user code.
    #[inline(never)]
    fn leave(&mut self, registers: &CallerRegisters) {
        loop {
            // Requests are refused from here on. What came before is delivered.
            THREAD.is_in_call.store(false, Ordering::Relaxed);
            if UNWIND.user_return(&THREAD) == UserReturn::Ready {
                return;
            }
            THREAD.is_in_call.store(true, Ordering::Relaxed);
            let mut delivery = UNWIND.deliver(
                &THREAD,
                Recipients::Requesters,
                Some(&mut self.cache),
                // SAFETY: the function calls this one, and has not returned.
                |trace| unsafe { trace_from(registers, trace) },
            );
            while let Some(delivered) = delivery.next() {
                let Some(trace) = delivered.trace() else { continue };
                let pcs = Trace::frames(trace).map(|frame| frame.pc).collect();
                self.stacks.insert(delivered.cookie().get(), (pcs, trace.is_complete()));
            }
        }
    }
}

#[inline(never)]
fn short(library: &mut Library) -> u64 {
    library.compress(500_000) ^ 1
}

#[inline(never)]
fn long(library: &mut Library) -> u64 {
    library.compress(50_000_000) ^ 2
}

fn main() {
    unwind_local::prepare();
    let client = UNWIND.register().expect("it is the first one");
    CLIENT.get_or_init(|| client);
    start_timer(Duration::from_millis(1));
    let mut library = Library::default();
    let mut sum = 0;
    while cpu_time() < Duration::from_secs(1) {
        sum ^= short(&mut library) ^ long(&mut library);
    }
    start_timer(Duration::ZERO);
    black_box(sum);

    let samples = SAMPLED.load(Ordering::Relaxed).min(SAMPLES.len());
    let mut by_caller = BTreeMap::<String, usize>::new();
    for cookie in &SAMPLES[..samples] {
        let stack = library.stacks.get(&cookie.load(Ordering::Relaxed));
        let (pcs, is_complete) = stack.expect("each sample in a call has its stack");
        assert!(is_complete, "{pcs:?}");
        *by_caller.entry(callers(pcs)).or_default() += 1;
    }
    for (caller, count) in &by_caller {
        println!("{count:>6}  {caller}");
    }
    println!(
        "{samples} samples by {} walks, {} samples outside of calls",
        library.stacks.len(),
        OUTSIDE.load(Ordering::Relaxed)
    );
    let in_long: usize =
        by_caller.iter().filter(|(name, _)| name.contains("long")).map(|(_, count)| count).sum();
    assert!(samples > 20 && in_long * 10 > samples * 9, "it takes a hundred times as long");
    assert!(library.stacks.len() < samples, "samples of one call share a walk");
}

/// How long the process has had a CPU.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is one for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The callers of the library's function, which comes first itself, innermost first.
fn callers(pcs: &[FramePc]) -> String {
    let mut names = Vec::new();
    for &pc in pcs.iter().skip(1) {
        // Inlined functions come before those that have them.
        for symbol in Symbol::find_all(pc) {
            let name = symbol.to_string();
            names.push(name.split(" at ").next().unwrap_or_default().to_owned());
        }
    }
    names.truncate(2);
    names.join(" < ")
}

/// Has the process signalled each time that it has used so much of the CPU, or no longer.
fn start_timer(period: Duration) {
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
    let micros = libc::suseconds_t::from(period.subsec_micros().cast_signed());
    let every = libc::timeval { tv_sec: 0, tv_usec: micros };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the old one is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
}
