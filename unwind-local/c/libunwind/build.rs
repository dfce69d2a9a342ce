//! The name under which programs look for the library. Some of them import `_Unwind_Resume`
//! and others of libgcc through it alone, so it names libgcc, too.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libunwind.so.8,-z,now,-z,relro");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-lgcc_s,--pop-state");
    println!("cargo::rustc-cdylib-link-arg=-lc");
}
