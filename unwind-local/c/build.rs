//! The name of the shared library, and that everything in it is bound when it is loaded: a
//! signal handler needs no stack for that.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libunwind_local.so.0,-z,now,-z,relro");
    println!("cargo::rustc-cdylib-link-arg=-lc");
}
