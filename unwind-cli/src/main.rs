//! The `unwind` command; `lib.rs` has all of it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    unwind_cli::main()
}
