//! Files of source code. Makers of programs choose which are named, so only those are read that are called as sources
//! are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// How many bytes of a file are read at most.
const LIMIT: u64 = 8 << 20;

/// The ends of their names.
const ENDS: [&str; 35] = [
    "ads", "adb", "asm", "c", "cc", "cjs", "cpp", "cppm", "cxx", "d", "f", "f90", "go", "h", "hh",
    "hpp", "hs", "hxx", "inc", "inl", "ixx", "js", "jsx", "m", "mjs", "ml", "nim", "pas", "py",
    "rs", "s", "swift", "ts", "tsx", "zig",
];

/// Whether a file is called as a source is.
#[must_use]
pub fn is_source(path: &Path) -> bool {
    let end = path.extension().map(|end| end.as_bytes().to_ascii_lowercase());
    end.is_some_and(|end| ENDS.iter().any(|name| name.as_bytes() == end))
}

/// The lines of these numbers, from 1, as far as they are in the first 8 MiB, without what ends them.
///
/// # Errors
///
/// As reading the file.
pub fn lines(file: File, wanted: &BTreeSet<u32>) -> io::Result<BTreeMap<u32, Vec<u8>>> {
    let mut input = BufReader::new(file.take(LIMIT));
    let mut lines = BTreeMap::new();
    for number in 1..=wanted.last().copied().unwrap_or(0) {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if wanted.contains(&number) {
            line.truncate(line.trim_ascii_end().len());
            lines.insert(number, line);
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &[u8], wanted: &[u32]) -> Vec<(u32, String)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source");
        std::fs::write(&path, text).unwrap();
        let found = lines(File::open(path).unwrap(), &wanted.iter().copied().collect()).unwrap();
        found.into_iter().map(|(number, line)| (number, line.escape_ascii().to_string())).collect()
    }

    #[test]
    fn lines_are_those_of_their_numbers_without_their_ends() {
        let found = lines_of(b"one\r\n  two \n\nfour\nfive", &[1, 2, 3, 5, 6, u32::MAX]);
        let expected = [(1, "one"), (2, "  two"), (3, ""), (5, "five")];
        assert_eq!(found, expected.map(|(number, line)| (number, line.to_owned())));
        assert_eq!(lines_of(b"", &[1]), []);
        assert_eq!(lines_of(b"one", &[]), []);
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let mut text = vec![b'x'; usize::try_from(LIMIT).unwrap() + 10];
        text[..4].copy_from_slice(b"one\n");
        text.extend(b"\nthree\n");
        assert_eq!(lines_of(&text, &[1, 3]), [(1, "one".to_owned())]);
    }

    #[test]
    fn sources_are_told_by_their_names() {
        for name in ["a.c", "/b/a.RS", "a.py", "a.d.ts"] {
            assert!(is_source(Path::new(name)), "{name}");
        }
        for name in ["", "c", ".c", "/etc/passwd", "id_rsa", "a.c.key", "<string>"] {
            assert!(!is_source(Path::new(name)), "{name}");
        }
    }
}
