//! Everything in the library is bound when it is loaded: a signal handler needs no stack for
//! that.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libunwind_local_preload.so,-z,now,-z,relro");
    println!("cargo::rustc-cdylib-link-arg=-lc");
}
