//! The CPU's part that keeps shadow stacks, simulated.
//!
//! They are an answer of their own to what a walk finds, and each walk of a task that has one is
//! compared with it, frame by frame up to the outermost.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::{Trace, VirtAddr};

use crate::memory::read_as_used;
use crate::serial::println;
use crate::task::shadow_stack::ShadowStack;
use crate::task::state::Task;

static AGREED: AtomicU64 = AtomicU64::new(0);
static DISAGREED: AtomicU64 = AtomicU64::new(0);
static WRONG_RETURNS: AtomicU64 = AtomicU64::new(0);

/// Gives a task one that has not run yet, and all of whose code is watched.
pub(crate) fn start(task: &Task) {
    task.shadow.with(|shadow| *shadow = Some(ShadowStack::new()));
}

/// A call was made. `sp` is after it, where the return address is.
pub(crate) fn call(task: &Task, sp: u64) {
    with(task, |shadow| {
        let mut word = [0; 8];
        // It was written just now. If not, the comparison says so.
        let _ = read_as_used(task.root(), sp, &mut word);
        shadow.push(u64::from_le_bytes(word));
    });
}

/// A return has led to `pc`.
pub(crate) fn ret(task: &Task, pc: u64) {
    with(task, |shadow| {
        if shadow.pop() != Some(pc) {
            WRONG_RETURNS.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Compares a walk of the user stack that the task has now. Task context.
pub(crate) fn check(task: &Task, trace: &Trace) {
    with(task, |shadow| {
        let found = trace.pcs().skip(1).map(VirtAddr::get);
        let is_same = trace.is_complete() && found.eq(shadow.iter());
        let count = if is_same { &AGREED } else { &DISAGREED };
        count.fetch_add(1, Ordering::Relaxed);
    });
}

/// Calls `f` with the task's, if it has one. The branch unit's lock keeps NMIs out, and a
/// task that delivers is not in user code.
fn with(task: &Task, f: impl FnOnce(&mut ShadowStack)) {
    task.shadow.try_with(|shadow| shadow.as_mut().map(f));
}

/// Prints the counters.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "shadow: {} as the walk, {} other, {} wrong returns",
        get(&AGREED),
        get(&DISAGREED),
        get(&WRONG_RETURNS),
    );
}
