//! `unwind merge`: what others read in its output.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use linux_perf_data::linux_perf_event_reader::{EventRecord, RecordType as PerfRecordType};
use linux_perf_data::{AttributeDescription, PerfFileReader, PerfFileRecord};
use testdata::perf_files;
use unwind_perf::record::{Context, Endian, Records, Sample, Task};

use crate::files::{Parts, Scratch, done, perf_data, plain, text, unwind, unwind_with, word};
use crate::listing::{Decoded, blocks, decoded};
use crate::memory::{FORMAT, ROUND_MARK, pipe_start, sample, stack};

/// Chains by thread and time, in any order where both are equal.
type Chains = BTreeMap<(u32, u64), Vec<Vec<u64>>>;

/// The chains that a merge shall have: with the user mark for the deferred
/// one.
fn expected(path: &Path) -> Chains {
    let words = |sample: &Decoded| {
        let word = |word: &String| match word.as_str() {
            "<KERNEL>" => Context::Kernel.word(),
            "<USER>" | "<USER_DEFERRED>" => Context::User.word(),
            ip => u64::from_str_radix(ip, 16).unwrap(),
        };
        sample.words.iter().map(word).collect()
    };
    let samples = decoded(path).into_iter();
    let chains = samples.map(|(key, samples)| (key, samples.iter().map(words).collect()));
    sorted(chains.collect())
}

fn sorted(mut chains: Chains) -> Chains {
    chains.values_mut().for_each(|chains| chains.sort());
    chains
}

fn merged(file: &Scratch) -> Scratch {
    let merged = Scratch::new(&[]);
    assert_eq!(done(&["merge", file.name(), "-o", merged.name()]), "");
    merged
}

/// The recordings, as `perf.data`.
fn recordings() -> impl Iterator<Item = (std::path::PathBuf, Scratch)> {
    let paths = perf_files("data").into_iter().chain(perf_files("raw"));
    paths.map(|path| {
        let file = Scratch::new(&perf_data(&path));
        (path, file)
    })
}

#[test]
fn another_reader_finds_whole_chains_and_no_deferred_records() {
    for (path, file) in recordings() {
        let merged = merged(&file);
        let file = Cursor::new(merged.bytes());
        let PerfFileReader { mut perf_file, mut record_iter } =
            PerfFileReader::parse_file(file).unwrap();
        let mut chains = Chains::new();
        while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
            let PerfFileRecord::EventRecord { record, .. } = record else { continue };
            assert_ne!(record.record_type, PerfRecordType(22));
            let EventRecord::Sample(sample) = record.parse().unwrap() else { continue };
            let chain = sample.callchain.unwrap();
            let words = (0..chain.len()).map(|index| chain.get(index).unwrap()).collect();
            let tid = u32::try_from(sample.tid.unwrap()).unwrap();
            chains.entry((tid, sample.timestamp.unwrap())).or_default().push(words);
        }
        assert_eq!(sorted(chains), expected(&path), "{}", path.display());
        let names = perf_file.event_attributes().iter().map(AttributeDescription::name);
        if path.extension().unwrap() == "data" {
            assert_eq!(names.collect::<Vec<_>>(), [Some("cpu-clock")], "the features came along");
        }
    }
}

/// The call chains in what `perf script -D` prints of a file.
fn dumped(dump: &str) -> Chains {
    let mut chains = Chains::new();
    let mut key = None;
    let mut chain: Option<Vec<u64>> = None;
    for line in dump.lines() {
        if line.contains("PERF_RECORD_SAMPLE(") {
            // "[cpu] time offset [size]: PERF_RECORD_SAMPLE(…): pid/tid: …"; without
            // CPUs the line starts with the time.
            let (before, after) = line.split_once(" 0x").unwrap();
            let time = before.split_whitespace().last().unwrap().parse().unwrap();
            let task = after.split("): ").nth(1).unwrap().split(':').next().unwrap();
            key = Some((task.split_once('/').unwrap().1.parse().unwrap(), time));
        } else if line.starts_with("... FP chain: nr:") {
            chain = Some(Vec::new());
        } else if let Some(words) = chain.as_mut() {
            match line.strip_prefix("..... ").and_then(|line| line.split_once(": ")) {
                // A newer perf names marks after the number.
                Some((_, line)) => {
                    let word = line.split_whitespace().next().unwrap();
                    words.push(u64::from_str_radix(word, 16).unwrap());
                }
                None => {
                    let words = chain.take().unwrap();
                    chains.entry(key.take().unwrap()).or_default().push(words);
                }
            }
        }
    }
    sorted(chains)
}

