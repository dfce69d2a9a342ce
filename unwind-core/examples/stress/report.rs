//! What comes of a run.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::deferred::DropCounts;

/// NMIs in user code. What NMIs count is static: they have no report.
pub(crate) static NMIS_IN_USER: AtomicU64 = AtomicU64::new(0);
/// NMIs in the kernel.
pub(crate) static NMIS_IN_KERNEL: AtomicU64 = AtomicU64::new(0);
/// Queued, already pending, already executed, refused.
pub(crate) static REQUESTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Samples that found no room in their task.
pub(crate) static NO_ROOM: AtomicU64 = AtomicU64::new(0);

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) entries: u64,
    pub(crate) switches: u64,
    pub(crate) client_changes: u64,
    pub(crate) calls: u64,
    pub(crate) matched: u64,
    /// The client was cancelled before it was called.
    pub(crate) cancelled: u64,
    /// A stack that is not the sample's.
    pub(crate) wrong: u64,
    /// No stack and no reason.
    pub(crate) lost: u64,
    /// A client called twice with one cookie.
    pub(crate) twice: u64,
    /// A cookie that an earlier entry of the task had.
    pub(crate) repeated: u64,
    pub(crate) drops: DropCounts,
}

impl Report {
    pub(crate) fn add(&mut self, other: &Self) {
        self.entries += other.entries;
        self.switches += other.switches;
        self.calls += other.calls;
        self.matched += other.matched;
        self.cancelled += other.cancelled;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.twice += other.twice;
        self.repeated += other.repeated;
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.matched > 0 && self.wrong + self.lost + self.twice + self.repeated == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [queued, pending, executed, refused] = REQUESTS.each_ref().map(get);
        writeln!(f, "{} kernel entries, {} task switches", self.entries, self.switches)?;
        writeln!(
            f,
            "{} nmis in the kernel, {} in user code",
            get(&NMIS_IN_KERNEL),
            get(&NMIS_IN_USER)
        )?;
        writeln!(f, "{} registrations and cancellations", self.client_changes)?;
        writeln!(
            f,
            "requests: {queued} queued, {pending} pending, {executed} executed, {refused} refused"
        )?;
        writeln!(f, "{} calls of clients", self.calls)?;
        writeln!(f, "samples matched           {:>12}", self.matched)?;
        writeln!(f, "  client was cancelled    {:>12}", self.cancelled)?;
        writeln!(f, "  no room to record       {:>12}", get(&NO_ROOM))?;
        writeln!(f, "  matched wrongly         {:>12}", self.wrong)?;
        writeln!(f, "  lost without a reason   {:>12}", self.lost)?;
        writeln!(f, "clients called twice      {:>12}", self.twice)?;
        writeln!(f, "cookies used again        {:>12}", self.repeated)?;
        let drops = &self.drops;
        write!(
            f,
            "counted by the core: {} requests of cancelled clients dropped, {} refused",
            drops.client_cancelled, drops.unknown_client
        )
    }
}
