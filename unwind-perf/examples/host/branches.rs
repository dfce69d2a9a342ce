//! The hardware's record of calls: whose it is at a context switch, and how it compares with the
//! walk that comes later.
//!
//! One event of the whole system uses the records of all tasks; the profiler that follows tasks
//! uses theirs, too.

use core::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;

use test_support::{LbrHardware, LbrKind};
use unwind_core::VirtAddr;
use unwind_core::deferred::Cookie;
use unwind_perf::task_data::{
    AllAttachment, DataHandle, DataHost, DataLayout, Switch, SwitchHook, TaskData, TaskDataUsers,
};
use unwind_x86::lbr::{JoinOutcome, Lbr, LbrCpu, LbrState, LbrTask, Msrs, RestoreOutcome, join};

use crate::aux_trace;
use crate::kernel::{CPUS, Kernel, cpu};
use crate::ledger::{count, get};
use crate::task::{self, Rest, Task};

/// Who needs the records of tasks.
static USERS: TaskDataUsers = TaskDataUsers::new(Some(DataLayout::of::<LbrState>()));
/// Whether a switch has to care, on each CPU.
static HOOKS: [SwitchHook; CPUS] = [const { SwitchHook::new() }; CPUS];
/// The registers, and what is known of them. The CPU locks its own; an NMI that finds the lock
/// taken does without.
static UNITS: LazyLock<[Mutex<Unit>; CPUS]> = LazyLock::new(|| {
    core::array::from_fn(|_| {
        let registers = Registers(LbrHardware::new(LbrKind::Skylake));
        Mutex::new(Unit { cpu: LbrCpu::new(Lbr::skylake()), registers })
    })
});
static OF_SYSTEM: Mutex<Option<AllAttachment>> = Mutex::new(None);

static RESTORED: AtomicU64 = AtomicU64::new(0);
/// Of these, records that another CPU had saved.
static MOVED: AtomicU64 = AtomicU64::new(0);
static KEPT: AtomicU64 = AtomicU64::new(0);
static CLEARED: AtomicU64 = AtomicU64::new(0);
static SAMPLED: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU64 = AtomicU64::new(0);
static OWN: AtomicU64 = AtomicU64::new(0);
static AGREED: AtomicU64 = AtomicU64::new(0);
static FULL: AtomicU64 = AtomicU64::new(0);

struct Unit {
    cpu: LbrCpu,
    registers: Registers,
}

struct Registers(LbrHardware);

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> u64 {
        self.0.read(msr)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.0.write(msr, value);
    }
}

/// Memory for the record of a task. It stays in place; the generation is odd while it is given out,
/// and tells a reader whether it is still the same use of the piece.
struct Piece {
    generation: AtomicU16,
    state: Mutex<LbrState>,
    /// The CPU on which it was last saved.
    saved_on: AtomicUsize,
}

const PIECES: usize = 64;

static PIECE: [Piece; PIECES] = [const {
    Piece {
        generation: AtomicU16::new(0),
        state: Mutex::new(LbrState::new()),
        saved_on: AtomicUsize::new(0),
    }
}; PIECES];

impl Piece {
    fn of(handle: DataHandle) -> &'static Self {
        &PIECE[handle.index() as usize]
    }

    /// Odd to even, or even to odd.
    fn turn(&self) -> u16 {
        self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }
}

impl DataHost for Kernel {
    type Task = &'static Task;

