//! Taking turns: round robin by the timer tick. Kernel code is not preempted;
//! it gives the CPU away where it sleeps, and on the way out to user mode.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::state::{FREE, READY, SLEEPING, Task};
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::{cpu, descriptors};

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static TICKS: AtomicU64 = AtomicU64::new(0);
static SWITCH_IS_DUE: AtomicBool = AtomicBool::new(false);

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
    &Task::all()[CURRENT.load(Ordering::Relaxed)]
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
pub(crate) fn next_task(after: Option<&'static Task>) -> Option<&'static Task> {
    let tasks = Task::all();
    let place = |of: &Task| tasks.iter().position(|task| core::ptr::eq(task, of));
    let first = after.and_then(place).map_or(0, |place| place + 1);
    tasks[first..].iter().find(|task| task.run_state.load(Ordering::Relaxed) != FREE)
}

/// How many timer ticks there were.
pub(crate) fn ticks() -> u64 {
    TICKS.load(Ordering::Relaxed)
}

/// The timer's interrupt.
pub(crate) fn tick() {
    let now = TICKS.fetch_add(1, Ordering::Relaxed) + 1;
    for task in Task::all() {
        if task.run_state.load(Ordering::Relaxed) == SLEEPING
            && task.wake_at.load(Ordering::Relaxed) <= now
        {
            task.run_state.store(READY, Ordering::Relaxed);
        }
    }
    SWITCH_IS_DUE.store(true, Ordering::Relaxed);
}

/// Whether the running task's turn is over.
pub(crate) fn switch_is_due() -> bool {
    SWITCH_IS_DUE.load(Ordering::Relaxed)
}

/// Lets the next task run, and returns when this task runs again. Task context,
/// interrupts off.
pub(crate) fn switch() {
    SWITCH_IS_DUE.store(false, Ordering::Relaxed);
    let tasks = Task::all();
    let from = CURRENT.load(Ordering::Relaxed);
    let is_ready = |at: &usize| tasks[*at].run_state.load(Ordering::Relaxed) == READY;
    // The idle thread is always ready, and comes last.
    let next = (1..=tasks.len()).map(|step| (from + step) % tasks.len());
    let next = next.filter(|&at| at != IDLE).find(is_ready).unwrap_or(IDLE);
    if next == from {
        return;
    }
    let task = &tasks[next];
    // This comes first: from here to the exchange of the stacks, the task that
    // an NMI interrupts is not the current one.
    CURRENT.store(next, Ordering::Relaxed);
    if let Some(hook) = HOOK.with(|hook| *hook) {
        hook(&tasks[from], task);
    }
    select(task);
    let keep: *const AtomicU64 = &tasks[from].kernel_sp;
    // SAFETY: `next` is ready, so it was left by this function or is new: its
    // stack pointer leads to what `switch_stacks` takes from there. Interrupts
    // are off, and an NMI leaves everything as it was.
    unsafe { switch_stacks(keep as *mut u64, task.kernel_sp.load(Ordering::Relaxed)) }
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
    let task = current();
    task.wake_at.store(self::ticks() + ticks, Ordering::Relaxed);
    task.run_state.store(SLEEPING, Ordering::Relaxed);
    switch();
    cpu::restore_interrupts(interrupts);
}

/// What a task does when it runs for the first time.
pub(crate) fn arrived() {
    // It came by a switch, or by way of becoming a user task.
    cpu::disable_interrupts();
}

/// The idle thread's place: the boot code becomes it.
const IDLE: usize = 0;

/// Makes the boot code the idle thread, which never returns. Its stack is that of
/// boot.s.
pub(crate) fn start() -> ! {
    current().run_state.store(READY, Ordering::Relaxed);
    select(current());
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
