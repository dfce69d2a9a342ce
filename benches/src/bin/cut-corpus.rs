//! Cuts captured corpora to a size that can be committed.
//!
//! ```text
//! cut-corpus COUNT OUTPUT-FOLDER FILE...
//! ```
#![allow(clippy::unwrap_used, reason = "a program for people who work on the benches")]

use std::path::PathBuf;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let count = arguments.next().unwrap().into_string().unwrap().parse().unwrap();
    let folder = PathBuf::from(arguments.next().unwrap());
    for path in arguments.map(PathBuf::from) {
        let bytes = unwind_benches::cut::cut(&path, count);
        let output = folder.join(path.file_stem().unwrap()).with_extension("snap");
        println!("{} bytes {}", bytes.len(), output.display());
        std::fs::write(output, bytes).unwrap();
    }
}
