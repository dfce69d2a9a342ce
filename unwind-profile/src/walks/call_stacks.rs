//! Call stacks that the CPU recorded (LBR), made longer by the samples before, and joined
//! with what a walk found.

use std::collections::HashMap;

use unwind_perf::record::{BranchEntry, BranchSampleType, Context, Misc};
use unwind_x86::lbr::{Branch, BranchInfo, JoinedFrame, LbrSample, Stitcher, join};

use crate::recording::held::{Held, Meaning};

/// Of how many threads calls are kept, a few KiB each.
const MAX_THREADS: usize = 4096;

/// From where a frame is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSource {
    /// It is where the sample was taken.
    Sampled,
    /// The CPU's record of this sample.
    Record,
    /// The record of a sample before.
    Stitched,
    /// The walk: that of the kernel along frame pointers, or one by tables.
    Walk,
    /// The walk, and the record of this sample.
    RecordAndWalk,
    /// The walk, and the record of a sample before.
    StitchedAndWalk,
}

impl FrameSource {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sampled => "sampled",
            Self::Record => "lbr",
            Self::Stitched => "stitched",
            Self::Walk => "walk",
            Self::RecordAndWalk => "lbr+walk",
            Self::StitchedAndWalk => "stitched+walk",
        }
    }
}

/// A frame of a joined stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinedCall {
    /// Where the frame continues; its call if that is not known.
    pub(crate) pc: u64,
    /// What to look up: its call, if that is known.
    pub(crate) call: u64,
    pub(crate) source: FrameSource,
    /// Which frame of the walk it is.
    pub(crate) walked: Option<usize>,
}

/// The calls that led to a sample, the newest first.
#[derive(Clone, Debug)]
pub(crate) struct CallStack {
    calls: Vec<Branch>,
    /// How many are in the sample's own record. The others are older.
    own: usize,
    /// Where in user code the sample was taken, if the stack is to begin there.
    pc: Option<u64>,
}

impl CallStack {
    /// The stack that perf makes of it: where the sample was taken, or the last call went, and
    /// the calls.
    pub(crate) fn alone(&self) -> Vec<JoinedCall> {
        let sampled = self.pc.map(|pc| (pc, FrameSource::Sampled));
        let target = self.calls.first().map(|call| (call.to, FrameSource::Record));
        let first = sampled.or(target);
        let calls = self.calls.iter().enumerate().map(|(at, call)| (call.from, self.source(at)));
        let frame = |(pc, source)| JoinedCall { pc, call: pc, source, walked: None };
        first.into_iter().chain(calls).map(frame).collect()
    }

    /// The calls joined with the frames of a walk, by their pcs.
    pub(crate) fn joined(&self, walk: &[u64]) -> Vec<JoinedCall> {
        if walk.is_empty() {
            return self.alone();
        }
        let (mut call_at, mut walk_at) = (0..self.calls.len(), 0..walk.len());
        let mut frames = Vec::new();
        for frame in join(&self.calls, walk).frames() {
            let own = |at: Option<usize>| at.is_none_or(|at| at < self.own);
            let (source, walked) = match frame {
                JoinedFrame::Sampled(_) => (FrameSource::Sampled, walk_at.next()),
                JoinedFrame::Walked(_) => (FrameSource::Walk, walk_at.next()),
                JoinedFrame::Recorded(_) if own(call_at.next()) => (FrameSource::Record, None),
                JoinedFrame::Recorded(_) => (FrameSource::Stitched, None),
                JoinedFrame::Both { .. } if own(call_at.next()) => {
                    (FrameSource::RecordAndWalk, walk_at.next())
                }
                JoinedFrame::Both { .. } => (FrameSource::StitchedAndWalk, walk_at.next()),
            };
            let (pc, call) = match frame {
                JoinedFrame::Walked(ra) => (ra.get(), ra.get()),
                other => (other.addr().get(), other.lookup_addr().get()),
            };
            frames.push(JoinedCall { pc, call, source, walked });
        }
        frames
    }

    fn source(&self, at: usize) -> FrameSource {
        if at < self.own { FrameSource::Record } else { FrameSource::Stitched }
    }
}

