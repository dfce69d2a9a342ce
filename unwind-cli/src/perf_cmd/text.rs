//! Samples as lines, in the layout of `perf script`.

use std::io::{self, Write};

use unwind_perf::merge::{Outcome, whole_chain};
use unwind_perf::record::{Context, Task};

use crate::perf_cmd::PerfError;
use crate::perf_cmd::events::{Event, Events};
use crate::perf_cmd::pipeline::{Held, Meaning, Sink};
use crate::perf_cmd::reader::PerfReader;
use crate::perf_cmd::threads::Threads;

/// A part of a sample's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Field {
    /// The name of the thread
    Comm,
    /// The process
    Pid,
    /// The thread
    Tid,
    /// When, in seconds with nine digits
    Time,
    /// The event
    Event,
    /// The call chain, or the address if there is none
    Ip,
}

/// Writes samples as text.
pub(crate) struct TextSink<'a, W> {
    out: W,
    fields: &'a [Field],
    threads: Threads,
    /// The names of the events, and the width of their column.
    names: Vec<String>,
    name_width: usize,
}

impl<'a, W: Write> TextSink<'a, W> {
    pub(crate) fn new(out: W, fields: &'a [Field]) -> Self {
        Self { out, fields, threads: Threads::default(), names: Vec::new(), name_width: 0 }
    }

    fn has(&self, field: Field) -> bool {
        self.fields.contains(&field)
    }

    /// Writes who and when.
    fn start(&mut self, held: &Held) -> io::Result<()> {
        let Task { pid, tid } = held.task;
        let (pid, tid) = (pid.cast_signed(), tid.cast_signed());
        if self.has(Field::Comm) {
            let name = self.threads.name(held.task);
            if self.has(Field::Ip) && held.has_callchain() {
                write!(self.out, "{name} ")?;
            } else {
                write!(self.out, "{name:>16} ")?;
            }
        }
        match (self.has(Field::Pid), self.has(Field::Tid)) {
            (true, true) => write!(self.out, "{pid:>7}/{tid:<7} ")?,
            (true, false) => write!(self.out, "{pid:>7} ")?,
            (false, true) => write!(self.out, "{tid:>7} ")?,
            (false, false) => {}
        }
        if self.has(Field::Time) {
            let (seconds, rest) = (held.time / 1_000_000_000, held.time % 1_000_000_000);
            write!(self.out, "{seconds:>5}.{rest:09}: ")?;
        }
        Ok(())
    }

    fn event_name(&mut self, events: &Events, held: &Held) -> io::Result<()> {
        if !self.has(Field::Event) {
            return Ok(());
        }
        if self.names.len() != events.all().len() {
            self.names = events.all().iter().map(Event::name).collect();
            self.name_width = self.names.iter().map(String::len).max().unwrap_or(0);
        }
        let name = self.names.get(held.event).map_or("", String::as_str);
        write!(self.out, "{name:>0$}: ", self.name_width)
    }

    /// Writes addresses, a line each. Marks have none.
    fn chain(&mut self, words: impl Iterator<Item = u64>) -> io::Result<()> {
        writeln!(self.out)?;
        for ip in words.filter(|&word| word < Context::FIRST_WORD) {
            self.out.write_all(&ip_line(ip))?;
        }
        Ok(())
    }
}

/// `"\t{ip:>16x}\n"`. Most of the output is such lines, and the formatter
/// takes more time than all the rest.
fn ip_line(ip: u64) -> [u8; 18] {
    let mut line = *b"\t               0\n";
    let mut rest = ip;
    for digit in line.iter_mut().rev().skip(1) {
        if rest == 0 {
            break;
        }
        let [low, ..] = rest.to_le_bytes();
        *digit = b"0123456789abcdef".get(usize::from(low & 15)).copied().unwrap_or(b'?');
        rest >>= 4;
    }
    line
}

impl<W: Write> Sink for TextSink<'_, W> {
    fn sample(&mut self, events: &Events, held: &Held, outcome: Outcome<'_>) -> io::Result<()> {
        self.start(held)?;
        self.event_name(events, held)?;
        if self.has(Field::Ip) {
            match held.callchain() {
                Some(chain) => match outcome {
                    Outcome::Inline => self.chain(chain.words())?,
                    Outcome::Merged(merged) => self.chain(whole_chain(chain, merged.stack))?,
                    Outcome::Unmatched { .. } => self.chain(chain.without_cookie())?,
                },
                None => write!(self.out, " {:>16x}", held.ip().unwrap_or(0))?,
            }
        }
        writeln!(self.out)
    }

    fn record(&mut self, _events: &Events, held: &Held) -> io::Result<()> {
        if let Meaning::Stack(cookie) = held.meaning {
            self.start(held)?;
            write!(self.out, "DEFERRED CALLCHAIN [cookie: {cookie:x}]")?;
            if self.has(Field::Ip) {
                self.chain(held.ips())?;
            }
            return writeln!(self.out);
        }
        self.threads.take(held);
        Ok(())
    }

    fn tool_record(&mut self, _reader: &mut PerfReader) -> Result<(), PerfError> {
        Ok(())
    }

    fn settled(&mut self, _time: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_line_of_16_columns() {
        for ip in [0, 1, 0xf, 0x10, 0x40_1136, 0x7ffe_a832_6faf, u64::MAX, 1 << 63] {
            assert_eq!(ip_line(ip).as_slice(), format!("\t{ip:>16x}\n").as_bytes());
        }
    }
}
