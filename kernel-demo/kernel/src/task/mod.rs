//! Tasks: what they are, how they take turns, and what they can ask for.

pub(crate) mod life;
pub(crate) mod program;
pub(crate) mod schedule;
pub(crate) mod signal;
pub(crate) mod state;
pub(crate) mod system_call;
