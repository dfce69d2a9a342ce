//! Samples as they come, put together by intervals.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use unwind_profile::collected::collector::Collector;
use unwind_profile::collected::grouping::By;
use unwind_profile::engine::copy_size::CopySize;
use unwind_profile::engine::drained::Drained;
use unwind_profile::mapped::files::RecordedFiles;
use unwind_profile::mapped::kernel::SampledKernel;
use unwind_profile::mapped::layout::Layout;
use unwind_profile::mapped::names::Names;
use unwind_profile::recording::code_names::CodeNames;
use unwind_profile::recording::error::PerfError;
use unwind_profile::recording::events::Events;
use unwind_profile::recording::held::Held;
use unwind_profile::recording::pipeline::Options;
use unwind_profile::recording::reader::PerfReader;
use unwind_profile::recording::stream::StreamReader;
use unwind_profile::session::ledger::Ledger;
use unwind_profile::session::told::Told;
use unwind_profile::walks::call_stacks::CallStacks;
use unwind_profile::walks::printed::print_walked;
use unwind_profile::walks::shown::{ChainEnd, Printer, Shown};
use unwind_profile::walks::tally::Tally;
use unwind_profile::walks::walked_stack::WalkedStack;
use unwind_profile::walks::walkers::WalkSetup;
use unwind_target::DebugFiles;
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::commands::top::window::Slice;
use crate::notices;

/// About how many bytes the stacks of an interval take.
const ROOM: usize = 8 << 20;

/// About how many bytes of records are held to put them in order.
const MEMORY: usize = 256 << 20;

/// How many threads of an interval are kept apart.
const MAX_THREADS: usize = 1 << 12;

/// What stands for all other threads.
const OTHER_THREADS: &str = "[too many different threads]";

/// What became of all samples so far.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    tally: Tally,
    unmatched: u64,
    told: Told,
}

impl Counts {
    /// The ledger of what came out of the rings so far, and how many samples of it wait for
    /// their walk.
    pub(crate) fn ledger(&self, drained: Drained) -> (Ledger, u64) {
        let mut ledger = self.last_ledger(drained);
        let waiting = ledger.written.saturating_sub(ledger.classified());
        ledger.written = ledger.written.saturating_sub(waiting);
        (ledger, waiting)
    }

    /// The ledger when none waits any more.
    pub(crate) fn last_ledger(&self, drained: Drained) -> Ledger {
        Ledger::of(drained, &self.tally, self.unmatched, &self.told)
    }
}

/// An interval, and what became of all samples so far.
pub(crate) type Update = (Slice, Counts);

/// How stacks are walked and put together.
#[derive(Clone, Debug)]
pub(crate) struct Walking {
    pub(crate) frame_pointers: FramePointerRows,
    /// Samples a second.
    pub(crate) rate: u32,
    pub(crate) interval: Duration,
    pub(crate) copy_size: CopySize,
    /// The names of code in stacks that the engine tells of, if it walks them itself.
    pub(crate) told: Option<CodeNames>,
    /// Where what was stripped off files is looked for.
    pub(crate) debug_files: DebugFiles,
}

/// Puts samples together.
struct LivePrinter {
    collector: Collector,
    counts: Counts,
    /// Samples by process and thread, with the name of the thread.
    threads: HashMap<(u32, u32), (String, u64)>,
    interval: Duration,
    begin: Instant,
    updates: Sender<Update>,
}

impl LivePrinter {
    fn count_thread(&mut self, shown: &Shown) {
        let task = shown.held.task;
        let mut key = (task.pid, task.tid);
        let is_kept = self.threads.len() < MAX_THREADS || self.threads.contains_key(&key);
        if !is_kept {
            key = (u32::MAX, u32::MAX);
        }
        let (_, count) = self.threads.entry(key).or_insert_with(|| {
            let name = match is_kept {
                true => format!("{} (thread {})", shown.comm, task.tid),
                false => OTHER_THREADS.to_owned(),
            };
            (name, 0)
        });
        *count = count.saturating_add(1);
    }

    /// Ends an interval.
    fn send(&mut self) {
        let time = self.begin.elapsed();
        self.begin = Instant::now();
        let threads = self.threads.drain().map(|(_, thread)| thread).collect();
        let slice = Slice::new(self.collector.take_profile(), threads, time);
        // Without a reader the command is at its end.
        let _ = self.updates.send((slice, self.counts.clone()));
    }
}

impl Printer for LivePrinter {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        let counts = &mut self.counts;
        match (shown.end, events.get(shown.held.event)) {
            // It is no sample.
            (ChainEnd::Stack(_), _) => return Ok(()),
            (ChainEnd::Unmatched(_), _) => counts.unmatched = counts.unmatched.saturating_add(1),
            (_, Some(event)) => counts.tally.count(&shown.held, &event.attr, walked, false),
            (_, None) => counts.tally.count_damaged(&shown.held),
        }
        self.count_thread(shown);
        self.collector.print(events, shown, walked)
    }

    fn read(&mut self, len: usize) {
        self.collector.read(len);
    }

    fn learn(&mut self, held: &Held) {
        self.counts.told.take(held);
        self.collector.learn(held);
    }

    fn round(&mut self) {
        if self.begin.elapsed() >= self.interval {
            self.send();
        }
    }
}

/// Walks the stacks of the samples in a stream until it ends, and sends each interval.
///
/// # Errors
///
/// [`PerfError`] if the stream is not whole.
pub(crate) fn walk(
    stream: StreamReader,
    walking: Walking,
    updates: Sender<Update>,
) -> Result<(), PerfError> {
    let Walking { frame_pointers, rate, interval, copy_size, told, debug_files } = walking;
    let setup = WalkSetup::new(frame_pointers)
        .beside_programs(stream.backlog(), copy_size)
        .with_told_stacks(told);
    let mut reader = PerfReader::from_stream(stream)?;
    let options = Options { merge: true, memory: MEMORY, frame_pointers, stitch_lbr: false };
    let names = Names::new(SampledKernel::Running, Layout::Perf7_2, notices::all());
    let printer = LivePrinter {
        collector: Collector::new(names, By::Name, ROOM),
        counts: Counts { tally: Tally::default(), unmatched: 0, told: Told::new(rate) },
        threads: HashMap::new(),
        interval,
        begin: Instant::now(),
        updates,
    };
    let files = RecordedFiles::of_running().with_notices(notices::all());
    let files = files.with_debug_files(debug_files);
    let sources = (files, CallStacks::new(false, None));
    let (mut printer, ended) = print_walked(&mut reader, options, setup, sources, printer);
    let summary = ended?;
    printer.send();
    summary.end
}
