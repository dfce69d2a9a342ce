//! The subcommands.

#[cfg(feature = "manual")]
pub(crate) mod completions;
pub(crate) mod demo;
mod engine;
pub(crate) mod explain;
pub(crate) mod guest;
#[cfg(feature = "manual")]
pub(crate) mod man;
pub(crate) mod merge;
mod opened;
pub(crate) mod record;
pub(crate) mod recorded_call;
pub(crate) mod report;
pub(crate) mod script;
pub(crate) mod sframe;
pub(crate) mod stack;
mod summary;
pub(crate) mod top;
pub(crate) mod verify;
