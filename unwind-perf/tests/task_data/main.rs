//! The rules of task data: who brings it, who takes it away, what a task
//! inherits, and what a context switch sees.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    missing_debug_implementations,
    unreachable_pub,
    reason = "tests"
)]

#[path = "../arena/mod.rs"]
mod arena;
mod attach;
mod block;
mod child;
mod exit;
mod failure;
mod filter;
mod system_wide;

use std::sync::Arc;

use arena::Host;
use unwind_perf::task_data::*;

fn lbr_layout() -> DataLayout {
    DataLayout::new(788, 64).unwrap()
}

fn users() -> Arc<TaskDataUsers> {
    Arc::new(TaskDataUsers::new(Some(lbr_layout())))
}

/// Every piece was freed, and the counters agree.
fn assert_nothing_left(host: &Host, users: &TaskDataUsers) {
    assert_eq!((host.live(), host.live_bytes()), (0, 0));
    let counters = users.counters();
    assert_eq!(counters.allocated, counters.freed);
    assert_eq!(counters.allocated, host.allocations());
    assert_eq!(users.system_wide(), 0);
    for task in host.tasks() {
        assert_eq!((task.data.users(), task.data.is_marked()), (0, false), "{task:?}");
    }
}
