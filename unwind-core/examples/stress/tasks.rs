//! Tasks with stacks that spell a token, and samples that remember it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;

use test_support::cpu::{Cpu64, FramePointers, Regs};
use unwind_core::deferred::{ClientId, Cookie, SampleOutcome, TaskState, UnwindCache};
use unwind_core::{PackedFrame, SliceMemory, Trace, VirtAddr, Walker};

use crate::clients::Clients;
use crate::machine::SpinLock;
use crate::report::Report;

/// Samples that a task can take in one kernel entry.
const SAMPLES: usize = 256;
/// Frames that the token is spread over, six bits each.
const FRAMES: u64 = 8;
/// Where user code lies.
const CODE: u64 = 0x40_0000;
/// Where the user stack lies.
const STACK: u64 = 0x7fff_0000;

pub(crate) type Cache = UnwindCache<[PackedFrame; 16]>;

/// A task. Only the CPU that runs it touches it, and NMIs of that CPU.
pub(crate) struct Task {
    pub(crate) unwind: TaskState,
    /// Work to be done on the way to user mode.
    pub(crate) work: AtomicBool,
    pub(crate) in_user: AtomicBool,
    /// What the user stack spells.
    token: AtomicU64,
    samples: Box<[Sample]>,
    taken: AtomicU64,
    /// What a task has that NMIs do not touch.
    pub(crate) rest: SpinLock<Rest>,
}

#[derive(Default)]
struct Sample {
    client: AtomicU64,
    cookie: AtomicU64,
    token: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Rest {
    /// Steps until this kernel entry is over.
    pub(crate) steps: u32,
    pub(crate) cache: Cache,
    /// The user stack in memory.
    stack: Vec<u8>,
    /// What was delivered in this entry: how it ended, and the token.
    delivered: HashMap<(ClientId, Cookie), (SampleOutcome, Option<u64>)>,
    /// The newest cookie: later ones must differ, and do so by rising.
    last_cookie: u64,
}

impl Task {
    pub(crate) fn new(token: u64) -> Self {
        let task = Self {
            unwind: TaskState::new(),
            work: AtomicBool::new(false),
            in_user: AtomicBool::new(true),
            token: AtomicU64::new(0),
            samples: (0..SAMPLES).map(|_| Sample::default()).collect(),
            taken: AtomicU64::new(0),
            rest: SpinLock::default(),
        };
        task.run_user_code(&mut task.rest.lock(), token);
        task
    }

    /// User code runs: the stack is another one.
    pub(crate) fn run_user_code(&self, rest: &mut Rest, token: u64) {
        let token = token & ((1 << (6 * FRAMES)) - 1);
        self.token.store(token, Ordering::Relaxed);
        rest.stack.clear();
        for frame in 1..=FRAMES {
            let fp = if frame == FRAMES { 0 } else { STACK + 16 * frame };
            let ra = if frame == FRAMES { 0 } else { Self::pc(token, frame) };
            rest.stack.extend(fp.to_le_bytes());
            rest.stack.extend(ra.to_le_bytes());
        }
    }

    /// The code address of a frame: six bits of the token.
    fn pc(token: u64, frame: u64) -> u64 {
        CODE + (token >> (6 * frame) & 0x3f) * 16 + 8
    }

    /// Walks the user stack by its frame pointers.
    pub(crate) fn walk(&self, stack: &[u8], trace: &mut Trace) {
        let token = self.token.load(Ordering::Relaxed);
        let regs = Regs::new(Self::pc(token, 0), STACK, Some(STACK));
        let mut memory = SliceMemory::new(VirtAddr::new(STACK), stack);
        Walker::new(Cpu64, FramePointers).trace(regs, &mut memory, trace);
    }

    /// Records a sample: in an NMI or anywhere else.
    pub(crate) fn record(&self, client: ClientId, cookie: Cookie) -> bool {
        let at = self.taken.fetch_add(1, Ordering::Relaxed);
        let Some(sample) = usize::try_from(at).ok().and_then(|at| self.samples.get(at)) else {
            return false;
        };
        sample.client.store(client.to_bits(), Ordering::Relaxed);
        sample.token.store(self.token.load(Ordering::Relaxed), Ordering::Relaxed);
        sample.cookie.store(cookie.get(), Ordering::Relaxed);
        true
    }

    /// Compares the samples of the entry that is over with what was delivered.
    pub(crate) fn match_samples(&self, rest: &mut Rest, clients: &Clients, report: &mut Report) {
        let taken = usize::try_from(self.taken.swap(0, Ordering::Relaxed)).unwrap_or(SAMPLES);
        for sample in self.samples.iter().take(taken) {
            let client = ClientId::from_bits(sample.client.load(Ordering::Relaxed));
            let token = sample.token.load(Ordering::Relaxed);
            let cookie = sample.cookie.swap(0, Ordering::Relaxed);
            // The NMI that took the place was interrupted by the end of it all.
            let Some(cookie) = Cookie::new(cookie) else { continue };
            let counter = match rest.delivered.get(&(client, cookie)) {
                Some(&(SampleOutcome::Matched, Some(walked))) if walked == token => {
                    &mut report.matched
                }
                Some(_) => &mut report.wrong,
                None if clients.is_cancelled(client) => &mut report.cancelled,
                None => &mut report.lost,
            };
            *counter += 1;
        }
        let newest = rest.delivered.keys().map(|key| key.1.get()).max();
        let oldest = rest.delivered.keys().map(|key| key.1.get()).min();
        report.repeated += u64::from(oldest.is_some_and(|cookie| cookie <= rest.last_cookie));
        rest.last_cookie = newest.unwrap_or(rest.last_cookie);
        rest.delivered.clear();
    }
}

impl Rest {
    pub(crate) fn stack(&self) -> Vec<u8> {
        self.stack.clone()
    }

    /// Keeps what was delivered; `false` if it was delivered before.
    pub(crate) fn keep(
        &mut self,
        key: (ClientId, Cookie),
        end: SampleOutcome,
        trace: Option<&Trace>,
    ) -> bool {
        self.delivered.insert(key, (end, trace.and_then(token_of))).is_none()
    }
}

/// The token that a stack spells.
fn token_of(trace: &Trace) -> Option<u64> {
    let mut token = 0;
    let mut frames = 0;
    for pc in trace.pcs() {
        let at = pc.get().checked_sub(CODE + 8)?;
        (at % 16 == 0 && at / 16 < 64).then_some(())?;
        token |= (at / 16) << (6 * frames);
        frames += 1;
    }
    (frames == FRAMES).then_some(token)
}
