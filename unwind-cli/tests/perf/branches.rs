//! Samples with branches, in recordings of two writers: a C program with the header of
//! Linux, and the encoder of this tree. No CPU with a branch record is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::Compiler;
use testdata::{PerfRecording, RecordedEvent};
use unwind_perf::record::{
    AttrFlags, BranchEntry, BranchFlags, BranchSampleType, Comm, Encode as _, Endian, EventFormat,
    Misc, ReadFormat, Sample, SampleId, SampleType, Task, WithBranches,
};

use crate::files::{Scratch, done, text};
use crate::here::Recorder;

/// The lists of fields that are compared.
const LISTS: [&str; 6] = [
    "ip,brstack",
    "ip,sym,brstacksym",
    "ip,sym,dso,brstack",
    "brstacksym",
    "comm,tid,time,event,ip,sym,dso,brstacksym",
    "tid,brstack,brstacksym",
];

/// What perf prints of these fields is what the command prints.
fn compare(recorder: &Recorder, data: &Path) -> Vec<String> {
    let listing = |fields: &&str| {
        let mut script = Command::new(&recorder.perf);
        script.env("HOME", &recorder.folder).args(["script", "--no-inline", "-F", fields, "-i"]);
        let expected = text(&script.arg(data).output().unwrap().stdout);
        let data = data.to_str().unwrap();
        let found = done(&["script", "--layout", recorder.layout, "-F", fields, data]);
        assert_eq!(found.lines().count(), expected.lines().count(), "{fields}");
        for (found, expected) in found.lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{fields}");
        }
        found
    };
    LISTS.iter().map(listing).collect()
}

/// The program that writes a recording of itself.
fn writer(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/branches.c");
    let out = folder.join("branches");
    Compiler::find(&[])?.compile(&source, &out, &["-O1"]);
    Some(out)
}

#[test]
fn branches_by_the_header_of_linux_are_shown_as_perf_shows_them() {
    let Some(recorder) = Recorder::new("branches_c") else { return };
    let Some(writer) = writer(&recorder.folder) else { return };
    let data = recorder.folder.join("perf.data");
    let write = |calls: &[&str]| {
        let written = Command::new(&writer).arg(&data).arg("300").args(calls).status().unwrap();
        assert!(written.success());
    };
    write(&["calls"]);
    let texts = compare(&recorder, &data);
    // The last call went to `caller`, and was made from `callee`.
    assert!(texts[1].contains("caller\n\t") && texts[1].contains("callee\n\t"));
    write(&[]);
    let texts = compare(&recorder, &data);
    for (text, part) in texts.iter().zip(["/M/X/-/", "caller+0x4/", "/P/-/A/"]) {
        assert!(text.contains(part), "{part}");
    }
    assert!(texts[1].contains("FAULT_DATA") && texts[1].contains("ARCH_5"));
}

const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IP
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::BRANCH_STACK),
    read_format: ReadFormat::empty(),
    // Named without a version of perf having to know of guests.
    flags: AttrFlags::SAMPLE_ID_ALL.union(AttrFlags::EXCLUDE_KERNEL),
    branch_sample_type: BranchSampleType::from_bits_retain(BranchSampleType::HW_INDEX.bits() | 1),
};

/// The attr of a hardware event with this format.
pub(crate) fn attr(format: EventFormat) -> Vec<u8> {
    let mut attr = vec![0; 120];
    let words = [
        (4, 120),
        (16, 1),
        (24, format.sample_type.bits()),
        (40, format.flags.bits()),
        (72, format.branch_sample_type.bits()),
    ];
    for (at, word) in words {
        attr[at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    attr
}

/// A recording of one thread with a sample for each list of branches.
fn recording(format: EventFormat, samples: &[Vec<BranchEntry>]) -> Vec<u8> {
    let task = Task { pid: 77, tid: 77 };
    let id = SampleId { task: Some(task), time: Some(1), ..SampleId::default() };
    let mut chunk = Vec::new();
    let comm = Comm { task, name: b"branches", exec: false, id };
    comm.encode(format, Endian::Little, &mut chunk).unwrap();
    for (time, branches) in (1000..).zip(samples) {
        let sample = Sample {
            misc: Misc::USER,
            identifier: None,
            ip: Some(0x40_1000),
            task: Some(task),
            time: Some(time),
            addr: None,
            id: None,
            stream_id: None,
            cpu: None,
            period: None,
            callchain: None::<[u64; 0]>,
        };
        let hw_index = Some(time % 32);
        let branches = branches.iter().copied();
        let sample = WithBranches { sample, hw_index, branches };
        sample.encode(format, Endian::Little, &mut chunk).unwrap();
    }
    let events = vec![RecordedEvent { attr: attr(format), ids: vec![] }];
    PerfRecording { events, chunks: vec![(0, chunk)], ..PerfRecording::default() }.to_perf_data()
}

fn entry(from: u64, to: u64, flags: u64) -> BranchEntry {
    BranchEntry { from, to, flags: BranchFlags(flags), counters: 0x1234 }
}

#[test]
fn branches_that_are_written_here_are_shown_as_perf_shows_them() {
    let Some(recorder) = Recorder::new("branches_own") else { return };
    let samples: Vec<Vec<BranchEntry>> = (0..256_u64)
        .map(|n| (0..n % 33).map(|at| entry(n << 12, at << 20, n << 20 | at << 24 | at)).collect())
        .collect();
    let data = recorder.folder.join("perf.data");
    fs::write(&data, recording(FORMAT, &samples)).unwrap();
    let texts = compare(&recorder, &data);
    assert!(texts[0].contains(" 0x2000/0x100000/M/-/-/0/UNCOND"));
}

#[test]
fn branches_have_the_columns_of_the_newer_perf_and_counts_are_passed() {
    let counted = EventFormat {
        branch_sample_type: BranchSampleType::HW_INDEX.union(BranchSampleType::COUNTERS),
        ..FORMAT
    };
    let flags = [1 << 1 | 77 << 4 | 4 << 20 | 2 << 24, 1 << 33, 1 | 1 << 33 | 15 << 20];
    let branches = flags.map(|flags| entry(0x40_1000, 0x40_2000, flags));
    let file = Scratch::new(&recording(counted, &[branches.to_vec(), vec![]]));
    let shown = |fields| done(&["script", "-F", fields, file.name()]);
    assert_eq!(
        shown("ip,brstack"),
        "           401000 0x401000/0x402000/P/-/-/77/CALL/NON_SPEC_CORRECT_PATH  \
         0x401000/0x402000/MN/-/-/0//-  0x401000/0x402000/MN/-/-/0/FAULT_ALGN/- \n           401000\n"
    );
    let places = "[unknown] ([unknown])/[unknown] ([unknown])";
    assert!(shown("dso,brstacksym").starts_with(&format!("{places}/P/-/-/77/CALL/")));
}
