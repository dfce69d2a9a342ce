//! `unwind top`: where programs spend their time, while they run.

mod live;
mod screen;
#[cfg(feature = "tui")]
mod terminal;
mod window;

#[cfg(feature = "tui")]
use std::io::IsTerminal as _;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "tui")]
use std::sync::mpsc::TryRecvError;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use unwind_profile::engine::drained::{Drained, SoFar};
use unwind_profile::engine::requested::{Requested, parse};
use unwind_profile::engine::sampling::{Copies, CopySizes, Often, RingSize, Sampling};
use unwind_profile::engine::subject::Subject;
use unwind_profile::recording::error::PerfError;
use unwind_profile::session::ledger::Ledger;
use unwind_profile::session::rings::{RING, Span, check_exist, existing, of_running};
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::commands::engine::EngineArgs;
use crate::commands::opened::open;
use crate::commands::record::signals::end_at;
use crate::commands::top::live::{Counts, Update, Walking, walk};
use crate::commands::top::screen::{List, Screen};
#[cfg(feature = "tui")]
use crate::commands::top::terminal::{Key, Terminal};
use crate::commands::top::window::Window;
use crate::debug_options::DebugDirectories;
use crate::failure::Failure;
use crate::notices;

/// Show where programs spend their time, while they run.
///
/// Takes samples as `unwind record` does, walks their stacks as they come, and shows the
/// functions and threads of the last ten seconds. Nothing is written to a file.
#[derive(Debug, clap::Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct TopArgs {
    /// The event of which samples are taken, by perf's names as for `unwind record`; without it cycles
    /// or, where there is no PMU, the clock
    #[arg(short, long, value_name = "EVENT", value_parser = one_event)]
    event: Option<Requested>,

    /// Samples a second of CPU time; of tracepoints each hit is one
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 999,
          value_parser = clap::value_parser!(u32).range(1..=50_000))]
    rate: u32,

    /// A process that runs; can be given several times
    #[arg(long, value_name = "PID", group = "subject", num_args = 1..,
          required_unless_present = "all",
          value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,

    /// All processes
    #[arg(long, group = "subject")]
    all: bool,

    /// How often the screen is made anew
    #[arg(long, value_name = "SECONDS", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    /// Print this many screens as text, and end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,

    /// Begin with the list of threads
    #[arg(long)]
    threads: bool,

    #[command(flatten)]
    engine: EngineArgs,

    /// Declare that all code without a table keeps frame pointers
    #[arg(long)]
    trust_fp: bool,

    #[command(flatten)]
    debug_directories: DebugDirectories,
}

const LONG_HELP: &str = "\
Keys:
  q  quit, as Ctrl-C
  t  threads instead of functions, or functions again
  p  pause, or continue

The share of a function is `self` where it was the innermost one, and `total` where it was
anywhere in a stack. Both are of the samples of the last ten seconds, or of the interval if that
is longer.

The line at the foot is the ledger of all samples since the start, with the classes of
`unwind record`; those `to be walked` are in none yet. At the end all of it is told on standard
error. If its classes do not add up to what the kernel wrote, the exit code is 10.

Where standard output is no terminal, screens are printed as text, one each interval, until
Ctrl-C, or as many as --batch says. It ends with the last of the processes.

It shows no colours if NO_COLOR is set. It may look at what `unwind record` may.";

/// Lines of a list that is printed as text.
const BATCH_LINES: usize = 60;

/// How long to wait for a key, or for an interval.
const WAIT: Duration = Duration::from_millis(100);

/// Runs `unwind top`.
///
/// # Errors
///
/// [`Failure`] if samples cannot be taken, nothing be shown, or the ledger does not add up.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    check_exist(&args.pid)?;
    if args.event.as_ref().is_some_and(Requested::is_tracepoint) && args.engine.must_be_in_kernel()
    {
        return Err(Failure::new("a tracepoint is for --engine perf", 2));
    }
    // The terminal is given back before it ends.
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
    let ends = end_at(&signals, &Arc::default());
    let subject = if args.all { Subject::All } else { Subject::Processes(args.pid.clone()) };
    let whom = of_running(&subject);
    let sizes = CopySizes::several(&whom, 1, false);
    let copies = Copies { sizes, with_chains: false, with_data: false };
    let user_stacks = args.engine.user_stacks(copies, false);
    let opened = open(
        &Sampling {
            often: Often::Rate(args.rate),
            events: args.event.iter().cloned().collect(),
            cpus: None,
            user_stacks,
            off_cpu: false,
            ring: RingSize::AtMost(RING),
            whom,
            notices: notices::all().clone(),
        },
        args.rate,
    )?;
    let copy_size = opened.copy_size().clone();
    let walking = Walking {
        frame_pointers: FramePointerRows { is_trusted: args.trust_fp },
        rate: args.rate,
        interval: Duration::from_secs(args.interval),
        copy_size,
        told: opened.told_stacks(),
        debug_files: args.debug_directories.files(None),
    };
    // Of those that begin from here on records tell.
    let existing = existing(&subject);
    let span = Span { subject, beside: None, ends: ends.clone(), until: None, every: None };
    let (emptied, parts) = opened.empty(&existing, span);
    let reader = parts.recv().map_err(|error| Failure::new(error, 1))?.reader;
    let (sender, updates) = channel();
    let walker = thread::spawn(move || walk(reader, walking, sender));
    let whom = match args.pid.as_slice() {
        _ if args.all => "all processes".to_owned(),
        [process] => format!("process {process}"),
        processes => format!("{} processes", processes.len()),
    };
    let mut view = View {
        whom: args.event.iter().fold(whom, |whom, event| format!("{whom}, {}", event.name())),
        window: Window::default(),
        counts: None,
        so_far: emptied.so_far.clone(),
        updates,
    };
    let list = if args.threads { List::Threads } else { List::Functions };
    let shown = match args.batch {
        #[cfg(feature = "tui")]
        None if io::stdout().is_terminal() => on_terminal(&mut view, list, &ends),
        screens => as_text(&mut view, list, screens, &ends),
    };
    ends.store(true, Ordering::Relaxed);
    let drained = emptied.finish()?;
    let walked = walker.join().map_err(|_| Failure::new("the walk of stacks has failed", 1))?;
    walked.map_err(stream_error)?;
    shown?;
    let ledger = view.last_ledger(drained);
    // With standard error gone there is no other place to tell it.
    let _ = write!(io::stderr(), "{ledger}");
    Ok(ledger.check()?)
}

