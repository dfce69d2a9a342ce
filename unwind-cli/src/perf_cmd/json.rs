//! Samples as JSON, an object a line.

use std::fmt::LowerHex;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use unwind_perf::merge::{MergeCounts, Outcome, Unmatched, whole_chain};
use unwind_perf::record::{Context, Entry, UserPart};

use crate::perf_cmd::PerfError;
use crate::perf_cmd::events::{Event, Events};
use crate::perf_cmd::pipeline::{Held, Meaning, Sink, Summary};
use crate::perf_cmd::reader::PerfReader;
use crate::perf_cmd::threads::Threads;
use crate::untrusted::escaped;

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Line<'a> {
    Recording {
        schema: u32,
        file: String,
    },
    Sample {
        #[serde(flatten)]
        who: Who<'a>,
        event: Option<String>,
        ip: Option<String>,
        end: &'static str,
        cookie: Option<String>,
        reason: Option<&'static str>,
        across_exec: bool,
        late: bool,
        chain: Vec<Part>,
    },
    Stack {
        #[serde(flatten)]
        who: Who<'a>,
        cookie: String,
        ips: Vec<String>,
    },
    End {
        counts: Counts,
        error: Option<String>,
    },
}

#[derive(Serialize)]
struct Who<'a> {
    comm: std::borrow::Cow<'a, str>,
    pid: i32,
    tid: i32,
    time: Option<u64>,
}

/// A part of a call chain.
#[derive(Serialize)]
struct Part {
    context: Option<&'static str>,
    ips: Vec<String>,
}

#[derive(Serialize)]
struct Counts {
    samples: u64,
    inline: u64,
    merged: u64,
    merged_late: u64,
    merged_across_exec: u64,
    unmatched: u64,
    stacks: u64,
    stacks_repeated: u64,
    stacks_conflicting: u64,
    stacks_unused: u64,
    lost: u64,
}

impl From<&MergeCounts> for Counts {
    fn from(counts: &MergeCounts) -> Self {
        Self {
            samples: counts.samples,
            inline: counts.inline,
            merged: counts.merged,
            merged_late: counts.merged_late,
            merged_across_exec: counts.merged_across_exec,
            unmatched: counts.unmatched(),
            stacks: counts.records,
            stacks_repeated: counts.records_repeated,
            stacks_conflicting: counts.records_conflicting,
            stacks_unused: counts.records_unused,
            lost: counts.lost,
        }
    }
}

/// Writes samples as JSON.
pub(crate) struct JsonSink<W> {
    out: W,
    threads: Threads,
}

impl<W: Write> JsonSink<W> {
    pub(crate) fn new(out: W, file: &Path) -> io::Result<Self> {
        let mut sink = Self { out, threads: Threads::default() };
        let file = escaped(file).to_string();
        write_line(&mut sink.out, &Line::Recording { schema: SCHEMA, file })?;
        Ok(sink)
    }

    /// Writes the last line.
    pub(crate) fn end(&mut self, summary: &Summary) -> io::Result<()> {
        let error = summary.end.as_ref().err().map(ToString::to_string);
        write_line(&mut self.out, &Line::End { counts: (&summary.merge).into(), error })
    }
}

impl<W: Write> Sink for JsonSink<W> {
    fn sample(&mut self, events: &Events, held: &Held, outcome: Outcome<'_>) -> io::Result<()> {
        let (end, reason, merged) = match outcome {
            Outcome::Inline => ("inline", None, None),
            Outcome::Merged(merged) => ("merged", None, Some(merged)),
            Outcome::Unmatched { reason, .. } => ("unmatched", Some(reason_name(reason)), None),
        };
        let cookie = match held.meaning {
            Meaning::Sample(UserPart::Deferred(cookie)) => Some(hex(cookie)),
            _ => None,
        };
        let chain = held.callchain().map_or_else(Vec::new, |chain| match merged {
            Some(merged) => parts(whole_chain(chain, merged.stack)),
            None => parts(chain.without_cookie()),
        });
        let line = Line::Sample {
            who: who(&self.threads, held),
            event: events.get(held.event).map(Event::name),
            ip: held.ip().map(hex),
            end,
            cookie,
            reason,
            across_exec: merged.is_some_and(|merged| merged.across_exec),
            late: merged.is_some_and(|merged| merged.late),
            chain,
        };
        write_line(&mut self.out, &line)
    }

    fn record(&mut self, _events: &Events, held: &Held) -> io::Result<()> {
        let Meaning::Stack(cookie) = held.meaning else {
            self.threads.take(held);
            return Ok(());
        };
        let ips = held.ips().map(hex).collect();
        let line = Line::Stack { who: who(&self.threads, held), cookie: hex(cookie), ips };
        write_line(&mut self.out, &line)
    }

    fn tool_record(&mut self, _reader: &mut PerfReader) -> Result<(), PerfError> {
        Ok(())
    }

    fn settled(&mut self, _time: u64) -> io::Result<()> {
        Ok(())
    }
}

fn write_line(out: &mut impl Write, line: &Line<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    writeln!(out)
}

/// An address as text: JSON's numbers are not good for 64 bits everywhere.
fn hex(word: impl LowerHex) -> String {
    format!("{word:#x}")
}

fn who<'a>(threads: &'a Threads, held: &Held) -> Who<'a> {
    Who {
        comm: threads.name(held.task),
        pid: held.task.pid.cast_signed(),
        tid: held.task.tid.cast_signed(),
        time: Some(held.time).filter(|&time| time != 0),
    }
}

/// Splits a chain at its marks.
fn parts(words: impl Iterator<Item = u64>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for word in words {
        match Entry::from_word(word) {
            Entry::Context(context) => {
                parts.push(Part { context: context_name(context), ips: Vec::new() });
            }
            Entry::UnknownContext(_) => parts.push(Part { context: None, ips: Vec::new() }),
            Entry::Ip(ip) | Entry::Cookie(ip) => match parts.last_mut() {
                Some(part) => part.ips.push(hex(ip)),
                None => parts.push(Part { context: None, ips: vec![hex(ip)] }),
            },
        }
    }
    parts
}

fn context_name(context: Context) -> Option<&'static str> {
    Some(match context {
        Context::Hv => "hv",
        Context::Kernel => "kernel",
        Context::User => "user",
        Context::UserDeferred => "user-deferred",
        Context::Guest => "guest",
        Context::GuestKernel => "guest-kernel",
        Context::GuestUser => "guest-user",
        _ => return None,
    })
}

fn reason_name(reason: Unmatched) -> &'static str {
    match reason {
        Unmatched::NoCookie => "no-cookie",
        Unmatched::Evicted => "evicted",
        Unmatched::Exit => "exit",
        Unmatched::Lost => "lost",
        Unmatched::Exec => "exec",
        Unmatched::NewerCookie => "newer-cookie",
        Unmatched::End => "end",
        _ => "other",
    }
}
