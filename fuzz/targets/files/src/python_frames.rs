//! Memory of CPython that is written over at random: what it has is found where nothing is written over, and
//! else time, memory and frames are bounded.
//!
//! The first byte chooses the version; then each ten bytes are a place and a word that is written there.

use std::collections::BTreeMap;

use unwind_target::interpreters::python::image::{FoundThread, frames_in};

use crate::written_image::{LEN, START, find_in};

const THREADS: [u64; 2] = [0x7f00_0000_1000, 0x7f00_0000_2000];

/// Where things are in the memory.
const INTERPRETER: u64 = START + 0x800;
const FIRST_THREAD: u64 = START + 0x1000;
const NATIVE_STACK: u64 = START + 0x2000;
const FRAMES: u64 = START + 0x3000;
const CODE: u64 = START + 0x4000;
const TEXTS: u64 = START + 0x5000;
const TABLE: u64 = START + 0x6000;

pub(crate) fn run(data: &[u8]) {
    let Some((version, found, is_doubtful)) = find(data) else { return };
    if data.len() < 11 {
        let threads: Vec<_> = found.values().map(names).collect();
        let runs = [vec!["inner:12".to_owned(), "outer:11".into()], vec!["outer:11".into()]];
        let runs = if version.minor < 11 { runs.map(|run| run[..1].to_vec()) } else { runs };
        assert_eq!(threads, [runs.to_vec(), runs.to_vec()]);
        assert!(!is_doubtful && found.values().all(|thread| !thread.is_doubtful));
    }
}

type Found = BTreeMap<u64, FoundThread>;

/// What is found in the memory, and whether something is wrong with its list of threads.
fn find(data: &[u8]) -> Option<(Version, Found, bool)> {
    let (&choice, writes) = data.split_first()?;
    let version = Version::ALL[usize::from(choice) % Version::ALL.len()];
    let (found, is_doubtful) =
        find_in(image(&version), writes, |read| frames_in(version.minor, START, &THREADS, read));
    Some((version, found, is_doubtful))
}

fn names(thread: &FoundThread) -> Vec<Vec<String>> {
    let runs = thread.runs.iter().map(|run| {
        let name = |frame: &unwind_target::InterpretedFrame| {
            let function = frame.function.as_ref().map_or(String::new(), ToString::to_string);
            assert_eq!(frame.file.as_ref().map(ToString::to_string).as_deref(), Some("file.py"));
            format!("{function}:{}", frame.line.unwrap_or(0))
        };
        run.iter().map(name).collect()
    });
    runs.collect()
}

/// Where a version has its fields.
#[derive(Clone, Copy)]
struct Version {
    minor: u8,
    first_interpreter: u64,
    first_thread: u64,
    thread_id: u64,
    /// The thread's innermost frame, or its innermost record.
    innermost: u64,
    previous: u64,
    code: u64,
    place: u64,
    file: u64,
    name: u64,
    first_line: u64,
    table: u64,
    start: u64,
    ascii: u64,
}

impl Version {
    const V3_9: Self = Self {
        minor: 9,
        first_interpreter: 32,
        first_thread: 8,
        thread_id: 176,
        innermost: 24,
        previous: 24,
        code: 32,
        place: 104,
        file: 104,
        name: 112,
        first_line: 40,
        table: 120,
        start: 0,
        ascii: 48,
    };
    const V3_11: Self = Self {
        minor: 11,
        first_interpreter: 40,
        first_thread: 16,
        thread_id: 152,
        innermost: 56,
        previous: 48,
        code: 32,
        place: 56,
        file: 112,
        name: 128,
        first_line: 72,
        table: 136,
        start: 184,
        ascii: 48,
    };
    const V3_12: Self = Self {
        minor: 12,
        first_thread: 72,
        thread_id: 136,
        previous: 8,
        code: 0,
        first_line: 68,
        start: 192,
        ascii: 40,
        ..Self::V3_11
    };
    const V3_13: Self =
        Self { minor: 13, first_interpreter: 632, first_thread: 16, innermost: 72, ..Self::V3_12 };
    const ALL: [Self; 4] = [Self::V3_9, Self::V3_11, Self::V3_12, Self::V3_13];

