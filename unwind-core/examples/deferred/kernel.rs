//! The kernel: which of its hooks calls what.

use core::cell::Cell;
use core::convert::Infallible;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::thread;
use std::time::Instant;

use unwind_core::deferred::{
    ClientId, Cookie, DeferredUnwind, DropCounts, Host, Recipients, RequestContext, RequestOutcome,
    SampleOutcome, ScheduleError, SerialCookies, TaskKind, TaskState, UnwindCache, UserReturn,
};
use unwind_core::{
    Arch, CfaRule, DwarfReg, FrameContext, Memory, RegRule, Registers, Row, RowSource, Trace,
    Walker, WordSize,
};

use crate::machine::{self, Cpu, UserStack};

const CPUS: u32 = 4;
const NMIS_PER_SECOND: u32 = 4_000;
/// How many samples of one system call are kept.
const SAMPLES: usize = 64;

/// The one instance of this kernel.
static UNWIND: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());

/// A task: in a real kernel, the structure that `current` points to.
struct Task {
    /// For deferred unwinding, embedded by value.
    unwind: TaskState,
    cpu: Cpu,
    stack: UserStack,
    /// Work to be done on the way to user mode: a flag like any other of its
    /// kind.
    work: AtomicBool,
    /// The number that the user stack spells at this moment.
    number: AtomicU64,
    profiler: ClientId,
    /// What the NMIs recorded in this system call. A real kernel has a ring
    /// buffer here.
    samples: [Sample; SAMPLES],
    taken: AtomicU64,
    totals: Totals,
}

/// A sample: the cookie, and what the stack must turn out to be.
struct Sample {
    cookie: AtomicU64,
    number: AtomicU64,
}

impl Sample {
    const fn new() -> Self {
        Self { cookie: AtomicU64::new(0), number: AtomicU64::new(0) }
    }
}

/// What became of the samples.
#[derive(Default)]
struct Totals {
    system_calls: AtomicU64,
    in_user: AtomicU64,
    refused: AtomicU64,
    overflowed: AtomicU64,
    matched: AtomicU64,
    mismatched: AtomicU64,
    lost: AtomicU64,
    in_requests: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    /// The task that runs on this CPU.
    static CURRENT: Cell<Option<&'static Task>> = const { Cell::new(None) };
    static IN_NMI: Cell<bool> = const { Cell::new(false) };
    /// Whether a request is being made.
    static IN_REQUEST: Cell<bool> = const { Cell::new(false) };
}

/// The hooks.
struct Kernel;

impl Host for Kernel {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.unwind
    }

    fn task_kind(&self, _: &Task) -> TaskKind {
        // These tasks are all alike. A kernel looks at its flags here.
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        IN_NMI.get()
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        // The way to user mode looks at this flag after `user_return`, when
        // NMIs are already told that user code runs. A kernel for which that
        // is too early sends itself an interrupt if the context is an NMI.
        task.work.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

/// The NMI: takes a sample.
extern "C" fn nmi(_: libc::c_int) {
    let Some(task) = CURRENT.get() else { return };
    let outer = IN_NMI.replace(true);
    if task.cpu.is_in_user() {
        // The user registers are known here and nothing is deferred. A real
        // kernel would, since its NMI may not read user memory: the NMI is
        // then a kernel entry of its own.
        count(&task.totals.in_user);
    } else {
        if IN_REQUEST.get() {
            count(&task.totals.in_requests);
        }
        take_sample(task);
    }
    IN_NMI.set(outer);
}

/// Asks for the user stack and records the cookie: in an NMI or anywhere else.
fn take_sample(task: &Task) {
    match UNWIND.request(task, task.profiler) {
        RequestOutcome::Refused(_) => count(&task.totals.refused),
        outcome => {
            let Some(cookie) = outcome.cookie() else { return };
            let at = usize::try_from(task.taken.fetch_add(1, Ordering::Relaxed)).ok();
            match at.and_then(|at| task.samples.get(at)) {
                Some(sample) => {
                    let number = task.number.load(Ordering::Relaxed);
                    sample.number.store(number, Ordering::Relaxed);
                    sample.cookie.store(cookie.get(), Ordering::Relaxed);
                }
                None => count(&task.totals.overflowed),
            }
        }
    }
}

/// The entry of a system call.
extern "C" fn system_call() {
    let Some(task) = CURRENT.get() else { return };
    task.cpu.set_in_user(false);
    count(&task.totals.system_calls);
    // The kernel does something. A tracepoint takes a sample too.
    for turn in 0..2_000_u32 {
        if turn % 500 == 0 {
            IN_REQUEST.set(true);
            take_sample(task);
            IN_REQUEST.set(false);
        }
        core::hint::spin_loop();
    }
    exit_to_user(task);
}

/// The way back to user mode.
fn exit_to_user(task: &Task) {
    let mut stacks = HashMap::new();
    loop {
        task.work.store(false, Ordering::Relaxed);
        deliver(task, &mut stacks);
        if UNWIND.user_return(task) == UserReturn::Pending {
            continue;
        }
        // From here on an NMI is one in user mode.
        task.cpu.set_in_user(true);
        if !task.work.load(Ordering::Relaxed) {
            break;
        }
        task.cpu.set_in_user(false);
    }
    match_samples(task, &stacks);
}

/// Walks the user stack once and calls who asked. The registers are those of
/// the kernel entry; a kernel does this before it sets up signal frames.
fn deliver(task: &Task, stacks: &mut HashMap<Cookie, (SampleOutcome, Option<u64>)>) {
    let mut cache = UnwindCache::<[_; 64]>::new();
    let walk = |trace: &mut Trace| {
        let regs = task.cpu.user_regs();
        let regs = Regs { ip: regs.ip, sp: regs.sp, fp: regs.fp };
        Walker::new(X86, FramePointers).trace(regs, &mut &task.stack, trace);
    };
    let mut delivery = UNWIND.deliver(task, Recipients::Requesters, Some(&mut cache), walk);
    while let Some(guard) = delivery.next() {
        let number = guard.trace().and_then(|trace| machine::number_of(trace.pcs()));
        stacks.insert(guard.cookie(), (guard.outcome(), number));
    }
}

/// What a profiler does with its samples and stacks, later and elsewhere.
fn match_samples(task: &Task, stacks: &HashMap<Cookie, (SampleOutcome, Option<u64>)>) {
    let taken = usize::try_from(task.taken.swap(0, Ordering::Relaxed)).unwrap_or(SAMPLES);
    for sample in task.samples.iter().take(taken) {
        let cookie = Cookie::new(sample.cookie.swap(0, Ordering::Relaxed));
        let number = sample.number.load(Ordering::Relaxed);
        let counter = match cookie.and_then(|cookie| stacks.get(&cookie)) {
            Some(&(SampleOutcome::Matched, Some(walked))) if walked == number => {
                &task.totals.matched
            }
            Some(_) => &task.totals.mismatched,
            None => &task.totals.lost,
        };
        count(counter);
    }
}

/// One CPU with one task, which stays in memory.
fn run_cpu(number: u32, profiler: ClientId, until: Instant) -> &'static Totals {
    let task: &'static Task = Box::leak(Box::new(Task {
        unwind: TaskState::new(),
        cpu: Cpu::new(system_call),
        stack: UserStack::new(),
        work: AtomicBool::new(false),
        number: AtomicU64::new(0),
        profiler,
        samples: [const { Sample::new() }; SAMPLES],
        taken: AtomicU64::new(0),
        totals: Totals::default(),
    }));
    CURRENT.set(Some(task));
    let timer = machine::start_nmi_timer(NMIS_PER_SECOND, nmi);
    let mut random = u64::from(number);
    while Instant::now() < until {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = random >> 33 & ((1 << machine::BITS) - 1);
        task.number.store(number, Ordering::Relaxed);
        task.cpu.set_in_user(true);
        task.cpu.run_user_code(number, &task.stack);
    }
    drop(timer);
    CURRENT.set(None);
    &task.totals
}

