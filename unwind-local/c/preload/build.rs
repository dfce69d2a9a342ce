//! Everything in the library is bound when it is loaded: a signal handler needs no stack for
//! that.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libunwind_local_preload.so,-z,now,-z,relro");
    // Whose functions take contexts of libgcc's own: it has to be among the libraries of the start.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-lgcc_s,--pop-state");
    println!("cargo::rustc-cdylib-link-arg=-lc");
}