/// What the samples so far have recorded of the calls of threads.
#[derive(Debug)]
pub struct CallStacks {
    /// Whether samples are made longer by those before, and joined with walks.
    is_stitching: bool,
    /// Whether stacks that are not joined begin at the pc.
    begins_at_pc: bool,
    /// How many entries the CPU's record has, if the recording says so.
    depth: Option<u32>,
    threads: HashMap<u32, Box<Stitcher>>,
}

impl CallStacks {
    #[must_use]
    pub fn new(is_stitching: bool, depth: Option<u32>) -> Self {
        Self { is_stitching, begins_at_pc: true, depth, threads: HashMap::new() }
    }

    /// Stacks begin where the last call went, and not where in that function the sample was
    /// taken, as those of perf 6.1.
    #[must_use]
    pub fn starting_at_last_call(self) -> Self {
        Self { begins_at_pc: false, ..self }
    }

    /// Learns how many entries the CPU's record has, if a record has said so.
    pub(crate) const fn learn_depth(&mut self, told: Option<u32>) {
        if told.is_some() {
            self.depth = told;
        }
    }

    pub(crate) const fn is_stitching(&self) -> bool {
        self.is_stitching
    }

    /// The calls of a sample, if its event records calls and there are any.
    pub(crate) fn of(&mut self, held: &Held) -> Option<CallStack> {
        if !held.format.branch_sample_type.contains(BranchSampleType::CALL_STACK) {
            return None;
        }
        let (hw_index, entries) = held.branches();
        let mut calls: Vec<Branch> = entries.map(branch).collect();
        let own = calls.len();
        if let Some(depth) = self.depth.filter(|_| self.is_stitching) {
            let top = hw_index.and_then(|top| u32::try_from(top).ok());
            match LbrSample::from_branches(&calls, depth, top).filter(|_| own != 0) {
                Some(sample) => {
                    let stitcher = self.stitcher(held);
                    stitcher.push(&sample, &());
                    calls.extend(stitcher.older().iter().map(|(call, ())| *call));
                }
                None => _ = self.threads.remove(&held.task.tid),
            }
        }
        let pc = user_pc(held).filter(|_| self.begins_at_pc);
        (own != 0).then_some(CallStack { calls, own, pc })
    }

    fn stitcher(&mut self, held: &Held) -> &mut Stitcher {
        let tid = held.task.tid;
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        self.threads.entry(tid).or_insert_with(|| {
            let has_no_cycles =
                held.format.branch_sample_type.contains(BranchSampleType::NO_CYCLES);
            // Without cycles there is no other evidence.
            let stitcher = Stitcher::new();
            Box::new(if has_no_cycles { stitcher.trusting_addresses() } else { stitcher })
        })
    }

    /// Forgets the calls of a thread that goes or executes another program, and of all
    /// threads if samples were lost.
    pub(crate) fn take(&mut self, held: &Held) {
        match held.meaning {
            Meaning::Exec | Meaning::Exit => _ = self.threads.remove(&held.task.tid),
            Meaning::Lost(_) => self.threads.clear(),
            Meaning::Sample(_) | Meaning::Stack(_) | Meaning::Other => {}
        }
    }
}

fn branch(entry: BranchEntry) -> Branch {
    const CYCLES_COUNTED: u64 = 1 << 60;
    let BranchEntry { from, to, flags, .. } = entry;
    let bit = |is_set: bool, at: u32| u64::from(is_set).wrapping_shl(at);
    let info = u64::from(flags.cycles())
        | CYCLES_COUNTED
        | bit(flags.is_abort(), 61)
        | bit(flags.is_in_transaction(), 62)
        | bit(flags.is_mispredicted(), 63);
    Branch { from, to, info: BranchInfo::from_bits(info) }
}

