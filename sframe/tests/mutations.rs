//! Every reference section, damaged in every place: an error or an answer, in
//! work that the section's size bounds.
//!
//! A plain run takes a part of it. `UNWIND_MUTATIONS=all` takes all: each byte
//! to eight values, each truncation, and ten million random changes. Sections
//! beyond those in `testdata` come from the directory that `SFRAME_REFERENCE`
//! names.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::ops::ControlFlow;

use sframe::{RemoteBuffer, RemoteTable, Table};
use testdata::sections;
use unwind_core::{Memory, ReadError, VirtAddr};

fn is_full_run() -> bool {
    std::env::var_os("UNWIND_MUTATIONS").is_some_and(|value| value == "all")
}

/// Memory that counts the bytes that are read.
struct Counting<'a> {
    bytes: &'a [u8],
    read: usize,
}

impl Memory for Counting<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.read += buf.len();
        let at = usize::try_from(addr.get()).map_err(|_| ReadError::Invalid)?;
        let bytes = self.bytes.get(at..).and_then(|tail| tail.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

/// What all answers cost, for each byte of the section at most.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Bytes that one lookup reads.
    lookup: f64,
    /// Rows that a validation looks at.
    rows: f64,
    /// Findings of a validation.
    findings: f64,
    /// Words that an index asks for.
    index: f64,
}

/// Where answers may change: the bounds of some functions.
fn pcs(table: &Table<'_>) -> impl Iterator<Item = u64> {
    let ranges = (0..table.header().num_fdes.min(8)).filter_map(|index| table.range(index));
    let ends = ranges.flat_map(|range| {
        let size = u64::from(range.size);
        [0, 1, size / 2, size.wrapping_sub(1), size].map(|offset| range.start.wrapping_add(offset))
    });
    ends.chain([0, u64::MAX])
}

/// Asks a section everything. What it costs, for each byte.
#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "small numbers")]
fn ask(bytes: &[u8], cost: &mut Cost) -> bool {
    let each = |count: u64| count as f64 / bytes.len().max(64) as f64;
    let max = |old: &mut f64, new: u64| *old = old.max(each(new));
    let mut memory = Counting { bytes, read: 0 };
    let len = u64::try_from(bytes.len()).unwrap();
    let remote = RemoteTable::open(&mut memory, 0, len);
    let Ok(table) = Table::parse(bytes) else {
        assert!(remote.is_err());
        return false;
    };
    let remote = remote.unwrap();
    let mut window = RemoteBuffer::new();
    let index_len = table.index_len();
    max(&mut cost.index, u64::try_from(index_len).unwrap());
    let mut words = vec![0; index_len];
    let index = table.index(&mut words);
    for pc in pcs(&table) {
        let found = table.find(pc);
        let row = found.and_then(|found| found.map(|found| found.row()).transpose());
        assert_eq!(table.find_row(pc), row, "at {pc:#x}");
        assert_eq!(index.find(pc), found, "at {pc:#x}");
        memory.read = 0;
        let far = remote.find(&mut memory, pc);
        assert_eq!(far.ok(), found.ok(), "at {pc:#x}");
        max(&mut cost.lookup, u64::try_from(memory.read).unwrap());
        memory.read = 0;
        let far = remote.find_row(&mut memory, pc, &mut window);
        assert_eq!(far.ok(), row.ok(), "at {pc:#x}");
        max(&mut cost.lookup, u64::try_from(memory.read).unwrap());
        if let Err(error) = row {
            assert!(error.at().0 <= len, "{error}");
        }
    }
    let mut findings = 0;
    let mut buffer = vec![0; usize::try_from(table.header().num_fdes).unwrap()];
    let summary = table.validate(&mut buffer, |_| {
        findings += 1;
        ControlFlow::<()>::Continue(())
    });
    let summary = summary.continue_value().unwrap();
    max(&mut cost.findings, findings);
    // Small sections may have this number of rows in any case.
    max(&mut cost.rows, summary.rows.saturating_sub(0x1_0000));
    if summary.errors == 0 {
        for pc in pcs(&table) {
            table.find(pc).unwrap().map(|found| found.row().unwrap());
        }
    }
    true
}

fn assert_bounded(cost: Cost) {
    // A window is read on from where it was left, so most bytes are read once;
    // those of a bisection may be read again with their neighbours.
    assert!(cost.lookup <= 4.0, "{cost:?}");
    assert!(cost.rows <= 16.0, "{cost:?}");
    // Several things may be wrong with one row of two bytes.
    assert!(cost.findings <= 2.0, "{cost:?}");
    assert!(cost.index <= 1.1, "{cost:?}");
}

/// Those that a plain run has the time for, and of a copy under another name
/// one.
fn subjects() -> Vec<(String, Vec<u8>)> {
    let longest = if is_full_run() { usize::MAX } else { 200 };
    let mut all: Vec<_> = sections()
        .into_iter()
        .map(|fixture| (fixture.name(), fixture.bytes))
        .filter(|(_, bytes)| bytes.len() <= longest)
        .collect();
    all.sort_by(|a, b| a.1.cmp(&b.1));
    all.dedup_by(|a, b| a.1 == b.1);
    all
}

#[test]
fn f22_every_byte_to_other_values_is_an_error_or_an_answer_in_bounds() {
    let (mut asked, mut accepted, mut cost) = (0_u64, 0_u64, Cost::default());
    for (_, mut bytes) in subjects() {
        for at in 0..bytes.len() {
            let original = bytes[at];
            let values = [
                0,
                1,
                0x7f,
                0x80,
                0xff,
                original ^ 0x01,
                original ^ 0x10,
                original.wrapping_add(0x40),
            ];
            for value in values {
                bytes[at] = value;
                asked += 1;
                accepted += u64::from(ask(&bytes, &mut cost));
            }
            bytes[at] = original;
        }
    }
    println!("{asked} sections, {accepted} accepted: {cost:.2?}");
    assert!(accepted > asked / 4);
    assert_bounded(cost);
}

#[test]
fn f22_every_truncation_is_an_error_or_an_answer_in_bounds() {
    let (mut asked, mut cost) = (0_u64, Cost::default());
    for (_, bytes) in subjects() {
        for len in 0..=bytes.len() {
            asked += 1;
            ask(&bytes[..len], &mut cost);
        }
    }
    println!("{asked} sections: {cost:.2?}");
    assert_bounded(cost);
}

#[test]
fn f22_random_changes_are_errors_or_answers_in_bounds() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |end: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 20).unwrap() % end
    };
    let subjects = subjects();
    let rounds = if is_full_run() { 10_000_000 } else { 8_000 };
    let (mut accepted, mut cost) = (0_u64, Cost::default());
    for round in 0..rounds {
        let mut bytes = subjects[round % subjects.len()].1.clone();
        for _ in 0..=below(6) {
            let at = below(bytes.len());
            bytes[at] = match below(4) {
                0 => u8::try_from(below(256)).unwrap(),
                1 => bytes[at] ^ 1 << below(8),
                2 => bytes[below(bytes.len())],
                _ => [0, 1, 0x7f, 0x80, 0xff][below(5)],
            };
        }
        if below(16) == 0 {
            bytes.truncate(below(bytes.len() + 1));
        }
        accepted += u64::from(ask(&bytes, &mut cost));
        if (round + 1) % 500_000 == 0 {
            println!("{} so far", round + 1);
        }
    }
    println!("{rounds} sections, {accepted} accepted: {cost:.2?}");
    assert_bounded(cost);
}
