//! Walks that reuse what has not changed since the last walk of the same task.

mod previous;
mod record;
mod run;
pub(crate) mod trace;
mod verify;
mod words;
