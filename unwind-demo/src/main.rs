//! The demonstration as a program of its own; `lib.rs` has all of it.

#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use unwind_demo::Demo;

fn main() -> ExitCode {
    let mut demo = Demo::new(&[]);
    for argument in std::env::args_os().skip(1) {
        demo = match argument.as_encoded_bytes() {
            b"--prebuilt" => demo.prebuilt(),
            b"--child" => demo.child(),
            _ => return fail("usage: unwind-demo [--prebuilt]"),
        };
    }
    match demo.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(text: &str) -> ExitCode {
    // With standard error gone there is no other place to tell it.
    let _ = writeln!(io::stderr(), "unwind-demo: {text}");
    ExitCode::FAILURE
}
