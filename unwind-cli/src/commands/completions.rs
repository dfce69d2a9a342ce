//! `unwind completions`: what lets a shell complete the arguments of this command.

use std::io::{self, Write as _};

use clap_complete::Shell;

use crate::failure::Failure;

/// Print a script that completes the arguments of unwind in a shell.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

const LONG_HELP: &str = "\
Where a shell looks for it, for one user:
  bash  unwind completions bash > ~/.local/share/bash-completion/completions/unwind
  fish  unwind completions fish > ~/.config/fish/completions/unwind.fish
  zsh   unwind completions zsh > DIR/_unwind, where DIR is in $fpath";

/// Runs `unwind completions` for the arguments of `command`.
///
/// # Errors
///
/// [`Failure`] if the output cannot be written.
pub(crate) fn run(args: Args, mut command: clap::Command) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    // It panics where it cannot write.
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    io::stdout().write_all(&script).map_err(Failure::output)
}
