//! The files that a guest boots with.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "as the rest of what tests share"
)]

use std::fs;
use std::io::Write as _;
use std::path::Path;

/// What a guest begins with, in the layout that the kernel unpacks.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    pub fn add(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.count += 1;
        let name_len = name.len() + 1;
        let fields = [self.count, mode, 0, 0, 1, 0, u32::try_from(contents.len()).unwrap()];
        let rest = [0, 0, 0, 0, u32::try_from(name_len).unwrap(), 0];
        self.bytes.extend(b"070701");
        for field in fields.into_iter().chain(rest) {
            write!(self.bytes, "{field:08x}").unwrap();
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Adds a file under its own path, with the folders above it.
    pub fn add_file(&mut self, path: &Path) {
        let name = path.to_str().unwrap().trim_start_matches('/');
        for (at, _) in name.match_indices('/') {
            self.add(&name[..at], 0o040_755, &[]);
        }
        self.add_program(name, path);
    }

    pub fn add_program(&mut self, name: &str, path: &Path) {
        self.add(name, 0o100_755, &fs::read(path).unwrap());
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
