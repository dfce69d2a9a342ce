//! Samples and stacks as they are shown: with their names, and with the stacks that are
//! walked here.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use unwind_perf::merge::{Outcome, Unmatched, whole_chain};
use unwind_perf::record::{Context, Entry, Misc, Task, UserPart};
use unwind_target::Untrusted;

use crate::mapped::address_spaces::{Space, Spaces};
use crate::mapped::names::Mode;
use crate::recording::error::PerfError;
use crate::recording::events::{Events, is_to_walk};
use crate::recording::held::{Held, Meaning};
use crate::recording::pipeline::Sink;
use crate::recording::reader::PerfReader;
use crate::walks::call_stacks::{CallStack, CallStacks, FrameSource, with_calls};
use crate::walks::threads::Threads;
use crate::walks::walked_stack::WalkedStack;
use crate::walks::walkers::{Job, Walks, Work};

/// A sample, or a recorded stack that stands for itself.
#[derive(Clone, Debug)]
pub struct Shown {
    pub held: Arc<Held>,
    /// The name of the thread at its time.
    pub comm: Rc<Untrusted>,
    /// The name of the process's first thread at its time.
    pub(crate) process: Rc<Untrusted>,
    /// What is mapped in the process at its time, and in the kernel.
    pub space: Space,
    pub kernel: Space,
    pub end: ChainEnd,
    /// The call chain as it is known: addresses and marks; nothing if the event has none.
    pub chain: Option<Vec<u64>>,
    /// From where the frames of its user part are known, if the CPU recorded calls.
    pub sources: Vec<FrameSource>,
    /// The calls that a walk is to be joined with.
    calls: Option<CallStack>,
}

/// A word of a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An address, and in which code.
    Ip(u64, Mode),
    /// What no address can be, and no mark is either: a frame pointer that was none led to
    /// it.
    NoAddress(u64),
}

/// What became of the user part of a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainEnd {
    /// It is in the sample, or there is none.
    Inline,
    /// It is that of a later record, or an earlier one.
    Merged { across_exec: bool, late: bool },
    /// Its record did not come.
    Unmatched(Unmatched),
    /// A stack that stands for itself, under this cookie if it has one.
    Stack(Option<u64>),
}

impl Shown {
    /// Whether it is a sample, and not a stack that none has.
    #[must_use]
    pub const fn is_sample(&self) -> bool {
        !matches!(self.end, ChainEnd::Stack(_))
    }

    /// The cookie of a sample whose user part was deferred.
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        match self.held.meaning {
            Meaning::Sample(UserPart::Deferred(cookie)) => Some(cookie),
            _ => None,
        }
    }

    /// The chain without its marks.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        let is_of_guest = Mode::of_sample(self.misc()).is_guest();
        let mut mode = if is_of_guest { Mode::GuestUser } else { Mode::User };
        let words = self.chain.iter().flatten();
        words.filter_map(move |&word| match Entry::from_word(word) {
            Entry::Context(context) => {
                mode = Mode::of_context(context);
                if is_of_guest {
                    mode = mode.of_guest();
                }
                None
            }
            Entry::Ip(ip) | Entry::Cookie(ip) => Some(Link::Ip(ip, mode)),
            Entry::UnknownContext(word) => Some(Link::NoAddress(word)),
        })
    }

    /// From where an address of the chain is known, the one at `at` of `count`.
    #[must_use]
    pub fn source_of_link(&self, at: usize, count: usize) -> Option<FrameSource> {
        let first = count.saturating_sub(self.sources.len());
        self.sources.get(at.checked_sub(first)?).copied()
    }

    /// Where the CPU was.
    #[must_use]
    pub fn misc(&self) -> Misc {
        self.held.record().map_or(Misc::UNKNOWN, |record| record.header().misc)
    }
}

/// Writes samples in one form.
pub trait Printer {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()>;

    /// Takes note that a record of `len` bytes was read.
    fn read(&mut self, len: usize);

    /// Takes note of one that is of another event than the one that was asked for.
    fn pass_over(&mut self, _shown: &Shown) {}

    /// Learns from a record that is no sample and no stack.
    fn learn(&mut self, _held: &Held) {}

    /// Takes note that all rings were emptied once.
    fn round(&mut self) {}
}

/// Names samples, has their stacks walked and hands them to a printer in order.
#[derive(Debug)]
pub(crate) struct ShownSink<'scope, 'env, P> {
    pub(crate) printer: P,
    threads: Threads,
    spaces: Spaces,
    walks: Walks<'scope, 'env, Shown>,
    call_stacks: CallStacks,
}

impl<'scope, 'env, P: Printer> ShownSink<'scope, 'env, P> {
    /// Stacks are walked by `walks`.
    pub(crate) fn new(
        printer: P,
        spaces: Spaces,
        walks: Walks<'scope, 'env, Shown>,
        call_stacks: CallStacks,
    ) -> Self {
        Self { printer, threads: Threads::default(), spaces, walks, call_stacks }
    }

