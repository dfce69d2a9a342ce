//! Builds the user programs that the kernel carries, and says how the kernel
//! is linked.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All of them: no C library, no code that the stack walk does not expect.
const COMMON: &[&str] = &[
    "-O1",
    "-ffreestanding",
    "-nostdlib",
    "-static",
    "-fno-pic",
    "-no-pie",
    "-fno-stack-protector",
    "-fcf-protection=none",
    // As in optimised code: where a function may start, its first instructions prove that
    // it does.
    "-falign-functions=16",
    "-fno-asynchronous-unwind-tables",
    "-fno-optimize-sibling-calls",
    "-mgeneral-regs-only",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,--build-id=none",
    // Code, tables and data on pages of their own: each can be absent.
    "-Wl,-z,separate-code",
    "-Wl,-z,max-page-size=4096",
];

const FRAME_POINTERS: &[&str] = &["-fno-omit-frame-pointer"];
/// Only the table can walk it.
const TABLES: &[&str] = &["-fomit-frame-pointer", "-fasynchronous-unwind-tables", "-Wa,--gsframe"];
const COMPAT: &[&str] = &["-m32", "-fno-omit-frame-pointer"];

const PROGRAMS: &[(&str, &[&str])] = &[
    ("frame-pointers", FRAME_POINTERS),
    ("tables", TABLES),
    ("compat", COMPAT),
    ("nested", FRAME_POINTERS),
    ("exits", FRAME_POINTERS),
    ("executes", TABLES),
    ("executed", FRAME_POINTERS),
    ("forks", FRAME_POINTERS),
    ("crashes", FRAME_POINTERS),
    ("records", TABLES),
];

fn main() {
    let user = Path::new("user");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    // Each program has its own start address, so that an observer outside the
    // machine can tell the program from an address.
    for ((name, flags), start) in PROGRAMS.iter().zip((0x40_0000..).step_by(0x10_0000)) {
        let source = user.join(name).with_extension("c");
        println!("cargo:rerun-if-changed={}", source.display());
        let mut compiler = Command::new("gcc");
        compiler.args(COMMON).args(*flags).arg(format!("-Wl,-Ttext-segment={start:#x}"));
        compiler.arg(source).arg("-o").arg(out.join(name));
        let status = compiler.status().expect("gcc is needed");
        assert!(status.success(), "{name} does not build");
    }
    println!("cargo:rerun-if-changed=user/system.h");
    link();
    // Where the checker finds them.
    if let Some(copy) = env::var_os("DEMO_PROGRAMS_OUT") {
        for (name, _) in PROGRAMS {
            std::fs::create_dir_all(&copy).expect("the folder can be made");
            std::fs::copy(out.join(name), Path::new(&copy).join(name)).expect("copied");
        }
    }
    println!("cargo:rerun-if-env-changed=DEMO_PROGRAMS_OUT");
}

fn link() {
    let folder = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    println!("cargo:rerun-if-changed=kernel.ld");
    println!("cargo:rustc-link-arg-bins=-Wl,-T{folder}/kernel.ld");
    for flag in ["-nostdlib", "-nostartfiles", "-static", "-no-pie"] {
        println!("cargo:rustc-link-arg-bins={flag}");
    }
    for flag in ["-Wl,--build-id=none", "-Wl,-z,max-page-size=4096"] {
        println!("cargo:rustc-link-arg-bins={flag}");
    }
}
