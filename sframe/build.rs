//! Says which compiler it is, so that the library can leave out what older ones lack.

fn main() {
    autocfg::rerun_path("build.rs");
    autocfg::emit_possibility("before_rust_1_88");
    // `core::hint::select_unpredictable`, `<[T]>::as_chunks`.
    if !autocfg::new().probe_rustc_version(1, 88) {
        autocfg::emit("before_rust_1_88");
    }
}
