//! Standard output in colours.

use std::io::{self, BufWriter, StdoutLock};

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};

/// How a frame is known: by a table, by something weaker, or not surely.
pub(crate) const SURE: Style = AnsiColor::Green.on_default();
pub(crate) const LESS_SURE: Style = AnsiColor::Yellow.on_default();

/// What is missing.
pub(crate) const MISSING: Style = AnsiColor::Red.on_default();

/// Standard output, without colours where it is no terminal, or `NO_COLOR` is set.
pub(crate) fn stdout() -> BufWriter<AutoStream<StdoutLock<'static>>> {
    BufWriter::new(AutoStream::auto(io::stdout().lock()))
}