    fn take(
        &mut self,
        events: &Events,
        held: Held,
        end: ChainEnd,
        (chain, told): (Option<Vec<u64>>, Option<Work>),
    ) -> io::Result<()> {
        self.printer.read(held.len());
        let attr = events.get(held.event).map(|event| event.attr);
        let attr = attr.filter(|attr| end == ChainEnd::Inline && is_to_walk(attr));
        let mut calls = self.call_stacks.of(&held);
        let (mut chain, mut sources) = (chain, Vec::new());
        let is_joined = self.call_stacks.is_stitching();
        if attr.is_none()
            && let (Some(words), Some(calls)) = (&mut chain, calls.take())
            && let Some((before, frames)) = with_calls(words, &calls, &held, is_joined)
        {
            *words = before;
            words.extend(frames.iter().map(|frame| frame.call));
            sources = frames.iter().map(|frame| frame.source).collect();
        }
        let held = Arc::new(held);
        let shown = Shown {
            comm: self.threads.name(held.task),
            process: self.threads.name(Task { pid: held.task.pid, tid: held.task.pid }),
            space: self.spaces.of(held.task, held.time),
            kernel: self.spaces.of_kernel(),
            end,
            chain,
            sources,
            calls: calls.filter(|_| is_joined),
            held,
        };
        let work = attr.map(|attr| {
            let (held, space) = (Arc::clone(&shown.held), shown.space.clone());
            Work::Walk(Job { held, attr, space, calls: None })
        });
        self.walks.push(shown, told.or(work));
        self.print_walked(events)
    }

    /// Prints what does not wait for its walk any more.
    fn print_walked(&mut self, events: &Events) -> io::Result<()> {
        while let Some((shown, walked)) = self.walks.pop() {
            self.print(events, &shown, walked)?;
        }
        Ok(())
    }

    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        mut walked: Option<WalkedStack>,
    ) -> io::Result<()> {
        if let (Some(walked), Some(calls)) = (&mut walked, &shown.calls) {
            walked.join(calls);
        }
        self.printer.print(events, shown, walked.as_ref())
    }

    /// Prints what waits for its walk.
    pub(crate) fn finish(&mut self, events: &Events) -> io::Result<()> {
        while let Some((shown, walked)) = self.walks.pop_all() {
            self.print(events, &shown, walked)?;
        }
        Ok(())
    }
}

/// The chain of a sample with its user part, if that is known.
fn chain_of(held: &Held, outcome: &Outcome) -> Option<Vec<u64>> {
    let chain = held.callchain()?;
    Some(match outcome {
        Outcome::Inline => chain.words().collect(),
        Outcome::Merged(merged) => whole_chain(chain, &merged.stack).collect(),
        Outcome::Unmatched { .. } => chain.without_cookie().collect(),
    })
}

impl<P: Printer> Sink for ShownSink<'_, '_, P> {
    fn sample(&mut self, events: &Events, held: Held, outcome: &Outcome) -> io::Result<()> {
        let space = || self.spaces.of(held.task, held.time);
        let told = self.walks.setup().told(&held, outcome, space);
        if told.is_some() {
            let chain = held.chain_without_user_part();
            return self.take(events, held, ChainEnd::Inline, (Some(chain), told));
        }
        let chain = chain_of(&held, outcome);
        let end = match outcome {
            Outcome::Inline => ChainEnd::Inline,
            Outcome::Merged(merged) => {
                ChainEnd::Merged { across_exec: merged.across_exec, late: merged.late }
            }
            Outcome::Unmatched { reason, .. } => ChainEnd::Unmatched(*reason),
        };
        self.take(events, held, end, (chain, None))
    }

    fn record(&mut self, events: &Events, held: Held) -> io::Result<()> {
        if let Meaning::Stack(cookie) = held.meaning {
            let mark = Context::User.word();
            let chain = std::iter::once(mark).chain(held.ips()).collect();
            return self.take(events, held, ChainEnd::Stack(cookie), (Some(chain), None));
        }
        self.printer.read(held.len());
        self.printer.learn(&held);
        self.threads.take(&held);
        self.call_stacks.take(&held);
        self.spaces.take(&held);
        Ok(())
    }

    fn tool_record(&mut self, reader: &mut PerfReader) -> Result<(), PerfError> {
        self.call_stacks.learn_depth(reader.told_branch_entries());
        self.spaces.learn_release(reader.told_release());
        Ok(())
    }

    fn settled(&mut self, _time: u64) -> io::Result<()> {
        Ok(())
    }

    fn round(&mut self, events: &Events) -> io::Result<()> {
        self.print_walked(events)?;
        self.printer.round();
        Ok(())
    }
}
