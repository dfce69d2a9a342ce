//! The stacks of samples beside those of other unwinders.

use std::fmt;
use std::io;

use serde::Serialize;
use unwind_perf::record::{UserAbi, UserState};
use unwind_profile::mapped::names::{Mode, Names};
use unwind_profile::mapped::probed_returns::user_words;
use unwind_profile::recording::events::Events;
use unwind_profile::walks::shown::{Printer, Shown};
use unwind_profile::walks::walked_stack::{WalkedFrame, WalkedStack};
use unwind_target::Untrusted;

use crate::commands::verify::agreement::{Agreement, compare};
use crate::commands::verify::perf_script::{PerfScript, PerfScriptError};

/// How often stacks agree in which way.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Counts {
    equal: u64,
    ours_further: u64,
    ours_more: u64,
    theirs_further: u64,
    differ: u64,
    nothing: u64,
}

/// What came of the comparison.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    schema: u32,
    /// With a stack.
    pub(super) samples: u64,
    pub(super) complete: u64,
    pub(super) beside: Vec<Beside>,
    pub(super) listed: Vec<Listed>,
}

/// How the stacks of another unwinder agree.
#[derive(Debug, Serialize)]
pub(super) struct Beside {
    name: Other,
    pub(super) version: Option<Untrusted>,
    pub(super) counts: Counts,
    /// The same of samples that are complete here.
    pub(super) complete: Counts,
    /// Of 32-bit code, which perf's unwinder takes for that of 64 bits.
    pub(super) left_out: u64,
}

/// Another unwinder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Other {
    Perf,
    Kernel,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Perf => "perf",
            Self::Kernel => "kernel",
        })
    }
}

/// A sample of which another unwinder has a frame that is not here.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    pub(super) sample: u64,
    pub(super) beside: Other,
    agreement: Agreement,
    /// The first frame that is not the same.
    pub(super) frame: usize,
    pub(super) here: Option<String>,
    pub(super) there: Option<String>,
    pub(super) function: Option<Untrusted>,
    complete: bool,
}

/// The version of the form of the JSON.
const SCHEMA: u32 = 1;

/// Compares samples as they come.
pub(super) struct Verifier {
    perf: Option<PerfScript>,
    names: Names,
    list: usize,
    /// How many samples `unwind script` would have shown so far.
    number: u64,
    samples: u64,
    complete: u64,
    beside: [(Counts, Counts); 2],
    /// Those of 32-bit code.
    ia32: u64,
    /// Whether a sample had a chain of the kernel's.
    has_chains: bool,
    listed: Vec<Listed>,
}

impl Verifier {
    /// Lists `list` samples at most.
    pub(super) fn new(perf: Option<PerfScript>, names: Names, list: usize) -> Self {
        Self {
            perf,
            names,
            list,
            number: 0,
            samples: 0,
            complete: 0,
            beside: Default::default(),
            ia32: 0,
            has_chains: false,
            listed: Vec::new(),
        }
    }

    /// What came of it, and how perf ended.
    pub(super) fn finish(
        self,
        version: Option<Untrusted>,
    ) -> (Comparison, Result<(), PerfScriptError>) {
        let [perf, kernel] = self.beside;
        let of = |name, version, (counts, complete), left_out| Beside {
            name,
            version,
            counts,
            complete,
            left_out,
        };
        let mut beside = Vec::new();
        beside.extend(version.map(|version| of(Other::Perf, Some(version), perf, self.ia32)));
        beside.extend(self.has_chains.then(|| of(Other::Kernel, None, kernel, 0)));
        let comparison = Comparison {
            schema: SCHEMA,
            samples: self.samples,
            complete: self.complete,
            beside,
            listed: self.listed,
        };
        (comparison, self.perf.map_or(Ok(()), PerfScript::finish))
    }

    /// Counts a sample, and lists it if the other unwinder has a frame that is not here.
    fn add(
        &mut self,
        other: Other,
        theirs: &[u64],
        shown: &Shown,
        walked: &WalkedStack,
        is_same: impl Fn(&WalkedFrame, u64) -> bool,
    ) {
        let (agreement, at) = compare(&walked.frames, theirs, is_same);
        let [perf, kernel] = &mut self.beside;
        let (all, complete) = match other {
            Other::Perf => perf,
            Other::Kernel => kernel,
        };
        all.add(agreement);
        if walked.is_complete() {
            complete.add(agreement);
        }
        if !agreement.is_contradiction() || self.listed.len() >= self.list {
            return;
        }
        let frame = walked.frames.get(at);
        let place = frame
            .map(|frame| self.names.place(frame.call, Mode::User, &shown.space, &shown.kernel));
        self.listed.push(Listed {
            sample: self.number,
            beside: other,
            agreement,
            frame: at,
            here: frame.map(|frame| format!("{:#x}", frame.pc)),
            there: theirs.get(at).map(|addr| format!("{addr:#x}")),
            function: place.and_then(|place| Some((*place.function?.0).clone())),
            complete: walked.is_complete(),
        });
    }
}

