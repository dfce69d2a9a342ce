//! How tasks come, go, and change their program, with the unwinder's hooks at
//! each.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use unwind_core::deferred::LossReason;

use super::program::{Loaded, Program};
use super::schedule::{self, current};
use super::state::{ENDED, FREE, IDLE_TASKS, Kind, READY, SignalState, Task};
use crate::cpu;
use crate::frame::Frame;
use crate::memory::kernel_root;
use crate::options::Protection;
use crate::unwind::{branches, delivery, followers, stream};

unsafe extern "C" {
    fn first_run();
    fn first_return();
    fn start_user(stack: u64) -> !;
}

/// Bytes that every task keeps free at the top of its stack: there the way in
/// from user mode leaves its [`Frame`] and the extended state.
const ENTRY_LEN: u64 = size_of::<Frame>() as u64 + Frame::EXTENDED_STATE;

/// The function of a kernel thread, and its argument.
type ThreadMain = extern "C" fn(u64) -> !;

/// Starts a kernel thread.
pub(crate) fn spawn_kernel_thread(main: ThreadMain, argument: u64) -> Option<&'static Task> {
    spawn(main, argument, |_| {})
}

fn spawn(
    main: ThreadMain,
    argument: u64,
    prepare: impl FnOnce(&'static Task),
) -> Option<&'static Task> {
    let task = claim(0)?;
    prepare(task);
    // As `switch_stacks` pops them: r15, r14, r13, r12, rbx, rbp, return.
    let words = [0, 0, 0, argument, main as *const () as u64, 0, first_run as *const () as u64];
    start(task, task.stack_top() - ENTRY_LEN, &words);
    Some(task)
}

/// Starts a program as a task: a kernel thread that becomes a user task. Before it runs
/// it is shown to `prepare`.
pub(crate) fn spawn_program(
    program: Program,
    prepare: impl FnOnce(&'static Task),
) -> Option<&'static Task> {
    spawn(become_user, program as u64, prepare)
}

extern "C" fn become_user(program: u64) -> ! {
    let task = current();
    // From here on its stack may be asked for, but it has no user registers.
    task.set_kind(Kind::Starting);
    let loaded = Program::from_number(program).and_then(Program::load);
    let Some(loaded) = loaded else { exit_current() };
    let mut frame = Frame::default();
    install(task, loaded, &mut frame, false);
    let stack = task.stack_top() - ENTRY_LEN;
    write_entry(stack, &frame, &INITIAL_STATE);
    task.set_kind(Kind::User);
    // SAFETY: the stack holds what an entry from user mode leaves there, above
    // all frames that are in use, and is not used before.
    unsafe { start_user(stack) }
}

/// System call: another program takes the task's place. Returns only if there
/// is no such program, or no memory for it.
pub(super) fn exec(task: &Task, frame: &mut Frame, program: Program) -> Option<()> {
    let loaded = program.load()?;
    // The point of no return. Clients that asked for the stack of this program
    // get it while it is there.
    if Protection::Suspension.is_on() {
        delivery::suspend(task, frame);
    }
    install(task, loaded, frame, true);
    if Protection::Suspension.is_on() {
        delivery::resume(task);
    }
    Some(())
}

/// Gives the task a program and sets the registers for its start. `exec` says
/// whether it had another one.
fn install(task: &Task, loaded: Loaded, frame: &mut Frame, exec: bool) {
    // One task at a time changes a task's modules: itself.
    let cleared = task.modules.clear();
    assert!(cleared.is_ok(), "modules are in use");
    task.has_tables.store(!loaded.modules.is_empty(), Ordering::Relaxed);
    for module in &loaded.modules {
        let added = task.modules.add(module);
        assert!(added.is_ok(), "a program's modules overlap");
    }
    task.signals.with(|signals| *signals = SignalState::NONE);
    // Without memory the task has no user stack: an NMI never sees the registers
    // of one program with the memory or the name of the other.
    drop_space(task);
    *frame = Frame { vector: frame.vector, ..loaded.registers };
    stream::write_name(task, loaded.name, exec);
    let interrupts = cpu::disable_interrupts();
    task.replace_space(Some(loaded.space));
    schedule::select(task);
    cpu::restore_interrupts(interrupts);
}

/// System call: a copy of the task, which sees 0 where the task sees the copy's
/// number.
pub(super) fn fork(parent: &Task, frame: &Frame) -> Option<u32> {
    let space = parent.with_space(|space| space.fork())??;
    let Some(child) = claim(parent.id()) else {
        space.free();
        return None;
    };
    child.replace_space(Some(space));
    // The unwinder's side: the child has the modules, and nothing else. No
    // client has asked for its stack, whatever was asked of the parent.
    let copied = child.modules.copy_from(&parent.modules);
    assert!(copied.is_ok(), "modules are in use");
    child.has_tables.store(parent.has_tables(), Ordering::Relaxed);
    child.has_handler.store(parent.has_handler(), Ordering::Relaxed);
    let signals = parent.signals.with(|signals| *signals);
    child.signals.with(|state| *state = signals);

    let stack = child.stack_top() - ENTRY_LEN;
    let state = read_state(parent.stack_top() - ENTRY_LEN);
    write_entry(stack, &Frame { rax: 0, ..*frame }, &state);
    followers::forked(parent, child);
    child.set_kind(Kind::User);
    let words = [0, 0, 0, 0, 0, 0, first_return as *const () as u64];
    let id = child.id();
    start(child, stack, &words);
    Some(id)
}