#[test]
fn stock_perf_finds_whole_chains() {
    let newer = std::env::var_os("UNWIND_NEWER_PERF").map(PathBuf::from);
    for perf in test_support::tool("perf").into_iter().chain(newer) {
        let version = Command::new(&perf).arg("--version").output().unwrap();
        print!("{}", text(&version.stdout));
        for (path, file) in recordings() {
            let merged = merged(&file);
            let pipe = Scratch::new(&Parts::of(&merged.bytes()).to_pipe());
            for file in [&merged, &pipe] {
                let output =
                    Command::new(&perf).args(["script", "-D", "-i", file.name()]).output().unwrap();
                let dump = String::from_utf8_lossy(&output.stdout);
                assert_eq!(dumped(&dump), expected(&path), "{}", path.display());
            }
        }
    }
}

#[test]
fn script_of_a_merge_is_the_script_of_the_recording_in_order_of_time() {
    for (path, file) in recordings() {
        let merged = merged(&file);
        let fields = plain(&[]);
        let without_comm = |file: &Scratch| {
            let listing = done(&[&fields, &[file.name()][..]].concat());
            let mut blocks = blocks(&listing);
            let times: Vec<u64> = blocks.iter().map(|block| block.key().1).collect();
            // An exec between a sample and its stack changes the name that the
            // recording gives late.
            for block in &mut blocks {
                let (_, rest) = block.head.trim_start().split_once(' ').unwrap();
                block.head = rest.trim_start().to_owned();
            }
            blocks.sort_by(|one, other| (&one.head, &one.ips).cmp(&(&other.head, &other.ips)));
            (blocks, times)
        };
        let (of_recording, _) = without_comm(&file);
        let (of_merge, times) = without_comm(&merged);
        assert_eq!(of_merge, of_recording, "{}", path.display());
        assert!(times.is_sorted(), "{}", path.display());
        // Merging what is merged changes nothing.
        let again = Scratch::new(&[]);
        done(&["merge", merged.name(), "-o", again.name()]);
        assert_eq!(without_comm(&again).0, of_merge);
    }
}

#[test]
fn a_pipe_is_merged_into_a_pipe() {
    for (path, file) in recordings() {
        let pipe = Parts::of(&file.bytes()).to_pipe();
        let output = unwind_with(&["merge", "-", "-o", "-"], &pipe);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(output.stdout[8..16], 16_u64.to_le_bytes(), "pipe form");
        let merged_pipe = Scratch::new(&output.stdout);
        let merged_file = merged(&file);
        let script = |file: &Scratch| done(&plain(&[file.name()]));
        assert_eq!(script(&merged_pipe), script(&merged_file), "{}", path.display());
    }
}

#[test]
fn the_switches_for_deferral_are_gone_and_the_rest_of_an_attr_stays() {
    for (path, file) in recordings() {
        let merged = merged(&file);
        let (before, after) = (file.bytes(), merged.bytes());
        let (before, after) = (Parts::of(&before), Parts::of(&after));
        assert_eq!(after.events.len(), before.events.len());
        assert_eq!(after.event_desc.is_some(), before.event_desc.is_some());
        if let (Some(before), Some(after)) = (before.event_desc, after.event_desc) {
            // Count, length, then the attr of the one event that these have.
            let flags_at = 8 + 40;
            assert_eq!(word(after, flags_at), word(before, flags_at) & !(3 << 38));
            let others = |section: &[u8]| [&section[..flags_at], &section[flags_at + 8..]].concat();
            assert_eq!(others(after), others(before));
        }
        for ((attr, ids), (merged_attr, merged_ids)) in before.events.iter().zip(&after.events) {
            assert_eq!(merged_ids, ids);
            let flags = word(attr, 40);
            assert_ne!(flags & 3 << 38, 0, "{} is deferred", path.display());
            assert_eq!(word(merged_attr, 40), flags & !(3 << 38));
            // An older perf refuses longer attrs than it knows.
            assert!(merged_attr.len() <= 128);
            assert_eq!(merged_attr[4..8], u32::try_from(merged_attr.len()).unwrap().to_le_bytes());
            let size_and_flags = |at: usize| (4..8).contains(&at) || (40..48).contains(&at);
            for at in (0..attr.len()).filter(|&at| !size_and_flags(at)) {
                assert_eq!(merged_attr.get(at).unwrap_or(&0), &attr[at], "byte {at}");
            }
        }
    }
}

