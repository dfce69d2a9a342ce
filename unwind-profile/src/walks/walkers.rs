//! Walks of many samples, on all CPUs where that is needed, with the order kept.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Scope, available_parallelism};

use unwind_core::CacheStats;
use unwind_perf::merge::Outcome;
use unwind_perf::record::{Attr, Endian, UserState};
use unwind_target::rows::frame_pointers::FramePointerRows;

use crate::engine::bpf_engine::layout_of_copies;
use crate::engine::copy_size::CopySize;
use crate::engine::depths::WalkedCopy;
use crate::mapped::address_spaces::Space;
use crate::mapped::generated_code::V8Returns;
use crate::recording::code_names::CodeNames;
use crate::recording::held::Held;
use crate::recording::stream::Backlog;
use crate::recording::told_stack::{ToldCalls, ToldStack};
use crate::walks::walk::SampleWalker;
use crate::walks::walked_stack::WalkedStack;

/// How many items wait at most for each thread: enough that none is idle while one walk
/// takes long, few enough that they take little memory.
const WAITING_PER_THREAD: usize = 32;

/// What a thread needs to walk a stack.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) held: Arc<Held>,
    pub(crate) attr: Attr,
    pub(crate) space: Space,
    /// The calls that an engine tells of, which has copied its stack in place of walking it, in words. `None` of
    /// others, and where calls are not read.
    pub(crate) calls: Option<Vec<u64>>,
}

impl Job {
    /// `None` if the sample has nothing to walk.
    fn walk(&self, walker: &mut SampleWalker, setup: &WalkSetup) -> Option<WalkedStack> {
        let record = self.held.record()?;
        let state = UserState::decode(&record, &self.attr).ok()??;
        let (chain, space) = (self.held.callchain(), &self.space);
        let walked = match &self.calls {
            Some(calls) => {
                let calls = (ToldCalls::of(calls), &setup.code_names);
                let walked = walker.walk_with_calls(&state, chain, space, calls);
                if walked.may_have_evaluator(space) { walked.lacking_calls() } else { walked }
            }
            None => walker.walk(&state, chain, space),
        };
        if let Some(copy_size) = &setup.copy_size {
            let is_cut = walked.is_cut_by_copy();
            let copy = WalkedCopy { time: self.held.time, len: state.stack.len(), is_cut };
            copy_size.learn(copy, |room| {
                let mut shorter = state;
                shorter.stack = state.stack.get(..room).unwrap_or(state.stack);
                shorter.room = room;
                !walker.walk(&shorter, self.held.callchain(), &self.space).is_cut_by_copy()
            });
        }
        Some(walked)
    }
}

/// What is to be done for the stack of an item.
#[derive(Debug)]
pub(crate) enum Work {
    /// It is walked.
    Walk(Job),
    /// It has been walked.
    Walked(WalkedStack),
}

/// What comes of a job, whatever that is: whoever waits for it gets it.
struct Answer<'d> {
    number: u64,
    walked: Option<WalkedStack>,
    done: &'d Sender<(u64, Option<WalkedStack>)>,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // If it is no longer waited for, the command is at its end.
        let _ = self.done.send((self.number, self.walked.take()));
    }
}

/// How all walks are done, and what came of them.
#[derive(Debug)]
pub struct WalkSetup {
    frame_pointers: FramePointerRows,
    /// What waits to be read, if programs run meanwhile.
    backlog: Option<Backlog>,
    /// Learns how much of a stack is to be copied.
    copy_size: Option<CopySize>,
    /// The layout of samples that are in place of stacks, if an engine tells of stacks.
    copies: Option<Attr>,
    /// What the code of calls is called that it tells of.
    code_names: CodeNames,
    /// How often the threads that have ended looked up a row.
    rows: Mutex<CacheStats>,
}

impl WalkSetup {
    #[must_use]
    pub fn new(frame_pointers: FramePointerRows) -> Self {
        Self {
            frame_pointers,
            backlog: None,
            copy_size: None,
            copies: None,
            code_names: CodeNames::default(),
            rows: Mutex::default(),
        }
    }

    /// Leaves the CPUs to the programs that are recorded: stacks are walked by the thread that
    /// reads the samples, and by others only while it falls behind. `copy_size` learns from them.
    pub fn beside_programs(self, backlog: Backlog, copy_size: CopySize) -> Self {
        Self { backlog: Some(backlog), copy_size: Some(copy_size), ..self }
    }

    /// Takes stacks that come later as an engine [tells](ToldStack) of them, if it does.
    pub fn with_told_stacks(self, names: Option<CodeNames>) -> Self {
        let copies = names.as_ref().and_then(|_| layout_of_copies());
        Self { copies, code_names: names.unwrap_or_default(), ..self }
    }

    /// What is to be done for a sample whose stack an engine tells of, if one does.
    pub(crate) fn told(
        &self,
        held: &Held,
        outcome: &Outcome,
        space: impl FnOnce() -> Space,
    ) -> Option<Work> {
        let (Some(attr), Outcome::Merged(merged)) = (self.copies, outcome) else { return None };
        match ToldStack::of(&merged.stack)? {
            ToldStack::Walked(pcs, incomplete) => {
                Some(Work::Walked(WalkedStack::told(pcs, incomplete)))
            }
            ToldStack::Calling(calls, pcs, incomplete) => {
                let walked = WalkedStack::told(pcs, incomplete);
                // Of V8 that the program has moved no calls are read.
                if !calls.is_complete && (V8Returns { space: &space() }).is_moved() {
                    return Some(Work::Walked(walked));
                }
                Some(Work::Walked(walked.with_calls(calls, &self.code_names)))
            }
            ToldStack::Copied(words, calls) => {
                let bytes = ToldStack::bytes(words).into();
                let copy =
                    Held::new(bytes, Endian::NATIVE, held.event, attr.format, held.layout).ok()?;
                let held = Arc::new(copy);
                let calls = calls.map(|calls| calls.words().to_vec());
                let job = Job { held, attr, space: space(), calls };
                Some(Work::Walk(job))
            }
        }
    }

