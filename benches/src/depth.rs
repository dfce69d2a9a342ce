//! Stacks of a certain depth: the outer ends of captured ones.

use std::collections::HashSet;

use unwind_snapshot::Snapshot;

use crate::corpus::Corpus;
use crate::unwind::Unwind;
use crate::{Facade, Framehop, Rows, Unwinder};

/// The numbers of the frame pointer and the stack pointer.
const RBP: usize = 6;
const RSP: usize = 7;

/// At most `most` stacks of `depth` frames, all different: captured ones from where their frame
/// number `depth` from the outermost has called, as if they had been sampled there.
///
/// Of each the library and framehop say the same frames, and both that they are complete.
#[must_use]
pub fn stacks(corpus: &Corpus, depth: usize, most: usize) -> Vec<Snapshot<'static>> {
    let ours = Unwind::new(corpus);
    let mut facade = Facade::<4096>::new(corpus, Rows::Sframe);
    let mut framehop = Framehop::new(corpus);
    let mut seen = HashSet::new();
    let ends = corpus.snapshots.iter().filter_map(|snapshot| {
        let end = end_of(&ours, snapshot, depth)?;
        let unwinders: [&mut dyn Unwinder; 2] = [&mut facade, &mut framehop];
        let mut walks = unwinders.map(|unwinder| {
            unwinder.walk(&end);
            (unwinder.frames(), unwinder.is_complete())
        });
        let [(frames, is_complete), theirs] = &mut walks;
        let is_one = *is_complete == Some(true)
            && frames.len() == depth
            && (&*frames, *is_complete) == (&theirs.0, theirs.1);
        (is_one && seen.insert(std::mem::take(frames))).then_some(end)
    });
    ends.take(most).collect()
}

/// The stack of a snapshot from the frame on after which `depth` frames come, itself included.
fn end_of(ours: &Unwind, snapshot: &Snapshot<'static>, depth: usize) -> Option<Snapshot<'static>> {
    let (frames, _) = ours.walk_plainly(snapshot);
    let first = frames.len().checked_sub(depth)?;
    let [pc, sp, fp] = ours.place(snapshot, first)?;
    let mut gpr = snapshot.gpr;
    if first != 0 {
        gpr = [0; 16];
        (gpr[RSP], gpr[RBP]) = (sp, fp);
    }
    Some(Snapshot { rip: pc, gpr, ..*snapshot })
}
