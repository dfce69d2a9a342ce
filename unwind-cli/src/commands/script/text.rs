//! Samples as lines, in the layout of `perf script`.

use std::io::{self, Write};

use unwind_perf::record::{BranchEntry, Task};
use unwind_profile::mapped::layout::Layout;
use unwind_profile::mapped::names::{Mode, Names, Place};
use unwind_profile::recording::code_names::{InterpretedCall, InterpretedCode};
use unwind_profile::recording::events::Events;
use unwind_profile::session::recorded_stacks::RecordedStacks;
use unwind_profile::walks::call_stacks::FrameSource;
use unwind_profile::walks::found_by::FoundBy;
use unwind_profile::walks::frame_calls::FrameCalls;
use unwind_profile::walks::shown::{ChainEnd, Link, Printer, Shown};
use unwind_profile::walks::walked_stack::WalkedStack;
use unwind_target::Untrusted;
use unwind_target::counted::counted;

use crate::commands::recorded_call::MAYBE_INLINED;
use crate::commands::script::allowance::Allowance;
use crate::commands::script::branches::FlagsText;
use crate::commands::script::fields::Fields;

/// How samples are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) fields: Fields,
    pub(crate) layout: Layout,
    /// Nine digits of a second instead of six.
    pub(crate) nanoseconds: bool,
    /// How many frames each part of a stack has at most.
    pub(crate) max_stack: usize,
    /// Whether frames of joined stacks say from where they are known.
    pub(crate) sources: bool,
    /// Whether calls of interpreters are shown.
    pub(crate) calls: bool,
}

/// Writes samples as text.
#[derive(Debug)]
pub(crate) struct TextPrinter<W> {
    out: Allowance<W>,
    style: Style,
    names: Names,
    /// What the recording says of its own stacks.
    recorded: RecordedStacks,
}

impl<W: Write> TextPrinter<W> {
    pub(crate) const fn new(out: W, style: Style, names: Names, recorded: RecordedStacks) -> Self {
        Self { out: Allowance::new(out), style, names, recorded }
    }

    const fn has(&self, field: Fields) -> bool {
        self.style.fields.contains(field)
    }

