//! What is done where a process was held for as long as it may be.

use std::io::{self, Write as _};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use unwind_target::{HoldLimit, TargetError};

use crate::failure::{Failure, exit_code_of_target};

/// What is done with a process that was held for too long, before this program says so and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterLimit {
    /// It continues.
    Continue,
    /// It continues; it is a child, whose end is waited for.
    Wait,
    /// It is a child, and is ended.
    Kill,
}

impl AfterLimit {
    /// A limit after which that is done.
    #[must_use]
    pub const fn limit(self, time: Duration) -> HoldLimit {
        let late = match self {
            Self::Continue => |_, error: &TargetError| end(error),
            Self::Wait => |child, error: &TargetError| {
                tell(error);
                wait(child);
                exit(error);
            },
            Self::Kill => |child, error: &TargetError| {
                tell(error);
                // A child is not left alone. That it has ended by itself is as good.
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
                wait(child);
                exit(error);
            },
        };
        HoldLimit::new(time).on_late(late)
    }
}

fn end(error: &TargetError) {
    tell(error);
    exit(error);
}

fn tell(error: &TargetError) {
    // With standard error gone there is no other place to tell it.
    let _ = writeln!(io::stderr(), "unwind: {}", Failure::text_of_target(error));
}

fn wait(child: i32) {
    let _ = waitpid(Pid::from_raw(child), None);
}

/// What the rest of the command waits for may never come.
fn exit(error: &TargetError) {
    std::process::exit(exit_code_of_target(error).into());
}
