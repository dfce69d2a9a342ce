//! What the benches and measuring programs share: captured stacks, the tables
//! that go with them, and unwinders under one trait.
//!
//! A measuring program stops at the first surprise, so it may panic.
#![deny(unsafe_code)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a measuring program stops at the first surprise"
)]

mod call_frames;
mod command;
pub mod comparison;
pub mod contestant;
pub mod corpus;
pub mod cut;
pub mod deferral;
pub mod depth;
pub mod eh_frame;
mod facade;
pub mod finding;
pub mod in_process;
pub mod known;
pub mod lookup;
pub mod merging;
pub mod module_change;
pub mod own_maps;
pub mod own_stack;
pub mod perf_file;
mod perf_samples;
pub mod places;
pub mod plot;
pub mod program;
pub mod reference;
pub mod report;
mod rivals;
pub mod timing;
mod unwind;
pub mod verdict;

pub use unwind_snapshot::Snapshot;

pub use crate::unwind::{
    CachedUnwind, LargeUnwind, MissingUnwind, Rowed, Stats, Unwind, UnwindByCallFrames,
};
pub use command::main;
pub use contestant::Contestant;
pub use facade::{Facade, Rows};
pub use reference::Reference;
pub use report::Report;
pub use rivals::{FramePointerLoop, Framehop, Gimli, SimpleFrame, stack_word};

/// No walk has more frames: as many as Linux keeps.
pub const MAX_FRAMES: usize = 510;

/// An unwinder of captured stacks.
pub trait Unwinder {
    /// Walks the stack of a snapshot and keeps the frames; returns how many.
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize;

    /// The addresses of the frames of the last walk, innermost first.
    fn frames(&self) -> Vec<u64>;

    /// Whether the last walk found the outermost frame, where that is known.
    fn is_complete(&self) -> Option<bool> {
        None
    }

    /// Forgets what was learned from earlier walks.
    fn forget(&mut self) {}
}
