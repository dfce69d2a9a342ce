//! Tables in target memory: the same rows as in bytes in memory, whatever pages
//! are absent and whatever changes under the reader.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sframe::{Error, Lookup, RemoteBuffer, RemoteError, RemoteTable, Table, TableOffset};
use testdata::{Function, Row, TableBuilder, addresses, sections};
use unwind_core::{Memory, ReadError, TableError, VirtAddr};

const PAGE: u64 = 4096;

/// A table in memory, some of whose pages are absent.
#[derive(Default)]
struct Pages<'a> {
    bytes: &'a [u8],
    addr: u64,
    absent: BTreeSet<u64>,
    reads: u32,
    /// The first page that was missed.
    missed: Option<u64>,
    longest: usize,
    /// How far down the stack reads come from.
    lowest: usize,
}

impl<'a> Pages<'a> {
    fn new(bytes: &'a [u8], addr: u64) -> Self {
        Self { bytes, addr, lowest: usize::MAX, ..Self::default() }
    }
}

impl Memory for Pages<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.lowest = self.lowest.min(stack_pointer());
        self.reads += 1;
        self.longest = self.longest.max(buf.len());
        let last = addr.get() + buf.len() as u64 - 1;
        for page in addr.get() / PAGE..=last / PAGE {
            if self.absent.contains(&page) {
                self.missed.get_or_insert(page);
                return Err(ReadError::NotResident);
            }
        }
        let at = addr.get().checked_sub(self.addr).ok_or(ReadError::Invalid)? as usize;
        let source = self.bytes.get(at..).and_then(|tail| tail.get(..buf.len()));
        buf.copy_from_slice(source.ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

/// About where the stack ends.
#[inline(never)]
fn stack_pointer() -> usize {
    let here = 0_u8;
    std::hint::black_box(core::ptr::from_ref(&here).addr())
}

fn open(memory: &mut Pages<'_>) -> RemoteTable {
    let (addr, len) = (memory.addr, memory.bytes.len() as u64);
    RemoteTable::open(memory, addr, len).unwrap()
}

/// A table of `count` functions of 16 bytes, each with `rows` rows.
fn large(version: u8, flags: u8, count: i64, rows: u32) -> Vec<u8> {
    let mut table = TableBuilder { flags, ..TableBuilder::amd64(version) };
    for i in 0..count {
        let row = |row| Row::sp(row, &[8 + i as i32 % 50, -16]);
        let rows: Vec<Row> = (0..rows).map(row).collect();
        table = table.function(Function::new(0x10_0000 + i * 0x400, rows_size(&rows), rows));
    }
    table.build()
}

fn rows_size(rows: &[Row]) -> u32 {
    u32::try_from(rows.len()).unwrap().max(16)
}

#[test]
fn every_address_of_every_tool_has_the_same_row_as_at_hand() {
    let mut compared = 0;
    for fixture in sections() {
        // At each place in a page, so that items straddle its end.
        let addr = fixture.addr.max(PAGE) / PAGE * PAGE + fixture.bytes.len() as u64 % 97;
        let table = Table::parse(&fixture.bytes).unwrap().at(addr);
        let mut memory = Pages::new(&fixture.bytes, addr);
        let remote = open(&mut memory);
        assert_eq!(*remote.header(), table.header());
        let ranges = (0..table.header().num_fdes).filter_map(|index| table.range(index));
        for pc in addresses(ranges.map(|range| (range.start, range.size))) {
            let expected = table.find(pc).unwrap();
            assert_eq!(remote.find(&mut memory, pc), Ok(expected), "{} {pc:#x}", fixture.name());
            compared += 1;
        }
    }
    assert!(compared > 3000, "only {compared} addresses");
}

#[test]
fn damaged_tables_give_the_same_errors_as_at_hand() {
    for fixture in sections().into_iter().filter(|fixture| fixture.bytes.len() < 250) {
        let mut bytes = fixture.bytes.clone();
        for at in 0..bytes.len() {
            let original = bytes[at];
            for change in [0x01, 0x10, 0x60, 0x80, 0xff] {
                bytes[at] = original ^ change;
                let mut memory = Pages::new(&bytes, 0x5000);
                let opened = RemoteTable::open(&mut memory, 0x5000, bytes.len() as u64);
                let table = Table::parse(&bytes).map(|table| table.at(0x5000));
                let (remote, table) = match (opened, table) {
                    (Ok(remote), Ok(table)) => (remote, table),
                    (remote, table) => {
                        assert_eq!(remote.unwrap_err(), RemoteError::Table(table.unwrap_err()));
                        continue;
                    }
                };
                let starts = (0..table.header().num_fdes).map(|index| table.range(index));
                for pc in starts.map(|range| range.unwrap().start) {
                    for pc in [pc, pc.wrapping_add(9)] {
                        let expected = table.find(pc).map_err(RemoteError::Table);
                        assert_eq!(remote.find(&mut memory, pc), expected, "{at:#x} ^ {change:#x}");
                    }
                }
            }
            bytes[at] = original;
        }
    }
}

#[test]
fn an_absent_page_is_named_and_the_lookup_works_once_it_is_there() {
    for (version, flags) in [(1, 1), (2, 5), (3, 5), (3, 4)] {
        let bytes = large(version, flags, 1000, 12);
        let addr = 0x7000_0000 + 0xf3;
        let table = Table::parse(&bytes).unwrap().at(addr);
        let mut memory = Pages::new(&bytes, addr);
        let remote = open(&mut memory);
        let first = addr / PAGE;
        let last = (addr + bytes.len() as u64) / PAGE;
        let mut fewest = usize::MAX;
        for pc in (0..1000).step_by(83).map(|i| addr + 0x10_0000 + i * 0x400 + 11) {
            memory.absent = (first..=last).collect();
            let mut faults = 0;
            let found = loop {
                memory.missed = None;
                match remote.find(&mut memory, pc) {
                    Ok(found) => break found,
                    Err(error) => {
                        assert!(error.is_not_resident(), "{error}");
                        let RemoteError::Unreadable { at, .. } = error else { panic!("{error}") };
                        let missed = memory.missed.unwrap();
                        let page = (addr + at.0) / PAGE;
                        // What starts in one page may end in the next.
                        assert!(missed == page || missed == page + 1, "{missed:#x} {page:#x}");
                        assert!(memory.absent.remove(&missed));
                        faults += 1;
                    }
                }
            };
            assert_eq!(Ok(found), table.find(pc));
            fewest = fewest.min(faults);
        }
        // Pages that nothing needed stay absent.
        if flags & 1 != 0 {
            assert!(fewest < 8, "v{version}: at least {fewest} of {} pages", last - first + 1);
        }
    }
}

#[test]
fn no_read_touches_a_page_after_the_one_that_is_needed() {
    let bytes = large(2, 5, 200, 3);
    // The rows of the first function end right at the end of a page.
    let table = Table::parse(&bytes).unwrap();
    let rows_at = table.header().fres_at().0;
    let addr = 0x1_0000 - rows_at - 12;
    let mut memory = Pages::new(&bytes, addr);
    let remote = open(&mut memory);
    memory.absent = [0x1_0000 / PAGE].into();
    let pc = addr + 0x10_0000;
    assert!(remote.find(&mut memory, pc + 2).unwrap().is_some());
    assert!(remote.find(&mut memory, pc + 0x400).unwrap_err().is_not_resident());
}

#[test]
fn a_lookup_takes_a_bounded_number_of_reads() {
    for version in [1, 2, 3] {
        for (count, rows) in [(1, 1), (1000, 3), (3, 2000), (30_000, 1)] {
            let bytes = large(version, 1, count, rows);
            let mut memory = Pages::new(&bytes, 0x7000_0000);
            let remote = open(&mut memory);
            let last = 0x7000_0000 + 0x10_0000 + (count as u64 - 1) * 0x400;
            for pc in [last, last + u64::from(rows) - 1, 0x7010_0000, 0] {
                memory.reads = 0;
                remote.find(&mut memory, pc).unwrap();
                let functions = u64::from((count as u64).ilog2()) + 2;
                // A window loses what is kept of it, and what is past a page.
                let windows = u64::from(rows) * 6 / 120 + u64::from(rows) * 6 / PAGE + 2;
                let bound = functions + windows;
                assert!(u64::from(memory.reads) <= bound, "{} > {bound}", memory.reads);
            }
            assert!(memory.longest <= 192);
        }
    }
}

#[test]
fn the_limit_of_reads_is_kept() {
    // Not sorted: all entries up to the right one are read.
    let bytes = large(2, 0, 3000, 1);
    let mut memory = Pages::new(&bytes, 0x7000_0000);
    let pc = 0x7010_0000 + 2999 * 0x400;
    let remote = open(&mut memory);
    assert!(remote.find(&mut memory, pc).unwrap().is_some());
    let needed = memory.reads - 1;
    assert!(needed < 3000 / 7, "{needed} reads: entries are read one by one");
    memory.reads = 0;
    let fewer = remote.with_max_reads(needed - 1);
    let error = fewer.find(&mut memory, pc).unwrap_err();
    assert_eq!(error, RemoteError::TooManyReads { limit: needed - 1 });
    assert!(!error.is_not_resident());
    assert_eq!(memory.reads, needed - 1);
    assert!(remote.with_max_reads(needed).find(&mut memory, pc).unwrap().is_some());
}

/// Not inlined, so that all that a lookup needs lies below its caller.
#[inline(never)]
fn look_up(remote: &RemoteTable, memory: &mut Pages<'_>, pc: u64) {
    remote.find(memory, pc).unwrap().unwrap();
}

/// The same through a window that is not on the stack.
#[inline(never)]
fn look_up_row(remote: &RemoteTable, memory: &mut Pages<'_>, pc: u64, window: &mut RemoteBuffer) {
    remote.find_row(memory, pc, window).unwrap().unwrap();
}

#[test]
fn a_lookup_takes_a_bounded_part_of_the_stack() {
    let bytes = large(3, 5, 500, 100);
    let mut memory = Pages::new(&bytes, 0x7000_0000);
    let remote = open(&mut memory);
    memory.lowest = usize::MAX;
    let top = stack_pointer();
    for i in 0..500 {
        look_up(&remote, &mut memory, 0x7010_0000 + i * 0x400 + 99);
    }
    let used = top - memory.lowest;
    println!("{used} bytes of stack");
    // Code that is not optimised keeps more copies.
    let bound = if cfg!(debug_assertions) { 0x4000 } else { 1280 };
    assert!(used <= bound, "{used} bytes of stack");

    let mut window = RemoteBuffer::default();
    memory.lowest = usize::MAX;
    let top = stack_pointer();
    for i in 0..500 {
        look_up_row(&remote, &mut memory, 0x7010_0000 + i * 0x400 + 99, &mut window);
    }
    let used = top - memory.lowest;
    println!("{used} bytes of stack for a row");
    let bound = if cfg!(debug_assertions) { 0x4000 } else { 640 };
    assert!(used <= bound, "{used} bytes of stack for a row");
}

#[test]
fn a_lent_window_holds_nothing_of_the_lookup_before() {
    let tables = [large(2, 1, 3, 2), large(2, 1, 3, 9)];
    let mut window = RemoteBuffer::new();
    for _ in 0..2 {
        for (bytes, addr) in tables.iter().zip([0x5000, 0x9000]) {
            let mut memory = Pages::new(bytes, addr);
            let remote = open(&mut memory);
            for pc in (0..3 * 0x400).map(|offset| addr + 0x10_0000 + offset) {
                let fresh = remote.find_row(&mut memory, pc, &mut RemoteBuffer::new());
                assert_eq!(remote.find_row(&mut memory, pc, &mut window), fresh, "{pc:#x}");
            }
        }
    }
}

#[test]
fn a_table_that_cannot_be_opened_says_why() {
    let bytes = large(2, 1, 3, 1);
    let len = bytes.len() as u64;
    let mut memory = Pages::new(&bytes, 0x5000);
    for short in 0..28 {
        let error = RemoteTable::open(&mut memory, 0x5000, short).unwrap_err();
        assert_eq!(error, RemoteError::Table(Error::Truncated(TableOffset(0))));
        // What is too short is not read: nothing may be there.
        assert_eq!(RemoteTable::open(&mut memory, 0x4000, short).unwrap_err(), error);
    }
    let error = RemoteTable::open(&mut memory, 0x5000, len - 1).unwrap_err();
    assert_eq!(error, RemoteError::Table(Error::FresOutside { end: len, len: len - 1 }));
    let error = RemoteTable::open(&mut memory, 0x4000, len).unwrap_err();
    let invalid = RemoteError::Unreadable { at: TableOffset(0), error: ReadError::Invalid };
    assert_eq!(error, invalid);
    // More bytes than the table has are no matter.
    let remote = RemoteTable::open(&mut memory, 0x5000, u64::MAX).unwrap();
    assert_eq!(remote.addr(), 0x5000);
    // A table without functions is a header.
    let none = TableBuilder::amd64(3).build();
    assert_eq!(none.len(), 28);
    assert!(RemoteTable::open(&mut Pages::new(&none, 0x5000), 0x5000, 28).is_ok());
}

/// Bytes at 0x5000 that another thread may write to, or take away in parts.
struct Target {
    bytes: Vec<AtomicU8>,
    absent: Vec<AtomicBool>,
}

/// How many bytes are taken away at a time.
const PART: usize = 64;

impl Target {
    fn new(bytes: &[u8]) -> Self {
        let absent = (0..bytes.len().div_ceil(PART)).map(|_| AtomicBool::new(false));
        let bytes = bytes.iter().map(|&byte| AtomicU8::new(byte));
        Self { bytes: bytes.collect(), absent: absent.collect() }
    }

    fn set(&self, at: usize, byte: u8) {
        self.bytes[at].store(byte, Ordering::Relaxed);
    }
}

/// What a thread reads of them.
struct Shared<'a> {
    target: &'a Target,
    reads: u32,
}

