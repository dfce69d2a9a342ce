//! The record of one task at a time: saved when it leaves the CPU, restored
//! when it comes back.

use core::fmt;

use super::branch::{BranchInfo, RawBranch};
use super::hardware::{Lbr, Msrs};
use super::sample::LbrSample;

/// What is kept of a task's record while it does not run: plain data, all
/// zeroes at first.
///
/// 832 bytes at a multiple of 64. The host places it wherever it keeps data of
/// a task, and gives it only to the CPU that switches or runs the task.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct LbrState {
    entries: [RawBranch; Lbr::MAX_DEPTH],
    /// How often the record was saved here.
    saves: u64,
    /// How many events of the task use its record.
    users: u32,
    /// How many of the entries are in use.
    len: u32,
    top: u32,
    /// Whether the entries are the task's as it left the CPU.
    valid: bool,
    next_stamp: u16,
}

const _: () = assert!(size_of::<LbrState>() == 832, "the documented size");

impl LbrState {
    /// The state of a task of which nothing is recorded.
    #[must_use]
    pub const fn new() -> Self {
        let entries = [RawBranch { from: 0, to: 0, info: 0 }; Lbr::MAX_DEPTH];
        Self { entries, saves: 0, users: 0, len: 0, top: 0, valid: false, next_stamp: 0 }
    }

    /// An event of the task starts to use its record, while the task does not
    /// run. For a task that runs there is [`LbrCpu::start`].
    pub fn add_user(&mut self) {
        self.users = self.users.saturating_add(1);
    }

    /// An event of the task has stopped using its record.
    pub fn remove_user(&mut self) {
        self.users = self.users.saturating_sub(1);
    }

    /// How many events of the task use its record.
    #[must_use]
    pub const fn users(&self) -> u32 {
        self.users
    }

    fn take_stamp(&mut self) -> u16 {
        let stamp = self.next_stamp;
        let last = stamp >= BranchInfo::MAX_STAMP;
        self.next_stamp = if last { 0 } else { stamp.wrapping_add(1) };
        stamp
    }
}

impl Default for LbrState {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LbrState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LbrState")
            .field("users", &self.users)
            .field("valid", &self.valid)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// The state of a task, and whose it is.
#[derive(Debug)]
pub struct LbrTask<'a> {
    /// A number that no other state has at the same time: its place and which
    /// use of the place it is, for example.
    pub owner: u64,
    /// The state itself.
    pub state: &'a mut LbrState,
}

/// What a task found on the CPU when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestoreOutcome {
    /// No event uses its record, so the hardware was left alone.
    Unused,
    /// An empty record.
    Cleared,
    /// Its own record, from where it was saved.
    Restored,
    /// Its own record, which was still there.
    Kept,
}

/// The record of a CPU. It is used on that CPU only.
///
/// The hardware records calls of user code alone, and only while
/// [someone uses it](Self::is_used): the host switches it on and off
/// (`DEBUGCTL`, `LBR_SELECT` or `IA32_LBR_CTL`).
#[derive(Debug)]
#[expect(missing_copy_implementations, reason = "a CPU has one")]
pub struct LbrCpu {
    lbr: Lbr,
    /// How many events use the record of whatever task runs.
    wide_users: u32,
    /// Whose record the hardware holds, of a task that left it there: the
    /// owner, and which of its saves that was.
    left: Option<(u64, u64)>,
}

impl LbrCpu {
    /// The record of a CPU that no event uses.
    #[must_use]
    pub const fn new(lbr: Lbr) -> Self {
        Self { lbr, wide_users: 0, left: None }
    }

    /// The kind of record.
    #[must_use]
    pub const fn lbr(&self) -> Lbr {
        self.lbr
    }

    /// Whether an event uses the record of a task with this state, or of a
    /// task without one, when it runs on this CPU.
    #[must_use]
    pub fn is_used(&self, state: Option<&LbrState>) -> bool {
        self.wide_users != 0 || state.is_some_and(|state| state.users != 0)
    }

    /// An event of the task that runs starts to use its record.
    pub fn start(&mut self, msrs: &mut impl Msrs, running: &mut LbrState) {
        if !self.is_used(Some(running)) {
            self.clear(msrs);
        }
        running.add_user();
    }

    /// An event of this CPU starts to use the records of all tasks that run on
    /// it; `running` is the state of the one that runs.
    pub fn start_wide(&mut self, msrs: &mut impl Msrs, running: Option<&LbrState>) {
        if !self.is_used(running) {
            self.clear(msrs);
        }
        self.wide_users = self.wide_users.saturating_add(1);
    }

