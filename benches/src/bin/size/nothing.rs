//! Nothing: what the other programs here are compared with.

fn main() {}
