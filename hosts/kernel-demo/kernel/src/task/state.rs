//! What a task is made of.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use unwind_core::deferred::{Cookie, TaskKind, TaskState, UnwindCache};
use unwind_core::{PackedFrame, SharedModuleMap};
use unwind_perf::task_data::TaskData;
use unwind_x86::lbr::LbrSample;

use crate::cpu::CPUS;
use crate::exclusive::{Exclusive, Renewed};
use crate::memory::{Space, kernel_root};
use crate::painted;
use crate::task::bound::Bound;
use crate::task::shadow_stack::ShadowStack;
use crate::unwind::rows::Rows;

/// The states of a place for a task.
pub(super) const FREE: u8 = 0;
pub(super) const READY: u8 = 1;
pub(super) const SLEEPING: u8 = 2;
/// The task has ended, and its parent does not know it yet.
pub(super) const ENDED: u8 = 3;
/// On a CPU, or on its way there.
pub(super) const RUNNING: u8 = 4;
/// The task is being made, and not to be seen yet.
pub(super) const CLAIMED: u8 = 5;

/// The idle threads of the CPUs come first.
pub(super) const IDLE_TASKS: usize = CPUS;

/// How many tasks there are at most.
const TASKS: usize = IDLE_TASKS + 40;

const STACK_LEN: usize = 16 << 10;

/// How many frames of a user stack are kept.
pub(crate) const TRACE_LEN: usize = 126;

/// A task. What an NMI may look at is atomic.
pub(crate) struct Task {
    /// The unwinder's marks: who asked for this task's stack. Any context.
    unwind: Renewed<TaskState>,
    /// Keeps the branch unit's record while the task does not run.
    data: Renewed<TaskData>,
    /// The events that are bound to it.
    bound: Renewed<Bound>,
    /// The record of the last sample.
    pub(crate) record: Exclusive<Option<(Cookie, LbrSample)>>,
    /// What its return addresses have to be, if that is recorded.
    pub(crate) shadow: Exclusive<Option<ShadowStack>>,
    /// Whether a part of its program is traced.
    traced: AtomicBool,
    /// Whether it has a signal handler.
    pub(super) has_handler: AtomicBool,
    /// Where the stack of the last entry is kept that was walked, for a delivery or for its own
    /// event. Only the task's own way out borrows it.
    pub(crate) trace: Exclusive<UnwindCache<[PackedFrame; TRACE_LEN]>>,
    /// The modules with SFrame tables of its address space.
    pub(crate) modules: SharedModuleMap<4>,
    pub(super) has_tables: AtomicBool,
    /// The rows that walks of this address space used, and where tables are read.
    pub(crate) rows: Exclusive<Rows>,
    /// How often the task has gone back to user mode. The unwinder does not
    /// know this number. Every record carries it, so that a reader can check
    /// that a stack is of the kernel entry of its sample.
    pub(crate) returns: AtomicU64,
    /// Whether that number is about to change.
    pub(crate) returning: AtomicBool,
    /// The CPU on which its stack was last asked for.
    pub(crate) asked_on: AtomicU32,
    pub(super) id: AtomicU32,
    kind: AtomicU8,
    /// The root of its page tables.
    root: AtomicU64,
    space: Exclusive<Option<Space>>,
    pub(super) run_state: AtomicU8,
    /// How many hold it: see [`Held`].
    held: AtomicU32,
    pub(super) wake_at: AtomicU64,
    /// The stack pointer of its kernel stack when another task took over.
    pub(super) kernel_sp: AtomicU64,
    pub(super) parent: AtomicU32,
    pub(super) signals: Exclusive<SignalState>,
    pub(super) signal_is_due: AtomicBool,
}

/// What a task is: see [`TaskKind`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    KernelThread,
    /// It is about to become a user task and has no user registers yet.
    Starting,
    User,
    Exiting,
}

/// How a task handles a signal.
#[derive(Clone, Copy)]
pub(super) struct SignalState {
    /// Where its handler begins, and where that returns to. Zero if it has none.
    pub(super) handler: u64,
    pub(super) trampoline: u64,
}

impl SignalState {
    pub(super) const NONE: Self = Self { handler: 0, trampoline: 0 };
}

