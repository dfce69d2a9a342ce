//! The interface, used from C: a host that uses all of it, under sanitizers, and the example.
#![cfg(test)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::Compiler;

const C: [&str; 6] = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where things are built.
fn built() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind-ffi")
}

/// Builds the archive in a folder of its own, with an environment.
fn archive<'e>(folder: &str, environment: impl IntoIterator<Item = (&'e str, &'e str)>) -> PathBuf {
    let folder = built().join(folder);
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--quiet", "--target", TARGET, "--manifest-path"])
        .arg(package().join("lib/Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .envs(environment)
        .status();
    assert!(status.unwrap().success());
    folder.join(TARGET).join("release/libunwind_ffi.a")
}

/// Named, so that flags are not those of build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn run(program: impl AsRef<OsStr>) {
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_host_in_c_uses_all_of_the_interface_and_sanitizers_see_no_fault() {
    let Some(compiler) = Compiler::find(&C) else { return };
    // With the checks that other builds leave out.
    let archive = archive(
        "checked",
        [
            ("RUSTC_BOOTSTRAP", "1"),
            ("RUSTFLAGS", "-Zsanitizer=address"),
            ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
            ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
        ],
    );
    let program = built().join("host");
    let source = package().join("tests/host.c");
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    compile(&compiler, &source, &program, &archive, &sanitizers);
    run(program);
}

#[test]
fn the_example_defers_by_signals() {
    let Some(compiler) = Compiler::find(&C) else { return };
    let archive = archive("plain", []);
    let program = built().join("signals");
    let source = package().join("examples/signals.c");
    compile(&compiler, &source, &program, &archive, &[]);
    run(program);
}

/// Compiles a program and links it to the archive, which comes after what needs it.
fn compile(compiler: &Compiler, source: &Path, program: &Path, archive: &Path, flags: &[&str]) {
    let include = format!("-I{}", package().join("include").display());
    let mut all = vec![include.as_str(), "-pthread"];
    all.extend(flags);
    all.push(source.to_str().unwrap());
    compiler.compile(archive, program, &all);
}