/// The times of samples in `data`, and `None` for a round mark.
fn rounds(data: &[u8]) -> Vec<Option<u64>> {
    let records = Records::new(data, Endian::Little).map(Result::unwrap);
    records
        .filter_map(|record| match record.kind().0 {
            68 => Some(None),
            9 => Some(Some(Sample::decode(&record, FORMAT).unwrap().time?)),
            _ => None,
        })
        .collect()
}

#[test]
fn round_marks_of_a_merge_hold_while_a_sample_waits() {
    // A thread sleeps in the kernel while others make a megabyte of records.
    let sleeper = Task { pid: 9, tid: 9 };
    let busy = Task { pid: 9, tid: 10 };
    let mut pipe = pipe_start();
    let start = pipe.len();
    sample(sleeper, 1, 50, &mut pipe);
    for entry in 1..4000 {
        let time = 1000 * entry;
        sample(busy, entry << 1 | 1, time, &mut pipe);
        stack(busy, entry << 1 | 1, time + 500, &mut pipe);
        if entry == 2000 {
            stack(sleeper, 1, time + 600, &mut pipe);
        }
        if entry % 50 == 0 {
            pipe.extend(ROUND_MARK);
        }
    }
    let output = unwind_with(&["merge", "-", "-o", "-"], &pipe);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rounds = rounds(&output.stdout[start..]);
    // What follows a mark is not older than the newest before the mark before
    // it.
    let (mut newest, mut limit, mut next_limit) = (0, 0, 0);
    for time in &rounds {
        match *time {
            None => (limit, next_limit) = (next_limit, newest),
            Some(time) => {
                assert!(time >= limit, "{time} after {limit}");
                newest = newest.max(time);
            }
        }
    }
    let marks = |part: &[Option<u64>]| part.iter().filter(|time| time.is_none()).count();
    let woken = rounds.iter().position(|&time| time == Some(50)).unwrap();
    assert_eq!(woken, 2000 + marks(&rounds[..woken]), "it comes with its stack");
    assert!(marks(&rounds[..woken]) <= 1, "and holds the marks up");
    assert!(marks(&rounds[woken..]) > 5, "marks come again when nothing waits");
}

#[test]
fn bytes_after_a_record_are_stepped_over_and_kept() {
    let path = perf_files("data").into_iter().next().unwrap();
    let file = Scratch::new(&perf_data(&path));
    let pipe = Parts::of(&file.bytes()).to_pipe();
    let expected = done(&plain(&[file.name()]));
    // PERF_RECORD_AUXTRACE: size, offset, reference, index, thread, CPU,
    // reserved. What follows it looks like a round mark and nonsense.
    let mut trace = vec![71, 0, 0, 0, 0, 0, 48, 0];
    trace.extend([24_u64, 0, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    trace.extend(ROUND_MARK);
    trace.extend([0xff; 16]);
    // PERF_RECORD_HEADER_TRACING_DATA: size, padded to words after it.
    let mut formats = vec![66, 0, 0, 0, 0, 0, 12, 0, 5, 0, 0, 0];
    formats.extend([0xee; 8]);
    let records = pipe.len() - Parts::of(&file.bytes()).data.len();
    for extra in [trace, formats] {
        let with_extra = [&pipe[..records], &extra, &pipe[records..]].concat();
        let output = unwind_with(&plain(&["-"]), &with_extra);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), expected);
        let output = unwind_with(&["merge", "-", "-o", "-"], &with_extra);
        let kept = output.stdout.windows(extra.len()).any(|window| window == extra);
        assert!(output.status.success() && kept);
        // Cut off inside those bytes.
        let cut = &with_extra[..records + extra.len() - 1];
        assert_eq!(unwind_with(&plain(&["-"]), cut).status.code(), Some(5));
    }
}

#[test]
fn a_file_is_not_merged_into_itself() {
    let path = perf_files("data").into_iter().next().unwrap();
    let file = Scratch::new(&std::fs::read(&path).unwrap());
    let output = unwind(&["merge", file.name(), "-o", file.name()]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(file.bytes(), std::fs::read(&path).unwrap(), "the file is as it was");
    let output = unwind(&["merge", file.name(), "-o", "-"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
