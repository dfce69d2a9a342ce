//! The interface, used from C under sanitizers: a host that uses all of it, and the example.
#![cfg(test)]

use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::Compiler;

const C: [&str; 9] = [
    "-std=c11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

/// Named, so that flags are not those of build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where things are built.
fn built() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind-ffi")
}

/// Builds the archive in a folder of its own, with the checks that other builds leave out.
fn archive() -> PathBuf {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--quiet", "--target", TARGET, "--manifest-path"])
        .arg(package().join("lib/Cargo.toml"))
        .arg("--target-dir")
        .arg(built())
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .status();
    assert!(status.unwrap().success());
    built().join(TARGET).join("release/libunwind_ffi.a")
}

/// Compiles a program and runs it.
fn run(source: &str) {
    let Some(compiler) = Compiler::find(&C) else { return };
    // It comes after what needs it.
    let archive = archive();
    let source = package().join(source);
    let panic = package().join("tests/panic.c");
    let program = built().join(source.file_stem().unwrap());
    let include = format!("-I{}", package().join("include").display());
    compiler.compile(
        &archive,
        &program,
        &[&include, source.to_str().unwrap(), panic.to_str().unwrap()],
    );
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_host_in_c_uses_all_of_the_interface_and_sanitizers_see_no_fault() {
    run("tests/host.c");
}

#[test]
fn the_example_defers_by_signals() {
    run("examples/signals.c");
}
