//! A small kernel that asks for user stacks in NMIs and walks them on the way
//! back to user mode.
//!
//! Threads are the CPUs. Each runs a task: user code on a stack of its own
//! that makes system calls (`machine`). A timer signal, 4,000 times a second
//! on each CPU, is the NMI: it arrives anywhere, also inside a request, a
//! delivery or a walk. The kernel around it (`kernel`) shows which of its hooks
//! calls what. At the end every sample taken in kernel mode must have a stack
//! that says where the system call came from, or a reason why not.
//!
//! `cargo run --release -p unwind-core --example deferred [SECONDS]`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program that reads nothing from outside"
)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn main() {
    eprintln!("this example has its user code in x86-64 assembly, for linux");
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod kernel;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn main() -> std::process::ExitCode {
    let seconds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1);
    let report = kernel::run(core::time::Duration::from_secs(seconds));
    println!("{report}");
    if report.is_clean() {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}
