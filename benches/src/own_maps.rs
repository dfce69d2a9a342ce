//! The address space of the running process.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

/// A range of this process's address space.
#[derive(Clone, Debug)]
pub struct Map {
    /// Its addresses.
    pub range: Range<u64>,
    /// Whether there may be code.
    pub is_code: bool,
    /// Where in the file it starts.
    pub offset: u64,
    /// The file, or a name in brackets, or nothing.
    pub path: PathBuf,
}

/// The bytes of a range of this process's address space, if they can be read.
#[must_use]
pub fn own_bytes(map: &Map) -> Option<Vec<u8>> {
    let len = usize::try_from(map.range.end - map.range.start).ok()?;
    let mut bytes = vec![0; len];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, map.range.start).ok()?;
    Some(bytes)
}

/// The address space of this process.
///
/// # Panics
///
/// If Linux does not say it.
#[must_use]
pub fn own_maps() -> Vec<Map> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let maps = maps.lines().map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next().unwrap().split_once('-').unwrap();
        let is_code = fields.next().unwrap().contains('x');
        let offset = hex(fields.next().unwrap());
        let path = fields.nth(2).unwrap_or_default().into();
        Map { range: hex(start)..hex(end), is_code, offset, path }
    });
    maps.collect()
}
