//! Two clients of one kernel: a profiler that asks for stacks and keeps a number for each
//! in place of the stack, and a tracer of system calls that is called without having asked.
//!
//! Threads are the CPUs. Each makes system calls whose user stacks are known; some are
//! sampled. On the way back to user mode the stack is walked once and goes to both clients.
//! At the end each number has to stand for its stack, and the counts have to add up.
//!
//! `cargo run --release -p unwind-kit --example stack_ids`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "a program that reads nothing from outside"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unwind::deferred::{
    ClientId, DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies,
    TaskKind, TaskState, UnwindCache, UserReturn,
};
use unwind::{SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs};

const CPUS: u64 = 4;
const SYSTEM_CALLS: u64 = 50_000;
/// How many different stacks there are.
const STACKS: u64 = 300;
/// The most frames of a stack that has a number.
const FRAMES: usize = 16;

/// Numbers for stacks, in memory that is there from the start: never locks or allocates,
/// and a call takes a bounded number of steps whatever other CPUs do.
struct StackIds {
    slots: Vec<Slot>,
    /// Stacks for which there was no room.
    dropped: AtomicU64,
}

/// A stack and how often it came.
struct Slot {
    /// [`FREE`], then [`WRITTEN_NOW`] by one CPU, then for good [`READY`].
    state: AtomicU64,
    count: AtomicU64,
    len: AtomicU64,
    frames: [AtomicU64; FRAMES],
}

const FREE: u64 = 0;
const WRITTEN_NOW: u64 = 1;
const READY: u64 = 2;

impl StackIds {
    /// In how many places a stack is looked for.
    const PROBES: usize = 16;

    fn with_room_for(slots: usize) -> Self {
        let slot = || Slot {
            state: AtomicU64::new(FREE),
            count: AtomicU64::new(0),
            len: AtomicU64::new(0),
            frames: [const { AtomicU64::new(0) }; FRAMES],
        };
        Self { slots: (0..slots).map(|_| slot()).collect(), dropped: AtomicU64::new(0) }
    }

    /// The number of a stack, which is counted; `None` if there is no room for it.
    ///
    /// Two CPUs that bring a new stack at once give it two numbers: a reader adds up what
    /// stands for the same frames.
    fn count(&self, stack: &[u64]) -> Option<usize> {
        let stack = &stack[..stack.len().min(FRAMES)];
        let hash = stack.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, frame| {
            (hash ^ frame).wrapping_mul(0x100_0000_01b3).rotate_left(23)
        });
        let start = usize::try_from(hash % u64::try_from(self.slots.len()).ok()?).ok()?;
        for id in (start..start + Self::PROBES).map(|at| at % self.slots.len()) {
            let slot = &self.slots[id];
            let (taken, seen) = (Ordering::Relaxed, Ordering::Acquire);
            match slot.state.compare_exchange(FREE, WRITTEN_NOW, taken, seen) {
                Ok(_) => slot.fill(stack),
                Err(READY) if slot.stack().eq(stack.iter().copied()) => {}
                Err(_) => continue,
            }
            slot.count.fetch_add(1, Ordering::Relaxed);
            return Some(id);
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// All stacks that have a number, with their counts.
    fn stacks(&self) -> BTreeMap<Vec<u64>, u64> {
        let mut stacks = BTreeMap::new();
        let ready = |slot: &&Slot| slot.state.load(Ordering::Acquire) == READY;
        for slot in self.slots.iter().filter(ready) {
            *stacks.entry(slot.stack().collect()).or_default() +=
                slot.count.load(Ordering::Relaxed);
        }
        stacks
    }
}

impl Slot {
    /// Writes a stack into a slot that this CPU has taken.
    fn fill(&self, stack: &[u64]) {
        for (place, frame) in self.frames.iter().zip(stack) {
            place.store(*frame, Ordering::Relaxed);
        }
        self.len.store(u64::try_from(stack.len()).unwrap_or(0), Ordering::Relaxed);
        // A CPU that sees this sees the stack.
        self.state.store(READY, Ordering::Release);
    }

    fn stack(&self) -> impl Iterator<Item = u64> + '_ {
        let len = usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(0);
        self.frames.iter().take(len).map(|frame| frame.load(Ordering::Relaxed))
    }
}

/// A task, whose user stack spells a number while it is in the kernel.
struct Task {
    unwind: TaskState,
    work: AtomicBool,
}

struct Kernel;

impl Host for Kernel {
    type Task = Task;

    fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
        &task.unwind
    }

    fn task_kind(&self, _: &Task) -> TaskKind {
        TaskKind::User
    }

    fn in_nmi(&self) -> bool {
        false
    }

    fn cpu(&self) -> u32 {
        0
    }

    fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
        task.work.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn clock(&self) -> u64 {
        0
    }

    fn relax(&self) {
        std::thread::yield_now();
    }
}

static UNWIND: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());

const STACK: u64 = 0x7fff_0000;

/// A user stack of frames that keep frame pointers, and its return addresses: `number` in
/// base 8, a function for each digit.
fn user_stack(number: u64) -> (Vec<u8>, Vec<u64>) {
    let (mut words, mut callers) = (Vec::new(), Vec::new());
    let mut rest = number + 8;
    while rest != 0 {
        let caller = 0x40_1000 + 0x100 * (rest % 8);
        let next = STACK + 8 * (u64::try_from(words.len()).unwrap_or(0) + 2);
        words.extend([if rest < 8 { 0 } else { next }, caller]);
        callers.push(caller);
        rest /= 8;
    }
    (words.iter().flat_map(|word| word.to_le_bytes()).collect(), callers)
}

/// What a CPU's clients have seen.
#[derive(Default)]
struct Seen {
    sampled: BTreeMap<Vec<u64>, u64>,
    traced: u64,
    samples: u64,
}

/// Makes system calls, of which some are sampled.
fn run_cpu(cpu: u64, profiler: ClientId, ids: &StackIds) -> Seen {
    let task = Task { unwind: TaskState::new(), work: AtomicBool::new(false) };
    let mut cache = UnwindCache::<[_; 64]>::new();
    let mut unwinder = Unwinder::<4>::new();
    let mut seen = Seen::default();
    for call in 0..SYSTEM_CALLS {
        let number = (call * 7 + cpu * 13) % STACKS;
        let (stack, callers) = user_stack(number);
        if call % 3 == 0 {
            // In the NMI: the sample has the cookie.
            let outcome = UNWIND.request(&task, profiler);
            assert!(outcome.cookie().is_some(), "{outcome:?}");
            seen.samples += 1;
            *seen.sampled.entry(callers).or_default() += 1;
        }
        // On the way to user code.
        while task.work.swap(false, Ordering::Relaxed)
            || UNWIND.user_return(&task) == UserReturn::Pending
        {
            let walk = |trace: &mut Trace| {
                let mut memory = SliceMemory::new(VirtAddr::new(STACK), &stack);
                unwinder.walk(X86_64Regs::new(0x40_0010, STACK - 64, STACK), &mut memory, trace);
            };
            let mut delivery =
                UNWIND.deliver(&task, Recipients::AllClients, Some(&mut cache), walk);
            while let Some(guard) = delivery.next() {
                let trace = guard.trace().map(|trace| trace.pcs().skip(1).map(VirtAddr::get));
                let stack: Vec<u64> = trace.into_iter().flatten().collect();
                if guard.client() == profiler {
                    ids.count(&stack);
                } else {
                    // The tracer: it has asked for nothing, and gets what others asked for.
                    seen.traced += 1;
                }
            }
        }
    }
    seen
}

fn main() -> ExitCode {
    let (Ok(profiler), Ok(_tracer)) = (UNWIND.register(), UNWIND.register()) else {
        return ExitCode::FAILURE;
    };
    let ids = StackIds::with_room_for(2048);
    let seen: Vec<Seen> = std::thread::scope(|threads| {
        let run = |cpu| {
            let ids = &ids;
            threads.spawn(move || run_cpu(cpu, profiler, ids))
        };
        let cpus: Vec<_> = (0..CPUS).map(run).collect();
        cpus.into_iter().filter_map(|cpu| cpu.join().ok()).collect()
    });
    let samples: u64 = seen.iter().map(|cpu| cpu.samples).sum();
    let traced: u64 = seen.iter().map(|cpu| cpu.traced).sum();
    let mut expected = BTreeMap::<Vec<u64>, u64>::new();
    for (stack, count) in seen.into_iter().flat_map(|cpu| cpu.sampled) {
        *expected.entry(stack).or_default() += count;
    }
    let dropped = ids.dropped.load(Ordering::Relaxed);
    println!(
        "{samples} samples of {} stacks, {traced} stacks to the tracer, {dropped} without room",
        expected.len()
    );
    let is_right = ids.stacks() == expected && traced == samples && dropped == 0;
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
