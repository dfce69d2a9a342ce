//! Tasks that migrate between CPUs, clients that come and go, NMIs at any
//! point: every sample must get its own stack or a reason why not.
//!
//! Threads are the CPUs. A task is in the kernel for a few steps, each on
//! whatever CPU takes it from the run queue, and leaves it by the exit path.
//! Its user stack spells a token that changes whenever user code runs. A timer
//! signal on each CPU is the NMI. With `--inject` the thread raises the signal
//! itself inside the hooks of the core instead: `ThreadSanitizer` delays signals
//! that come by themselves.
//!
//! `cargo run --release -p unwind-core --example stress -- [--seconds N]
//! [--tasks N] [--cpus N] [--hertz N] [--inject]`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program that reads nothing from outside"
)]

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this example has linux timers as its nmis");
}

#[cfg(target_os = "linux")]
mod clients;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod random;
#[cfg(target_os = "linux")]
mod report;
#[cfg(target_os = "linux")]
mod tasks;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    let mut options = kernel::Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|arg| arg.parse().ok()).expect("a number follows");
        match arg.as_str() {
            "--seconds" => options.seconds = number(),
            "--tasks" => options.tasks = number(),
            "--cpus" => options.cpus = number(),
            "--hertz" => options.hertz = number(),
            "--inject" => options.inject = true,
            other => {
                eprintln!("unknown option {other}");
                return std::process::ExitCode::from(2);
            }
        }
    }
    let report = kernel::run(&options);
    println!("{report}");
    if report.is_clean() {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}
