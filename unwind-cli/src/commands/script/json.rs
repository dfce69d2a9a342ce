//! Samples as JSON, an object a line.

use std::fmt::LowerHex;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use unwind_perf::merge::{MergeCounts, Unmatched};
use unwind_perf::record::{Context, Entry};
use unwind_profile::recording::events::Events;
use unwind_profile::recording::pipeline::Summary;
use unwind_profile::session::recorded_stacks::RecordedStacks;
use unwind_profile::walks::call_stacks::FrameSource;
use unwind_profile::walks::frame_calls::FrameCalls;
use unwind_profile::walks::shown::{ChainEnd, Printer, Shown};
use unwind_profile::walks::walked_stack::WalkedStack;
use unwind_target::Escaped;
use unwind_target::untrusted::escaped;

use crate::commands::recorded_call::RecordedCall;
use crate::commands::script::allowance::Allowance;

/// The version of the structure: it rises when a field changes its meaning or
/// goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Line<'a> {
    Recording {
        schema: u32,
        file: Escaped<'a>,
    },
    Sample {
        #[serde(flatten)]
        who: Who<'a>,
        event: Option<Escaped<'a>>,
        ip: Option<String>,
        end: &'static str,
        cookie: Option<String>,
        reason: Option<&'static str>,
        across_exec: bool,
        late: bool,
        chain: Vec<Part>,
        left_out: usize,
        account: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        calls: Option<Vec<Call>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        calls_left_out: Option<usize>,
        walk: Option<Walk<'a>>,
    },
    Stack {
        #[serde(flatten)]
        who: Who<'a>,
        cookie: Option<String>,
        ips: Vec<String>,
        left_out: usize,
    },
    End {
        counts: Counts,
        error: Option<String>,
    },
}

#[derive(Serialize)]
struct Who<'a> {
    comm: Escaped<'a>,
    pid: i32,
    tid: i32,
    time: Option<u64>,
}

/// A part of a call chain.
#[derive(Serialize)]
struct Part {
    context: Option<&'static str>,
    ips: Vec<String>,
    /// From where each is known, in a part that the CPU recorded calls of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    from: Vec<&'static str>,
}

/// A call of an interpreter at its frame.
#[derive(Serialize)]
struct Call {
    /// That of the native frame which executes it, in the user part.
    place: usize,
    #[serde(flatten)]
    call: RecordedCall,
}

/// What a walk of a copied stack came to.
#[derive(Serialize)]
struct Walk<'a> {
    complete: bool,
    /// Why there are no more frames.
    incomplete: Option<&'a str>,
    /// The frames before which callers may be missing, by their places in the user part.
    gaps: Vec<usize>,
}

impl<'a> From<&'a WalkedStack> for Walk<'a> {
    fn from(walked: &'a WalkedStack) -> Self {
        let frames = walked.frames.iter().enumerate();
        Self {
            complete: walked.is_complete(),
            incomplete: walked.cut.as_deref(),
            gaps: frames.filter(|(_, frame)| frame.after_gap).map(|(index, _)| index).collect(),
        }
    }
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
#[derive(Debug)]
pub(crate) struct JsonPrinter<W> {
    out: Allowance<W>,
    /// How many addresses each part of a stack has at most.
    max_stack: usize,
    /// What the recording says of its own stacks.
    recorded: RecordedStacks,
    /// Whether calls of interpreters are written.
    has_calls: bool,
}

impl<W: Write> JsonPrinter<W> {
    pub(crate) fn new(
        out: W,
        file: &Path,
        max_stack: usize,
        recorded: RecordedStacks,
    ) -> io::Result<Self> {
        let out = Allowance::new(out);
        let mut printer = Self { out, max_stack, recorded, has_calls: false };
        let line = Line::Recording { schema: SCHEMA, file: escaped(file) };
        write_line(&mut printer.out, &line)?;
        Ok(printer)
    }

    /// The same with calls of interpreters.
    pub(crate) fn with_calls(self) -> Self {
        Self { has_calls: true, ..self }
    }

