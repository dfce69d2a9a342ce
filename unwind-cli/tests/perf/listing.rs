//! What `perf script` and the independent decoder print.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use testdata::perf_text;

/// A sample, or a stack that stands for itself, in a listing of `perf script`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) head: String,
    /// The addresses, as printed.
    pub(crate) ips: Vec<String>,
}

impl Block {
    /// The thread, and the time in nanoseconds.
    pub(crate) fn key(&self) -> (u32, u64) {
        // "comm pid/tid seconds.nanoseconds: …"; a comm can have spaces.
        let (before, _) = self.head.split_once(": ").unwrap();
        let mut words = before.split_whitespace().rev();
        let (time, task) = (words.next().unwrap(), words.next().unwrap());
        let (_, tid) = task.split_once('/').unwrap();
        (tid.parse().unwrap(), time.replace('.', "").parse().unwrap())
    }

    fn cookie(&self) -> Option<&str> {
        self.head.split_once("[cookie: ")?.1.strip_suffix(']')
    }
}

/// Splits a listing.
pub(crate) fn blocks(listing: &str) -> Vec<Block> {
    listing
        .split_terminator("\n\n")
        .map(|block| {
            let mut lines = block.lines();
            let head = lines.next().unwrap().to_owned();
            Block { head, ips: lines.map(|line| line.trim().to_owned()).collect() }
        })
        .collect()
}

/// The samples that stock perf does not merge, because in order of time their
/// stack is before them; found in a listing of unmerged records.
pub(crate) fn late(unmerged: &[Block]) -> BTreeSet<(u32, u64)> {
    let mut stacks = BTreeSet::new();
    let mut late = BTreeSet::new();
    for block in unmerged {
        let (tid, time) = block.key();
        if let Some(cookie) = block.cookie() {
            stacks.insert((tid, cookie));
        } else if let Some(last) = block.ips.last()
            && stacks.contains(&(tid, last.as_str()))
        {
            late.insert((tid, time));
        }
    }
    late
}

/// The samples that end in a cookie of a stack in a listing of merged records.
pub(crate) fn with_cookies(merged: &[Block], unmerged: &[Block]) -> BTreeSet<(u32, u64)> {
    let cookies: BTreeSet<&str> = unmerged.iter().filter_map(Block::cookie).collect();
    let ends_in_cookie =
        |block: &&Block| block.ips.last().is_some_and(|ip| cookies.contains(ip.as_str()));
    merged.iter().filter(ends_in_cookie).map(Block::key).collect()
}

/// How a sample ends for the independent decoder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decoded {
    /// `merged`, `unmatched` or `plain`.
    pub(crate) end: String,
    /// The words of the chain: addresses, and marks as `<KERNEL>`.
    pub(crate) words: Vec<String>,
}

impl Decoded {
    /// The addresses, as `perf script` prints them.
    pub(crate) fn ips(&self) -> Vec<String> {
        self.words.iter().filter(|word| !word.starts_with('<')).cloned().collect()
    }
}

/// The independent decoder's listing of a fixture, by thread and time. Samples
/// of two events can have both in common.
pub(crate) fn decoded(file: &Path) -> BTreeMap<(u32, u64), Vec<Decoded>> {
    let mut samples = BTreeMap::<_, Vec<Decoded>>::new();
    for line in perf_text(file, "merged.txt").lines().filter(|line| !line.starts_with('#')) {
        let (head, chain) = line.split_once(" [").unwrap();
        let mut words = head.split(' ').skip(3);
        let mut value = |name: &str| words.next().unwrap().strip_prefix(name).unwrap().to_owned();
        let key = (value("tid=").parse().unwrap(), value("time=").parse().unwrap());
        let end = value("");
        let words = chain.trim_end_matches(']').split_whitespace().map(str::to_owned).collect();
        samples.entry(key).or_default().push(Decoded { end, words });
    }
    samples
}
