//! The plain loop over a chain of frame pointers.

use unwind_snapshot::Snapshot;

use super::stack_word;
use crate::{MAX_FRAMES, Unwinder};

/// Follows frame pointers, with checks of order and bounds alone.
#[derive(Debug, Default)]
pub struct FramePointerLoop {
    frames: Vec<u64>,
}

impl FramePointerLoop {
    /// A loop.
    #[must_use]
    pub fn new() -> Self {
        Self { frames: Vec::with_capacity(MAX_FRAMES) }
    }
}

impl Unwinder for FramePointerLoop {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.frames.clear();
        self.frames.push(snapshot.rip);
        let mut fp = snapshot.rbp();
        while self.frames.len() < MAX_FRAMES
            && let Some(next) = stack_word(snapshot, fp)
            && let Some(ra) = stack_word(snapshot, fp.wrapping_add(8))
            && ra != 0
        {
            self.frames.push(ra);
            if next <= fp {
                break;
            }
            fp = next;
        }
        self.frames.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }
}
