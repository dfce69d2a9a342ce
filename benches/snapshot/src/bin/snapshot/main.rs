//! `snapshot`: captures stacks of a running program into a file, to measure and test
//! unwinders on.

#![forbid(unsafe_code)]

mod address_spaces;
mod command;
mod error;
mod event;
mod perf_data;
mod ptrace;
mod sampled;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use unwind_cli::AfterLimit;
use unwind_target::HoldLimit;

use crate::error::Error;

/// Capture stacks of a running program into a file.
///
/// Each snapshot has the registers of one thread, the bytes of its stack, and what code
/// is mapped where. By default the kernel's sampling takes them while the program runs
/// (`perf_event_open`), of child processes too, with up to 65,528 bytes of stack, and
/// the file is a perf.data with registers and stacks. With --whole the process is
/// stopped each time and its stacks are copied to their ends, into a file of the format
/// that the package unwind-snapshot documents.
///
/// The program's standard output goes to standard error.
#[derive(Debug, clap::Parser)]
#[command(name = "snapshot")]
struct Args {
    /// Where to write the snapshots
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The process
    #[arg(long, value_name = "PID", group = "subject",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,

    /// How many snapshots a second to take, of CPU time or, with --whole, of
    /// real time
    #[arg(long, value_name = "HZ", default_value_t = 997,
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    rate: u32,

    /// How many bytes of a stack to keep at most; 65,528 is the kernel's limit
    /// without --whole
    #[arg(long, value_name = "BYTES", default_value_t = 65_528)]
    stack: u32,

    /// Stop the process for each snapshot and copy whole stacks
    #[arg(long, conflicts_with = "stack")]
    whole: bool,

    /// How many snapshots to take at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    count: usize,

    /// Leave out N snapshots between two that are kept
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,

    /// End the command once there are enough snapshots, instead of waiting for
    /// its end
    #[arg(long, requires = "command", conflicts_with = "pid")]
    kill: bool,

    /// With --whole: how long the process may be held still for each snapshot, in
    /// seconds. If its stacks are not written then, for whatever reason, the process
    /// continues and the capture fails
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..), requires = "whole")]
    hold_limit: u64,

    /// A command to start
    #[arg(last = true, value_name = "COMMAND", group = "subject", required_unless_present = "pid")]
    command: Vec<OsString>,
}

impl Args {
    fn hold_limit(&self) -> HoldLimit {
        let then = match (self.pid, self.kill) {
            (Some(_), _) => AfterLimit::Continue,
            (None, false) => AfterLimit::Wait,
            (None, true) => AfterLimit::Kill,
        };
        then.limit(Duration::from_secs(self.hold_limit))
    }

    /// Whether the snapshot after `seen` others is left out.
    fn leaves_out(&self, seen: usize) -> bool {
        seen.checked_rem(self.skip.saturating_add(1)) != Some(0)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let taken = if args.whole { ptrace::capture(&args) } else { sampled::capture(&args) };
    let taken = taken.and_then(|taken| if taken == 0 { Err(Error::Nothing) } else { Ok(taken) });
    // With standard error gone there is no other place to tell it.
    let mut told = io::stderr();
    match taken {
        Ok(taken) => {
            let _ = writeln!(told, "{taken} snapshot{}", if taken == 1 { "" } else { "s" });
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(told, "snapshot: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
