//! Taking turns: round robin by the timer tick. Kernel code is not preempted;
//! it gives the CPU away where it sleeps, and on the way out to user mode.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::state::{Held, IDLE_TASKS, READY, RUNNING, SLEEPING, Task};
use crate::cpu::CPUS;
use crate::each_cpu::EachCpu;
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::options::Protection;
use crate::{cpu, descriptors};

/// What a CPU knows of its turns.
struct Turn {
    /// The place of the running task.
    current: AtomicUsize,
    switch_is_due: AtomicBool,
    /// The place of the task that gives the CPU away, and what becomes of it when its
    /// stack is not in use any more. Only then may another CPU let it run.
    leaving: AtomicUsize,
    left_as: AtomicU8,
}

static TURNS: EachCpu<Turn> = EachCpu(
    [const {
        Turn {
            current: AtomicUsize::new(0),
            switch_is_due: AtomicBool::new(false),
            leaving: AtomicUsize::new(0),
            left_as: AtomicU8::new(RUNNING),
        }
    }; CPUS],
);
static TICKS: AtomicU64 = AtomicU64::new(0);

/// What is called in a switch, with the tasks that go and come. Interrupts are
/// off.
type SwitchHook = fn(&Task, &Task);

static HOOK: Exclusive<Option<SwitchHook>> = Exclusive::new(None);

/// Has `hook` called in every switch from here on.
pub(crate) fn set_hook(hook: SwitchHook) {
    HOOK.with(|place| *place = Some(hook));
}

unsafe extern "C" {
    fn switch_stacks(keep: *mut u64, next: u64);
}

/// The running task. Any context.
pub(crate) fn current() -> &'static Task {
    &Task::all()[TURNS.own().current.load(Ordering::Relaxed)]
}

/// The task whose code an NMI has interrupted.
///
/// In the middle of a switch it is not always [`current`]: the task is the one
/// whose kernel stack is in use, which changes by one instruction.
pub(crate) fn interrupted(frame: &Frame) -> &'static Task {
    let on_its_stack = |task: &&Task| task.owns_stack(frame.rsp);
    let owner = if frame.is_user() { None } else { Task::all().iter().find(on_its_stack) };
    owner.unwrap_or_else(current)
}

/// The tasks in the order of their places: the first one, or the one that
/// follows `after`.
pub(crate) fn next_task(after: Option<&'static Task>) -> Option<Held> {
    let tasks = Task::all();
    let place = |of: &Task| tasks.iter().position(|task| core::ptr::eq(task, of));
    let first = after.and_then(place).map_or(0, |place| place + 1);
    // It is held before it is looked at, so that it cannot go and another one come.
    tasks[first..].iter().map(Task::hold).find(|held| held.task().is_there())
}

/// How many timer ticks there were.
pub(crate) fn ticks() -> u64 {
    TICKS.load(Ordering::Relaxed)
}

/// The timer's interrupt.
pub(crate) fn tick() {
    // One CPU's ticks are the time.
    if cpu::number() == 0 {
        let now = TICKS.fetch_add(1, Ordering::Relaxed) + 1;
        for task in Task::all() {
            if task.run_state.load(Ordering::Acquire) == SLEEPING
                && task.wake_at.load(Ordering::Relaxed) <= now
            {
                task.run_state.store(READY, Ordering::Release);
            }
        }
    }
    end_turn();
}

/// Whether the running task's turn is over.
pub(crate) fn switch_is_due() -> bool {
    TURNS.own().switch_is_due.load(Ordering::Relaxed)
}

/// Ends the running task's turn, as a tick does. Any context.
pub(crate) fn end_turn() {
    TURNS.own().switch_is_due.store(true, Ordering::Relaxed);
}

/// Lets the next task run, and returns when this task runs again, perhaps on another CPU.
/// Task context, interrupts off.
pub(crate) fn switch() {
    switch_as(READY);
}

