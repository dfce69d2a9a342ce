//! What is shown: a head, functions or threads by their shares, and the ledger at the foot.

use std::time::Duration;

use unwind_profile::collected::call_tree::FrameKind;
use unwind_profile::formats::table::percent;
use unwind_profile::session::ledger::Ledger;
use unwind_target::counted::counted;

use crate::commands::top::window::Window;

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Functions,
    Threads,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    Head,
    Plain,
    /// A function of the kernel.
    Kernel,
    /// Something is wrong.
    Wrong,
}

/// A line of text that may be shown as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) kind: LineKind,
    pub(crate) text: String,
}

impl Line {
    fn new(kind: LineKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// What there is to show.
#[derive(Clone, Debug)]
pub(crate) struct Screen {
    /// Whose samples they are.
    pub(crate) whom: String,
    pub(crate) window: Window,
    /// Of all samples so far, but for those that wait for their walk.
    pub(crate) ledger: Ledger,
    pub(crate) waiting: u64,
}

/// How many threads are told beneath the functions, where there is room for them.
const THREADS: usize = 4;

/// How many lines there must be for that.
const ROOM_FOR_THREADS: usize = 16;

impl Screen {
    /// Whose samples these are, and how many.
    pub(crate) fn head(&self) -> String {
        let samples = counted(self.window.samples(), "sample", "samples");
        format!("unwind top: {}, {} s, {samples}", self.whom, seconds(self.window.time()))
    }

    /// The lists, in at most this many lines.
    pub(crate) fn body(&self, list: List, lines: usize) -> Vec<Line> {
        match list {
            List::Threads => self.threads(lines),
            List::Functions => {
                let beneath = match lines {
                    ..ROOM_FOR_THREADS => Vec::new(),
                    _ => self.threads(THREADS.saturating_add(1)),
                };
                let mut shown = self.functions(lines.saturating_sub(beneath.len()));
                shown.extend(beneath);
                shown
            }
        }
    }

    fn functions(&self, lines: usize) -> Vec<Line> {
        let all = self.window.samples();
        let mut shown = vec![Line::new(LineKind::Head, "    self   total  function")];
        if all == 0 {
            let text = match self.window.time() {
                Duration::ZERO => "  the first interval has not ended",
                _ => "  no samples: nothing has run",
            };
            shown.push(Line::new(LineKind::Plain, text));
        }
        if self.window.not_kept() > 0 {
            let share = percent(self.window.not_kept(), all);
            let line = format!("         {share:>5} %  [too many different stacks]");
            shown.push(Line::new(LineKind::Wrong, line));
        }
        let functions = self.window.functions();
        shown.extend(functions.iter().map(|(frame, total)| {
            let (own, total) = (percent(total.own, all), percent(total.all, all));
            let (kind, file) = match (&frame.file, frame.kind) {
                (_, FrameKind::Kernel) => (LineKind::Kernel, " (kernel)".to_owned()),
                (Some(file), _) => (LineKind::Plain, format!(" ({})", short(file))),
                (None, _) => (LineKind::Plain, String::new()),
            };
            Line::new(kind, format!("{own:>6} % {total:>5} %  {}{file}", frame.name))
        }));
        shown.truncate(lines);
        shown
    }

    fn threads(&self, lines: usize) -> Vec<Line> {
        let all = self.window.samples();
        let threads = self.window.threads();
        let head = format!("   share  {}", counted(threads.len(), "thread", "threads"));
        let rows = threads
            .iter()
            .map(|(name, count)| format!("{:>6} %  {name}", percent(*count, all)))
            .map(|text| Line::new(LineKind::Plain, text));
        [Line::new(LineKind::Head, head)].into_iter().chain(rows).take(lines).collect()
    }

    /// What became of all samples since the start.
    pub(crate) fn foot(&self) -> Line {
        if let Err(error) = self.ledger.check() {
            return Line::new(LineKind::Wrong, error.to_string());
        }
        let mut text = self.ledger.summary();
        if self.waiting > 0 {
            text = format!("{text}; {} to be walked", self.waiting);
        }
        if self.ledger.throttled.spans > 0 {
            let ms = self.ledger.throttled.nanoseconds / 1_000_000;
            text = format!("{text}; throttled: {ms} ms");
        }
        let is_whole = self.ledger.lost == 0 && self.ledger.dropped == 0;
        Line::new(if is_whole { LineKind::Plain } else { LineKind::Wrong }, text)
    }
}

/// The last part of a path, which is what there is room for.
fn short(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// Seconds with one digit after the point.
fn seconds(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}
