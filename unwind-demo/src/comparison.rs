//! What was walked, held against the truth.

use std::fmt;

use unwind_core::FramePc;
use unwind_target::loaded::module::Modules;
use unwind_target::{Method, Untrusted};

use crate::chain::{Kind, TrueFrame};

/// A place in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) function: Untrusted,
    /// Bytes from the function's start.
    pub(crate) offset: u64,
}

impl Place {
    pub(crate) fn find(modules: &Modules, pc: FramePc) -> Option<Self> {
        let lookup = pc.lookup_addr().get();
        let image = modules.find(lookup)?.image().ok()?;
        let function = image.function(lookup).ok()??;
        let start = function.start.wrapping_add(image.bias);
        Some(Self { function: function.name, offset: pc.addr().get().wrapping_sub(start) })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}", self.function, self.offset)
    }
}

/// A frame that a walk found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalkedFrame {
    pub(crate) pc: u64,
    pub(crate) cfa: Option<u64>,
    /// Where the pc is, if a symbol says so.
    pub(crate) place: Option<Place>,
}

impl WalkedFrame {
    /// The pc of the innermost frame is not walked to, so the chain does not
    /// note it: there the function has to be the right one.
    fn is(&self, truth: &TrueFrame) -> bool {
        let function = self.place.as_ref().map(|place| place.function.as_bytes());
        function == Some(truth.function.as_bytes())
            && truth.pc.is_none_or(|pc| pc == self.pc)
            && truth.cfa.is_none_or(|cfa| Some(cfa) == self.cfa)
    }
}

/// One walk of one stack.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) method: Method,
    /// Innermost first.
    pub(crate) frames: Vec<WalkedFrame>,
    /// Whether it came to the stack's end, as far as its method can tell.
    pub(crate) is_at_end: bool,
    /// Why there are no more frames.
    pub(crate) end: String,
}

/// What a walk is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every frame is the true one, and there is no other.
    Equal,
    /// The method needs what this code does not have.
    DoesNotApply,
    /// The number of the first frame that is not the true one.
    DiffersAt(usize),
    /// The frames are the true ones, but the walk does not know that they are
    /// all.
    Incomplete,
}

/// One stack by each method, and the truth.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) kind: Kind,
    pub(crate) thread: i32,
    /// Innermost first, with the place of the pc.
    pub(crate) truth: Vec<(TrueFrame, Option<Place>)>,
    pub(crate) walks: Vec<Walk>,
}

impl Comparison {
    pub(crate) fn verdict(&self, walk: &Walk) -> Verdict {
        if walk.method == Method::Fp && self.kind == Kind::NoFramePointers {
            return Verdict::DoesNotApply;
        }
        let equal = self.equal_frames(walk);
        if equal < self.truth.len().max(walk.frames.len()) {
            Verdict::DiffersAt(equal)
        } else if walk.is_at_end {
            Verdict::Equal
        } else {
            Verdict::Incomplete
        }
    }

    /// How many callers of the innermost frame are found in their places.
    pub(crate) fn callers_found(&self, walk: &Walk) -> usize {
        let pairs = walk.frames.iter().zip(&self.truth).skip(1);
        pairs.take_while(|(frame, (truth, _))| truth.pc == Some(frame.pc)).count()
    }

    /// How many frames from the innermost one on are the true ones.
    fn equal_frames(&self, walk: &Walk) -> usize {
        let pairs = walk.frames.iter().zip(&self.truth);
        pairs.take_while(|(frame, (truth, _))| frame.is(truth)).count()
    }

    /// The walks that had to find the truth and did not.
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Walk> {
        self.walks
            .iter()
            .filter(|walk| !matches!(self.verdict(walk), Verdict::Equal | Verdict::DoesNotApply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(pc: u64, cfa: u64, function: &str) -> WalkedFrame {
        let place = Place { function: function.into(), offset: 4 };
        WalkedFrame { pc, cfa: Some(cfa), place: Some(place) }
    }

    fn walk(frames: Vec<WalkedFrame>) -> Walk {
        Walk { method: Method::Auto, frames, is_at_end: true, end: String::new() }
    }

    fn right() -> Vec<WalkedFrame> {
        vec![frame(0x10, 0x110, "park"), frame(0x20, 0x120, "small"), frame(0x30, 0x130, "start")]
    }

    fn comparison() -> Comparison {
        let truth =
            |function: &str, pc, cfa| (TrueFrame { function: function.into(), pc, cfa }, None);
        Comparison {
            kind: Kind::NoFramePointers,
            thread: 1,
            truth: vec![
                truth("park", None, Some(0x110)),
                truth("small", Some(0x20), Some(0x120)),
                truth("start", Some(0x30), None),
            ],
            walks: Vec::new(),
        }
    }

    #[test]
    fn only_the_true_frames_and_no_others_are_equal() {
        let comparison = comparison();
        assert_eq!(comparison.verdict(&walk(right())), Verdict::Equal);
        for cut in 0..3 {
            let frames = right().into_iter().take(cut).collect();
            assert_eq!(comparison.verdict(&walk(frames)), Verdict::DiffersAt(cut));
        }
        let mut longer = right();
        longer.push(frame(0x40, 0x140, "more"));
        assert_eq!(comparison.verdict(&walk(longer)), Verdict::DiffersAt(3));
    }

    #[test]
    fn a_wrong_pc_cfa_or_function_differs() {
        type Change = fn(&mut WalkedFrame);
        let wrong: [(usize, Change); 6] = [
            (1, |frame| frame.pc += 1),
            (2, |frame| frame.pc += 1),
            (0, |frame| frame.cfa = Some(0x118)),
            (1, |frame| frame.cfa = None),
            (0, |frame| frame.place = None),
            (2, |frame| frame.place.as_mut().unwrap().function = "f2".into()),
        ];
        for (index, change) in wrong {
            let mut frames = right();
            change(&mut frames[index]);
            assert_eq!(comparison().verdict(&walk(frames)), Verdict::DiffersAt(index));
        }
    }

    #[test]
    fn what_no_chain_notes_is_not_compared() {
        let mut frames = right();
        frames[0].pc += 1;
        frames[2].cfa = None;
        assert_eq!(comparison().verdict(&walk(frames)), Verdict::Equal);
    }

    #[test]
    fn a_walk_that_does_not_know_its_end_fails() {
        let mut comparison = comparison();
        comparison.walks = vec![walk(right()), Walk { is_at_end: false, ..walk(right()) }];
        assert_eq!(comparison.verdict(&comparison.walks[1]), Verdict::Incomplete);
        assert_eq!(comparison.failures().count(), 1);
    }

    #[test]
    fn frame_pointers_apply_only_where_there_are_some() {
        let mut comparison = comparison();
        let by_fp = Walk { method: Method::Fp, ..walk(right()[..2].to_vec()) };
        assert_eq!(comparison.verdict(&by_fp), Verdict::DoesNotApply);
        assert_eq!(comparison.callers_found(&by_fp), 1);
        comparison.kind = Kind::FramePointers;
        assert_eq!(comparison.verdict(&by_fp), Verdict::DiffersAt(2));
    }
}
