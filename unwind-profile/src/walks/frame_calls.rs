//! The calls of interpreters in a stack, frame by frame.

use std::iter::{self, Peekable};
use std::vec::IntoIter;

use crate::mapped::names::Mode;
use crate::recording::code_names::InterpretedCall;
use crate::walks::found_frames::FoundFrames;
use crate::walks::shown::{Link, Shown};
use crate::walks::walked_stack::WalkedStack;

/// The calls that the native frames of a stack execute, from the innermost frame on.
#[derive(Clone, Debug)]
pub struct FrameCalls {
    /// With the places of the frames, which ascend.
    rest: Peekable<IntoIter<(usize, InterpretedCall)>>,
    /// The place of the frame that is next.
    frame: usize,
}

impl FrameCalls {
    fn new(calls: Vec<(usize, InterpretedCall)>) -> Self {
        Self { rest: calls.into_iter().peekable(), frame: 0 }
    }

    /// Those in the user part of a sample's chain, as its recording has them.
    #[must_use]
    pub fn of_chain(found: Option<&FoundFrames>, shown: &Shown) -> Self {
        let is_user = |link: &Link| matches!(link, Link::Ip(_, Mode::User));
        let calls = found
            .and_then(FoundFrames::calls)
            .map(|calls| calls.of_sample(shown.held.number, shown.links().filter(is_user).count()));
        Self::new(calls.unwrap_or_default())
    }

    /// Those of a stack that is walked.
    #[must_use]
    pub fn of_walk(walked: Option<&WalkedStack>) -> Self {
        let mut calls = Vec::new();
        for (place, run) in walked.into_iter().flat_map(|walked| &walked.calls) {
            calls.extend(run.iter().map(|call| (*place, call.clone())));
        }
        Self::new(calls)
    }

    /// The calls that the next frame executes, the innermost first. What is not taken of them comes with those of its
    /// caller.
    pub fn of_next_frame(&mut self) -> impl Iterator<Item = InterpretedCall> {
        let frame = self.frame;
        self.frame = frame.saturating_add(1);
        iter::from_fn(move || Some(self.rest.next_if(|(place, _)| *place <= frame)?.1))
    }
}