    /// An event of this CPU has stopped using the records.
    pub fn stop_wide(&mut self) {
        self.wide_users = self.wide_users.saturating_sub(1);
    }

    /// A task leaves the CPU. To be called for every task that has a state,
    /// also while no event uses its record.
    pub fn switch_out(&mut self, msrs: &mut impl Msrs, task: Option<LbrTask<'_>>) {
        let Some(LbrTask { owner, state }) = task else { return };
        state.valid = self.is_used(Some(state));
        if state.valid {
            self.save(msrs, state);
            state.saves = state.saves.wrapping_add(1);
            self.left = Some((owner, state.saves));
        }
    }

    /// A task comes to the CPU. To be called for every task, with `None` for
    /// one that has no state.
    ///
    /// Whatever happens, the task does not find another one's branches.
    pub fn switch_in(&mut self, msrs: &mut impl Msrs, task: Option<LbrTask<'_>>) -> RestoreOutcome {
        if !self.is_used(task.as_ref().map(|task| &*task.state)) {
            return RestoreOutcome::Unused;
        }
        // From here on the hardware records for this task.
        let left = self.left.take();
        match task {
            Some(LbrTask { owner, state }) if state.valid => {
                let kept = left == Some((owner, state.saves));
                if kept && !self.lbr.is_lost(msrs, state.top) {
                    return RestoreOutcome::Kept;
                }
                self.restore(msrs, state);
                RestoreOutcome::Restored
            }
            _ => {
                self.lbr.reset(msrs);
                RestoreOutcome::Cleared
            }
        }
    }

    /// Reads the record of the task that runs, at a sample.
    #[must_use]
    pub fn read(&self, msrs: &mut impl Msrs) -> LbrSample {
        let top = self.lbr.top(msrs);
        let mut sample = LbrSample::new(self.lbr.depth(), self.lbr.has_top().then_some(top));
        for age in 0..self.lbr.depth() {
            let Some(raw) = self.lbr.read(msrs, self.lbr.slot(top, age)) else { break };
            sample.push(self.lbr.decode(raw));
        }
        sample
    }

    /// Reads the record as [`read`](Self::read) does, and replaces the count
    /// of cycles by a stamp in every entry that has none.
    ///
    /// An entry with a stamp that was seen before is the same entry and not
    /// another call from the same place, which makes stitching certain. Costs
    /// a register write for each call since the last sample. Hardware that has
    /// flags in the source address has no room for stamps, and is only read.
    #[must_use]
    pub fn read_stamped(&self, msrs: &mut impl Msrs, running: &mut LbrState) -> LbrSample {
        let mut sample = self.read(msrs);
        if !self.lbr.has_info() {
            return sample;
        }
        let top = sample.top().unwrap_or(0);
        for (age, branch) in (0..).zip(sample.branches_mut()) {
            if branch.info.stamp().is_none() {
                branch.info = branch.info.with_stamp(running.take_stamp());
                self.lbr.write_info(msrs, self.lbr.slot(top, age), branch.info.bits());
            }
        }
        sample
    }

    fn clear(&mut self, msrs: &mut impl Msrs) {
        self.left = None;
        self.lbr.reset(msrs);
    }

    fn save(&self, msrs: &mut impl Msrs, state: &mut LbrState) {
        state.top = self.lbr.top(msrs);
        state.len = 0;
        for (age, entry) in (0..self.lbr.depth()).zip(&mut state.entries) {
            let Some(branch) = self.lbr.read(msrs, self.lbr.slot(state.top, age)) else { break };
            *entry = branch;
            state.len = age.saturating_add(1);
        }
    }

    fn restore(&self, msrs: &mut impl Msrs, state: &LbrState) {
        // One write empties an architectural record; without it each entry
        // that is not overwritten has to be.
        if !self.lbr.has_top() && state.len < self.lbr.depth() {
            self.lbr.reset(msrs);
        }
        for (age, entry) in (0..self.lbr.depth()).zip(&state.entries) {
            let slot = self.lbr.slot(state.top, age);
            if age < state.len {
                self.lbr.write(msrs, slot, *entry);
            } else if self.lbr.has_top() {
                self.lbr.write(msrs, slot, RawBranch::default());
            }
        }
        self.lbr.set_top(msrs, state.top);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_start_again_after_the_last_that_an_entry_has_room_for() {
        let mut state = LbrState { next_stamp: BranchInfo::MAX_STAMP - 1, ..LbrState::new() };
        let stamps = [(); 4].map(|()| state.take_stamp());
        assert_eq!(stamps, [BranchInfo::MAX_STAMP - 1, BranchInfo::MAX_STAMP, 0, 1]);
    }
}
