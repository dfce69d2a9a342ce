//! Walks that reuse what has not changed since the last walk of the same task.

pub(crate) mod history;
mod previous;
mod run;
mod verify;
mod words;
