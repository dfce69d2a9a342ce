//! Recordings of perf whose parts share what they name, or are many and small.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::resources::{Bounds, Run, input_file, stays_linear};

/// A sample of eight bytes is a line of some hundred, and an address of eight a line with
/// two names. Records that wait for their turn take what it takes to sort them.
const PERF: Bounds = Bounds { time: Duration::from_secs(60), memory: 48, output: 80 };

/// `sample_type` bits.
const IP: u64 = 1 << 0;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const CALLCHAIN: u64 = 1 << 5;
const IDENTIFIER: u64 = 1 << 16;

fn attr(sample_type: u64, flags: u64) -> Vec<u8> {
    let mut attr = [1_u32, 64].map(u32::to_le_bytes).concat();
    let words = [0, 1000, sample_type, 0, flags, 0, 0];
    attr.extend(words.into_iter().flat_map(u64::to_le_bytes));
    attr
}

fn record(kind: u32, misc: u16, body: &[u8], out: &mut Vec<u8>) {
    out.extend(kind.to_le_bytes());
    out.extend(misc.to_le_bytes());
    out.extend(u16::try_from(8 + body.len()).unwrap().to_le_bytes());
    out.extend(body);
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pipe() -> Vec<u8> {
    [&b"PERFILE2"[..], &16_u64.to_le_bytes()].concat()
}

/// `PERF_RECORD_HEADER_ATTR`.
fn event(attr: &[u8], ids: &[u64], out: &mut Vec<u8>) {
    record(64, 0, &[attr, &words(ids)].concat(), out);
}

/// `PERF_RECORD_EVENT_UPDATE` with a name.
fn name_event(id: u64, name: &[u8], out: &mut Vec<u8>) {
    let mut body = words(&[2, id]);
    body.extend(name);
    body.resize(body.len().next_multiple_of(8), 0);
    record(78, 0, &body, out);
}

/// The file form: attrs with the places of their ids, and data.
fn file(entries: &[(Vec<u8>, u64, u64)], lists: &[u8], data: &[u8]) -> Vec<u8> {
    let size = |len: usize| u64::try_from(len).unwrap();
    let entry = entries[0].0.len() + 16;
    let attrs_at = 104 + lists.len();
    let attrs_len = entry * entries.len();
    let data_at = size(attrs_at + attrs_len);
    let mut file = b"PERFILE2".to_vec();
    let header =
        [104, size(entry), size(attrs_at), size(attrs_len), data_at, size(data.len()), 0, 0];
    file.extend(words(&header));
    file.extend(words(&[0; 4]));
    file.extend(lists);
    for (attr, at, len) in entries {
        file.extend(attr);
        file.extend(words(&[*at, *len]));
    }
    file.extend(data);
    file
}

const SCRIPT: &[&str] = &["script", "FILE"];
const JSON: &[&str] = &["script", "--json", "FILE"];

/// Runs the text, the JSON and the merge on what `build` makes.
fn all_stay_linear(test: &str, construction: &str, build: impl FnMut(usize) -> Vec<u8>) {
    all_stay_within(PERF, test, construction, build);
}

fn all_stay_within(
    bounds: Bounds,
    test: &str,
    construction: &str,
    mut build: impl FnMut(usize) -> Vec<u8>,
) {
    let path = input_file(test);
    for (reader, arguments) in [("script", SCRIPT), ("script --json", JSON)] {
        stays_linear(reader, construction, bounds, |times| {
            Run::of_file(&path, &build(times), arguments)
        });
    }
    stays_linear("merge", construction, bounds, |times| merge(&path, &build(times)));
}

/// An address of a user in each sample, and a name of the thread.
fn small_samples(count: usize, out: &mut Vec<u8>) {
    for _ in 0..count {
        record(9, 2, &words(&[7 | 7 << 32]), out);
    }
}

#[test]
fn c5_events_that_share_their_list_of_ids() {
    all_stay_linear("c5_ids", "events that share their ids", |times| {
        let ids = words(&(0..4096 * u64::try_from(times).unwrap()).collect::<Vec<_>>());
        let len = u64::try_from(ids.len()).unwrap();
        let entries: Vec<_> = (0..512 * times).map(|_| (attr(IDENTIFIER, 0), 104, len)).collect();
        file(&entries, &ids, &[])
    });
}

#[test]
fn c8_samples_beside_an_event_with_a_long_name() {
    all_stay_linear("c8_width", "one long name of an event", |times| {
        let mut out = pipe();
        let sample_type = IDENTIFIER | TID;
        event(&attr(sample_type, 1 << 18), &[1], &mut out);
        event(&attr(sample_type, 1 << 18), &[2], &mut out);
        for _ in 0..times {
            name_event(2, &[b'n'; 60_000], &mut out);
        }
        for _ in 0..2500 * times {
            record(9, 2, &words(&[1, 7 | 7 << 32]), &mut out);
        }
        out
    });
}

#[test]
fn c8_samples_of_an_event_with_a_long_name() {
    all_stay_linear("c8_name", "samples with a long name", |times| {
        let mut out = pipe();
        event(&attr(TID, 1 << 18), &[1], &mut out);
        name_event(1, &[0xff; 10_000], &mut out);
        small_samples(5000 * times, &mut out);
        out
    });
}

#[test]
fn c8_events_that_come_and_are_named_between_samples() {
    all_stay_linear("c8_events", "events between samples", |times| {
        let mut out = pipe();
        for id in 1..3000 * u64::try_from(times).unwrap() {
            event(&attr(IDENTIFIER | TID, 1 << 18), &[id], &mut out);
            name_event(id, b"a name", &mut out);
            record(9, 2, &words(&[id, 7 | 7 << 32]), &mut out);
        }
        out
    });
}

#[test]
fn c5_addresses_in_a_file_with_a_long_path() {
    all_stay_linear("c5_paths", "a long path for each address", |times| {
        let mut out = pipe();
        event(&attr(IP | TID | CALLCHAIN, 1 << 18), &[1], &mut out);
        let mut mapping = words(&[7 | 7 << 32, 0x1000, 0x10_0000, 0]);
        mapping.push(b'/');
        mapping.resize(mapping.len() + 8000, b'p');
        mapping.resize(mapping.len().next_multiple_of(8), 0);
        mapping.extend(words(&[7 | 7 << 32]));
        record(1, 2, &mapping, &mut out);
        for at in 0..50 * u64::try_from(times).unwrap() {
            let chain: Vec<u64> = (0..200).map(|frame| 0x2000 + frame + at).collect();
            let body = [vec![0x2000, 7 | 7 << 32, 200], chain].concat();
            record(9, 2, &words(&body), &mut out);
        }
        out
    });
}

#[test]
fn c6_mappings_of_a_process_and_of_its_many_children() {
    all_stay_linear("c6_mappings", "children that map", |times| {
        let mut out = pipe();
        event(&attr(IP | TID, 1 << 18), &[1], &mut out);
        let map = |pid: u64, addr: u64, len: u64, out: &mut Vec<u8>| {
            let mut body = words(&[pid | pid << 32, addr, len, 0]);
            body.extend(b"/x\0\0\0\0\0\0");
            body.extend(words(&[pid | pid << 32]));
            record(1, 2, &body, out);
        };
        let count = 1000 * u64::try_from(times).unwrap();
        for at in 0..count {
            map(7, 0x1000 * at, 0x1000, &mut out);
        }
        for child in 8..8 + count {
            // Child and parent, their first threads, a time.
            let body = words(&[child | 7 << 32, child | 7 << 32, 0, child | child << 32]);
            record(7, 0, &body, &mut out);
            // One that covers all of the parent's.
            map(child, 0, 0x1000 * count, &mut out);
            record(9, 2, &words(&[0x5000, child | child << 32]), &mut out);
        }
        out
    });
}

#[test]
fn c8_samples_that_wait_to_be_put_in_order() {
    all_stay_linear("c8_order", "samples in no order", |times| {
        let mut out = pipe();
        event(&attr(TIME, 1 << 18), &[1], &mut out);
        let count = 10_000 * u64::try_from(times).unwrap();
        for at in 0..count {
            record(9, 2, &words(&[1 + at * 7919 % count]), &mut out);
        }
        out
    });
}

#[test]
fn c8_samples_that_share_a_long_stack() {
    // Each has 127 lines.
    let bounds = Bounds { output: 200, ..PERF };
    all_stay_within(bounds, "c8_stack", "samples that share a stack", |times| {
        let mut out = pipe();
        let fields = IP | TID | TIME | CALLCHAIN;
        event(&attr(fields, 1 << 18 | 1 << 38 | 1 << 39), &[1], &mut out);
        let deferred = 640_u64.wrapping_neg();
        for at in 0..700 * u64::try_from(times).unwrap() {
            record(9, 1, &words(&[5, 7 | 7 << 32, at + 1, 2, deferred, 77]), &mut out);
        }
        let stack: Vec<u64> = (0..1000).map(|frame| 0x40_0000 + frame).collect();
        let body = [vec![77, 1000], stack, vec![7 | 7 << 32, 1 << 40]].concat();
        record(22, 2, &words(&body), &mut out);
        out
    });
}

/// Feature sections that all are the whole file: a merge copies each.
/// Samples with a call stack of two calls, of which the older is the newer one of the sample
/// before, in a file that says how many entries the CPU's record has.
fn stitched_samples(count: u64) -> Vec<u8> {
    const BRANCH_STACK: u64 = 1 << 11;
    const CALLS: u64 = 1 << 11 | 1 << 15 | 1 << 17;
    let mut attr = attr(TID | CALLCHAIN | BRANCH_STACK, 0);
    attr[4..8].copy_from_slice(&80_u32.to_le_bytes());
    attr.extend(words(&[0, CALLS]));
    let mut data = Vec::new();
    for call in 1..count {
        let site = |call| [0x40_0000 + 16 * call, 0x40_0008 + 16 * call, 0];
        let head = [7 | 7 << 32, 1, 512_u64.wrapping_neg(), 2, call % 2];
        let body = [&head[..], &site(call), &site(call - 1)].concat();
        record(9, 2, &words(&body), &mut data);
    }
    let mut out = file(&[(attr, 0, 0)], &[], &data);
    // One property: its name and its value, of eight bytes each.
    let section = [&1_u32.to_le_bytes()[..], &9_u32.to_le_bytes(), b"branches\0"].concat();
    let section = [&section[..], &8_u32.to_le_bytes(), b"2\0\0\0\0\0\0\0"].concat();
    out[72..80].copy_from_slice(&(1_u64 << 28).to_le_bytes());
    let at = u64::try_from(out.len()).unwrap() + 16;
    out.extend(words(&[at, u64::try_from(section.len()).unwrap()]));
    out.extend(section);
    out
}

#[test]
fn c8_samples_whose_calls_are_stitched() {
    let path = input_file("c8_stitched");
    let build = |times| stitched_samples(4000 * u64::try_from(times).unwrap());
    fs::write(&path, build(1)).unwrap();
    let mut script = Command::new(env!("CARGO_BIN_EXE_unwind"));
    let text = script.args(["script", "--stitch-lbr"]).arg(&path).output().unwrap().stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.matches("[stitched]").count() > 90 * 3900, "they are stitched");
    for arguments in
        [&["script", "--stitch-lbr", "FILE"][..], &["script", "--json", "--stitch-lbr", "FILE"]]
    {
        stays_linear("script --stitch-lbr", "calls of samples before", PERF, |times| {
            Run::of_file(&path, &build(times), arguments)
        });
    }
}

#[test]
fn c8_feature_sections_that_share_bytes() {
    let path = input_file("c8_features");
    stays_linear("merge", "features that share bytes", PERF, |times| {
        let mut data = Vec::new();
        small_samples(20_000 * times, &mut data);
        let mut file = file(&[(attr(TID, 1 << 18), 104, 0)], &[], &data);
        let at = file.len();
        // All 256 but the description of events.
        file[72..104].fill(0xff);
        file[73] &= !(1 << 4);
        let len = u64::try_from(at).unwrap();
        for _ in 0..255 {
            file.extend(words(&[0, len]));
        }
        merge(&path, &file)
    });
}

/// Writes a file and merges it into another.
fn merge(path: &Path, file: &[u8]) -> Run {
    let out = path.with_extension("merged");
    let arguments = ["merge", "FILE", "-o", out.to_str().unwrap()];
    Run::of_file(path, file, &arguments).writing(out)
}
