//! Damaged files: what could be read, then one line of error.

use testdata::perf_file;

use crate::files::{Parts, Scratch, done, perf_data, plain, text, unwind, unwind_with, word};
use crate::listing::blocks;

/// Runs `script` on `bytes`. Returns what was printed, and the error if there
/// is one.
fn script(bytes: &[u8]) -> (String, Option<String>) {
    let file = Scratch::new(bytes);
    let output = unwind(&plain(&[file.name()]));
    let error = text(&output.stderr);
    match output.status.code() {
        // Without its ledger the samples are there.
        Some(0) => {
            let is_of_ledger = |line: &str| {
                line.contains("it is not known which stacks are not complete: damaged")
            };
            assert!(error.lines().all(is_of_ledger), "{error}");
        }
        // Warnings can be before it.
        Some(5) => assert!(error.lines().all(|line| line.starts_with("unwind: ")), "{error}"),
        code => panic!("exit code {code:?}: {error}"),
    }
    let has_error = output.status.code() != Some(0);
    (text(&output.stdout), Some(error).filter(|_| has_error))
}

/// A recording with few records: the first `len` bytes of the data.
fn small(len: usize) -> Vec<u8> {
    let file = perf_file("pfork.data");
    let mut out = file[..word(&file, 40)].to_vec();
    out.extend(&Parts::of(&file).data[..len]);
    out[48..56].copy_from_slice(&u64::try_from(len).unwrap().to_le_bytes());
    // No features.
    out[72..104].fill(0);
    out
}

/// Where the records of `small` start, and where the last one ends.
fn boundaries(file: &[u8]) -> Vec<usize> {
    let mut at = word(file, 40);
    let mut boundaries = vec![at];
    while at < file.len() {
        at += usize::from(u16::from_le_bytes(file[at + 6..at + 8].try_into().unwrap()));
        boundaries.push(at);
    }
    boundaries
}

/// A small file that ends with whole records.
fn whole(at_least: usize) -> Vec<u8> {
    let file = perf_file("pfork.data");
    let data = Parts::of(&file).data;
    let mut len = 0;
    while len < at_least {
        len += usize::from(u16::from_le_bytes(data[len + 6..len + 8].try_into().unwrap()));
    }
    small(len)
}

#[test]
fn a_file_cut_anywhere_gives_what_is_whole_and_says_where_it_ends() {
    let file = whole(7000);
    let boundaries = boundaries(&file);
    let start = boundaries[0];
    let mut samples = 0;
    // Every byte of the header, and around each record.
    let near = |len: usize| boundaries.iter().any(|&at| at.abs_diff(len) < 3);
    for len in (0..file.len()).filter(|&len| len <= start + 16 || near(len) || len % 61 == 0) {
        let (printed, error) = script(&file[..len]);
        let error = error.unwrap_or_else(|| panic!("{len} bytes: no error"));
        if len < start {
            assert_eq!(printed, "", "{len} bytes");
            continue;
        }
        let cut_at = boundaries.iter().rev().find(|&&at| at <= len).unwrap();
        assert!(error.contains(&format!("the record at {cut_at:#x}")), "{len} bytes: {error}");
        let found = blocks(&printed).len();
        assert!(found >= samples, "{len} bytes: more input, fewer samples");
        samples = found;
    }
    assert!(samples > 10);
    assert_eq!(script(&file).1, None);
}

#[test]
fn a_pipe_cut_inside_a_record_says_so_and_at_a_boundary_ends() {
    let pipe = Parts::of(&whole(7000)).to_pipe();
    let output = unwind_with(&plain(&["-"]), &pipe);
    assert!(output.status.success());
    let output = unwind_with(&plain(&["-"]), &pipe[..pipe.len() - 1]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("cut off"), "{}", text(&output.stderr));
    assert!(!output.stdout.is_empty());
}

#[test]
fn a_recorder_that_was_killed_leaves_a_file_that_can_be_read() {
    let file = whole(7000);
    let mut unfinished = file.clone();
    unfinished[48..56].fill(0);
    let (printed, error) = script(&unfinished);
    assert_eq!(printed, script(&file).0);
    assert!(error.unwrap().contains("not finished by its recorder"));
}

#[test]
fn numbers_in_the_header_at_their_limits_allocate_nothing_and_panic_nowhere() {
    let file = perf_file("pfork.data");
    let len = u64::try_from(file.len()).unwrap();
    let mut refused = 0;
    // Size, attr length, attrs, data, event types, features; then the place of
    // the first event's ids.
    let ids_at = word(&file, 24) + word(&file, 16) - 16;
    for at in (8..104).step_by(8).chain([ids_at, ids_at + 8]) {
        for value in
            [0, 1, 15, 16, 17, 80, len - 1, len, len + 1, 1 << 32, 1 << 62, u64::MAX / 16, u64::MAX]
        {
            let mut damaged = file.clone();
            damaged[at..at + 8].copy_from_slice(&value.to_le_bytes());
            refused += u32::from(script(&damaged).1.is_some());
        }
    }
    assert!(refused > 50, "{refused}");
    // Tables of features that lie.
    let table = word(&file, 40) + word(&file, 48);
    for at in (table..table + 64).step_by(8) {
        for value in [0, len, 1 << 40, u64::MAX] {
            let mut damaged = file.clone();
            damaged[at..at + 8].copy_from_slice(&value.to_le_bytes());
            script(&damaged);
        }
    }
}

