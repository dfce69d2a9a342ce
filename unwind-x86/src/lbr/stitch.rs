//! Calls that have fallen off the old end of the record, from the samples
//! before.

use core::fmt;

use arrayvec::ArrayVec;

use super::branch::Branch;
use super::hardware::Lbr;
use super::sample::LbrSample;

/// Puts together the samples of one thread.
///
/// Hardware with N entries forgets the root side of a stack that is deeper.
/// But the samples before had it, and if a call is in the record of both this
/// sample and the last one, then whatever was older than that call in the last
/// one is still on the stack.
///
/// `OLDER` is how many calls are kept beyond those in the record. What the
/// thread's maps were when a call was sampled may be kept with it as an `R`.
///
/// # When it is the same call
///
/// The oldest call of the sample has to be found in the last sample: in the
/// same register, with the same source, target and information. That alone can
/// be deceived: a program that returns and makes equal calls again leaves equal
/// entries, and so does recursion that goes one whole record deeper. So one of
/// the entries that both have must also bear a [stamp], or a count of cycles
/// and be the only one of its kind. Cycles can coincide, if rarely; stamps do
/// not. Records of hardware that counts no cycles are stitched only if
/// [asked](Self::trusting_addresses).
///
/// A thread that unwinds its stack without returns (`longjmp`, exceptions)
/// leaves calls in the record that are over: neither this nor the hardware
/// knows. [`join`](super::join) does.
///
/// [stamp]: super::LbrCpu::read_stamped
pub struct Stitcher<R = (), const OLDER: usize = 96> {
    /// The last sample, newest first.
    last: ArrayVec<(Branch, R), { Lbr::MAX_DEPTH }>,
    last_top: Option<u32>,
    last_depth: u32,
    /// The calls that are older than those of the last sample, newest first.
    older: ArrayVec<(Branch, R), OLDER>,
    /// Whether even older ones did not fit.
    cut: bool,
    trusting: bool,
}

impl<R: Clone, const OLDER: usize> Stitcher<R, OLDER> {
    /// For a thread without samples so far.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            last: ArrayVec::new_const(),
            last_top: None,
            last_depth: 0,
            older: ArrayVec::new_const(),
            cut: false,
            trusting: false,
        }
    }

    /// Takes equal entries in the same register for the same call, without
    /// further evidence. With recursion, or where functions are called again
    /// from the same places, chains may then be wrong.
    #[must_use]
    pub fn trusting_addresses(mut self) -> Self {
        self.trusting = true;
        self
    }

    /// Takes the next sample of the thread. `reference` is what is kept with
    /// its calls, as long as they may be needed.
    ///
    /// Returns how many calls older than the sample's are known.
    pub fn push(&mut self, sample: &LbrSample, reference: &R) -> usize {
        match self.find_oldest(sample) {
            Some(at) => self.keep_older_than(at),
            None => self.forget_older(),
        }
        self.last.clear();
        let kept = sample.branches().iter().map(|&branch| (branch, reference.clone()));
        self.last.extend(kept.take(Lbr::MAX_DEPTH));
        self.last_top = sample.top();
        self.last_depth = sample.depth();
        self.older.len()
    }

    /// The calls that are older than those of the last sample, newest first,
    /// each with what was kept with it.
    #[must_use]
    pub fn older(&self) -> &[(Branch, R)] {
        &self.older
    }

    /// All known calls of the last sample, newest first.
    pub fn calls(&self) -> impl Iterator<Item = &(Branch, R)> {
        self.last.iter().chain(&self.older)
    }

    /// Whether there are calls that are known but did not fit.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.cut
    }

    /// Forgets all samples: the thread has executed another program, or some
    /// of its samples were lost. Frees what was kept with them; dropping the
    /// stitcher when the thread dies does so too.
    pub fn clear(&mut self) {
        self.last.clear();
        self.forget_older();
    }

    fn forget_older(&mut self) {
        self.older.clear();
        self.cut = false;
    }

    /// Where the oldest call of `sample` is in the last sample.
    fn find_oldest(&self, sample: &LbrSample) -> Option<usize> {
        let at = match (sample.top(), self.last_top) {
            (Some(top), Some(last_top)) => self.at_same_slot(sample, top, last_top)?,
            _ => self.at_same_stamp(sample)?,
        };
        self.is_same_call(sample, at).then_some(at)
    }

    /// Where the last sample has what was in the register of the oldest call.
    fn at_same_slot(&self, sample: &LbrSample, top: u32, last_top: u32) -> Option<usize> {
        let depth = sample.depth();
        if depth != self.last_depth {
            return None;
        }
        let len = u32::try_from(sample.branches().len()).ok()?;
        // Both are less than the depth, and so is the length less one.
        let oldest = top.checked_add(depth)?.checked_sub(len.checked_sub(1)?)?;
        let age = last_top.checked_add(depth)?.checked_add(depth)?.checked_sub(oldest)?;
        usize::try_from(age.checked_rem(depth)?).ok()
    }

    /// Where the last sample has the stamp of the oldest call. Entries that
    /// move from register to register are found by nothing else.
    fn at_same_stamp(&self, sample: &LbrSample) -> Option<usize> {
        let oldest = sample.branches().last()?;
        oldest.info.stamp()?;
        self.last.iter().position(|(branch, _)| branch == oldest)
    }

    /// Whether the oldest call of `sample` is the call at `at`, by the
    /// entries from there on that both have.
    fn is_same_call(&self, sample: &LbrSample, at: usize) -> bool {
        let newer = self.last.get(..=at).unwrap_or_default().iter().rev();
        let mut both = newer
            .zip(sample.branches().iter().rev())
            .take_while(|((last, _), branch)| last == *branch)
            .map(|(_, branch)| branch)
            .peekable();
        both.peek().is_some() && (self.trusting || both.any(|branch| self.is_evidence(branch)))
    }

    fn is_evidence(&self, branch: &Branch) -> bool {
        if branch.info.stamp().is_some() {
            return true;
        }
        let alike = self.last.iter().filter(|(last, _)| last == branch).count();
        branch.info.is_distinguishing() && alike == 1
    }

    /// Keeps what is older than the call at `at` of the last sample.
    fn keep_older_than(&mut self, at: usize) {
        let known = core::mem::take(&mut self.older);
        let older = self.last.drain(..).skip(at.saturating_add(1)).chain(known);
        for call in older {
            if self.older.try_push(call).is_err() {
                self.cut = true;
                return;
            }
        }
    }
}

impl<R: Clone, const OLDER: usize> Default for Stitcher<R, OLDER> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R, const OLDER: usize> fmt::Debug for Stitcher<R, OLDER> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stitcher")
            .field("last", &self.last.len())
            .field("older", &self.older.len())
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}
