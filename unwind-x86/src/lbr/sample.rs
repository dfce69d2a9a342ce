//! The record at one moment.

use core::fmt;

use unwind_core::VirtAddr;

use super::branch::Branch;
use super::hardware::Lbr;

/// The calls that were recorded and have not returned, at a sample.
#[derive(Clone, Copy)]
pub struct LbrSample {
    branches: [Branch; Lbr::MAX_DEPTH],
    len: u32,
    depth: u32,
    top: Option<u32>,
}

impl LbrSample {
    pub(super) const fn new(depth: u32, top: Option<u32>) -> Self {
        const NONE: Branch = Branch { from: 0, to: 0, info: super::BranchInfo::from_bits(0) };
        Self { branches: [NONE; Lbr::MAX_DEPTH], len: 0, depth, top }
    }

    /// A sample that was recorded elsewhere: its branches, the newest first;
    /// how many entries the hardware has; and which register held the newest
    /// one (`hw_idx` in a perf record), if that is known.
    ///
    /// `None` if there are more branches than entries, or more entries than
    /// [`Lbr::MAX_DEPTH`].
    #[must_use]
    pub fn from_branches(branches: &[Branch], depth: u32, top: Option<u32>) -> Option<Self> {
        let fits = usize::try_from(depth)
            .is_ok_and(|depth| branches.len() <= depth && depth <= Lbr::MAX_DEPTH);
        let mut sample = Self::new(depth, top.filter(|&top| top < depth));
        for &branch in branches {
            sample.push(branch);
        }
        fits.then_some(sample)
    }

    /// Adds an older branch; `false` if there is no room.
    pub(super) fn push(&mut self, branch: Branch) -> bool {
        let index = usize::try_from(self.len).unwrap_or(usize::MAX);
        let Some(place) = self.branches.get_mut(index) else { return false };
        *place = branch;
        self.len = self.len.saturating_add(1);
        true
    }

    /// The calls, the newest (innermost) first.
    #[must_use]
    pub fn branches(&self) -> &[Branch] {
        let len = usize::try_from(self.len).unwrap_or(0);
        self.branches.get(..len).unwrap_or(&self.branches)
    }

    pub(super) fn branches_mut(&mut self) -> &mut [Branch] {
        let len = usize::try_from(self.len).unwrap_or(0).min(Lbr::MAX_DEPTH);
        self.branches.get_mut(..len).unwrap_or_default()
    }

    /// How many entries the hardware has.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// Which register held the newest branch, if entries stay in theirs.
    #[must_use]
    pub const fn top(&self) -> Option<u32> {
        self.top
    }

    /// Whether every entry of the hardware is in use: there may be older calls
    /// that have fallen off.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len >= self.depth
    }

    /// The call chain: the sampled pc, then the addresses of the call
    /// instructions, innermost first. Without a sampled pc of user code it
    /// begins where the innermost call went.
    ///
    /// These are addresses of calls and not return addresses: they are looked
    /// up as they are.
    pub fn call_chain(&self, pc: Option<VirtAddr>) -> impl Iterator<Item = VirtAddr> + '_ {
        let innermost = || self.branches().first().map(|call| VirtAddr::new(call.to));
        let sites = self.branches().iter().map(|call| VirtAddr::new(call.from));
        pc.or_else(innermost).into_iter().chain(sites)
    }
}

impl PartialEq for LbrSample {
    fn eq(&self, other: &Self) -> bool {
        (self.branches(), self.depth, self.top) == (other.branches(), other.depth, other.top)
    }
}

impl Eq for LbrSample {}

impl fmt::Debug for LbrSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LbrSample")
            .field("branches", &self.branches())
            .field("depth", &self.depth)
            .field("top", &self.top)
            .finish()
    }
}