impl Memory for Shared<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        let at = (addr.get() - 0x5000) as usize;
        let source = self.target.bytes.get(at..).and_then(|tail| tail.get(..buf.len()));
        let parts = at / PART..(at + buf.len()).div_ceil(PART);
        let mut parts = self.target.absent.get(parts).into_iter().flatten();
        if parts.any(|absent| absent.load(Ordering::Relaxed)) {
            return Err(ReadError::NotResident);
        }
        for (byte, shared) in buf.iter_mut().zip(source.ok_or(ReadError::Invalid)?) {
            *byte = shared.load(Ordering::Relaxed);
        }
        Ok(())
    }
}

/// How long [`race`] continues at most until `look_up` has seen what it should.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `look_up` again and again, while another thread calls `change`, until it
/// has done so often and `look_up` says that it has seen everything.
fn race(
    bytes: &[u8],
    change: impl Fn(&Target, u32) + Sync,
    mut look_up: impl FnMut(&RemoteTable, &mut Shared<'_>) -> bool,
) {
    let target = Target::new(bytes);
    let mut memory = Shared { target: &target, reads: 0 };
    let remote = RemoteTable::open(&mut memory, 0x5000, bytes.len() as u64).unwrap();
    let rounds = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                change(&target, round);
                rounds.store(round, Ordering::Relaxed);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let start = Instant::now();
        let mut count = 0;
        let mut should_stop = false;
        while count < 20_000 || rounds.load(Ordering::Relaxed) < 1000 || !should_stop {
            should_stop = look_up(&remote, &mut memory);
            count += 1;
            if count >= 20_000 {
                if start.elapsed() > PATIENCE {
                    break;
                }
                // The two may share one CPU of a machine that is busy.
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn parts_that_vanish_are_named_and_those_that_are_there_are_read() {
    for version in [1, 2, 3] {
        let bytes = large(version, 1, 64, 6);
        let pc = 0x5000 + 0x10_0000 + 33 * 0x400 + 5;
        let expected = Table::parse(&bytes).unwrap().at(0x5000).find(pc).unwrap();
        assert!(expected.is_some());
        let mut answers = [0_u32; 2];
        race(
            &bytes,
            |target, round| {
                // One is away at any time.
                let next = round as usize % target.absent.len();
                target.absent[next].store(true, Ordering::Relaxed);
                let last = (next + target.absent.len() - 1) % target.absent.len();
                target.absent[last].store(false, Ordering::Relaxed);
            },
            |remote, memory| {
                memory.reads = 0;
                match remote.find(memory, pc) {
                    Ok(found) => {
                        assert_eq!(found, expected);
                        answers[0] += 1;
                    }
                    Err(RemoteError::Unreadable { at, error: ReadError::NotResident }) => {
                        assert!((at.0 as usize) < bytes.len());
                        answers[1] += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                assert!(memory.reads < 64 + 8, "{}", memory.reads);
                answers.iter().all(|&count| count > 0)
            },
        );
        assert!(answers.iter().all(|&count| count > 0), "{answers:?}");
    }
}

#[test]
fn a_field_that_changes_is_seen_in_one_of_its_states() {
    let bytes = large(2, 1, 64, 2);
    let table = Table::parse(&bytes).unwrap().at(0x5000);
    let pc = 0x5000 + 0x10_0000 + 40 * 0x400;
    let fre = table.find(pc).unwrap().unwrap().fre.unwrap();
    // After the row's start and info byte: the CFA's offset, 48 or 24.
    let word_at = fre.at.0 as usize + 2;
    assert_eq!(bytes[word_at], 48);
    let mut states = BTreeSet::new();
    race(
        &bytes,
        |target, round| target.set(word_at, if round % 2 == 0 { 48 } else { 24 }),
        |remote, memory| {
            let found = remote.find(memory, pc).unwrap().unwrap();
            let word = found.fre.unwrap().words()[0];
            assert!(word == 48 || word == 24, "{word}");
            states.insert(word);
            states.len() == 2
        },
    );
    assert_eq!(states.len(), 2, "{states:?}");
}

#[test]
fn bytes_that_change_to_anything_give_an_error_or_a_bounded_answer() {
    for version in [1, 2, 3] {
        let bytes = large(version, 1, 64, 6);
        let mut answers = [0_u32; 3];
        race(
            &bytes,
            |target, round| {
                // A cheap generator: any byte but those of the header, to
                // anything, and back.
                let mut state = round.wrapping_mul(0x9e37_79b9) ^ 0x55aa;
                for _ in 0..8 {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let at = 28 + (state >> 8) as usize % (bytes.len() - 28);
                    target.set(at, (state >> 3) as u8);
                    target.set(at, bytes[at]);
                }
            },
            |remote, memory| {
                let pc = 0x5000 + 0x10_0000 + 33 * 0x400 + 5;
                memory.reads = 0;
                match remote.find(memory, pc) {
                    Ok(Some(Lookup { fde, .. })) => {
                        assert!(fde.range.contains(pc));
                        answers[0] += 1;
                    }
                    Ok(None) => answers[1] += 1,
                    Err(RemoteError::Table(error)) => {
                        assert!(error.at().0 <= bytes.len() as u64);
                        answers[2] += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                assert!(memory.reads < 64 + 8, "{}", memory.reads);
                answers[0] > 0
            },
        );
        assert!(answers[0] > 0, "{answers:?}");
    }
}