    fn data<'t>(&'t self, task: &'t &'static Task) -> &'t TaskData {
        &task.data
    }

    fn alloc(&self, _: DataLayout) -> Option<DataHandle> {
        let (index, piece) = (0..).zip(&PIECE).find(|(_, piece)| {
            let generation = piece.generation.load(Ordering::Relaxed);
            let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
            generation % 2 == 0
                && piece
                    .generation
                    .compare_exchange(generation, generation.wrapping_add(1), taken, failed)
                    .is_ok()
        })?;
        *piece.state.lock().expect("no panic") = LbrState::new();
        DataHandle::new(index, piece.generation.load(Ordering::Relaxed))
    }

    fn free(&self, handle: DataHandle) {
        Piece::of(handle).turn();
    }

    /// A reader has the lock of the piece and has seen its generation after that; who is given the
    /// piece next waits for the lock. A kernel whose memory goes away waits for a grace period.
    fn free_after_readers(&self, handle: DataHandle) {
        Piece::of(handle).turn();
    }

    fn next_task(&self, after: Option<&&'static Task>) -> Option<&'static Task> {
        task::next(after.copied())
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

/// Calls `f` with the record's place of a task, if it has one. Task context.
fn with_state<R>(handle: DataHandle, f: impl FnOnce(LbrTask<'_>) -> R) -> Option<R> {
    let piece = Piece::of(handle);
    let state = &mut *piece.state.lock().expect("no panic");
    let owner = u64::from(handle.index()) << 16 | u64::from(handle.generation());
    (piece.generation.load(Ordering::Relaxed) == handle.generation())
        .then(|| f(LbrTask { owner, state }))
}

/// An event of the whole system starts to use the records of all tasks.
pub(crate) fn open() {
    LazyLock::force(&UNITS);
    let attached = USERS.attach_all(&Kernel).expect("there is memory");
    *OF_SYSTEM.lock().expect("no panic") = Some(attached);
}

pub(crate) fn close() {
    let attached = OF_SYSTEM.lock().expect("no panic").take().expect("it was opened");
    USERS.detach_all(&Kernel, attached).expect("it is from these users");
}

/// That event on this CPU, which runs no task.
pub(crate) fn start() {
    HOOKS[cpu()].add_user().expect("there are few");
    let Unit { cpu, registers } = &mut *UNITS[cpu()].lock().expect("no panic");
    cpu.start_wide(registers, None);
    registers.0.record(true);
}

pub(crate) fn stop() {
    HOOKS[cpu()].remove_user().expect("it was added");
    let Unit { cpu, registers } = &mut *UNITS[cpu()].lock().expect("no panic");
    cpu.stop_wide();
    registers.0.record(false);
}

/// A task was created, and has not run.
pub(crate) fn created(task: &'static Task) {
    USERS.fork(&Kernel, &task).expect("there is memory");
}

/// An event of a task that has not run uses its record.
pub(crate) fn follow(task: &'static Task) {
    let attached = USERS.attach_task(&Kernel, &task).expect("there is memory");
    *task.attachment.lock().expect("no panic") = Some(attached);
    task.data.handle().and_then(|handle| with_state(handle, |task| task.state.add_user()));
}

/// A task ends: its record goes with it, also if an event holds that still.
pub(crate) fn exited(task: &'static Task) {
    USERS.exit(&Kernel, &task);
    if let Some(attached) = task.attachment.lock().expect("no panic").take() {
        USERS.detach_task(&Kernel, &task, attached).expect("it is this task's");
    }
}

/// The hardware sees a call of user code.
pub(crate) fn call(from: u64, to: u64) {
    UNITS[cpu()].lock().expect("no panic").registers.0.call(from, to);
    aux_trace::branch();
}

/// The hardware sees a return.
pub(crate) fn ret() {
    UNITS[cpu()].lock().expect("no panic").registers.0.ret();
    aux_trace::branch();
}

/// The part of a context switch between the two tasks: `set_current` makes it the other one's.
pub(crate) fn switch(from: Option<&Task>, to: Option<&Task>, set_current: impl FnOnce()) {
    // An NMI from here on gets no record: in the middle it is either task's.
    let here = cpu();
    let Unit { cpu, registers } = &mut *UNITS[here].lock().expect("no panic");
    let [from, to] = [from, to].map(|task| task.map(|task| &task.data));
    if let Some(Switch { from, to, .. }) = HOOKS[here].switch(from, to) {
        if let Some(from) = from {
            with_state(from, |task| cpu.switch_out(registers, Some(task)));
            Piece::of(from).saved_on.store(here, Ordering::Relaxed);
        }
        let came = to.and_then(|to| with_state(to, |task| cpu.switch_in(registers, Some(task))));
        match came.unwrap_or_else(|| cpu.switch_in(registers, None)) {
            RestoreOutcome::Restored => {
                count(&RESTORED);
                let saved_on = to.map(|to| Piece::of(to).saved_on.load(Ordering::Relaxed));
                MOVED.fetch_add(u64::from(saved_on != Some(here)), Ordering::Relaxed);
            }
            RestoreOutcome::Kept => count(&KEPT),
            RestoreOutcome::Cleared => count(&CLEARED),
            RestoreOutcome::Unused => {}
        }
    }
    set_current();
}

/// Reads the record for a sample of the task that runs, the first one of a kernel entry. Any
/// context.
pub(crate) fn sample(task: &Task, cookie: Cookie) {
    let (Ok(mut unit), Ok(mut kept)) = (UNITS[cpu()].try_lock(), task.record.try_lock()) else {
        return count(&BUSY);
    };
    if kept.is_none() {
        let Unit { cpu, registers } = &mut *unit;
        *kept = Some((cookie, cpu.read(registers)));
        count(&SAMPLED);
    }
}

/// Compares the record of an entry that is over with what the program knows, and with the walk, if
/// the stack of its cookie was told. User code has not run since, so later walks were of that stack.
pub(crate) fn compare(task: &Task, rest: &Rest, is_told: impl Fn(Cookie) -> bool) {
    let Some((cookie, record)) = task.record.lock().expect("no panic").take() else { return };
    let calls = record.branches();
    if rest.program.has_calls(calls.iter().map(|call| call.from)) {
        count(&OWN);
    }
    if record.is_full() {
        count(&FULL);
    }
    let pcs: Vec<u64> = rest.cache.trace().pcs().map(VirtAddr::get).collect();
    if is_told(cookie) && join(calls, &pcs).outcome() == JoinOutcome::Agree {
        count(&AGREED);
    }
}

pub(crate) fn print_and_check() -> bool {
    let sampled = get(&SAMPLED);
    println!(
        "branch records at switches: {} restored, {} of these from another cpu, {} still there, {} new",
        get(&RESTORED),
        get(&MOVED),
        get(&KEPT),
        get(&CLEARED)
    );
    println!(
        "  {sampled} sampled, {} the task's own, {} agree with the walk, {} full; {} in use",
        get(&OWN),
        get(&AGREED),
        get(&FULL),
        get(&BUSY)
    );
    let memory = USERS.counters();
    println!("  memory given {} times, back {} times", memory.allocated, memory.freed);
    [get(&OWN), get(&AGREED)] == [sampled; 2]
        && get(&MOVED) != 0
        && memory.allocated == memory.freed
        && memory.missed_forks == 0
}
