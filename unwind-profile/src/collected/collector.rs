//! From samples to the profile.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem;
use std::sync::Arc;

use foldhash::fast::RandomState;
use unwind_target::Notices;

use crate::collected::call_tree::{CallTree, Frame};
use crate::collected::grouping::{By, Cgroups};
use crate::collected::inlined::CodeFrames;
use crate::collected::interpreted_calls::InterpretedCalls;
use crate::collected::line_samples::LineSamples;
use crate::collected::side::compared_file;
use crate::collected::time_line::{TimeLine, Timed};
use crate::collected::waits::{WaitCounts, cpu_time};
use crate::mapped::kernel::SampledKernel;
use crate::mapped::layout::Layout;
use crate::mapped::names::{Mode, Names};
use crate::mapped::recorded_file::RecordedFile;
use crate::recording::code_names::InterpretedCall;
use crate::recording::events::Events;
use crate::recording::held::Held;
use crate::session::recorded_stacks::RecordedStacks;
use crate::walks::found_by::FoundBy;
use crate::walks::frame_calls::FrameCalls;
use crate::walks::shown::{ChainEnd, Link, Printer, Shown};
use crate::walks::walked_stack::WalkedStack;

/// What became of the samples of a recording, as far as it can be told from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) samples: u64,
    pub(crate) complete: u64,
    /// Of these, stacks with a call that may be one of the functions that are inlined in it.
    pub(crate) inlined_calls: u64,
    pub(crate) incomplete: BTreeMap<String, u64>,
    /// Samples without a user part.
    pub(crate) kernel_only: u64,
    pub(crate) unmatched: u64,
    /// User parts that were not checked: those that the kernel found by frame pointers.
    pub(crate) unchecked: u64,
}

/// What a stack is called that reaches the outermost frame by a guess.
const GAP: &str = "gap";

/// How many places in files are kept with their frames.
const MAX_KEPT: usize = 1 << 18;

/// What is known of the code at an address.
#[derive(Clone, Copy, Debug)]
struct Code {
    /// Its frame, if there was room for it.
    frame: Option<usize>,
    /// How its caller is found.
    caller_found: FoundBy,
}

/// Puts samples together.
#[derive(Debug)]
pub struct Collector {
    pub(crate) profile: CallTree,
    pub(crate) time_line: TimeLine,
    pub(crate) seen: Seen,
    pub(crate) waits: WaitCounts,
    by: By,
    /// Whether stacks with gaps stand apart from others.
    pub(crate) keeps_gaps_apart: bool,
    /// Whether files have the names by which those of two recordings are compared.
    pub(crate) is_compared: bool,
    /// What is added to the times of samples.
    pub(crate) time_shift: i64,
    /// About how many bytes a profile takes.
    room: usize,
    cgroups: Cgroups,
    names: Names,
    /// What the recording says of its own stacks.
    recorded: RecordedStacks,
    /// By file and link-time address; the files, so that no other has their place in memory.
    codes: HashMap<(usize, u64), Code, RandomState>,
    files: HashMap<usize, Arc<RecordedFile>, RandomState>,
    /// Where in the program samples were taken, if that is kept.
    pub(crate) line_samples: Option<LineSamples>,
    /// The file and the link-time address of the innermost frame, if it is the program's.
    innermost: Option<(Arc<RecordedFile>, u64)>,
    /// The stack of the sample, the innermost frame first.
    stack: Vec<(Option<usize>, FoundBy)>,
    /// Frames in which others may be inlined, if that is asked for.
    pub(crate) code_frames: Option<CodeFrames>,
    /// Which frames are shown, of stacks with calls of an interpreter.
    pub interpreted: InterpretedCalls,
}

impl Collector {
    /// The profile takes about `room` bytes.
    pub fn new(names: Names, by: By, room: usize) -> Self {
        Self {
            profile: CallTree::with_room(room),
            time_line: TimeLine::default(),
            seen: Seen::default(),
            waits: WaitCounts::default(),
            by,
            keeps_gaps_apart: false,
            is_compared: false,
            time_shift: 0,
            room,
            cgroups: Cgroups::default(),
            names,
            recorded: RecordedStacks::default(),
            codes: HashMap::default(),
            files: HashMap::default(),
            line_samples: None,
            innermost: None,
            stack: Vec::new(),
            code_frames: None,
            interpreted: InterpretedCalls::default(),
        }
    }

