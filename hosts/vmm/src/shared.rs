//! What all threads of a machine share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use unwind_core::deferred::{Cookie, SampleOutcome};
use unwind_guest::{GuestStack, VcpuRegisters};

use crate::absent_pages::AbsentPages;
use crate::image::GuestImage;
use crate::known::{Known, Verdict};
use crate::ram::GuestRam;
use crate::report::Report;
use crate::walks::GuestTables;

/// What all threads of a machine share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) tables: GuestTables,
    pub(crate) absent: Option<AbsentPages>,
    known: Known,
    is_done: AtomicBool,
    noted: Mutex<Noted>,
}

/// What was handed out.
#[derive(Debug, Default)]
struct Noted {
    cookies: HashSet<Cookie>,
    report: Report,
}

impl Shared {
    pub(crate) fn new(image: &GuestImage, ram: Arc<GuestRam>, absent: Option<AbsentPages>) -> Self {
        let (tables, known) = (GuestTables::new(image), Known::new(image));
        Self {
            ram,
            tables,
            absent,
            known,
            is_done: AtomicBool::new(false),
            noted: Mutex::default(),
        }
    }

    /// Has the vCPUs end.
    pub(crate) fn end(&self) {
        self.is_done.store(true, Ordering::Relaxed);
    }

    /// What was handed out so far.
    pub(crate) fn report(&self) -> Report {
        self.noted.lock().expect("no thread panics with it").report.clone()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    pub(crate) fn put_pages_away(&self, vcpu: u64) {
        if let Some(absent) = &self.absent {
            absent.put_away(&self.ram, vcpu);
        }
    }

    /// Takes note of a stack that is handed out.
    pub(crate) fn note(
        &self,
        cookie: Cookie,
        outcome: SampleOutcome,
        vcpu: &VcpuRegisters,
        stack: &GuestStack,
    ) {
        let mut verdict = self.known.check(vcpu, stack);
        let is_whole = outcome == SampleOutcome::Matched;
        if is_whole != (verdict == Verdict::Right) {
            verdict = Verdict::Wrong(format!("{outcome:?} of {verdict:?}"));
        }
        let mut noted = self.noted.lock().expect("no thread panics with it");
        let is_new = noted.cookies.insert(cookie);
        let report = &mut noted.report;
        report.stacks += 1;
        report.repeated += u64::from(!is_new);
        match verdict {
            Verdict::Right => report.right += 1,
            Verdict::Wrong(how) => report.wrong.push(how),
        }
    }
}
