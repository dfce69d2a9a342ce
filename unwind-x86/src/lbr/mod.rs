//! Call stacks that the CPU records: last branch records in call-stack mode.
//!
//! A call adds an entry to the record and a return removes it, so at any
//! moment the record is the innermost part of the call chain, at no cost to
//! the program. Three things make it a profiler's:
//!
//! * The record belongs to a CPU, but a call chain to a task: [`LbrCpu`] saves
//!   and restores it at context switches, into an [`LbrState`] that the host
//!   keeps for each task.
//! * It holds 16 or 32 calls: a [`Stitcher`] adds what the samples before
//!   still had.
//! * It knows nothing of frames that were left without a return: [`join`]
//!   compares it with a walk by tables, and each fills the gaps of the other.
//!
//! The hardware is reached through [`Msrs`].
//!
//! # Contexts
//!
//! Everything on [`LbrCpu`], [`LbrState`] and [`Stitcher`] may be called in an
//! NMI, and takes a number of steps that the depth of the record bounds.

mod branch;
mod hardware;
mod join;
mod sample;
mod stitch;
mod switch;

pub use branch::{Branch, BranchInfo};
pub use hardware::{Lbr, Msrs};
pub use join::{JoinOutcome, Joined, JoinedFrame, join};
pub use sample::LbrSample;
pub use stitch::Stitcher;
pub use switch::{LbrCpu, LbrState, LbrTask, RestoreOutcome};
