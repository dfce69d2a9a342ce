//! `unwind snapshot`: captures stacks of running programs into a file, to
//! measure and test unwinders on.

mod command;
mod error;
mod event;
mod sample;
mod sampled;
mod spaces;
mod whole;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use unwind_snapshot::Writer;

use crate::counted::counted;
use crate::error::Error;
use crate::snapshot_cmd::command::Subject;

pub(crate) use crate::snapshot_cmd::error::SnapshotError;

/// Capture stacks of a running program into a file.
///
/// Each snapshot has the registers of one thread, the bytes of its stack, and
/// what code is mapped where. By default the kernel's sampling takes them while
/// the program runs (`perf_event_open`), with up to 65,528 bytes of stack, and
/// of child processes too. With --whole the process is stopped each time and
/// its stacks are copied to their ends.
///
/// The program's standard output goes to standard error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
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

    /// Leave out so many snapshots between two that are kept
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,

    /// End the command once there are enough snapshots, instead of waiting for
    /// its end
    #[arg(long, requires = "command", conflicts_with = "pid")]
    kill: bool,

    /// With --whole: how long the process may be held still for each snapshot, in
    /// seconds. If its stacks are not written then, for whatever reason, it is let go
    /// and the command fails
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..), requires = "whole")]
    hold_limit: u64,

    /// A command to start
    #[arg(last = true, value_name = "COMMAND", group = "subject", required_unless_present = "pid")]
    command: Vec<OsString>,
}

impl Args {
    fn hold_limit(&self) -> Duration {
        Duration::from_secs(self.hold_limit)
    }
}

const LONG_HELP: &str = "\
The format of the file is documented with the package unwind-snapshot.

`unwind --help` lists the exit codes.";

/// How often the program is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Runs `unwind snapshot`.
///
/// # Errors
///
/// [`Error`] if the program cannot be started or looked at, or the file not be
/// written.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let path = args.output.as_path();
    let file = File::create(path).map_err(|error| failed(path, error))?;
    let mut writer = Writer::new(io::BufWriter::new(file)).map_err(|error| failed(path, error))?;
    let taken = if args.whole {
        let subject = Subject::new(args.pid, &args.command)?;
        whole::capture(args, subject, &mut writer)?
    } else {
        sampled::capture(args, &mut writer)?
    };
    writer.finish().map_err(|error| failed(path, error))?;
    // With standard error gone there is nobody left to tell.
    let count = u64::try_from(taken).unwrap_or(u64::MAX);
    let _ = writeln!(io::stderr(), "{}", counted(count, "snapshot", "snapshots"));
    if taken == 0 { Err(SnapshotError::None.into()) } else { Ok(()) }
}

fn failed(path: &Path, error: io::Error) -> Error {
    SnapshotError::Write { path: path.into(), error }.into()
}
