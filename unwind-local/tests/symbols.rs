//! Names of frames, and captures of errors.
#![cfg(test)]
#![allow(clippy::undocumented_unsafe_blocks, reason = "tests")]

use std::process::Command;

use unwind_core::{FramePc, VirtAddr};
use unwind_local::{Capture, End, Symbol};

#[inline(never)]
fn where_it_is_made() -> Capture {
    std::hint::black_box(Capture::new())
}

#[inline(never)]
fn at_most(most: usize) -> Capture {
    std::hint::black_box(Capture::of_most(most))
}

#[test]
fn a_capture_names_the_functions_from_where_it_was_made_on() {
    let capture = std::hint::black_box(where_it_is_made());
    assert!(capture.is_complete() && capture.end() == End::Outermost, "{capture:?}");
    let shown = capture.to_string();
    let mut lines = shown.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("   0: ") && first.contains("where_it_is_made"), "{shown}");
    assert!(first.contains("tests/symbols.rs:"), "{shown}");
    let second = lines.next().unwrap();
    assert!(second.contains("a_capture_names_the_functions"), "{shown}");
    assert!(shown.contains("start_thread") || shown.contains("clone"), "{shown}");
    assert!(!shown.contains("not complete") && !shown.contains("Capture::take"), "{shown}");
}

#[test]
fn a_capture_that_is_cut_says_so() {
    for most in [0, 1, 2] {
        let capture = std::hint::black_box(at_most(most));
        assert_eq!((capture.frames().len(), capture.end()), (most, End::FrameLimit));
        assert!(!capture.is_complete());
        let shown = capture.to_string();
        assert_eq!(shown.lines().last().unwrap(), "not complete: more frames than room", "{shown}");
    }
}

/// As in a signal handler, which keeps addresses.
#[test]
fn names_are_found_later_for_addresses_that_were_kept() {
    let mut kept = [0; 16];
    let found = unwind_local::backtrace(&mut kept);
    assert!(found.len > 2);
    let pc = FramePc::Return(VirtAddr::new(kept[0].try_into().unwrap()));
    let symbols = Symbol::find_all(pc);
    let function = symbols.last().unwrap();
    assert!(function.name.as_ref().unwrap().contains("names_are_found_later"), "{function}");
    assert!(function.file.as_ref().unwrap().ends_with("unwind-local/tests/symbols.rs"));
    assert!(function.line.is_some_and(|line| line > 40));
    let nowhere = FramePc::Exact(VirtAddr::new(16));
    assert!(Symbol::find_all(nowhere).iter().all(|symbol| symbol.name.is_none()));
}

/// The name of the function that holds an address.
fn name_of(addr: usize) -> Option<String> {
    let mut name = [0; 64];
    unsafe { unwind_local::name_of(addr, &mut name) }?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&name[..end]).into_owned())
}

#[test]
fn a_library_that_was_built_anew_gives_no_name_to_the_code_that_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("library.so");
    // The same bytes but for the name, a number and the build id.
    let build = |name: &str, number: u32| {
        let source = folder.path().join("library.c");
        let text = format!(
            "static __attribute__((noinline)) int {name}(int a) {{ return a + {number}; }}\n\
             void *address(void) {{ return (void *){name}; }}\n"
        );
        std::fs::write(&source, text).unwrap();
        let new = folder.path().join("new.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wl,--build-id", "-o"]);
        assert!(compiler.arg(&new).arg(&source).status().unwrap().success());
        std::fs::rename(new, &library).unwrap();
    };
    build("first_", 1);
    let loaded = unsafe { libloading::Library::new(&library) }.unwrap();
    let address = unsafe { loaded.get::<extern "C" fn() -> usize>(b"address") }.unwrap()();
    assert_eq!(name_of(address).as_deref(), Some("first_"));
    build("second", 2);
    assert_eq!(name_of(address), None);
}
