//! Standard output in colours.

use std::io::{self, BufWriter, StdoutLock, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use memchr::memchr;

/// How a frame is known: by a table, by something weaker, or not surely.
pub(crate) const SURE: Style = AnsiColor::Green.on_default();
pub(crate) const LESS_SURE: Style = AnsiColor::Yellow.on_default();

/// A call that an interpreter executes.
pub(crate) const INTERPRETED: Style = AnsiColor::Cyan.on_default();

/// What is missing.
pub(crate) const MISSING: Style = AnsiColor::Red.on_default();

/// Standard output, without colours where it is no terminal, or `NO_COLOR` is set.
pub(crate) fn stdout() -> Output<StdoutLock<'static>> {
    let out = io::stdout().lock();
    let has_colours = AutoStream::choice(&out) != ColorChoice::Never;
    Output::new(out, has_colours)
}

/// Text that loses its colours on the way, where it has to: all else that a terminal obeys is
/// escaped in it already.
///
/// What is between colours comes in small pieces, so they are collected again: each would be a
/// system call.
#[derive(Debug)]
pub(crate) struct Output<W: Write> {
    has_colours: bool,
    /// The last byte was part of a colour.
    is_in_colour: bool,
    out: BufWriter<W>,
}

impl<W: Write> Output<W> {
    fn new(out: W, has_colours: bool) -> Self {
        Self { has_colours, is_in_colour: false, out: BufWriter::with_capacity(1 << 16, out) }
    }

    /// Writes what is no colour. A colour begins with an escape and ends with an `m`.
    fn write_plain(&mut self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            let mark = if self.is_in_colour { b'm' } else { b'\x1b' };
            let at = memchr(mark, text);
            let (part, rest) = text.split_at_checked(at.unwrap_or(text.len())).unwrap_or_default();
            if !self.is_in_colour {
                self.out.write_all(part)?;
            }
            if at.is_some() {
                self.is_in_colour = !self.is_in_colour;
            }
            text = rest.get(1..).unwrap_or_default();
        }
        Ok(())
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.has_colours {
            self.out.write_all(text)?
        } else {
            self.write_plain(text)?
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the writes that reach it.
    #[derive(Default)]
    struct Counting {
        text: Vec<u8>,
        writes: usize,
    }

    impl Write for &mut Counting {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.text.extend_from_slice(text);
            self.writes = self.writes.saturating_add(1);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_keeps_its_colours_or_loses_them_and_is_written_in_large_pieces() {
        let plain = "sure less sure\n".repeat(1000);
        let line = format!("{SURE}sure{SURE:#} {LESS_SURE}less sure{LESS_SURE:#}\n");
        for (has_colours, expected) in [(true, line.repeat(1000)), (false, plain)] {
            let mut written = Counting::default();
            let mut out = Output::new(&mut written, has_colours);
            (0..1000).for_each(|_| out.write_all(line.as_bytes()).unwrap());
            out.flush().unwrap();
            drop(out);
            assert_eq!(written.text, expected.as_bytes());
            assert!(written.writes <= 2, "{}", written.writes);
            // Wherever it is cut.
            let mut written = Counting::default();
            let mut out = Output::new(&mut written, has_colours);
            line.as_bytes().chunks(1).for_each(|byte| out.write_all(byte).unwrap());
            drop(out);
            assert_eq!(written.text.repeat(1000), expected.as_bytes());
        }
    }
}
