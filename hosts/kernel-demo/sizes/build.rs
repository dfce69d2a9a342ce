//! Says how the programs are linked: nothing but themselves.

fn main() {
    for flag in ["-nostdlib", "-nostartfiles", "-static", "-no-pie", "-Wl,--gc-sections"] {
        println!("cargo:rustc-link-arg-bins={flag}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-e,start");
}
