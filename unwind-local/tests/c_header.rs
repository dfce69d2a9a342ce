//! The header for C is what cbindgen makes of the functions. `UNWIND_WRITE_HEADER=1` renews
//! it.
#![cfg(test)]

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_functions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config).with_src(folder.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let header = folder.join("include/unwind_local.h");
    if std::env::var_os("UNWIND_WRITE_HEADER").is_some() {
        fs::write(&header, &made).unwrap();
    }
    assert!(fs::read(&header).is_ok_and(|header| header == made), "it needs to be renewed");
}
