//! The hardware's call stacks: whose record it is at a context switch, and how
//! it compares with the walk that comes later.
//!
//! The record belongs to the CPU, a call chain to a task. So each task has
//! memory for the record ([`TaskData`]) for as long as a profiler uses it, and
//! a context switch saves and restores it ([`LbrCpu`]).
//!
//! [`TaskData`]: unwind_perf::task_data::TaskData

use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use unwind_core::deferred::Cookie;
use unwind_core::{Trace, VirtAddr};
use unwind_perf::task_data::{
    AllAttachment, DataHandle, DataHost, DataLayout, Switch, SwitchHook, TaskAttachment, TaskData,
    TaskDataUsers,
};
use unwind_x86::lbr::{JoinOutcome, LbrCpu, LbrSample, LbrState, LbrTask, RestoreOutcome, join};

use super::counter::count;
use super::host::Kernel;
use crate::branch_unit::{LBR, UNIT};
use crate::cpu;
use crate::cpu::CPUS;
use crate::each_cpu::{EachCpu, online};
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::grace::Moment;
use crate::options::Protection;
use crate::serial::println;
use crate::task::state::{Held, Task};
use crate::task::{schedule, state};

/// Who needs the records of tasks.
static USERS: TaskDataUsers = TaskDataUsers::new(Some(DataLayout::of::<LbrState>()));
/// Whether a switch has to care.
static HOOK: SwitchHook = SwitchHook::new();
/// The record of each CPU.
static CPU: EachCpu<Exclusive<LbrCpu>> =
    EachCpu([const { Exclusive::new(LbrCpu::new(LBR)) }; CPUS]);

/// How the records compare with the walks.
pub(crate) struct Counts {
    /// Samples with a record whose stack came.
    pub(crate) compared: AtomicU64,
    pub(crate) agreed: AtomicU64,
    pub(crate) walk_missed: AtomicU64,
    pub(crate) disagreed: AtomicU64,
    /// Of stacks with a signal frame, which is no call.
    pub(crate) of_signals: AtomicU64,
    /// Calls that record and walk have in common, in all.
    pub(crate) calls: AtomicU64,
    /// Records that were full: the walk has more calls after their end.
    pub(crate) full: AtomicU64,
    /// Samples in which the record was in use.
    pub(crate) busy: AtomicU64,
    /// Records that were restored in a switch, and those that another CPU had saved.
    restored: AtomicU64,
    moved: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    compared: AtomicU64::new(0),
    agreed: AtomicU64::new(0),
    walk_missed: AtomicU64::new(0),
    disagreed: AtomicU64::new(0),
    of_signals: AtomicU64::new(0),
    calls: AtomicU64::new(0),
    full: AtomicU64::new(0),
    busy: AtomicU64::new(0),
    restored: AtomicU64::new(0),
    moved: AtomicU64::new(0),
};

/// Memory for the records of tasks, as many as there can be.
struct Piece {
    /// Odd while it is given out; counts up with each change.
    generation: AtomicU16,
    state: Exclusive<LbrState>,
    /// The CPU on which it was last saved.
    saved_on: AtomicU32,
    /// When it was given back, while readers may still use it.
    left: Exclusive<Option<Moment>>,
}

impl Piece {
    const fn new() -> Self {
        Self {
            generation: AtomicU16::new(0),
            state: Exclusive::new(LbrState::new()),
            saved_on: AtomicU32::new(0),
            left: Exclusive::new(None),
        }
    }

    /// Frees it, if it was given back and all readers from then are done.
    fn free_if_left(&self) {
        self.left.with(|left| {
            if left.take_if(|moment| moment.has_passed()).is_some() {
                self.generation.fetch_add(1, Ordering::Release);
            }
        });
    }
}

const PIECES: usize = 64;

static PIECE: [Piece; PIECES] = [const { Piece::new() }; PIECES];

impl DataHost for Kernel {
    type Task = Held;