    /// Whether stacks are to be walked by threads of their own.
    fn wants_threads(&self) -> bool {
        self.backlog.as_ref().is_none_or(Backlog::is_long)
    }

    /// How often a row was looked up, once all threads have ended.
    pub(crate) fn into_rows(self) -> CacheStats {
        self.rows.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, rows: CacheStats) {
        let mut all = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        *all = all.with(rows);
    }
}

/// Items in the order in which they came, some of which have a stack to walk.
#[derive(Debug)]
pub(crate) struct Walks<'scope, 'env, T> {
    scope: &'scope Scope<'scope, 'env>,
    setup: &'env WalkSetup,
    /// From the first stack on that they are wanted for.
    threads: Option<Threads>,
    /// For stacks that this thread walks, from the first one on.
    walker: Option<SampleWalker>,
    waiting: VecDeque<Waiting<T>>,
    /// The number of the first item that waits.
    first: u64,
}

/// Threads that walk. They end when this is dropped.
#[derive(Debug)]
struct Threads {
    count: usize,
    jobs: Sender<(u64, Job)>,
    results: Receiver<(u64, Option<WalkedStack>)>,
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    state: State,
}

#[derive(Debug)]
enum State {
    Walking,
    Done(Option<WalkedStack>),
}

impl Threads {
    /// Starts a thread for each CPU.
    fn start<'scope, 'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        setup: &'env WalkSetup,
    ) -> Self {
        let count = available_parallelism().map_or(1, usize::from);
        let (jobs, queue) = channel::<(u64, Job)>();
        let (done, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let (queue, done) = (Arc::clone(&queue), done.clone());
            scope.spawn(move || {
                let mut walker = SampleWalker::new(setup.frame_pointers);
                loop {
                    // One thread waits for a job, the others for their turn to.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, job)) = next else { break };
                    let mut answer = Answer { number, walked: None, done: &done };
                    answer.walked = job.walk(&mut walker, setup);
                }
                setup.add(walker.stats());
            });
        }
        Self { count, jobs, results }
    }
}

impl<'scope, 'env, T> Walks<'scope, 'env, T> {
    /// Stacks will be walked by threads of `scope`.
    pub(crate) const fn new(scope: &'scope Scope<'scope, 'env>, setup: &'env WalkSetup) -> Self {
        Self { scope, setup, threads: None, walker: None, waiting: VecDeque::new(), first: 0 }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How all walks are done.
    pub(crate) const fn setup(&self) -> &'env WalkSetup {
        self.setup
    }

    /// Takes the next item, with what is to be done for its stack if it has one.
    pub(crate) fn push(&mut self, item: T, work: Option<Work>) {
        let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        let number = self.first.saturating_add(waiting);
        let state = match work {
            Some(Work::Walked(walked)) => State::Done(Some(walked)),
            Some(Work::Walk(job)) if !self.setup.wants_threads() => {
                let frame_pointers = self.setup.frame_pointers;
                let walker = self.walker.get_or_insert_with(|| SampleWalker::new(frame_pointers));
                State::Done(job.walk(walker, self.setup))
            }
            Some(Work::Walk(job)) => {
                let (scope, setup) = (self.scope, self.setup);
                let threads = self.threads.get_or_insert_with(|| Threads::start(scope, setup));
                let sent = threads.jobs.send((number, job));
                if sent.is_ok() { State::Walking } else { State::Done(None) }
            }
            None => State::Done(None),
        };
        self.waiting.push_back(Waiting { item, state });
    }

    /// Returns the next item whose stack is walked, if it is, or if there are too many
    /// that wait.
    pub(crate) fn pop(&mut self) -> Option<(T, Option<WalkedStack>)> {
        let threads = self.threads.as_ref().map_or(0, |threads| threads.count);
        let is_full = self.waiting.len() > threads.saturating_mul(WAITING_PER_THREAD);
        self.pop_first(is_full)
    }

    /// Returns the next item, when its stack is walked.
    pub(crate) fn pop_all(&mut self) -> Option<(T, Option<WalkedStack>)> {
        self.pop_first(true)
    }

    fn pop_first(&mut self, waits: bool) -> Option<(T, Option<WalkedStack>)> {
        while let Some(Ok(done)) = self.threads.as_ref().map(|threads| threads.results.try_recv()) {
            self.done(done);
        }
        while waits && matches!(self.waiting.front()?.state, State::Walking) {
            // The threads live as long as there are jobs.
            let done = self.threads.as_ref()?.results.recv().ok()?;
            self.done(done);
        }
        if matches!(self.waiting.front()?.state, State::Walking) {
            return None;
        }
        self.first = self.first.saturating_add(1);
        let Waiting { item, state } = self.waiting.pop_front()?;
        match state {
            State::Done(walked) => Some((item, walked)),
            State::Walking => None,
        }
    }

    fn done(&mut self, (number, walked): (u64, Option<WalkedStack>)) {
        let index = usize::try_from(number.wrapping_sub(self.first)).ok();
        if let Some(waiting) = index.and_then(|index| self.waiting.get_mut(index)) {
            waiting.state = State::Done(walked);
        }
    }
}
