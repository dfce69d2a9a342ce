//! `unwind man`: manual pages, made of what `--help` says.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use unwind_profile::output_file::write_file;
use unwind_target::untrusted::escaped;

use crate::failure::{Failure, exit_code_of};

/// Print the manual page of unwind, or write one for each subcommand.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct Args {
    /// Where to write the pages: unwind.1, unwind-stack.1 and so on. It is made if it
    /// is not there
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

const LONG_HELP: &str = "\
To read a page: unwind man | man -l -
For all users:  unwind man /usr/local/share/man/man1";

/// The pages cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {error}", escaped(path))]
struct WriteError {
    path: PathBuf,
    #[source]
    error: io::Error,
}

impl WriteError {
    fn failure(path: &Path, error: io::Error) -> Failure {
        let exit_code = exit_code_of(&error);
        Failure::new(Self { path: path.into(), error }, exit_code)
    }
}

/// Runs `unwind man` for the arguments of `command`.
///
/// # Errors
///
/// [`Failure`] if a page cannot be written.
pub(crate) fn run(args: &Args, command: clap::Command) -> Result<(), Failure> {
    // `unwind help` has no page.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let Some(directory) = &args.directory else {
        let (_, page) = page(&command).map_err(Failure::output)?;
        return io::stdout().write_all(page.as_bytes()).map_err(Failure::output);
    };
    fs::create_dir_all(directory).map_err(|error| WriteError::failure(directory, error))?;
    write_pages(&command, directory)
}

/// Writes the page of a command and of each below it.
fn write_pages(command: &clap::Command, directory: &Path) -> Result<(), Failure> {
    let (name, page) = page(command).map_err(|error| WriteError::failure(directory, error))?;
    let path = directory.join(name);
    write_file(&path, |mut file| file.write_all(page.as_bytes()))
        .map_err(|error| WriteError::failure(&path, error))?;
    let mut below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.try_for_each(|below| write_pages(below, directory))
}

/// The name of a command's page, and its text in roff.
#[expect(clippy::disallowed_methods, reason = "the text is this program's own")]
fn page(command: &clap::Command) -> io::Result<(String, String)> {
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    // What follows the options has lists, whose lines stay as they are.
    let text = text.replace("\n.SH EXTRA\n", "\n.SH NOTES\n.nf\n");
    let text = text.replace("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n");
    Ok((page.get_filename(), text))
}