/// The event of this name: shares of several would not be of one whole.
fn one_event(text: &str) -> Result<Requested, String> {
    match parse(text).map_err(|error| error.to_string())?.as_slice() {
        [event] => Ok(event.clone()),
        _ => Err("one event is shown at a time".into()),
    }
}

/// Records that cannot be read, though they come from the kernel.
fn stream_error(error: PerfError) -> Failure {
    Failure::new(error, 1)
}

/// What comes from the thread that has stacks walked.
#[derive(Debug)]
struct View {
    whom: String,
    window: Window,
    counts: Option<Counts>,
    so_far: SoFar,
    updates: Receiver<Update>,
}

impl View {
    fn take(&mut self, (slice, counts): Update) {
        self.window.add(slice);
        self.counts = Some(counts);
    }

    fn screen(&self) -> Screen {
        // What came out of the rings is read after what became of it.
        let drained = self.so_far.get();
        let counts = self.counts.as_ref();
        let (ledger, waiting) =
            counts.map_or((Ledger::new(), drained.written), |counts| counts.ledger(drained));
        let (whom, window) = (self.whom.clone(), self.window.clone());
        Screen { whom, window, ledger, waiting }
    }

    /// The ledger, when all samples are walked.
    fn last_ledger(self, drained: Drained) -> Ledger {
        let last = self.updates.try_iter().last().map(|(_, counts)| counts);
        let counts = last.or(self.counts);
        counts.map_or_else(Ledger::new, |counts| counts.last_ledger(drained))
    }
}

/// Shows screens on the terminal until a key or a signal ends it, or all processes have ended.
#[cfg(feature = "tui")]
fn on_terminal(view: &mut View, mut list: List, ends: &AtomicBool) -> Result<(), Failure> {
    let mut terminal = Terminal::open().map_err(Failure::output)?;
    let mut screen = view.screen();
    let (mut is_paused, mut is_new) = (false, true);
    while !ends.load(Ordering::Relaxed) {
        if is_new {
            terminal.show(&screen, list, is_paused).map_err(Failure::output)?;
        }
        let key = terminal.key(WAIT).map_err(Failure::output)?;
        is_new = key.is_some();
        match key {
            Some(Key::Quit) => return Ok(()),
            Some(Key::List) if list == List::Functions => list = List::Threads,
            Some(Key::List) => list = List::Functions,
            Some(Key::Pause) => is_paused = !is_paused,
            Some(Key::Other) | None => {}
        }
        match view.updates.try_recv() {
            Ok(update) => {
                view.take(update);
                if !is_paused {
                    screen = view.screen();
                    is_new = true;
                }
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
}

/// Prints screens until there are as many as asked for, a signal comes, or all processes have
/// ended.
fn as_text(
    view: &mut View,
    list: List,
    screens: Option<u64>,
    ends: &AtomicBool,
) -> Result<(), Failure> {
    let mut left = screens.unwrap_or(u64::MAX);
    while left > 0 && !ends.load(Ordering::Relaxed) {
        match view.updates.recv_timeout(WAIT) {
            Ok(update) => view.take(update),
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let screen = view.screen();
        let mut out = io::stdout().lock();
        let body = screen.body(list, BATCH_LINES).into_iter().map(|line| line.text);
        let lines = [screen.head()].into_iter().chain(body).chain([screen.foot().text]);
        for line in lines.chain([String::new()]) {
            writeln!(out, "{line}").map_err(Failure::output)?;
        }
        out.flush().map_err(Failure::output)?;
        left = left.saturating_sub(1);
    }
    Ok(())
}