    /// Writes who and when.
    fn start(&mut self, shown: &Shown) -> io::Result<()> {
        let Task { pid, tid } = shown.held.task;
        let (pid, tid) = (pid.cast_signed(), tid.cast_signed());
        if self.has(Fields::COMM) {
            let name = shown.comm.escaped().at_most(self.out.name_limit());
            if self.has(Fields::IP) && shown.held.has_callchain() {
                write!(self.out, "{name} ")?;
            } else {
                write!(self.out, "{} ", name.right(16))?;
            }
        }
        let width = match self.style.layout {
            Layout::Perf7_2 => 7,
            Layout::Perf6_1 => 5,
        };
        match (self.has(Fields::PID), self.has(Fields::TID)) {
            (true, true) => write!(self.out, "{pid:>width$}/{tid:<width$} ")?,
            (true, false) => write!(self.out, "{pid:>width$} ")?,
            (false, true) => write!(self.out, "{tid:>width$} ")?,
            (false, false) => {}
        }
        if self.has(Fields::CPU)
            && let Some(cpu) = shown.held.cpu()
        {
            write!(self.out, "[{cpu:03}] ")?;
        }
        if self.has(Fields::TIME) && shown.held.has_time() {
            let (seconds, rest) =
                (shown.held.time / 1_000_000_000, shown.held.time % 1_000_000_000);
            if self.style.nanoseconds {
                write!(self.out, "{seconds:>5}.{rest:09}: ")?;
            } else {
                write!(self.out, "{seconds:>5}.{:06}: ", rest / 1000)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, events: &Events, shown: &Shown) -> io::Result<()> {
        if self.has(Fields::PERIOD) {
            let fixed = || events.get(shown.held.event).map(|event| event.attr.sample_period);
            let period = shown.held.period().or_else(fixed).unwrap_or(0);
            write!(self.out, "{period:>10} ")?;
        }
        if self.has(Fields::EVENT) {
            let limit = self.out.name_limit();
            let width = events.name_width().min(limit);
            let name = events.get(shown.held.event).map(|event| &event.name);
            let none = Untrusted::default();
            let name = name.unwrap_or(&none).escaped().at_most(limit);
            write!(self.out, "{}: ", name.right(width))?;
        }
        Ok(())
    }

    /// Writes how many frames are left out.
    fn left_out(&mut self, count: usize) -> io::Result<()> {
        match count {
            0 => Ok(()),
            count => {
                let frames = counted(count, "more frame", "more frames");
                writeln!(self.out, "{MARK}({frames}; see --max-stack)")
            }
        }
    }

    fn frame(
        &mut self,
        shown: &Shown,
        ip: u64,
        mode: Mode,
        source: Option<FrameSource>,
    ) -> io::Result<()> {
        let source = source.filter(|_| self.style.sources);
        let is_plain = !self.has(Fields::SYM) && !self.has(Fields::DSO);
        if is_plain && source.is_none() && self.style.layout == Layout::Perf7_2 {
            return self.out.write_all(&ip_line(ip));
        }
        let place = self.names.place(ip, mode, &shown.space, &shown.kernel);
        let addr = match self.style.layout {
            Layout::Perf7_2 => ip,
            Layout::Perf6_1 => place.in_file,
        };
        write!(self.out, "\t{addr:>16x}")?;
        self.place(&place)?;
        match source {
            Some(source) => writeln!(self.out, " [{}]", source.name()),
            None => writeln!(self.out),
        }
    }

    /// Writes the calls that the frame at an address executes.
    ///
    /// As many as are `left`; of others their number.
    fn calls(&mut self, calls: &mut FrameCalls, ip: u64, left: &mut usize) -> io::Result<()> {
        let mut more = 0_usize;
        for call in calls.of_next_frame() {
            match left.checked_sub(1) {
                _ if !self.has(Fields::SYM) => {}
                Some(rest) => {
                    *left = rest;
                    self.call(&call, ip)?;
                }
                None => more = more.saturating_add(1),
            }
        }
        if more > 0 {
            let more = counted(more, "more call", "more calls");
            writeln!(self.out, "{MARK}({more}; see --max-stack)")?;
        }
        Ok(())
    }

    fn call(&mut self, call: &InterpretedCall, ip: u64) -> io::Result<()> {
        let limit = self.out.name_limit();
        let InterpretedCall { code, line } = call;
        if **code == InterpretedCode::MAYBE_INLINED {
            return writeln!(self.out, "{MARK}{MAYBE_INLINED}");
        }
        write!(self.out, "\t{ip:>16x} ")?;
        match &code.function {
            Some(name) => write!(self.out, "{}", name.escaped().at_most(limit))?,
            None => write!(self.out, "[unknown]")?,
        }
        write!(self.out, "{}", code.language.suffix())?;
        if self.has(Fields::DSO) {
            match (&code.file, line) {
                (Some(file), 0) => write!(self.out, " ({})", file.escaped().at_most(limit))?,
                (Some(file), line) => {
                    write!(self.out, " ({}:{line})", file.escaped().at_most(limit))?;
                }
                (None, _) => write!(self.out, " ([unknown])")?,
            }
        }
        writeln!(self.out)
    }

    /// Writes the names of an address.
    fn place(&mut self, place: &Place) -> io::Result<()> {
        let limit = self.out.name_limit();
        if self.has(Fields::SYM) {
            match &place.function {
                Some((name, offset)) => {
                    write!(self.out, " {}", name.escaped().at_most(limit))?;
                    if self.has(Fields::SYMOFF) {
                        write!(self.out, "+{offset:#x}")?;
                    }
                }
                None => write!(self.out, " [unknown]")?,
            }
        }
        if self.has(Fields::DSO) {
            match &place.file {
                Some(name) => write!(self.out, " ({})", name.escaped().at_most(limit))?,
                None => write!(self.out, " ([unknown])")?,
            }
        }
        Ok(())
    }

    /// Writes the user part of a stack that was walked here.
    fn walked(&mut self, shown: &Shown, walked: &WalkedStack) -> io::Result<()> {
        let mut calls = FrameCalls::of_walk(Some(walked).filter(|_| self.style.calls));
        let mut left = self.style.max_stack;
        for frame in walked.frames.iter().take(self.style.max_stack) {
            if frame.after_gap {
                writeln!(self.out, "{GAP}")?;
            }
            self.calls(&mut calls, frame.call, &mut left)?;
            self.frame(shown, frame.call, Mode::User, frame.source)?;
        }
        self.left_out(walked.frames.len().saturating_sub(self.style.max_stack))?;
        match &walked.cut {
            Some(reason) => {
                // It names a file, whose name may be long.
                let end = reason.char_indices().nth(MAX_REASON).map_or(reason.len(), |(at, _)| at);
                let cut = if end < reason.len() { "…" } else { "" };
                let reason = reason.get(..end).unwrap_or(reason);
                writeln!(self.out, "{MARK}(incomplete: {reason}{cut})")
            }
            None => Ok(()),
        }
    }

    /// Writes the branches that the CPU recorded, as addresses or as functions.
    fn branches(&mut self, shown: &Shown) -> io::Result<()> {
        let by_name = !self.has(Fields::BRSTACK);
        if by_name && !self.has(Fields::BRSTACKSYM) {
            return Ok(());
        }
        for BranchEntry { from, to, flags, .. } in shown.held.branches().1 {
            for (addr, in_front) in [(from, if by_name { "" } else { " " }), (to, "/")] {
                write!(self.out, "{in_front}")?;
                self.branch_end(shown, addr, by_name)?;
            }
            write!(self.out, "{}", FlagsText { flags, layout: self.style.layout })?;
        }
        Ok(())
    }

    /// Writes where a branch began or went.
    fn branch_end(&mut self, shown: &Shown, addr: u64, by_name: bool) -> io::Result<()> {
        let limit = self.out.name_limit();
        if !by_name {
            write!(self.out, "{addr:#x}")?;
            if !self.has(Fields::DSO) {
                return Ok(());
            }
        }
        let mode = Mode::of_branch(addr, shown.misc());
        let place = self.names.place(addr, mode, &shown.space, &shown.kernel);
        if by_name {
            match &place.function {
                Some((name, offset)) => {
                    write!(self.out, "{}+{offset:#x}", name.escaped().at_most(limit))?;
                }
                None => write!(self.out, "[unknown]")?,
            }
        }
        if self.has(Fields::DSO) {
            let space = match self.style.layout {
                Layout::Perf7_2 => " ",
                Layout::Perf6_1 => "",
            };
            match &place.file {
                Some(name) => write!(self.out, "{space}({})", name.escaped().at_most(limit))?,
                None => write!(self.out, "{space}([unknown])")?,
            }
        }
        Ok(())
    }

    fn stack(&mut self, shown: &Shown, walked: Option<&WalkedStack>) -> io::Result<()> {
        writeln!(self.out)?;
        let links: Vec<Link> = shown.links().take(self.style.max_stack).collect();
        // perf throws a chain away in which it meets such a word.
        let garbage = links.iter().find_map(|link| match link {
            Link::NoAddress(word) => Some(word),
            Link::Ip(..) => None,
        });
        let count = shown.links().count();
        if let Some(word) = garbage {
            let chain = counted(count, "word", "words");
            writeln!(self.out, "{MARK}(a chain of {chain} is left out: {word:x} is no address)")?;
        } else {
            self.recorded(shown, (&links, count), walked.is_some())?;
        }
        walked.map_or(Ok(()), |walked| self.walked(shown, walked))
    }

    /// Writes a chain of `count` addresses as it was recorded, the first ones, and what the recording says of it,
    /// unless the stack is walked here.
    fn recorded(
        &mut self,
        shown: &Shown,
        (links, count): (&[Link], usize),
        is_walked: bool,
    ) -> io::Result<()> {
        // A stack that no sample has is not told of.
        let found = self.recorded.found().filter(|_| shown.is_sample());
        let with_calls = found.as_deref().filter(|_| self.style.calls);
        let mut calls = FrameCalls::of_chain(with_calls, shown);
        let mut left = self.style.max_stack;
        let ways = found.iter().flat_map(|found| found.of_sample(shown.held.number));
        let mut ways = ways.map(|way| way == FoundBy::Guess);
        let mut has_gap = false;
        for (at, link) in links.iter().enumerate() {
            let &Link::Ip(ip, mode) = link else { continue };
            if mode == Mode::User {
                if ways.next() == Some(true) {
                    has_gap = true;
                    writeln!(self.out, "{GAP}")?;
                }
                self.calls(&mut calls, ip, &mut left)?;
            }
            let source = shown.source_of_link(at, count);
            self.frame(shown, ip, mode, source)?;
        }
        self.left_out(count.saturating_sub(links.len()))?;
        if is_walked || !shown.is_sample() {
            return Ok(());
        }
        match self.recorded.take_reason(&shown.held) {
            Some(reason) if reason != "gap" || !has_gap => {
                writeln!(self.out, "{MARK}(incomplete: {reason})")
            }
            _ => Ok(()),
        }
    }
}

/// How many characters of the reason are shown why a stack is not complete.
const MAX_REASON: usize = 400;

/// What a line that is no frame starts with.
const MARK: &str = "\t                 ";

/// The line before a frame that is known by a guess.
const GAP: &str = "\t                 (callers may be missing here)";

/// `"\t{ip:>16x}\n"`. Without names most of the output is such lines, and the formatter
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

impl<W: Write> Printer for TextPrinter<W> {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        self.start(shown)?;
        if let ChainEnd::Stack(cookie) = shown.end {
            match cookie {
                Some(cookie) => write!(self.out, "DEFERRED CALLCHAIN [cookie: {cookie:x}]")?,
                None => write!(self.out, "DEFERRED CALLCHAIN (no cookie)")?,
            }
            if self.has(Fields::IP) {
                self.stack(shown, None)?;
            }
            return writeln!(self.out);
        }
        self.event(events, shown)?;
        if self.has(Fields::IP) {
            if shown.chain.is_some() {
                self.stack(shown, walked)?;
            } else {
                let ip = shown.held.ip().unwrap_or(0);
                write!(self.out, " {ip:>16x}")?;
                if self.has(Fields::SYM) || self.has(Fields::DSO) {
                    let mode = Mode::of_sample(shown.misc());
                    let place = self.names.place(ip, mode, &shown.space, &shown.kernel);
                    self.place(&place)?;
                }
            }
        }
        self.branches(shown)?;
        writeln!(self.out)
    }

    fn read(&mut self, len: usize) {
        self.out.read(len);
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