    /// The calls in the user part of a stack of `frames` frames, and how many there are besides.
    fn calls(
        &self,
        shown: &Shown,
        walked: Option<&WalkedStack>,
        frames: usize,
    ) -> (Vec<Call>, usize) {
        let mut calls = match walked {
            Some(_) => FrameCalls::of_walk(walked),
            None => FrameCalls::of_chain(self.recorded.found().as_deref(), shown),
        };
        let limit = self.out.name_limit();
        let (mut found, mut left_out) = (Vec::new(), 0_usize);
        for place in 0..frames {
            for call in calls.of_next_frame() {
                if found.len() < self.max_stack {
                    found.push(Call { place, call: RecordedCall::new(&call, limit) });
                } else {
                    left_out = left_out.saturating_add(1);
                }
            }
        }
        (found, left_out)
    }

    /// Writes the last line.
    pub(crate) fn end(&mut self, summary: &Summary) -> io::Result<()> {
        let error = summary.end.as_ref().err().map(ToString::to_string);
        write_line(&mut self.out, &Line::End { counts: (&summary.merge).into(), error })
    }
}

impl<W: Write> Printer for JsonPrinter<W> {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        let limit = self.out.name_limit();
        let Shown { held, chain, .. } = shown;
        let who = Who {
            comm: shown.comm.escaped().at_most(limit),
            pid: held.task.pid.cast_signed(),
            tid: held.task.tid.cast_signed(),
            time: Some(held.time).filter(|&time| time != 0),
        };
        let mut stack = Stack { parts: Vec::new(), left_out: 0, max: self.max_stack };
        chain.iter().flatten().for_each(|&word| stack.add(Entry::from_word(word)));
        if let Some(walked) = walked {
            stack.add(Entry::Context(Context::User));
            walked.frames.iter().for_each(|frame| stack.add(Entry::Ip(frame.listed())));
            stack.name_sources(walked.frames.iter().filter_map(|frame| frame.source));
        } else {
            stack.name_sources(shown.sources.iter().copied());
        }
        let (end, reason, across_exec, late) = match shown.end {
            ChainEnd::Stack(cookie) => {
                let ips = stack.parts.pop().map_or_else(Vec::new, |part| part.ips);
                let left_out = stack.left_out;
                let line = Line::Stack { who, cookie: cookie.map(hex), ips, left_out };
                return write_line(&mut self.out, &line);
            }
            ChainEnd::Inline if walked.is_some() => ("walked", None, false, false),
            ChainEnd::Inline => ("inline", None, false, false),
            ChainEnd::Merged { across_exec, late } => ("merged", None, across_exec, late),
            ChainEnd::Unmatched(reason) => ("unmatched", Some(reason_name(reason)), false, false),
        };
        let event = events.get(held.event).map(|event| event.name.escaped().at_most(limit));
        let frames = stack.parts.last().map_or(0, |part| part.ips.len());
        let calls = self.has_calls.then(|| self.calls(shown, walked, frames));
        let (calls, calls_left_out) = calls.unzip();
        let account = match walked {
            Some(_) => None,
            None => self.recorded.take_reason(held),
        };
        let line = Line::Sample {
            who,
            event,
            ip: held.ip().map(hex),
            end,
            cookie: shown.cookie().map(hex),
            reason,
            across_exec,
            late,
            chain: stack.parts,
            left_out: stack.left_out,
            account,
            calls,
            calls_left_out,
            walk: walked.map(Walk::from),
        };
        write_line(&mut self.out, &line)
    }

    fn read(&mut self, len: usize) {
        self.out.read(len);
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

/// The parts of a chain, split at its marks.
struct Stack {
    parts: Vec<Part>,
    left_out: usize,
    /// How many addresses a part has at most.
    max: usize,
}

impl Stack {
    fn add(&mut self, entry: Entry) {
        let ip = match entry {
            Entry::Context(context) => return self.start(context_name(context)),
            Entry::UnknownContext(_) => return self.start(None),
            Entry::Ip(ip) | Entry::Cookie(ip) => ip,
        };
        if self.parts.is_empty() {
            self.start(None);
        }
        match self.parts.last_mut() {
            Some(part) if part.ips.len() < self.max => part.ips.push(hex(ip)),
            _ => self.left_out = self.left_out.saturating_add(1),
        }
    }

    /// Says of the last part from where its addresses are known.
    fn name_sources(&mut self, sources: impl Iterator<Item = FrameSource>) {
        if let Some(part) = self.parts.last_mut() {
            part.from = sources.map(FrameSource::name).take(part.ips.len()).collect();
        }
    }

    fn start(&mut self, context: Option<&'static str>) {
        self.parts.push(Part { context, ips: Vec::new(), from: Vec::new() });
    }
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