static TABLE: [Task; TASKS] = [const { Task::new() }; TASKS];

#[repr(C, align(16))]
struct Stack(core::cell::UnsafeCell<[u8; STACK_LEN]>);

// SAFETY: Rust code does not look into it but by address, as the owner of the
// stack.
unsafe impl Sync for Stack {}

static STACKS: [Stack; TASKS] =
    [const { Stack(core::cell::UnsafeCell::new([0; STACK_LEN])) }; TASKS];

impl Task {
    const fn new() -> Self {
        Self {
            unwind: Renewed::new(TaskState::new()),
            data: Renewed::new(TaskData::new()),
            bound: Renewed::new(Bound::new()),
            record: Exclusive::new(None),
            shadow: Exclusive::new(None),
            traced: AtomicBool::new(false),
            has_handler: AtomicBool::new(false),
            trace: Exclusive::new(UnwindCache::new()),
            modules: SharedModuleMap::new(),
            has_tables: AtomicBool::new(false),
            rows: Exclusive::new(Rows::new()),
            returns: AtomicU64::new(0),
            returning: AtomicBool::new(false),
            asked_on: AtomicU32::new(0),
            id: AtomicU32::new(0),
            kind: AtomicU8::new(0),
            root: AtomicU64::new(0),
            space: Exclusive::new(None),
            run_state: AtomicU8::new(0),
            held: AtomicU32::new(0),
            wake_at: AtomicU64::new(0),
            kernel_sp: AtomicU64::new(0),
            parent: AtomicU32::new(0),
            signals: Exclusive::new(SignalState::NONE),
            signal_is_due: AtomicBool::new(false),
        }
    }

    /// All places for tasks, taken or not.
    pub(super) fn all() -> &'static [Self] {
        &TABLE
    }

    /// The unwinder's block. Any context.
    pub(crate) fn unwind(&self) -> &TaskState {
        self.unwind.get()
    }

    /// The branch unit's block. Any context.
    pub(crate) fn data(&self) -> &TaskData {
        self.data.get()
    }

    /// The events that are bound to it. Any context.
    pub(crate) fn bound(&self) -> &Bound {
        self.bound.get()
    }

    /// Gives the place new blocks, without data of an earlier task.
    ///
    /// # Safety
    ///
    /// The place is free: no task is on it, so no code looks at its blocks.
    pub(super) unsafe fn renew_blocks(&self) {
        // SAFETY: the caller's.
        unsafe { self.unwind.renew(TaskState::new()) }
        // SAFETY: the caller's.
        unsafe { self.data.renew(TaskData::new()) }
        // SAFETY: the caller's.
        unsafe { self.bound.renew(Bound::new()) }
        self.record.with(|record| *record = None);
        self.shadow.with(|shadow| *shadow = None);
        self.has_handler.store(false, Ordering::Relaxed);
        self.traced.store(false, Ordering::Relaxed);
    }

    /// Says that a part of its program is traced.
    pub(crate) fn set_traced(&self) {
        self.traced.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.traced.load(Ordering::Relaxed)
    }

    pub(crate) fn has_handler(&self) -> bool {
        self.has_handler.load(Ordering::Relaxed)
    }

    /// The number by which records name it.
    pub(crate) fn id(&self) -> u32 {
        self.id.load(Ordering::Relaxed)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.kind.load(Ordering::Relaxed) {
            0 => Kind::KernelThread,
            1 => Kind::Starting,
            2 => Kind::User,
            _ => Kind::Exiting,
        }
    }

    pub(super) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Ordering::Relaxed);
    }

    /// Whether its program has SFrame tables.
    pub(crate) fn has_tables(&self) -> bool {
        self.has_tables.load(Ordering::Relaxed)
    }

    /// Whether the task that had this number is no more.
    pub(crate) fn has_ended(&self, id: u32) -> bool {
        self.run_state.load(Ordering::Acquire) == FREE || self.id() != id
    }

    /// Takes the place for a task, if it is free and no one looks at it.
    pub(super) fn claim(&self) -> bool {
        let (from, to) = (FREE, CLAIMED);
        let state = &self.run_state;
        let taken = state.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if taken && self.held.load(Ordering::SeqCst) != 0 {
            state.store(FREE, Ordering::SeqCst);
            return false;
        }
        taken
    }

    /// Keeps the task's blocks from being another one's.
    pub(crate) fn hold(&'static self) -> Held {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(self)
    }

    /// Whether there is a task on this place.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.run_state.load(Ordering::SeqCst), FREE | CLAIMED)
    }

    /// What the unwinder is told about it.
    pub(crate) fn unwind_kind(&self) -> TaskKind {
        match self.kind() {
            Kind::KernelThread => TaskKind::KernelThread,
            Kind::Starting => TaskKind::NoUserRegisters,
            Kind::User => TaskKind::User,
            Kind::Exiting => TaskKind::Exiting,
        }
    }

    /// The physical address of the root of its page tables. Any context.
    pub(crate) fn root(&self) -> u64 {
        match self.root.load(Ordering::Relaxed) {
            0 => kernel_root(),
            root => root,
        }
    }

    /// Whether it has user memory: not in the middle of exec, nor at its end. Any
    /// context.
    pub(crate) fn has_memory(&self) -> bool {
        self.root.load(Ordering::Relaxed) != 0
    }

    /// Calls `f` with its address space, if it has one. Does not sleep.
    pub(crate) fn with_space<R>(&self, f: impl FnOnce(&mut Space) -> R) -> Option<R> {
        self.space.with(|space| space.as_mut().map(f))
    }

    /// Exchanges the address space. The page tables of the old address space
    /// must not be in use when it is freed.
    pub(super) fn replace_space(&self, new: Option<Space>) -> Option<Space> {
        self.root.store(new.as_ref().map_or(0, Space::root), Ordering::Relaxed);
        self.space.with(|space| core::mem::replace(space, new))
    }

    /// Where its kernel stack begins: the highest address, exclusive.
    pub(super) fn stack_top(&self) -> u64 {
        self.stack_start() + STACK_LEN as u64
    }

    /// Whether a stack pointer is on its kernel stack.
    pub(super) fn owns_stack(&self, sp: u64) -> bool {
        // A full stack's pointer is its start, an empty one's its end.
        (self.stack_start()..=self.stack_top()).contains(&sp)
    }

    fn stack_start(&self) -> u64 {
        let number = Self::all().iter().position(|task| core::ptr::eq(task, self));
        STACKS.as_ptr() as u64 + (number.unwrap_or(0) * STACK_LEN) as u64
    }
}