impl Printer for Verifier {
    fn print(
        &mut self,
        events: &Events,
        shown: &Shown,
        walked: Option<&WalkedStack>,
    ) -> io::Result<()> {
        if !shown.is_sample() {
            return Ok(());
        }
        self.number = self.number.saturating_add(1);
        let Some(walked) = walked.filter(|walked| !walked.frames.is_empty()) else { return Ok(()) };
        self.samples = self.samples.saturating_add(1);
        self.complete = self.complete.saturating_add(u64::from(walked.is_complete()));
        let chain: Vec<u64> = shown.held.callchain().into_iter().flat_map(user_words).collect();
        if !chain.is_empty() {
            self.has_chains = true;
            let is_code = |addr| shown.space.find(addr).is_some_and(|range| range.executable);
            let code = chain.iter().take_while(|&&word| is_code(word)).count();
            let code = chain.get(..code).unwrap_or_default();
            self.add(Other::Kernel, code, shown, walked, |frame, word| frame.pc == word);
        }
        if is_ia32(events, shown) {
            self.ia32 = self.ia32.saturating_add(1);
            return Ok(());
        }
        let (thread, time) = (shown.held.task.tid, shown.held.time);
        let addrs = self.perf.as_mut().map(|perf| perf.addrs(thread, time).unwrap_or_default());
        let Some(addrs) = addrs else { return Ok(()) };
        // perf 6.1 has the address in the file.
        let is_same = |frame: &WalkedFrame, addr: u64| {
            let in_file = |addr| shown.space.find(addr).map(|range| range.file_offset(addr));
            frame.call == addr || in_file(frame.call) == Some(addr)
        };
        let mut theirs = user_part(&addrs);
        if let (Some((own, walked_by_perf)), Some(first)) =
            (theirs.split_at_checked(chain.len()), walked.frames.first())
            && own.first().is_some_and(|&addr| is_same(first, addr))
            && walked_by_perf.first().is_none_or(|&addr| is_same(first, addr))
        {
            // The kernel's chain comes first.
            theirs = walked_by_perf;
        }
        self.add(Other::Perf, theirs, shown, walked, is_same);
        Ok(())
    }

    fn read(&mut self, _: usize) {}

    fn pass_over(&mut self, shown: &Shown) {
        if shown.is_sample() {
            self.number = self.number.saturating_add(1);
        }
    }
}

/// Whether a sample was taken in 32-bit code.
fn is_ia32(events: &Events, shown: &Shown) -> bool {
    let event = events.get(shown.held.event);
    let state = event.zip(shown.held.record()).map(|(event, record)| {
        UserState::decode(&record, &event.attr).map(|state| state.map(|state| state.abi))
    });
    matches!(state, Some(Ok(Some(UserAbi::Bits32))))
}

/// The addresses after the kernel's. Where perf's unwinder has found a return address of zero, it
/// shows the byte before it.
fn user_part(addrs: &[u64]) -> &[u64] {
    let kernel = addrs.iter().take_while(|&&addr| addr >> 63 != 0).count();
    let user = addrs.get(kernel..).unwrap_or_default();
    user.strip_suffix(&[u64::MAX]).unwrap_or(user)
}

impl Counts {
    fn add(&mut self, agreement: Agreement) {
        let count = self.of_mut(agreement);
        *count = count.saturating_add(1);
    }

    const fn of_mut(&mut self, agreement: Agreement) -> &mut u64 {
        match agreement {
            Agreement::Equal => &mut self.equal,
            Agreement::OursFurther => &mut self.ours_further,
            Agreement::OursMore => &mut self.ours_more,
            Agreement::TheirsFurther => &mut self.theirs_further,
            Agreement::Differ => &mut self.differ,
            Agreement::Nothing => &mut self.nothing,
        }
    }

    /// How many samples agree in this way.
    pub(super) fn of(mut self, agreement: Agreement) -> u64 {
        *self.of_mut(agreement)
    }
}
