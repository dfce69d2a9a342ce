//! The walk: from the registers of a sample to its outermost frame.
//!
//! [`walker`] and [`frames`] are the plain walk, with [`step`] for each frame and
//! the [`rules`] that it keeps, and read from top to bottom without the rest. [`position`] is
//! where a walk can be left and continued. [`recovery`] finds the registers that few rows need. [`fast`]
//! is the same walk by rows in compact form.

mod cursor;
pub(crate) mod fast;
pub(crate) mod frames;
pub(crate) mod position;
mod recovery;
mod rules;
pub(crate) mod step;
pub(crate) mod walker;
