//! A small system around the three parts of this crate that a kernel uses: events by CPU and by task
//! (`per_cpu`), call stacks that the hardware records (`task_data`), and a trace that other events
//! pause and resume (`aux_trace`).
//!
//! Threads are the CPUs. They take tasks from a run queue and give them back, inside system calls
//! too, so that a stack is asked for on one CPU and delivered on another. A timer signal is the NMI.
//! User code, the branch record and the trace are simulated. Start with `kernel.rs`.
//!
//! | file | shows |
//! |---|---|
//! | `kernel.rs` | the hooks: NMI, context switch, the way to user code, fork, exit |
//! | `events.rs` | a profiler of CPUs and a profiler of tasks: how they ask and what they get |
//! | `branches.rs` | the branch record: memory for each task, saved and restored at a switch |
//! | `aux_trace.rs` | a trace that starts paused, and the two events that resume and pause it |
//! | `task.rs`, `program.rs`, `machine.rs` | what is there anyway: tasks, user code, NMIs |
//! | `ledger.rs` | what is counted, and what has to be equal |
//!
//! At the end each sample has the stack that it was taken with, or a reason why not; each branch
//! record is the task's own; each traced part has all of its branches and no other; all memory has
//! come back. The exit code says whether.
//!
//! `cargo run --release -p unwind-perf --example host [SECONDS]`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a program that reads nothing from outside"
)]

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this example has linux timers as its nmis");
}

#[cfg(target_os = "linux")]
mod aux_trace;
#[cfg(target_os = "linux")]
mod branches;
#[cfg(target_os = "linux")]
mod events;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod ledger;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod task;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    let seconds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1);
    kernel::run(core::time::Duration::from_secs(seconds));
    let parts = [
        ("samples", ledger::print_and_check()),
        ("kernel entries", kernel::print_and_check()),
        ("events", events::print_and_check()),
        ("branch records", branches::print_and_check()),
        ("trace", aux_trace::print_and_check()),
    ];
    let wrong: Vec<_> = parts.iter().filter(|(_, is_right)| !is_right).collect();
    for (part, _) in &wrong {
        eprintln!("does not add up: {part}");
    }
    if wrong.is_empty() { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