#[test]
fn names_of_events_that_lie_leave_the_samples() {
    let file = perf_file("pfork.data");
    let names = Parts::of(&file).event_desc.unwrap();
    let at = names.as_ptr().addr() - file.as_ptr().addr();
    let samples = blocks(&script(&file).0).len();
    for offset in 0..8 {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut damaged = file.clone();
            damaged[at + offset] = byte;
            let (printed, error) = script(&damaged);
            assert_eq!((blocks(&printed).len(), error), (samples, None));
            // The attr gives the name where the list does not: with what it counts.
            let names = [" cpu-clock: ", " cpu-clock:HG: "];
            assert!(names.iter().any(|name| printed.contains(name)));
        }
    }
}

#[test]
fn a_record_that_lies_is_left_out_and_its_neighbours_stay() {
    let file = whole(7000);
    let (expected, _) = script(&file);
    let expected = blocks(&expected);
    let boundaries = boundaries(&file);
    let mut left_out = 0;
    for pair in boundaries.windows(2) {
        let (start, end) = (pair[0], pair[1]);
        let kind = u32::from_le_bytes(file[start..start + 4].try_into().unwrap());
        if kind != 9 && kind != 22 {
            continue;
        }
        // IP, TID, TIME, PERIOD, count; or cookie, count.
        let count_at = start + if kind == 9 { 40 } else { 16 };
        for count in [0_u64, 1 << 13, 1 << 61, u64::MAX] {
            let mut damaged = file.clone();
            damaged[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
            let (printed, error) = script(&damaged);
            let error = error.unwrap();
            assert!(error.contains("1 record was left out"), "{error}");
            assert!(error.contains(&format!("{start:#x}")), "{error}");
            let found = blocks(&printed);
            if kind == 9 {
                assert_eq!(found.len(), expected.len() - 1);
                assert!(found.iter().all(|block| expected.contains(block)));
            } else {
                assert_eq!(found.len(), expected.len());
            }
            left_out += 1;
        }
        // A size that is none ends the reading.
        let mut damaged = file.clone();
        damaged[start + 6..start + 8].copy_from_slice(&4_u16.to_le_bytes());
        let (printed, error) = script(&damaged);
        assert!(error.unwrap().contains(&format!("damaged at {start:#x}")));
        assert!(blocks(&printed).len() < expected.len());
        // One that reaches past the end, too.
        damaged[start + 6..start + 8].copy_from_slice(&0xfff8_u16.to_le_bytes());
        let (_, error) = script(&damaged);
        assert!(error.unwrap().contains(&format!("the record at {start:#x}")), "{end}");
    }
    assert!(left_out > 100);
}

#[test]
fn a_record_of_no_known_event_is_left_out() {
    let path = testdata::perf_files("raw").into_iter().find(|path| path.ends_with("two64.raw"));
    let file = perf_data(&path.unwrap());
    let samples = blocks(&script(&file).0).len();
    let mut at = word(&file, 40);
    while file[at] != 9 {
        at += usize::from(u16::from_le_bytes(file[at + 6..at + 8].try_into().unwrap()));
    }
    // IDENTIFIER is the first field of a sample.
    let mut damaged = file.clone();
    damaged[at + 8..at + 16].copy_from_slice(&4711_u64.to_le_bytes());
    let (printed, error) = script(&damaged);
    assert_eq!(blocks(&printed).len(), samples - 1);
    let error = error.unwrap();
    assert!(error.contains("no event has the id 4711"), "{error}");
    assert!(error.contains(&format!("the first at {at:#x}")), "{error}");
}

#[test]
fn random_bytes_after_a_true_header_end_with_an_error() {
    let header_len = word(&perf_file("pfork.data"), 40);
    let mut random = 11_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    for _ in 0..150 {
        let mut file = small(0)[..header_len].to_vec();
        for _ in 0..next() % 40 {
            let words = next() % 20;
            let kind = [2, 3, 4, 7, 9, 9, 22, 22, 64, 68, 71, 78, 80]
                [usize::try_from(next() % 13).unwrap()];
            file.extend(u32::to_le_bytes(kind));
            file.extend(u16::to_le_bytes(2));
            file.extend(u16::try_from(8 + 8 * words).unwrap().to_le_bytes());
            for _ in 0..words {
                let word = if next() % 2 == 0 { next() % 20 } else { next() << 31 | next() };
                file.extend(word.to_le_bytes());
            }
        }
        let len = u64::try_from(file.len() - header_len).unwrap();
        file[48..56].copy_from_slice(&len.to_le_bytes());
        script(&file);
        let (file, out) = (Scratch::new(&file), Scratch::new(&[]));
        let output = unwind(&["merge", file.name(), "-o", out.name()]);
        assert!(matches!(output.status.code(), Some(0 | 5)), "{}", text(&output.stderr));
    }
}

#[test]
fn a_merge_of_a_damaged_file_has_what_could_be_read() {
    let file = whole(7000);
    let cut = Scratch::new(&file[..file.len() - 4]);
    let merged = Scratch::new(&[]);
    let output = unwind(&["merge", cut.name(), "-o", merged.name()]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stderr).contains("cut off"), "{}", text(&output.stderr));
    let (printed, _) = script(&file[..file.len() - 4]);
    assert_eq!(blocks(&done(&plain(&[merged.name()]))).len(), blocks(&printed).len());
}

#[test]
fn records_that_cannot_be_decompressed_are_named_as_such() {
    let mut file = whole(3000);
    let at = *boundaries(&file).last().unwrap() + 13;
    file.extend([81, 0, 0, 0, 0, 0, 13, 0, 1, 2, 3, 4, 5]);
    let len = u64::try_from(file.len() - word(&file, 40)).unwrap();
    file[48..56].copy_from_slice(&len.to_le_bytes());
    let (printed, error) = script(&file);
    let error = error.unwrap();
    let said = format!("the compressed records before {at:#x} cannot be decompressed");
    assert!(error.contains(&said), "{error}");
    assert!(!printed.is_empty());
}
