//! A recorded call chain and a walked one, of the same stack.

use unwind_core::VirtAddr;

use super::branch::Branch;

/// Joins the calls that the hardware recorded with the frames that a walk by
/// tables or frame pointers found.
///
/// `calls` are the recorded ones, innermost first, stitched ones included.
/// `walk` are the pcs of the frames, innermost first: the sampled pc, then
/// return addresses ([`Trace::pcs`](unwind_core::Trace::pcs)).
///
/// A call belongs to the frame whose return address lies right after it. In
/// the order of the frames:
///
/// * While call and frame agree, both are right.
/// * Where they part, and the walk agrees again with calls further out, it
///   has missed frames: those are taken from the calls. A walk by frame
///   pointers does so at the entry and the exit of functions.
/// * Where they part for good, the walk is taken. The record may hold calls
///   that are over (`longjmp`), or lack frames that no call made (signals).
/// * Where one ends the other continues: the walk beyond what hardware holds,
///   the calls beyond where there are no tables.
///
/// ```
/// use unwind_x86::lbr::{Branch, BranchInfo, JoinOutcome, join};
///
/// let call = |from, to| Branch { from, to, info: BranchInfo::from_bits(0) };
/// // Sampled in a prologue: the walk misses the caller. The record has it, and
/// // ends earlier than the walk.
/// let calls = [call(0x3010, 0x4000), call(0x2010, 0x3000), call(0x1010, 0x2000)];
/// let walk = [0x4001, 0x2015, 0x1015, 0x515];
/// let joined = join(&calls, &walk);
/// assert_eq!(joined.outcome(), JoinOutcome::WalkMissed);
/// let frames: Vec<u64> = joined.frames().map(|frame| frame.addr().get()).collect();
/// assert_eq!(frames, [0x4001, 0x3010, 0x2015, 0x1015, 0x515]);
/// ```
#[must_use]
pub fn join<'a>(calls: &'a [Branch], walk: &'a [u64]) -> Joined<'a> {
    let (pc, returns) = match walk.split_first() {
        Some((&pc, returns)) => (Some(VirtAddr::new(pc)), returns),
        None => (None, walk),
    };
    let agreed = agreement(calls, returns);
    let mut joined = Joined { pc, agreed, missed: 0, returns, calls, outcome: JoinOutcome::Agree };
    let (calls, returns) = (from(calls, agreed), from(returns, agreed));
    if calls.is_empty() || returns.is_empty() {
        return joined;
    }
    match missed_by_walk(calls, returns) {
        Some(missed) => {
            joined.missed = missed;
            joined.outcome = JoinOutcome::WalkMissed;
        }
        None => joined.outcome = JoinOutcome::Disagree,
    }
    joined
}

/// How many frames a walk may have missed in one place.
const MAX_MISSED: usize = 2;

/// How many calls and frames have to agree after frames that were missed.
const MIN_AGREEMENT: usize = 2;

/// How many calls at the start belong to the frames at the start.
fn agreement(calls: &[Branch], returns: &[u64]) -> usize {
    calls.iter().zip(returns).take_while(|(call, ra)| call.returns_to(**ra)).count()
}

/// How many of `calls` a walk has missed that continues with `returns` and agrees
/// with all calls after them.
fn missed_by_walk(calls: &[Branch], returns: &[u64]) -> Option<usize> {
    (1..=MAX_MISSED).find(|&missed| {
        let calls = from(calls, missed);
        let agreed = agreement(calls, returns);
        agreed >= MIN_AGREEMENT && agreed == calls.len().min(returns.len())
    })
}

fn from<T>(all: &[T], start: usize) -> &[T] {
    all.get(start..).unwrap_or_default()
}

impl Branch {
    /// Whether `ra` is the return address of this call: right after the call
    /// instruction, which has two bytes or more and at most fifteen.
    #[must_use]
    pub const fn returns_to(&self, ra: u64) -> bool {
        matches!(ra.wrapping_sub(self.from), 2..=15)
    }
}

/// A call chain from two sources, and how far they agree.
#[derive(Clone, Copy, Debug)]
pub struct Joined<'a> {
    pc: Option<VirtAddr>,
    agreed: usize,
    missed: usize,
    returns: &'a [u64],
    calls: &'a [Branch],
    outcome: JoinOutcome,
}

/// What became of a [`join`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinOutcome {
    /// As far as there is both, both agree.
    Agree,
    /// The walk missed frames, which the record has.
    WalkMissed,
    /// From some frame on they have nothing to do with each other, and the
    /// walk was taken.
    Disagree,
}

impl<'a> Joined<'a> {
    /// How the two compare.
    #[must_use]
    pub const fn outcome(&self) -> JoinOutcome {
        self.outcome
    }

    /// How many frames, the sampled one not counted, both have before they
    /// part or one of them ends. None means that nothing confirms the chain.
    #[must_use]
    pub const fn agreed(&self) -> usize {
        self.agreed
    }

    /// The frames, innermost first.
    pub fn frames(&self) -> impl Iterator<Item = JoinedFrame> + use<'a> {
        let Self { pc, agreed, missed, returns, calls, outcome } = *self;
        let sampled = pc.map(JoinedFrame::Sampled);
        let both =
            |(call, ra): (&Branch, &u64)| JoinedFrame::Both { call: *call, ra: VirtAddr::new(*ra) };
        let inner = calls.iter().zip(returns).take(agreed).map(both);
        let (calls, returns) = (from(calls, agreed), from(returns, agreed));
        let missing = calls.iter().take(missed).copied().map(JoinedFrame::Recorded);
        // A record that the walk disagrees with is left out.
        let confirmed = if outcome == JoinOutcome::Disagree { &[] } else { from(calls, missed) };
        let outer = confirmed.iter().zip(returns).map(both);
        let walked = from(returns, confirmed.len());
        let recorded = from(confirmed, returns.len());
        sampled
            .into_iter()
            .chain(inner)
            .chain(missing)
            .chain(outer)
            .chain(walked.iter().map(|&ra| JoinedFrame::Walked(VirtAddr::new(ra))))
            .chain(recorded.iter().copied().map(JoinedFrame::Recorded))
    }
}

/// A frame of a joined chain, by where it is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinedFrame {
    /// The innermost frame, at the sampled pc.
    Sampled(VirtAddr),
    /// A frame that both have.
    Both {
        /// The call by which it left for the frame before.
        call: Branch,
        /// The address to which that call returns.
        ra: VirtAddr,
    },
    /// A frame that only the walk has: its return address.
    Walked(VirtAddr),
    /// A frame that only the record has.
    Recorded(Branch),
}

impl JoinedFrame {
    /// Where the frame's execution stands: the sampled pc or the return
    /// address; of a frame that is only recorded, the call instruction.
    #[must_use]
    pub const fn addr(&self) -> VirtAddr {
        match *self {
            Self::Sampled(addr) | Self::Both { ra: addr, .. } | Self::Walked(addr) => addr,
            Self::Recorded(call) => VirtAddr::new(call.from),
        }
    }

    /// The address to ask a table or a symbol table for.
    #[must_use]
    pub const fn lookup_addr(&self) -> VirtAddr {
        match *self {
            Self::Sampled(pc) => pc,
            Self::Both { call, .. } | Self::Recorded(call) => VirtAddr::new(call.from),
            Self::Walked(ra) => VirtAddr::new(ra.get().wrapping_sub(1)),
        }
    }
}