/// A task that is looked at: its place gets no other one meanwhile.
pub(crate) struct Held(&'static Task);

impl Held {
    pub(crate) fn task(&self) -> &'static Task {
        self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Where the stack of another CPU's idle thread begins, its boot code's too. That of the
/// first CPU is boot.s's.
pub(crate) fn idle_stack(cpu: usize) -> u64 {
    TABLE[cpu].stack_top()
}

unsafe extern "C" {
    static boot_stack: u8;
    static boot_stack_top: u8;
}

/// Paints all kernel stacks, none of which is in use.
pub(crate) fn paint_stacks() {
    let start = STACKS.as_ptr() as u64;
    // SAFETY: no task has run, and the boot code has a stack of its own.
    unsafe { painted::paint(start, start + (TASKS * STACK_LEN) as u64) }
}

/// The deepest use of a kernel stack, in bytes.
pub(crate) fn most_stack_used() -> u64 {
    let used = |task: &Task| painted::used(task.stack_start(), task.stack_top());
    TABLE.iter().map(used).max().unwrap_or(0)
}

/// The kernel stack that `addr` is in, as start and end.
pub(crate) fn kernel_stack_of(addr: u64) -> Option<(u64, u64)> {
    // The idle thread's.
    let boot = (&raw const boot_stack as u64, &raw const boot_stack_top as u64);
    if (boot.0..boot.1).contains(&addr) {
        return Some(boot);
    }
    let first = STACKS.as_ptr() as u64;
    let number = addr.checked_sub(first)? / STACK_LEN as u64;
    let start = first + number * STACK_LEN as u64;
    (number < TASKS as u64).then_some((start, start + STACK_LEN as u64))
}
