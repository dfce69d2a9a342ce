//! Whether the frames of a walk are right.

use crate::reference::{End, Reference};
use crate::{MAX_FRAMES, Unwinder};

/// What is to be said of one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All frames are the reference's, to the outermost one or to as many as are
    /// kept.
    Same,
    /// All frames that are certain are there, but call frame information led no
    /// further, and not to the outermost frame: more cannot be said.
    Unjudged,
    /// The walk ended early: it has no frame of this number.
    Short {
        /// The number of the first frame that is missing.
        at: usize,
    },
    /// A frame is another one, or a caller is left out, or there are frames where
    /// the stack is over.
    Differs {
        /// The number of the first frame that differs.
        at: usize,
    },
    /// The walk ended early and says that it is complete.
    FalselyComplete {
        /// The number of the first frame that is missing.
        at: usize,
    },
    /// The walk says that it is complete where the reference cannot say so.
    BoldlyComplete,
}

impl Verdict {
    /// Whether the walk is known to be wrong, or to end early.
    #[must_use]
    pub const fn is_wrong(self) -> bool {
        matches!(self, Self::Short { .. } | Self::Differs { .. } | Self::FalselyComplete { .. })
    }
}

/// Compares the last walks. Two answers of which one is the start of the other are
/// not the same, whichever is the shorter.
#[must_use]
pub fn judge(reference: &Reference, walk: &dyn Unwinder) -> Verdict {
    let (expected, found) = (reference.frames(), walk.frames());
    let certain = &expected[..reference.certain()];
    let at = certain.iter().zip(&found).take_while(|(a, b)| a == b).count();
    let is_complete = walk.is_complete() == Some(true);
    let is_over = matches!(reference.end(), End::Outermost | End::Limit);
    if at == certain.len() {
        match (is_over, is_complete) {
            (true, _) if found.len() > at => Verdict::Differs { at },
            (true, _) => Verdict::Same,
            (false, true) => Verdict::BoldlyComplete,
            (false, false) => Verdict::Unjudged,
        }
    } else if at == found.len() {
        if is_complete { Verdict::FalselyComplete { at } } else { Verdict::Short { at } }
    } else {
        Verdict::Differs { at }
    }
}

/// The number of the first frame that a rival has and `ours` has not, if the
/// reference does not contradict that frame. The frames of the two are equal up to
/// there, or `ours` left it out.
#[must_use]
pub fn more_than_ours(
    reference: &Reference,
    ours: &dyn Unwinder,
    rival: &dyn Unwinder,
) -> Option<usize> {
    let (ours, rival) = (ours.frames(), rival.frames());
    let at = ours.iter().zip(&rival).take_while(|(a, b)| a == b).count();
    let has_more = at < rival.len() && (at == ours.len() || ours.len() < rival.len());
    if !has_more || ours.len() == MAX_FRAMES {
        return None;
    }
    let is_over = matches!(reference.end(), End::Outermost | End::Limit);
    let certain = &reference.frames()[..reference.certain()];
    let is_contradicted = certain.get(at).map_or(is_over, |certain| *certain != rival[at]);
    (!is_contradicted).then_some(at)
}
