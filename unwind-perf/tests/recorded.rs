//! What a kernel recorded, against what an independent decoder made of it.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Located, decode_deferred, drained, feed};
use testdata::{PerfRecording, perf_files, perf_text};
use unwind_perf::merge::{MergeCounts, Merger, Outcome, Policy, Reorder};
use unwind_perf::record::{
    Context, Encode, Endian, Entry, Lost, RecordType, Sample, SampleId, UserPart,
};

/// The lines of a listing, by ring and offset.
type Lines = BTreeMap<(usize, usize), String>;

/// Merges records in the order given. Returns a line for each sample in the
/// form of the independent decoder's.
fn merge(records: &[Located<'_>], policy: Policy) -> (Lines, MergeCounts) {
    let mut lines = Lines::new();
    let mut merger = Merger::new(policy);
    for &located in records {
        feed(&mut merger, located);
    }
    merger.finish();
    while let Some((sample, outcome)) = merger.pop() {
        assert_eq!(lines.insert((sample.ring, sample.offset), line(&sample, &outcome)), None);
    }
    (lines, *merger.counts())
}

fn line(located: &Located<'_>, outcome: &Outcome) -> String {
    let sample = Sample::decode(&located.record, located.format).unwrap();
    let chain = sample.callchain.into_iter().flat_map(|chain| chain.without_cookie());
    let (end, stack) = match outcome {
        Outcome::Merged(merged) => ("merged", &*merged.stack),
        Outcome::Unmatched { cookie: Some(_), .. } => ("unmatched", &[][..]),
        // The decoder's word for a chain that does not end in mark and cookie.
        Outcome::Inline | Outcome::Unmatched { cookie: None, .. } => ("plain", &[][..]),
    };
    let cookie = match sample.callchain.map(|chain| chain.user_part()) {
        Some(UserPart::Deferred(cookie)) => format!(" cookie={cookie:x}"),
        _ => String::new(),
    };
    let words: Vec<String> = chain.chain(stack.iter().copied()).map(word).collect();
    format!(
        "ring{} @{:06x} ev{} tid={} time={} {end}{cookie} nr={} [{}]",
        located.ring,
        located.offset,
        located.event,
        sample.task.unwrap().tid,
        sample.time.unwrap(),
        words.len(),
        words.join(" ")
    )
}

fn word(word: u64) -> String {
    let name = match Entry::from_word(word) {
        Entry::Context(Context::Hv) => "HV",
        Entry::Context(Context::Kernel) => "KERNEL",
        Entry::Context(Context::User) => "USER",
        Entry::Context(Context::UserDeferred) => "USER_DEFERRED",
        _ => return format!("{word:x}"),
    };
    format!("<{name}>")
}

/// The samples and the counts of an independent listing.
fn listing(file: &Path) -> (Vec<String>, BTreeMap<String, u64>) {
    let text = perf_text(file, "merged.txt");
    let counts = text
        .lines()
        .filter_map(|line| line.strip_prefix("# ")?.split_once(" = "))
        .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
        .collect();
    (text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect(), counts)
}

/// In order of time, as by a reader that sees all rings.
fn sorted<'a>(records: &[Located<'a>]) -> Vec<Located<'a>> {
    let mut reorder = Reorder::new(usize::MAX);
    for &located in records {
        let time = match located.record.kind() {
            RecordType::SAMPLE => Sample::decode(&located.record, located.format).unwrap().time,
            _ => SampleId::decode(&located.record, located.format).unwrap().time,
        };
        reorder.push(time.unwrap(), located.record.bytes().len(), located);
    }
    reorder.finish();
    core::iter::from_fn(|| reorder.pop()).collect()
}

fn recordings() -> impl Iterator<Item = (std::path::PathBuf, PerfRecording)> {
    perf_files("raw").into_iter().map(|path| {
        let recording = PerfRecording::parse(&std::fs::read(&path).unwrap());
        (path, recording)
    })
}

#[test]
fn x5_every_sample_ends_as_the_independent_decoder_says() {
    for (path, recording) in recordings() {
        let (expected, figures) = listing(&path);
        let drained = drained(&recording);
        let mut by_ring = drained.clone();
        by_ring.sort_by_key(|located| (located.ring, located.offset));
        let whole = Policy::default().window(u64::MAX);
        for (order, records, policy) in [
            ("drained", &drained, Policy::default()),
            ("sorted by time", &sorted(&drained), Policy::default().window(0)),
            // Each ring as a whole: a record can be a whole ring away.
            ("one ring after the other", &by_ring, whole),
        ] {
            let (lines, counts) = merge(records, policy);
            let found: Vec<String> = lines.into_values().collect();
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "{}, {order}", path.display());
            }
            for (name, found) in [
                ("samples", counts.samples),
                ("samples_matched", counts.merged),
                ("samples_unmatched", counts.unmatched() - counts.unmatched_no_cookie),
                ("samples_not_deferred", counts.inline + counts.unmatched_no_cookie),
                ("records22", counts.records),
                ("records22_duplicate", counts.records_repeated),
                ("records22_without_sample", counts.records_unused),
                ("lost", counts.lost),
            ] {
                assert_eq!(found, figures[name], "{name} of {}, {order}", path.display());
            }
            assert_eq!(counts.records_conflicting, 0);
        }
    }
}

#[test]
fn records_encode_to_the_bytes_that_the_kernel_wrote() {
    let mut encoded = BTreeMap::new();
    for (path, recording) in recordings() {
        for located in drained(&recording) {
            let Located { record, format, .. } = located;
            let mut bytes = Vec::new();
            let mut encode = |value: &dyn Fn(&mut Vec<u8>)| {
                value(&mut bytes);
                *encoded.entry(record.kind()).or_insert(0) += 1;
                assert_eq!(bytes, record.bytes(), "{} at {:#x}", path.display(), located.offset);
            };
            match record.kind() {
                RecordType::SAMPLE => {
                    let sample = Sample::decode(&record, format).unwrap();
                    encode(&|out| sample.encode(format, Endian::Little, out).unwrap());
                }
                RecordType::CALLCHAIN_DEFERRED => {
                    let deferred = decode_deferred(&located);
                    encode(&|out| deferred.encode(format, Endian::Little, out).unwrap());
                }
                RecordType::LOST => {
                    let lost = Lost::decode(&record, format).unwrap();
                    encode(&|out| lost.encode(format, Endian::Little, out).unwrap());
                }
                _ => {}
            }
        }
    }
    let kinds: Vec<RecordType> = encoded.into_keys().collect();
    assert_eq!(
        kinds,
        [RecordType::LOST, RecordType::SAMPLE, RecordType::CALLCHAIN_DEFERRED],
        "the fixtures have records of each kind"
    );
}
