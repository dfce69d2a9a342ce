//! Joins samples with the user stacks that arrive later.
