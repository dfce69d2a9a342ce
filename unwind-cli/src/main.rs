//! The `unwind` command.
fn main() {}
