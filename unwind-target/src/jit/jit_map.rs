//! Names of code that a program has made while it ran: `/tmp/perf-PID.map`, which JIT compilers
//! write for perf. Each line has a start and a length in hexadecimal digits, and a name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::rc::Rc;

use crate::jit::compiler_file;
use crate::notices::Notices;
use crate::target::processes::Processes;
use crate::untrusted::{Untrusted, plain};

/// The most bytes of a file that are read, and the most functions that are kept.
const MAX_BYTES: u64 = 256 << 20;
const MAX_FUNCTIONS: usize = 1 << 20;

/// The longest name, and the longest part of a line that is read, in bytes.
const MAX_NAME: usize = 4096;
const MAX_LINE: u64 = 4096 + 64;

/// How many bytes the functions of a process have in memory, with what each takes besides its name.
pub(super) const MAX_HELD: usize = 128 << 20;
const EACH: usize = 112;

/// The functions of a process.
#[derive(Debug, Default)]
pub(crate) struct JitMap {
    /// By their starts, none over another.
    functions: BTreeMap<u64, Function>,
    /// How many bytes they have at most.
    pub(super) held: usize,
    /// There is no such file.
    pub(super) is_missing: bool,
}

#[derive(Debug)]
struct Function {
    end: u64,
    pub name: Rc<Untrusted>,
}

impl JitMap {
    /// Where the map of a process is.
    pub(crate) fn path(process: u32) -> PathBuf {
        format!("/tmp/perf-{process}.map").into()
    }

    /// The map of a process; nothing is in it if there is no file that may be used.
    pub(crate) fn of_process(process: u32, processes: Processes, notices: &Notices) -> Self {
        let path = Self::path(process);
        let in_container = || {
            let inner = Self::path(compiler_file::inner_id(process, processes)?);
            compiler_file::open_below_root(&inner, process, processes, notices)
        };
        let file = compiler_file::open(&path, process, processes, notices).or_else(in_container);
        let read = |file: File| Self::read(BufReader::new(file.take(MAX_BYTES)));
        // That one is not used is told elsewhere.
        let is_missing = file.is_none() && path.symlink_metadata().is_err();
        Self { is_missing, ..file.map_or_else(Self::default, read) }
    }

    /// Code that is told later takes the place of what was told before: the compiler has made
    /// other code there. Lines that tell of none are left out.
    pub(super) fn read(mut lines: impl BufRead) -> Self {
        let mut map = Self::default();
        let mut line = Vec::new();
        while map.functions.len() < MAX_FUNCTIONS && map.held < MAX_HELD {
            line.clear();
            match lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') && lines.skip_until(b'\n').is_err() {
                break;
            }
            if let Some((start, end, name)) = parse(line.trim_ascii_end()) {
                map.insert(start, end, name);
            }
        }
        map
    }

    /// How many functions there are.
    pub(crate) fn len(&self) -> usize {
        self.functions.len()
    }

    /// Start, end and name of each function, ascending.
    pub(super) fn functions(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let functions = self.functions.iter();
        functions.map(|(&start, function)| (start, function.end, function.name.as_bytes()))
    }

    /// Takes note of a function, in the place of what was there.
    pub(crate) fn insert(&mut self, start: u64, end: u64, name: &[u8]) {
        if let Some((_, before)) = self.functions.range_mut(..start).next_back() {
            let rest = (before.end > end).then(|| (before.end, Rc::clone(&before.name)));
            before.end = before.end.min(start);
            if let Some((last, name)) = rest {
                self.functions.insert(end, Function { end: last, name });
            }
        }
        let covered: Vec<u64> = self.functions.range(start..end).map(|(&at, _)| at).collect();
        for at in covered {
            let Some(function) = self.functions.remove(&at) else { continue };
            if function.end > end {
                self.functions.insert(end, function);
            }
        }
        let name = Rc::new(Untrusted::from(name.get(..MAX_NAME).unwrap_or(name)));
        self.held = self.held.saturating_add(name.as_bytes().len()).saturating_add(EACH);
        self.functions.insert(start, Function { end, name });
    }

    /// The function at an address, and how far into it that is.
    pub(crate) fn function(&self, addr: u64) -> Option<(Rc<Untrusted>, u64)> {
        let (&start, function) = self.functions.range(..=addr).next_back()?;
        (addr < function.end).then(|| (Rc::clone(&function.name), addr.wrapping_sub(start)))
    }
}

/// The functions of a map, ascending.
#[must_use]
pub fn functions_of(text: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    let map = JitMap::read(text);
    map.functions().map(|(start, end, name)| (start, end, name.to_vec())).collect()
}

/// Start, end and name.
fn parse(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let digits = plain(parts.next()?)?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        // The standard library also takes a sign.
        let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_number.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    let (start, len) = (number()?, number()?);
    let end = start.checked_add(len).filter(|_| len > 0)?;
    Some((start, end, parts.next().filter(|name| !name.is_empty())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(map: &JitMap, addr: u64) -> Option<(String, u64)> {
        map.function(addr).map(|(name, at)| (name.escaped().to_string(), at))
    }

    #[test]
    fn d14_code_is_found_by_the_last_line_about_it() {
        let text = b"1000 100 first\n0x2000 0x10 JS:~f a.js:1:2\n1080 40 second\n10f0 20 third\n";
        let map = JitMap::read(&text[..]);
        let function = |addr| found(&map, addr);
        assert_eq!(function(0xfff), None);
        assert_eq!(function(0x107f), Some(("first".into(), 0x7f)));
        assert_eq!(function(0x1080), Some(("second".into(), 0)));
        assert_eq!(function(0x10c0), Some(("first".into(), 0)));
        assert_eq!(function(0x10f0), Some(("third".into(), 0)));
        assert_eq!(function(0x1110), None);
        assert_eq!(function(0x200f), Some(("JS:~f a.js:1:2".into(), 15)));
        let one_over_all = JitMap::read(&[&text[..], b"0 3000 all\n"].concat()[..]);
        assert_eq!(found(&one_over_all, 0x1080), Some(("all".into(), 0x1080)));
        assert_eq!(one_over_all.functions.len(), 1);
    }

    #[test]
    fn d14_lines_that_tell_of_no_code_are_left_out() {
        let text = b"\nx 1 a\n1 x a\n+1 1 a\n1 +1 a\n1 0 a\n1 1\n1 1 \n\
                     ffffffffffffffff 2 a\n10 1 b\x1b\n\xff";
        let map = JitMap::read(&text[..]);
        assert_eq!(map.functions.len(), 1);
        assert_eq!(found(&map, 0x10), Some(("b\\x1b".into(), 0)));
    }

    #[test]
    fn d14_a_line_of_any_length_takes_as_much_memory_as_a_name() {
        let long = |name: usize| [&b"10 1 "[..], &vec![b'a'; name], b"\n20 1 next\n"].concat();
        for name in [MAX_NAME - 1, MAX_NAME, 1 << 22] {
            let map = JitMap::read(&long(name)[..]);
            assert!(map.held < 2 * MAX_NAME, "{}", map.held);
            assert_eq!(found(&map, 0x10).unwrap().0.len(), name.min(MAX_NAME));
            assert_eq!(found(&map, 0x20), Some(("next".into(), 0)));
        }
        // What is not read is no line of its own.
        let name = [&vec![b'a'; 4096 + 64 - 5][..], b"30 1 part\n"].concat();
        let map = JitMap::read(&[&b"10 1 "[..], &name].concat()[..]);
        assert_eq!((map.functions.len(), found(&map, 0x30)), (1, None));
    }
}