    /// Continues with the samples of another recording. Each has its own names.
    pub(crate) fn begin(&mut self, names: Names, recorded: RecordedStacks) {
        (self.names, self.recorded) = (names, recorded);
        self.cgroups = Cgroups::default();
        self.forget_codes();
    }

    /// Forgets the code of a recording, whose files are others in the next.
    pub(crate) fn forget_codes(&mut self) {
        self.codes.clear();
        self.files.clear();
    }

    /// One like this without samples, for one of `count` events.
    pub(crate) fn another(&self, count: usize) -> Self {
        let names = Names::new(SampledKernel::Running, Layout::Perf7_2, &Notices::default());
        let room = self.room.checked_div(count).unwrap_or(self.room);
        let mut another = Self::new(names, self.by, room);
        another.time_line = self.time_line.another();
        another.waits.are_shown = self.waits.are_shown;
        another.interpreted = self.interpreted;
        another.keeps_gaps_apart = self.keeps_gaps_apart;
        another.is_compared = self.is_compared;
        another.time_shift = self.time_shift;
        another.line_samples = self.line_samples.as_ref().map(|_| LineSamples::default());
        another.code_frames = self.code_frames.as_ref().map(CodeFrames::another);
        another
    }

    /// Gives another one what is a recording's, not an event's.
    pub(crate) fn lend(&mut self, other: &mut Self) {
        mem::swap(&mut self.names, &mut other.names);
        mem::swap(&mut self.recorded, &mut other.recorded);
        mem::swap(&mut self.cgroups, &mut other.cgroups);
    }

    /// Hands out what was put together, and begins anew.
    pub fn take_profile(&mut self) -> CallTree {
        self.time_line = TimeLine::default();
        // They have the places of frames.
        self.forget_codes();
        self.names.read_jit_maps_again();
        mem::replace(&mut self.profile, CallTree::with_room(self.room))
    }

    /// Why a sample's stack is not complete, if that is known, and counts it.
    fn class(
        &mut self,
        shown: &Shown,
        walked: Option<&WalkedStack>,
        has_user: bool,
    ) -> Option<String> {
        let seen = &mut self.seen;
        let count = |place: &mut u64| *place = place.saturating_add(1);
        count(&mut seen.samples);
        let reason = match (shown.end, walked) {
            (ChainEnd::Unmatched(_), _) => {
                count(&mut seen.unmatched);
                return Some("unmatched".to_owned());
            }
            (_, Some(walked)) => walked.incomplete().map(str::to_owned),
            (_, None) => match self.recorded.take_reason(&shown.held) {
                Some(reason) => Some(reason),
                None if !has_user => {
                    count(&mut seen.kernel_only);
                    return None;
                }
                None if self.recorded.others_are_complete() => None,
                None => {
                    count(&mut seen.unchecked);
                    return None;
                }
            },
        };
        match &reason {
            Some(reason) => count(seen.incomplete.entry(reason.clone()).or_default()),
            None => {
                count(&mut seen.complete);
                if walked.is_some_and(WalkedStack::has_call_of_several) {
                    count(&mut seen.inlined_calls);
                }
            }
        }
        reason
    }

