//! Walks that take over from the last walk of the same task what has not changed.

pub(crate) mod history;
mod previous;
mod run;
mod verify;
mod words;
