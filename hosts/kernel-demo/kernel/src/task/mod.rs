//! Tasks: their state, their schedule, and their system calls.

pub(crate) mod bound;
pub(crate) mod life;
pub(crate) mod program;
pub(crate) mod schedule;
pub(crate) mod shadow_stack;
pub(crate) mod signal;
pub(crate) mod state;
pub(crate) mod system_call;
