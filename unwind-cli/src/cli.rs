//! The command line: what may be given, what is run, and how it ends.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use unwind_target::untrusted::escaped;

#[cfg(feature = "manual")]
use crate::commands::{completions, man};
use crate::commands::{
    demo, explain, guest, merge, record, report, script, sframe, stack, top, verify,
};
use crate::failure::Failure;
use crate::notices;
use crate::read_lines;

/// Prints the stacks of running programs, core files and virtual machines, and
/// reads SFrame tables.
///
/// Without a subcommand: a demonstration, which walks the stack of a small program by
/// each method and shows the results beside the truth.
#[derive(Debug, Parser)]
#[command(name = "unwind", version)]
#[command(after_help = EXIT_CODES, after_long_help = format!("{NAMES}\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Stack(stack::Args),
    Explain(explain::Args),
    Guest(guest::Args),
    Sframe(sframe::Args),
    Record(Box<record::RecordArgs>),
    Top(top::TopArgs),
    Report(report::ReportArgs),
    Script(script::ScriptArgs),
    Verify(verify::VerifyArgs),
    Merge(merge::MergeArgs),
    #[cfg(feature = "manual")]
    Completions(completions::Args),
    #[cfg(feature = "manual")]
    Man(man::Args),
    #[command(hide = true)]
    Demo(demo::Args),
    #[command(hide = true, name = read_lines::NAME)]
    ReadLines(read_lines::Args),
}

/// How the escapes of [`escaped`] are documented to the user.
const NAMES: &str = "\
Names:
  Names of files, sections, functions, threads and events, and whatever else
  comes from outside, are shown without what a terminal would obey or hide:
  newline, carriage return and tab as `\\n`, `\\r` and `\\t`, a backslash as `\\\\`,
  and each byte of control and format characters, of spaces but the plain one, of
  characters without a glyph, and of what is not UTF-8 as `\\xNN`. JSON has the
  same text.";

/// How the exit codes of [`Failure::exit_code`] are documented to the user.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  input or output failed, a table is wrong, or two tables differ
  2  the command line is wrong
  3  no such process, file, socket or command
  4  not permitted
  5  the file or process is of a kind that cannot be read, or it is damaged
  6  the program or guest ended before its stack was taken
  7  an address has no row
  8  a stack of the demonstration differs from the truth
  9  a stack is incomplete, and --fail-incomplete is given
  10 the ledger of a recording does not add up";

/// Runs the command with the arguments of this process.
///
/// Returns its exit code, which `--help` documents.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse(std::env::args_os()) {
        Ok(cli) => cli.run(),
        Err(error) if error.use_stderr() => return refuse(&error),
        // The help, or the version.
        Err(text) => text.print().and_then(|()| io::stdout().flush()).map_err(Failure::output),
    };
    notices::tell();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has seen enough: `unwind … | head`.
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_told() {
                // With standard error gone there is no other place to tell it.
                let _ = writeln!(io::stderr(), "unwind: {failure}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

impl Cli {
    /// Parses arguments, the first of which is the name of the program. Those of `unwind stack`,
    /// which is over in a few milliseconds, are parsed without a description of all others.
    fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let arguments: Vec<_> = arguments.collect();
        let rest = arguments.get(1..).unwrap_or_default();
        let is_stack = rest.first().is_some_and(|name| name == "stack");
        match is_stack.then(|| alone(rest)).flatten() {
            Some(args) => Ok(Self { command: Some(Command::Stack(args)) }),
            None => Self::try_parse_from(arguments),
        }
    }

    fn run(&self) -> Result<(), Failure> {
        match &self.command {
            None => demo::run(),
            Some(Command::Stack(args)) => stack::run(args),
            Some(Command::Explain(args)) => explain::run(args),
            Some(Command::Guest(args)) => guest::run(args),
            Some(Command::Sframe(args)) => sframe::run(args),
            Some(Command::Record(args)) => record::run(args),
            Some(Command::Top(args)) => top::run(args),
            Some(Command::Report(args)) => report::run(args),
            Some(Command::Script(args)) => script::run(args),
            Some(Command::Verify(args)) => verify::run(args),
            Some(Command::Merge(args)) => merge::run(args),
            #[cfg(feature = "manual")]
            Some(Command::Completions(args)) => completions::run(*args, Self::command()),
            #[cfg(feature = "manual")]
            Some(Command::Man(args)) => man::run(args, Self::command()),
            Some(Command::ReadLines(args)) => read_lines::run(args),
            Some(Command::Demo(args)) => demo::run_with(*args),
        }
    }
}

/// The arguments of a subcommand, whose name is the first one; `None` if they are wrong, or ask
/// for help: what is told then names the whole command.
fn alone<A: clap::Args>(arguments: &[OsString]) -> Option<A> {
    let command = A::augment_args(clap::Command::new("unwind"));
    A::from_arg_matches(&command.try_get_matches_from(arguments).ok()?).ok()
}

/// Says what is wrong with the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    /// That of a wrong command line.
    const CODE: u8 = 2;
    // Clap shows arguments as they are. So it gets them as they may be shown.
    let shown = |argument: OsString| OsString::from(escaped(&argument).to_string());
    let error_shown = Cli::try_parse_from(std::env::args_os().map(shown)).err();
    // With standard error gone there is no other place to tell it.
    let _ = match error_shown.filter(clap::Error::use_stderr) {
        Some(error) => error.print(),
        // Escaped, it would do: a text that is not UTF-8 where text is wanted.
        None => Cli::command().error(error.kind(), "an argument is not UTF-8").print(),
    };
    ExitCode::from(CODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_subcommand_alone_mean_what_they_mean_among_all() {
        let of = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let mut parsed = 0;
        for line in [
            "unwind stack --pid 7",
            "unwind stack --no-lines --pid=7 --method cfi --max-frames 9",
            "unwind stack --core a --exe b --json --short",
            "unwind stack --kill --after 5 -- sleep 1",
            "unwind stack --pid 7 --stack-switch f --stack-switch g",
            "unwind stack",
            "unwind stack --pid seven",
            "unwind stack --pid 7 --core a",
            "unwind stack --help",
            "unwind stack -V",
            "unwind --version stack",
            "unwind sframe dump stack",
        ] {
            let of_all = Cli::try_parse_from(of(line)).map_err(|error| error.to_string());
            let here = Cli::parse(of(line).into_iter()).map_err(|error| error.to_string());
            assert_eq!(format!("{here:?}"), format!("{of_all:?}"), "{line}");
            let alone = alone::<stack::Args>(&of(line)[1..]);
            parsed += u32::from(alone.is_some());
        }
        assert_eq!(parsed, 5, "those of the subcommand that are right are parsed alone");
    }
}