    /// What is known of the code at an address.
    fn code(&mut self, shown: &Shown, addr: u64, mode: Mode, has_call: bool) -> Code {
        let range = mode.range_of(addr, &shown.space, &shown.kernel);
        let is_user = !matches!(mode, Mode::Kernel | Mode::Other);
        let in_file = match range {
            Some(range) if is_user => range.link_time(addr),
            Some(_) => Some(addr),
            None => None,
        };
        let key = range.zip(in_file).map(|(range, addr)| (Arc::as_ptr(&range.file).addr(), addr));
        if let Some(code) = key.and_then(|key| self.codes.get(&key)) {
            return *code;
        }
        let place = self.names.place_of(addr, mode, (&shown.space, &shown.kernel), has_call);
        let name = place.function.as_ref().map(|(name, _)| &**name);
        let compared = place.file.as_ref().filter(|_| self.is_compared).map(compared_file);
        let file = compared.as_ref().or(place.file.as_ref());
        let frame = Frame::new(name, file, mode.is_kernel());
        let in_file = range.filter(|_| is_user).zip(in_file);
        let frame = match (in_file, &mut self.code_frames) {
            (Some((range, addr)), Some(code_frames)) => {
                code_frames.place(&mut self.profile, &range.file, addr, frame)
            }
            _ => self.profile.frame(frame),
        };
        // Of other recordings the walk itself tells it.
        let is_asked = is_user && self.recorded.others_are_complete();
        let caller_found =
            if is_asked { FoundBy::of_callee(range, addr) } else { FoundBy::Unchecked };
        let code = Code { frame, caller_found };
        if let Some((key, range)) = key.zip(range) {
            if self.codes.len() >= MAX_KEPT {
                self.codes.clear();
                self.files.clear();
            }
            self.codes.insert(key, code);
            self.files.entry(key.0).or_insert_with(|| Arc::clone(&range.file));
        }
        code
    }

    fn push(&mut self, shown: &Shown, addr: u64, mode: Mode, found: FoundBy) -> Code {
        if self.stack.is_empty() {
            let range = (mode == Mode::User && self.line_samples.is_some())
                .then(|| shown.space.find(addr))
                .flatten();
            self.innermost =
                range.and_then(|range| Some((Arc::clone(&range.file), range.link_time(addr)?)));
        }
        let has_call = matches!(self.stack.last(), Some(&(_, FoundBy::Interpreted)));
        let code = self.code(shown, addr, mode, has_call);
        self.stack.push((code.frame, found));
        code
    }

    /// Adds a call of an interpreter, if these are shown: the frame that executes it comes next.
    fn push_call(&mut self, call: &InterpretedCall) {
        if self.interpreted == InterpretedCalls::Without {
            return;
        }
        let frame = self.profile.frame(Frame::interpreted(&call.code));
        self.stack.push((frame, FoundBy::Interpreted));
    }

    /// Takes the native frames out.
    fn keep_calls(&mut self) {
        self.stack.retain(|&(_, found)| found == FoundBy::Interpreted);
        if self.stack.is_empty() {
            let note = self.profile.frame(Frame::note("[no call of an interpreter]"));
            self.stack.push((note, FoundBy::Nothing));
        }
    }

    /// Marks the places of the stack before which callers may be missing: it reaches the outermost
    /// frame, so it stands where others do. Returns whether they are known.
    fn mark_gaps(&mut self) -> bool {
        if self.keeps_gaps_apart || !self.stack.iter().any(|&(_, found)| found == FoundBy::Guess) {
            return false;
        }
        let mark = self.profile.frame(Frame::note("[callers may be missing]"));
        let mut marked = Vec::with_capacity(self.stack.len().saturating_add(1));
        for (frame, found) in self.stack.drain(..) {
            // The innermost frame is first: the mark is called by the one that was guessed.
            marked.extend((found == FoundBy::Guess).then_some((mark, FoundBy::Nothing)));
            marked.push((frame, found));
        }
        self.stack = marked;
        true
    }

