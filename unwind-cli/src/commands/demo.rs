//! The demonstration, which runs without a subcommand.

use unwind_demo::{Demo, DemoError};

use crate::failure::Failure;

/// What its tests and its own child need.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Use the object that comes with the source, not the one that was compiled
    #[arg(long)]
    prebuilt: bool,

    /// Be the program whose stacks are walked
    #[arg(long)]
    child: bool,
}

/// Runs the demonstration.
///
/// # Errors
///
/// As [`run_with`].
pub(crate) fn run() -> Result<(), Failure> {
    run_with(Args { prebuilt: false, child: false })
}

/// Runs the demonstration, or its child.
///
/// # Errors
///
/// [`Failure`] if a method that has to find the true stack does not, or if the
/// child cannot be started or looked at.
pub(crate) fn run_with(args: Args) -> Result<(), Failure> {
    let demo = Demo::new(&["demo"]);
    let demo = if args.prebuilt { demo.prebuilt() } else { demo };
    let demo = if args.child { demo.child() } else { demo };
    demo.run().map_err(|error| match error {
        DemoError::Target(error) => error.into(),
        DemoError::Output(error) => Failure::output(error),
        error @ DemoError::Differs(_) => Failure::new(error, 8),
        error => Failure::new(error, 1),
    })
}
