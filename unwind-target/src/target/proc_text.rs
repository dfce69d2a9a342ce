//! A short text of `/proc` about one task, which the kernel writes when it is read first.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, read};

/// How much is asked for: more than any of these texts has, so that one read gives all.
const ROOM: usize = 8192;

/// Reads such a text: `status`, `stat`, `comm` or `syscall`.
///
/// # Errors
///
/// As opening and reading a file.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut text = Vec::with_capacity(ROOM);
    loop {
        match read(&file, spare_capacity(&mut text)) {
            // The kernel gives as much of such a text as there is room for.
            Ok(_) if text.len() < text.capacity() => return Ok(text),
            Ok(_) => text.reserve(ROOM),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_task_are_those_that_many_reads_give() {
        let of = |name: &str| format!("/proc/self/{name}");
        for name in ["comm", "cmdline"] {
            assert_eq!(read_text(of(name)).unwrap(), std::fs::read(of(name)).unwrap(), "{name}");
        }
        // Counts in them change from one read to the next.
        for name in ["status", "stat"] {
            let last = |text: Vec<u8>| text.last().copied();
            let (text, all) = (read_text(of(name)).unwrap(), std::fs::read(of(name)).unwrap());
            let lines = |text: &[u8]| memchr::memchr_iter(b'\n', text).count();
            assert_eq!((lines(&text), last(text)), (lines(&all), last(all)), "{name}");
        }
        let missing = read_text(of("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