    /// Makes the stack of a sample. Returns whether it has a user part.
    fn stack_of(&mut self, shown: &Shown, walked: Option<&WalkedStack>) -> bool {
        self.stack.clear();
        self.innermost = None;
        // Where a part begins is where the CPU was; all others are where calls return to.
        let (mut part, mut has_user) = (None, false);
        let mut next_found = FoundBy::Sampled;
        let recorded = self.recorded.found();
        let mut calls = FrameCalls::of_chain(recorded.as_deref(), shown);
        let recorded = recorded.as_ref().map(|found| found.of_sample(shown.held.number));
        let mut recorded = recorded.into_iter().flatten();
        let count = shown.links().count();
        for (at, link) in shown.links().enumerate() {
            let Link::Ip(ip, mode) = link else { continue };
            let before: Option<Mode> = part.replace(mode);
            let is_first = before != Some(mode);
            if before.is_some_and(Mode::is_guest) && !mode.is_guest() {
                // The thread of the vCPU has entered the guest.
                let mark = self.profile.frame(Frame::note("[guest]"));
                self.stack.push((mark, FoundBy::Nothing));
            }
            has_user |= mode.is_user();
            if mode == Mode::User {
                calls.of_next_frame().for_each(|call| self.push_call(&call));
            }
            let addr = if is_first { ip } else { ip.wrapping_sub(1) };
            let found = match (mode, shown.source_of_link(at, count)) {
                (Mode::User, Some(source)) => FoundBy::of_source(source),
                (Mode::User, None) | (Mode::GuestUser, _) => match recorded.next() {
                    Some(found) => found,
                    None if is_first => FoundBy::Sampled,
                    // Its tables are in the guest.
                    None if mode.is_guest() => FoundBy::Unchecked,
                    None => next_found,
                },
                _ => FoundBy::Kernel,
            };
            next_found = self.push(shown, addr, mode, found).caller_found;
        }
        let mut calls = FrameCalls::of_walk(walked);
        for frame in walked.iter().flat_map(|walked| &walked.frames) {
            has_user = true;
            calls.of_next_frame().for_each(|call| self.push_call(&call));
            self.push(shown, frame.call, Mode::User, frame.found_by());
        }
        if self.stack.is_empty()
            && let Some(ip) = shown.held.ip()
        {
            let mode = Mode::of_sample(shown.misc());
            has_user |= mode.is_user();
            let found = if mode.is_user() { FoundBy::Sampled } else { FoundBy::Kernel };
            self.push(shown, ip, mode, found);
        }
        has_user
    }
}

impl Printer for Collector {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        if !shown.is_sample() {
            return Ok(());
        }
        let has_user = self.stack_of(shown, walked);
        let is_of_user = Mode::of_sample(shown.misc()).is_user();
        let reason = self.class(shown, walked, has_user || is_of_user);
        if self.interpreted == InterpretedCalls::Only {
            self.keep_calls();
        }
        let wait = self.waits.count(events, shown);
        if wait == Some(0) {
            return Ok(());
        }
        let innermost = self.stack.first().and_then(|&(frame, _)| frame);
        if let (Some(lines), Some((file, addr)), Some(frame), None) =
            (&mut self.line_samples, &self.innermost, innermost, wait)
        {
            lines.add(file, *addr, frame, 1);
        }
        let innermost = innermost.and_then(|place| self.profile.frames.get(place));
        let root = self.by.root(shown, &self.cgroups, innermost);
        let root = self.profile.frame(root);
        let reason = reason.filter(|reason| reason != GAP || !self.mark_gaps());
        let why = reason
            .map(|reason| self.profile.frame(Frame::note(&format!("[incomplete: {reason}]"))));
        let outer = why.into_iter().chain([root]).map(|frame| (frame, FoundBy::Nothing));
        let waits = wait.map(|_| (self.profile.frame(Frame::note("[off CPU]")), FoundBy::Nothing));
        let stack = outer.chain(self.stack.iter().rev().copied()).chain(waits);
        let count = wait.unwrap_or(1);
        if let Some(node) = self.profile.add(stack, count) {
            let Held { time, task, .. } = *shown.held;
            let time = time.saturating_add_signed(self.time_shift);
            let name = shown.comm.escaped().to_string();
            let (cpu_time, length) = match wait {
                Some(_) => (0, shown.held.period().unwrap_or(0)),
                None => (cpu_time(events, shown), 0),
            };
            let task = (task.pid, task.tid);
            let sample = Timed { time, task, name: &name, node, cpu_time, count, length };
            self.time_line.add(sample, &self.profile.nodes);
        }
        Ok(())
    }

    fn read(&mut self, _: usize) {}

    fn learn(&mut self, held: &Held) {
        self.cgroups.take(held);
    }
}
