//! Assembles the guest, by the compiler that links this program.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let (source, script) = ("src/guest.S", "src/guest.ld");
    for input in [source, script] {
        assert!(fs::exists(input).is_ok_and(|is| is), "{input} is missing");
        println!("cargo::rerun-if-changed={input}");
    }
    let status = Command::new("cc")
        .args(["-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none,--eh-frame-hdr"])
        .args([&format!("-Wl,-T,{script},-z,max-page-size=4096"), source, "-o"])
        .arg(Path::new(&out).join("guest.elf"))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cc cannot assemble the guest");
}