/// Runs all CPUs for a while.
pub(crate) fn run(duration: Duration) -> Report {
    let profiler = UNWIND.register().expect("the table is empty");
    let until = Instant::now() + duration;
    let mut report = Report::default();
    thread::scope(|scope| {
        let cpus: Vec<_> =
            (0..CPUS).map(|cpu| scope.spawn(move || run_cpu(cpu, profiler, until))).collect();
        for cpu in cpus {
            report.add(cpu.join().expect("a cpu"));
        }
    });
    UNWIND.cancel(None, profiler).expect("it is registered");
    report.drops = UNWIND.drops();
    report
}

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    system_calls: u64,
    in_user: u64,
    in_requests: u64,
    refused: u64,
    overflowed: u64,
    matched: u64,
    mismatched: u64,
    lost: u64,
    drops: DropCounts,
}

impl Report {
    fn add(&mut self, totals: &Totals) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.system_calls += get(&totals.system_calls);
        self.in_user += get(&totals.in_user);
        self.in_requests += get(&totals.in_requests);
        self.refused += get(&totals.refused);
        self.overflowed += get(&totals.overflowed);
        self.matched += get(&totals.matched);
        self.mismatched += get(&totals.mismatched);
        self.lost += get(&totals.lost);
    }

    /// Whether every sample has the stack that it was taken with.
    pub(crate) fn is_clean(&self) -> bool {
        self.matched > 0 && self.mismatched == 0 && self.lost == 0 && self.refused == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} system calls on {CPUS} cpus", self.system_calls)?;
        writeln!(f, "nmis in user code           {:>9}", self.in_user)?;
        writeln!(f, "nmis inside a request       {:>9}", self.in_requests)?;
        writeln!(f, "samples matched             {:>9}", self.matched)?;
        writeln!(f, "samples with a wrong stack  {:>9}", self.mismatched)?;
        writeln!(f, "samples without a stack     {:>9}", self.lost)?;
        writeln!(f, "requests refused            {:>9}", self.refused)?;
        writeln!(f, "samples that had no room    {:>9}", self.overflowed)?;
        write!(f, "dropped by the core         {:?}", self.drops)
    }
}

/// The registers that a walk by frame pointers needs.
#[derive(Clone, Copy, Debug)]
struct Regs {
    ip: u64,
    sp: u64,
    fp: u64,
}

impl Registers for Regs {
    fn pc(&self) -> u64 {
        self.ip
    }

    fn sp(&self) -> u64 {
        self.sp
    }

    fn fp(&self) -> Option<u64> {
        Some(self.fp)
    }

    fn get(&self, _: DwarfReg) -> Option<u64> {
        None
    }
}

/// As much of the CPU as that: the crate `unwind-x86` has the rest.
struct X86;

impl Arch for X86 {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
}

/// Every function of the user code keeps a frame pointer.
struct FramePointers;

impl RowSource<X86> for FramePointers {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::new(CfaRule::fp(16), RegRule::Offset(-8), RegRule::Offset(-16))))
    }
}