    fn data<'t>(&self, task: &'t Held) -> &'t TaskData {
        task.task().data()
    }

    fn alloc(&self, _: DataLayout) -> Option<DataHandle> {
        let mut pieces = (0..).zip(&PIECE);
        let (index, piece) = pieces.find(|(_, piece)| {
            piece.free_if_left();
            let generation = piece.generation.load(Ordering::Relaxed);
            generation & 1 == 0
                && piece
                    .generation
                    .compare_exchange(
                        generation,
                        generation.wrapping_add(1),
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_ok()
        })?;
        piece.state.with(|state| *state = LbrState::new());
        DataHandle::new(index, piece.generation.load(Ordering::Relaxed))
    }

    fn free(&self, handle: DataHandle) {
        if let Some(piece) = PIECE.get(handle.index() as usize) {
            piece.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Readers are a switch, with interrupts off, and an NMI.
    fn free_after_readers(&self, handle: DataHandle) {
        if let Some(piece) = PIECE.get(handle.index() as usize) {
            piece.left.with(|left| *left = Some(Moment::now()));
        }
    }

    fn next_task(&self, after: Option<&Held>) -> Option<Held> {
        schedule::next_task(after.map(Held::task))
    }

    fn relax(&self) {
        schedule::sleep(1);
    }
}

/// Calls `f` with the record's place of a task, if it has one. Any context.
fn with_state<R>(handle: DataHandle, f: impl FnOnce(LbrTask<'_>) -> R) -> Option<R> {
    let piece = PIECE.get(handle.index() as usize)?;
    if piece.generation.load(Ordering::Relaxed) != handle.generation() {
        return None;
    }
    let owner = u64::from(handle.index()) << 16 | u64::from(handle.generation());
    piece.state.try_with(|state| f(LbrTask { owner, state }))
}

/// An event of one task starts to use its record. The task does not run yet.
pub(crate) fn attach(task: &'static Task) -> Option<TaskAttachment> {
    HOOK.add_user().ok()?;
    let Ok(attachment) = USERS.attach_task(&Kernel, &task.hold()) else {
        assert!(HOOK.remove_user().is_ok(), "it was added");
        return None;
    };
    task.data().handle().and_then(|handle| with_state(handle, |tenant| tenant.state.add_user()));
    Some(attachment)
}

/// An event of the whole system starts to use the records of all tasks.
pub(crate) fn attach_all() -> Option<AllAttachment> {
    HOOK.add_user().ok()?;
    let Ok(attachment) = USERS.attach_all(&Kernel) else {
        assert!(HOOK.remove_user().is_ok(), "it was added");
        return None;
    };
    switch_wide(true);
    Some(attachment)
}

/// The system-wide event has ended.
pub(crate) fn detach_all(attachment: AllAttachment) {
    switch_wide(false);
    assert!(HOOK.remove_user().is_ok(), "it was added");
    assert!(USERS.detach_all(&Kernel, attachment).is_ok(), "it is from these users");
}

/// Whether the CPUs are to record all tasks, and which do.
static WIDE: AtomicBool = AtomicBool::new(false);
static WIDE_ON: EachCpu<AtomicBool> = EachCpu([const { AtomicBool::new(false) }; CPUS]);

/// Has each CPU record all tasks, or not, and waits until all have come to that.
fn switch_wide(on: bool) {
    WIDE.store(on, Ordering::Release);
    while WIDE_ON.iter().take(online()).any(|own| own.load(Ordering::Acquire) != on) {
        schedule::sleep(1);
    }
}

/// The timer's interrupt.
pub(crate) fn tick() {
    let (on, own) = (WIDE.load(Ordering::Acquire), WIDE_ON.own());
    if own.load(Ordering::Relaxed) == on {
        return;
    }
    CPU.own().with(|cpu| {
        if on {
            let running = schedule::current().data().handle();
            let start = |cpu: &mut LbrCpu, state: Option<&LbrState>| {
                UNIT.own().with(|unit| cpu.start_wide(unit, state));
            };
            let started =
                running.and_then(|handle| with_state(handle, |task| start(cpu, Some(task.state))));
            if started.is_none() {
                start(cpu, None);
            }
        } else {
            cpu.stop_wide();
        }
    });
    own.store(on, Ordering::Release);
}

/// A task was forked, and does not run yet.
pub(crate) fn forked(child: &'static Task) {
    // If memory is short the child gets none, and that is counted.
    let _ = USERS.fork(&Kernel, &child.hold());
}

/// A task exits.
pub(crate) fn exited(task: &'static Task) {
    USERS.exit(&Kernel, &task.hold());
}

/// The context switch, on the way from one task to the other. Interrupts are
/// off.
pub(crate) fn switch(from: &Task, to: &Task) {
    if !Protection::BranchSwitch.is_on() {
        return;
    }
    let Some(Switch { from, to, .. }) = HOOK.switch(Some(from.data()), Some(to.data())) else {
        return;
    };
    CPU.own().with(|cpu| {
        UNIT.own().with(|unit| {
            unit.switched();
            if let Some(from) = from {
                with_state(from, |tenant| cpu.switch_out(unit, Some(tenant)));
                note_saved(from);
            }
            let came = to.and_then(|to| with_state(to, |tenant| cpu.switch_in(unit, Some(tenant))));
            match (came, to) {
                (Some(RestoreOutcome::Restored), Some(to)) => count_restored(to),
                (Some(_), _) => {}
                (None, _) => _ = cpu.switch_in(unit, None),
            }
        });
    });
}

fn note_saved(handle: DataHandle) {
    if let Some(piece) = PIECE.get(handle.index() as usize) {
        piece.saved_on.store(cpu::number() as u32, Ordering::Relaxed);
    }
}

fn count_restored(handle: DataHandle) {
    let piece = PIECE.get(handle.index() as usize);
    let saved_on = piece.map(|piece| piece.saved_on.load(Ordering::Relaxed));
    count(&COUNTS.restored);
    if saved_on != Some(cpu::number() as u32) {
        count(&COUNTS.moved);
    }
}

/// Whether the hardware is to record the task's user code.
pub(crate) fn is_recorded(task: &Task) -> bool {
    if HOOK.users() == 0 || task.kind() != state::Kind::User {
        return false;
    }
    CPU.own().with(|cpu| {
        let handle = task.data().handle();
        let own = handle.and_then(|handle| with_state(handle, |t| cpu.is_used(Some(t.state))));
        own.unwrap_or_else(|| cpu.is_used(None))
    })
}

/// Reads the record for a sample of a task whose user code is at `user`. In NMIs.
// Not inlined, as `compare`: a record is large, and the callers walk stacks too.
#[inline(never)]
pub(super) fn sample(task: &Task, user: &Frame, cookie: Cookie) {
    // In the middle of a switch the hardware holds the record of either task.
    // Kernels with a branch unit switch it with the counters stopped.
    if !core::ptr::eq(task, schedule::current()) {
        return count(&COUNTS.busy);
    }
    let handle = task.data().handle();
    let Some(handle) = handle.filter(|_| HOOK.users() != 0) else { return };
    let read = CPU.own().try_with(|cpu| {
        UNIT.own().try_with(|unit| {
            with_state(handle, |tenant| {
                unit.catch_up(task, user);
                if !cpu.is_used(Some(tenant.state)) {
                    return Some(());
                }
                task.record.try_with(|kept| {
                    *kept = Some((cookie, cpu.read_stamped(unit, tenant.state)));
                })
            })
        })
    });
    if read.flatten().flatten().flatten().is_none() {
        count(&COUNTS.busy);
    }
}

/// Compares the record of a sample with the walk that was delivered under its
/// cookie. Task context.
#[inline(never)]
pub(super) fn compare(task: &Task, cookie: Cookie, trace: &Trace) {
    let kept = task.record.with(Option::take);
    let Some((_, record)) = kept.filter(|(of, _)| *of == cookie) else { return };
    let mut pcs = [0; state::TRACE_LEN];
    let len = trace.len();
    for (word, pc) in pcs.iter_mut().zip(trace.pcs()) {
        *word = VirtAddr::get(pc);
    }
    compare_with(&record, &pcs[..len], task.has_handler());
}

fn compare_with(record: &LbrSample, pcs: &[u64], has_signals: bool) {
    let joined = join(record.branches(), pcs);
    count(&COUNTS.compared);
    COUNTS.calls.fetch_add(joined.agreed() as u64, Ordering::Relaxed);
    if record.is_full() {
        count(&COUNTS.full);
    }
    count(match joined.outcome() {
        JoinOutcome::Agree => &COUNTS.agreed,
        _ if has_signals => &COUNTS.of_signals,
        JoinOutcome::WalkMissed => &COUNTS.walk_missed,
        JoinOutcome::Disagree => &COUNTS.disagreed,
    });
}

/// How many pieces of memory were given out and have come back.
fn memory() -> (u64, u64) {
    let counters = USERS.counters();
    (counters.allocated, counters.freed)
}

/// Prints the counters.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let records = &COUNTS;
    println!(
        "lbr: {} restored, {} from other cpus; {} compared, {} agree, {} walk missed, {} disagree, {} of signals; {} calls, \
         {} full, {} busy",
        get(&records.restored),
        get(&records.moved),
        get(&records.compared),
        get(&records.agreed),
        get(&records.walk_missed),
        get(&records.disagreed),
        get(&records.of_signals),
        get(&records.calls),
        get(&records.full),
        get(&records.busy),
    );
    let (given, back) = memory();
    println!("task data: {given} given, {back} back");
}