    /// What the process itself says of it: words from the start of its runtime on.
    fn told(&self) -> [(u64, u64); 21] {
        [
            (0, u64::from_le_bytes(*b"xdebugpy")),
            (1, 0x030d_00f0),
            (5, self.first_interpreter),
            (8, 0),
            (9, self.first_thread),
            (21, 8),
            (23, self.innermost),
            (24, self.thread_id),
            (29, self.previous),
            (30, self.code),
            (31, self.place),
            (33, OWNER),
            (35, self.file),
            (37, self.name),
            (38, self.table),
            (39, self.first_line),
            (43, self.start),
            (45, 8),
            (65, 16),
            (66, 32),
            (68, 32),
        ]
    }
}

const OWNER: u64 = 70;

/// Memory with two threads, each with two calls of the evaluator, of two frames where it executes calls itself.
fn image(version: &Version) -> Vec<u8> {
    let mut image = vec![0; LEN];
    let mut put = |addr: u64, bytes: &[u8]| {
        let at = usize::try_from(addr - START).unwrap();
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    if version.minor == 13 {
        for (at, word) in version.told() {
            put(START + at * 8, &word.to_le_bytes());
        }
        put(START + 69 * 8, &16_u64.to_le_bytes());
        put(START + 70 * 8, &version.ascii.to_le_bytes());
    }
    put(START + version.first_interpreter, &INTERPRETER.to_le_bytes());
    put(INTERPRETER + version.first_thread, &FIRST_THREAD.to_le_bytes());
    for (text, at) in [("file.py", 0), ("inner", 0x100), ("outer", 0x200)] {
        put(TEXTS + at + 16, &text.len().to_le_bytes());
        put(TEXTS + at + 32, &0x64_u64.to_le_bytes());
        put(TEXTS + at + version.ascii, text.as_bytes());
    }
    // Two instructions a line; the first line is the function's.
    let table: &[u8] = if version.minor < 10 { &[0, 1] } else { &[0x80 | 11 << 3 | 1, 0, 0] };
    put(TABLE + 16, &table.len().to_le_bytes());
    put(TABLE + 32, table);
    for (number, line) in [(1, 11_u64), (2, 10)] {
        let code = CODE + number * 0x400;
        put(code + version.file, &TEXTS.to_le_bytes());
        put(code + version.name, &(TEXTS + number * 0x100).to_le_bytes());
        put(code + version.table, &TABLE.to_le_bytes());
        put(code + version.first_line, &u32::try_from(line).unwrap().to_le_bytes());
    }
    for (number, thread) in (0_u64..).zip([FIRST_THREAD, FIRST_THREAD + 0x400]) {
        let next = if number == 0 { FIRST_THREAD + 0x400 } else { 0 };
        put(thread + 8, &next.to_le_bytes());
        put(thread + version.thread_id, &THREADS[usize::try_from(number).unwrap()].to_le_bytes());
        let (frames, records) = (FRAMES + number * 0x800, NATIVE_STACK + number * 0x800);
        // Innermost first, each with its code, whether it is the outermost one of its call, and the record of that.
        let calls = [(1, false, 0), (2, true, 0), (2, true, 1)];
        let calls = if version.minor < 11 { &[calls[0], calls[2]][..] } else { &calls[..] };
        let frame = |number: usize| frames + u64::try_from(number).unwrap() * 0x80;
        for (number, &(code, is_entry, record)) in calls.iter().enumerate() {
            let (addr, code) = (frame(number), CODE + code * 0x400);
            let caller = if number + 1 < calls.len() { frame(number + 1) } else { 0 };
            put(addr + version.code, &code.to_le_bytes());
            let place = if version.minor < 11 { 0 } else { code + version.start };
            put(addr + version.place, &place.to_le_bytes());
            put(addr + version.previous, &caller.to_le_bytes());
            let record = records + record * 0x100;
            match version.minor {
                11 => put(addr + 68, &[u8::from(is_entry)]),
                12.. if is_entry => {
                    put(addr + version.previous, &record.to_le_bytes());
                    put(record + version.previous, &caller.to_le_bytes());
                    put(record + OWNER, &[3]);
                }
                _ => {}
            }
        }
        match version.minor {
            11 => {
                put(thread + version.innermost, &records.to_le_bytes());
                for (at, word) in [
                    (8, frame(0)),
                    (16, records + 0x100),
                    (0x108, frame(2)),
                    (0x110, records + 0x200),
                ] {
                    put(records + at, &word.to_le_bytes());
                }
            }
            12 => {
                put(thread + version.innermost, &(records + 0x300).to_le_bytes());
                put(records + 0x300, &frame(0).to_le_bytes());
                put(records + 0x308, &(records + 0x400).to_le_bytes());
                put(records + 0x400, &frame(2).to_le_bytes());
            }
            _ => put(thread + version.innermost, &frame(0).to_le_bytes()),
        }
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of the versions, and words that are written over its memory.
    fn written(choice: u8, words: &[(u64, u64)]) -> (Found, bool) {
        let mut data = vec![choice];
        for (addr, word) in words {
            data.extend(u16::try_from(addr - START).unwrap().to_le_bytes());
            data.extend(word.to_le_bytes());
        }
        let (_, found, is_doubtful) = find(&data).unwrap();
        (found, is_doubtful)
    }

    #[test]
    fn lists_in_circles_end_with_a_mark() {
        for (choice, version) in (0..).zip(Version::ALL) {
            let second = FRAMES + 0x80;
            let (found, _) = written(choice, &[(second + version.previous, FRAMES)]);
            let first = &found[&THREADS[0]];
            assert!(first.is_doubtful && first.runs.iter().map(Vec::len).sum::<usize>() < 16);
            assert!(!found[&THREADS[1]].is_doubtful);
            let (_, is_doubtful) = written(choice, &[(FIRST_THREAD + 8, FIRST_THREAD)]);
            assert!(is_doubtful);
            assert!(written(choice, &[(INTERPRETER, INTERPRETER)]).1);
        }
    }

    #[test]
    fn lengths_of_any_size_are_cut_or_marked() {
        for (choice, version) in (0..).zip(Version::ALL) {
            let (found, _) = written(choice, &[(TEXTS + 0x110, 1 << 60)]);
            let function = found[&THREADS[0]].runs[0][0].function.as_ref().unwrap().to_string();
            assert!(function.starts_with("inner") && function.len() < 8192, "{function}");
            let (found, _) = written(choice, &[(TABLE + 16, 1 << 60)]);
            assert!(found.values().all(|thread| thread.is_doubtful), "{}", version.minor);
        }
    }

    #[test]
    fn memory_that_is_written_over_at_random_is_read_in_bounds() {
        let cases =
            std::env::var("UNWIND_HOSTILE_CASES").map_or(2_000, |cases| cases.parse().unwrap());
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..cases {
            let mut data = vec![random().to_le_bytes()[0]];
            for _ in 0..random() % 12 {
                // Where the image has something, mostly; addresses of it, small numbers, or anything.
                let area = [0, 0x800, 0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000]
                    [(random() % 8) as usize];
                let at = area + u16::try_from(random() % 0x800).unwrap();
                let word = match random() % 4 {
                    0 => START + random() % 0x8000,
                    1 => START + (random() % 0x400) * 0x20,
                    2 => 1 << (random() % 64),
                    _ => random(),
                };
                data.extend(at.to_le_bytes());
                data.extend(word.to_le_bytes());
            }
            run(&data);
        }
    }
}