static ENDING: AtomicBool = AtomicBool::new(false);

/// From here on all user tasks end where they would go back to user mode.
pub(crate) fn end_all() {
    ENDING.store(true, Ordering::Relaxed);
}

/// Whether user tasks are to end.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// How many user tasks there are.
pub(crate) fn user_tasks() -> usize {
    Task::all().iter().filter(|task| task.with_space(|_| ()).is_some()).count()
}

/// System call: the task ends. What was asked for goes out while its memory is
/// there.
pub(crate) fn end(task: &Task, frame: &Frame) -> ! {
    delivery::suspend(task, frame);
    exit_current()
}

/// Ends a task that cannot continue. Its memory is freed at once, as when the
/// machine has no memory left, so the clients that asked for its stack are told
/// that it will not come.
pub(crate) fn kill_current() -> ! {
    let task = current();
    drop_space(task);
    delivery::abandon(task, LossReason::TaskGone);
    exit_current()
}

fn exit_current() -> ! {
    let task = current();
    task.set_kind(Kind::Exiting);
    drop_space(task);
    branches::exited(task);
    if followers::exited(task) {
        delivery::count_gone();
    }
    let parent = task.parent.load(Ordering::Relaxed);
    stream::write_life(task, parent, true);
    cpu::disable_interrupts();
    // The place is not taken before another stack is in use.
    schedule::switch_as(if parent == 0 { FREE } else { ENDED });
    unreachable!("a task after its end");
}

fn drop_space(task: &Task) {
    let interrupts = cpu::disable_interrupts();
    let space = task.replace_space(None);
    // SAFETY: the kernel's own tables.
    unsafe { cpu::set_page_tables(kernel_root()) }
    cpu::restore_interrupts(interrupts);
    if let Some(space) = space {
        space.free();
    }
}

/// System call: waits until a child has ended, and returns its number; `None`
/// if there is no child.
pub(super) fn wait(task: &Task) -> Option<u32> {
    loop {
        let children =
            || Task::all().iter().filter(|child| child.parent.load(Ordering::Relaxed) == task.id());
        let state = |child: &Task| child.run_state.load(Ordering::Acquire);
        if let Some(ended) = children().find(|child| state(child) == ENDED) {
            let id = ended.id();
            ended.parent.store(0, Ordering::Relaxed);
            ended.run_state.store(FREE, Ordering::Release);
            return Some(id);
        }
        children().find(|child| state(child) != FREE)?;
        schedule::sleep(1);
    }
}

/// Takes a free place for a task.
fn claim(parent: u32) -> Option<&'static Task> {
    static LAST_ID: AtomicU32 = AtomicU32::new(0);
    let task = Task::all().iter().skip(IDLE_TASKS).find(|task| task.claim())?;
    task.id.store(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    task.parent.store(parent, Ordering::Relaxed);
    task.set_kind(Kind::KernelThread);
    task.signal_is_due.store(false, Ordering::Relaxed);
    // SAFETY: the place was free, and no other code knows of the new task.
    unsafe { task.renew_blocks() }
    // To be seen, but not to run yet.
    task.run_state.store(ENDED, Ordering::SeqCst);
    branches::forked(task);
    stream::write_life(task, parent, false);
    Some(task)
}

/// Puts `words` on a new task's stack, whose top they are, and lets it run.
fn start(task: &Task, stack: u64, words: &[u64]) {
    let at = stack - size_of_val(words) as u64;
    for (at, &word) in (at..).step_by(8).zip(words) {
        // SAFETY: on the stack of a task that does not run yet.
        unsafe { (at as *mut u64).write(word) }
    }
    task.kernel_sp.store(at, Ordering::Relaxed);
    task.run_state.store(READY, Ordering::Release);
}

/// x87 and SSE state.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct ExtendedState([u8; Frame::EXTENDED_STATE as usize]);

/// As after a reset, all exceptions masked.
const INITIAL_STATE: ExtendedState = {
    let mut bytes = [0; Frame::EXTENDED_STATE as usize];
    bytes[0] = 0x7f;
    bytes[1] = 0x03;
    bytes[24] = 0x80;
    bytes[25] = 0x1f;
    ExtendedState(bytes)
};

/// Leaves on a stack what an entry from user mode leaves there.
fn write_entry(stack: u64, frame: &Frame, state: &ExtendedState) {
    // SAFETY: the part of a task's stack that is kept free for this, and the
    // task is not in user mode.
    unsafe { (stack as *mut ExtendedState).write(*state) }
    // SAFETY: as above.
    unsafe { ((stack + Frame::EXTENDED_STATE) as *mut Frame).write(*frame) }
}

/// The extended state of a task that is in the kernel.
fn read_state(stack: u64) -> ExtendedState {
    // SAFETY: the task came in from user mode and left it there.
    unsafe { (stack as *const ExtendedState).read() }
}