/// A call chain whose user part is that of `calls`, and from where its frames are known:
/// joined with the user part as it is, or in its place. `None` if it has no user part.
pub(crate) fn with_calls(
    chain: &[u64],
    calls: &CallStack,
    held: &Held,
    is_joined: bool,
) -> Option<(Vec<u64>, Vec<JoinedCall>)> {
    let marks = [Context::User.word(), Context::UserDeferred.word()];
    let mark = chain.iter().rposition(|word| marks.contains(word))?;
    let (before, user) = chain.split_at_checked(mark.saturating_add(1))?;
    let frames = match (is_joined, user) {
        (false, _) => calls.alone(),
        (true, []) => calls.joined(user_pc(held).as_slice()),
        (true, user) => calls.joined(user),
    };
    Some((before.to_vec(), frames))
}

/// Where in user code a sample was taken.
fn user_pc(held: &Held) -> Option<u64> {
    let misc = held.record()?.header().misc;
    held.ip().filter(|_| misc.cpu_mode() == Misc::USER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::walked_stack::{WalkedFrame, WalkedStack};

    fn call(from: u64, to: u64) -> Branch {
        Branch { from, to, info: BranchInfo::from_bits(0) }
    }

    #[test]
    fn a_walk_that_is_joined_keeps_its_marks_and_gets_the_frames_that_it_missed() {
        let frame =
            |pc, after_gap| WalkedFrame { pc, call: pc - 1, after_gap, source: None, found: None };
        let frames = vec![frame(0x404, false), frame(0x205, true), frame(0x105, false)];
        let mut walked = WalkedStack { frames, cut: None, end: "", calls: Vec::new() };
        let calls = vec![call(0x300, 0x400), call(0x200, 0x300), call(0x100, 0x200)];
        walked.join(&CallStack { calls, own: 3, pc: None });
        let found: Vec<(u64, u64, bool)> =
            walked.frames.iter().map(|f| (f.pc, f.listed(), f.after_gap)).collect();
        assert_eq!(
            found,
            [
                (0x404, 0x404, false),
                (0x300, 0x300, false),
                (0x205, 0x204, true),
                (0x105, 0x104, false),
            ]
        );
        assert_eq!(walked.frames.get(1).unwrap().source, Some(FrameSource::Record));
    }

    #[test]
    fn each_frame_says_from_where_it_is_known() {
        use FrameSource::{Record, RecordAndWalk, Sampled, Stitched, StitchedAndWalk, Walk};
        // The second call is older than the record.
        let calls = vec![call(0x300, 0x400), call(0x200, 0x300), call(0x100, 0x200)];
        let stack = CallStack { calls, own: 1, pc: None };
        let sources = |frames: Vec<JoinedCall>| -> Vec<(u64, u64, FrameSource, Option<usize>)> {
            frames.iter().map(|f| (f.pc, f.call, f.source, f.walked)).collect()
        };
        assert_eq!(
            sources(stack.joined(&[0x404, 0x305, 0x205, 0x105, 0x55])),
            [
                (0x404, 0x404, Sampled, Some(0)),
                (0x305, 0x300, RecordAndWalk, Some(1)),
                (0x205, 0x200, StitchedAndWalk, Some(2)),
                (0x105, 0x100, StitchedAndWalk, Some(3)),
                (0x55, 0x55, Walk, Some(4)),
            ]
        );
        // The walk ends first.
        assert_eq!(
            sources(stack.joined(&[0x404])),
            [
                (0x404, 0x404, Sampled, Some(0)),
                (0x300, 0x300, Record, None),
                (0x200, 0x200, Stitched, None),
                (0x100, 0x100, Stitched, None),
            ]
        );
        // They have nothing to do with each other: the walk is taken.
        assert_eq!(
            sources(stack.joined(&[0x404, 0x905])),
            [(0x404, 0x404, Sampled, Some(0)), (0x905, 0x905, Walk, Some(1))]
        );
        let alone: Vec<u64> = stack.alone().iter().map(|frame| frame.call).collect();
        assert_eq!(alone, [0x400, 0x300, 0x200, 0x100]);
        let at_pc = CallStack { pc: Some(0x404), ..stack };
        let alone: Vec<u64> = at_pc.alone().iter().map(|frame| frame.call).collect();
        assert_eq!(alone, [0x404, 0x300, 0x200, 0x100]);
    }
}