/// Lets the next task run; this one is in the state `left_as` as soon as nothing of it is
/// in use. Returns when it runs again. Task context, interrupts off.
pub(super) fn switch_as(left_as: u8) {
    let turn = TURNS.own();
    turn.switch_is_due.store(false, Ordering::Relaxed);
    let tasks = Task::all();
    let from = turn.current.load(Ordering::Relaxed);
    let own_idle = cpu::number();
    let take = |at: &usize| {
        let state = &tasks[*at].run_state;
        state.load(Ordering::Relaxed) == READY
            && state.compare_exchange(READY, RUNNING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    // The idle thread is taken by none, and comes last.
    let next = (1..=tasks.len()).map(|step| (from + step) % tasks.len()).find(take);
    let next = match next {
        Some(next) => next,
        None if left_as == READY => return,
        None => own_idle,
    };
    let task = &tasks[next];
    let left_as = if from < IDLE_TASKS { RUNNING } else { left_as };
    turn.leaving.store(from, Ordering::Relaxed);
    turn.left_as.store(left_as, Ordering::Relaxed);
    // This comes first: from here to the exchange of the stacks, the task that
    // an NMI interrupts is not the current one.
    turn.current.store(next, Ordering::Relaxed);
    if let Some(hook) = HOOK.with(|hook| *hook) {
        hook(&tasks[from], task);
    }
    if !Protection::LeftStack.is_on() {
        finish_switch();
    }
    select(task);
    let keep: *const AtomicU64 = &tasks[from].kernel_sp;
    // SAFETY: `next` was ready, so it was left by this function or is new: its
    // stack pointer leads to what `switch_stacks` takes from there. No other CPU
    // takes it. Interrupts are off, and an NMI leaves everything as it was.
    unsafe { switch_stacks(keep as *mut u64, task.kernel_sp.load(Ordering::Relaxed)) }
    finish_switch();
}

/// The task before this one on this CPU has no more use of it. Interrupts are off.
fn finish_switch() {
    // Not `turn` of above: this may be another CPU.
    let turn = TURNS.own();
    // That of the idle thread never changes.
    let left = turn.leaving.swap(cpu::number(), Ordering::Relaxed);
    let left_as = turn.left_as.swap(RUNNING, Ordering::Relaxed);
    Task::all()[left].run_state.store(left_as, Ordering::Release);
}

/// Makes `task`'s page tables and stack those of the next entry.
pub(super) fn select(task: &Task) {
    descriptors::set_kernel_stack(task.stack_top());
    // SAFETY: each task's tables map the kernel.
    unsafe { cpu::set_page_tables(task.root()) }
}

/// Lets other tasks run for `ticks` ticks. Task context.
pub(crate) fn sleep(ticks: u64) {
    let interrupts = cpu::disable_interrupts();
    current().wake_at.store(self::ticks() + ticks, Ordering::Relaxed);
    switch_as(SLEEPING);
    cpu::restore_interrupts(interrupts);
}

/// What a user task does when it runs for the first time. It came by a switch, and a
/// thread that becomes a user task did so before.
pub(crate) fn arrived() {
    cpu::disable_interrupts();
    finish_switch();
}

/// A kernel thread's first steps: called by entry.s.
#[unsafe(no_mangle)]
extern "C" fn thread_runs_for_the_first_time(argument: u64, main: extern "C" fn(u64) -> !) -> ! {
    finish_switch();
    main(argument)
}

/// Makes the boot code of this CPU its idle thread, which never returns.
pub(crate) fn start() -> ! {
    let turn = TURNS.own();
    turn.current.store(cpu::number(), Ordering::Relaxed);
    turn.leaving.store(cpu::number(), Ordering::Relaxed);
    let idle = current();
    idle.run_state.store(RUNNING, Ordering::Relaxed);
    select(idle);
    cpu::disable_interrupts();
    loop {
        switch();
        cpu::wait_for_interrupt();
        cpu::disable_interrupts();
    }
}

/// Makes all pages of one task absent, of another one each time; returns how
/// many there were. Its next steps will bring back what it needs, and the next
/// walk of its stack what that needs.
pub(crate) fn evict_next() -> u32 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let tasks = Task::all();
    for _ in tasks {
        let at = NEXT.fetch_add(1, Ordering::Relaxed) % tasks.len();
        let count = tasks[at].with_space(|space| space.evict());
        if let Some(count) = count.filter(|&count| count > 0) {
            return count;
        }
    }
    0
}
