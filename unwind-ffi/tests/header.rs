//! The header is what cbindgen makes of the functions, hooks and types. `UNWIND_WRITE_HEADER=1` renews
//! it.
#![cfg(test)]

use std::fs;
use std::path::Path;

/// In the order in which a reader needs them.
const SOURCES: [&str; 6] =
    ["numbers.rs", "types.rs", "raw/deferral.rs", "raw/walks.rs", "raw/spaces.rs", "raw/hooks.rs"];

#[test]
fn the_header_is_that_of_the_functions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = SOURCES
        .iter()
        .fold(builder, |builder, source| builder.with_src(folder.join("src").join(source)));
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = without_safety(&String::from_utf8(made).unwrap());
    let header = folder.join("include/unwind_ffi.h");
    if std::env::var_os("UNWIND_WRITE_HEADER").is_some() {
        fs::write(&header, &made).unwrap();
    }
    assert!(
        fs::read_to_string(&header).is_ok_and(|header| header == made),
        "it needs to be renewed"
    );
}

/// The header says in its own words what has to be there: the sections are for Rust.
fn without_safety(header: &str) -> String {
    let mut is_in_section = false;
    let mut out = String::new();
    for line in header.lines() {
        if line == "// # Safety" {
            is_in_section = true;
            // The empty line before it.
            out = out.strip_suffix("//\n").unwrap_or(&out).to_owned();
        }
        is_in_section &= line.starts_with("//");
        if !is_in_section {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
