//! From samples to the profile.

use std::collections::{BTreeMap, HashMap};
use std::io;

use unwind_perf::record::Misc;

use crate::commands::perf::events::Events;
use crate::commands::perf::names::{Mode, Names};
use crate::commands::perf::shown::{ChainEnd, Link, Printer, Shown};
use crate::commands::perf::walk::WalkedStack;
use crate::commands::report::profile::{Frame, Profile};

/// What became of the samples of a recording, as far as it can be told from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) samples: u64,
    pub(crate) complete: u64,
    pub(crate) incomplete: BTreeMap<String, u64>,
    /// Samples without a user part.
    pub(crate) kernel_only: u64,
    pub(crate) unmatched: u64,
    /// User parts that nobody has checked: those that the kernel found by frame pointers.
    pub(crate) unchecked: u64,
}

/// Which samples are not complete, by time and thread.
pub(crate) type Marks = HashMap<(u64, u32), String>;

/// Puts samples together.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) profile: Profile,
    pub(crate) seen: Seen,
    names: Names,
    /// What the recording says of its own stacks.
    marks: Option<Marks>,
    /// The frame of an address, by the names that it has.
    stack: Vec<usize>,
}

impl Collector {
    /// `marks` are those of a recording whose stacks were walked when it was made.
    pub(crate) fn new(names: Names, marks: Option<Marks>) -> Self {
        let (profile, seen) = (Profile::default(), Seen::default());
        Self { profile, seen, names, marks, stack: Vec::new() }
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
        let key = (shown.held.time, shown.held.task.tid);
        let reason = match (shown.end, walked, &mut self.marks) {
            (ChainEnd::Unmatched(_), ..) => {
                count(&mut seen.unmatched);
                return Some("unmatched".to_owned());
            }
            (_, Some(walked), _) => walked.incomplete().map(str::to_owned),
            (_, None, Some(marks)) if marks.contains_key(&key) => marks.remove(&key),
            _ if !has_user => {
                count(&mut seen.kernel_only);
                return None;
            }
            (_, None, Some(_)) => None,
            (_, None, None) => {
                count(&mut seen.unchecked);
                return None;
            }
        };
        match &reason {
            Some(reason) => count(seen.incomplete.entry(reason.clone()).or_default()),
            None => count(&mut seen.complete),
        }
        reason
    }

    fn push(&mut self, shown: &Shown, addr: u64, mode: Mode) {
        let place = self.names.place(addr, mode, &shown.space, &shown.kernel);
        let name = place.function.as_ref().map(|(name, _)| &**name);
        let frame = Frame::new(name, place.file.as_ref(), mode == Mode::Kernel);
        let frame = self.profile.frame(frame);
        self.stack.push(frame);
    }
}

impl Printer for Collector {
    fn print(&mut self, _: &Events, shown: &Shown, walked: Option<&WalkedStack>) -> io::Result<()> {
        if matches!(shown.end, ChainEnd::Stack(_)) {
            return Ok(());
        }
        self.stack.clear();
        // Where a part begins is where the CPU was; all others are where calls return to.
        let (mut part, mut has_user) = (None, false);
        for link in shown.links() {
            match link {
                Link::Ip(ip, mode) => {
                    let is_first = part.replace(mode) != Some(mode);
                    has_user |= mode == Mode::User;
                    let addr = if is_first { ip } else { ip.wrapping_sub(1) };
                    self.push(shown, addr, mode);
                }
                Link::NoAddress(_) => {}
            }
        }
        for frame in walked.iter().flat_map(|walked| &walked.frames) {
            has_user = true;
            self.push(shown, frame.call, Mode::User);
        }
        if self.stack.is_empty()
            && let Some(ip) = shown.held.ip()
        {
            let mode = Mode::of_sample(shown.misc());
            has_user |= mode == Mode::User;
            self.push(shown, ip, mode);
        }
        let is_of_user = shown.misc().cpu_mode() == Misc::USER;
        let reason = self.class(shown, walked, has_user || is_of_user);
        let thread = self.profile.frame(Frame::note(&shown.comm.escaped().to_string()));
        let why = reason
            .map(|reason| self.profile.frame(Frame::note(&format!("[incomplete: {reason}]"))));
        let outer = why.into_iter().chain([thread]);
        let stack = outer.chain(self.stack.iter().rev().copied());
        self.profile.add(stack, 1);
        Ok(())
    }

    fn read(&mut self, _: usize) {}
}
