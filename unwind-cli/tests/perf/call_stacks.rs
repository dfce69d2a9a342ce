//! Call stacks of the CPU's branch record, in recordings that the encoder of this tree
//! writes: a program calls and returns, a model of the hardware records it.

use std::fs;
use std::process::Command;

use serde_json::Value;
use testdata::{PerfRecording, RecordedEvent};
use unwind_perf::record::{
    AttrFlags, BranchEntry, BranchFlags, BranchSampleType, Comm, Context, Encode as _, Endian,
    EventFormat, Lost, Misc, ReadFormat, Sample, SampleId, SampleType, Task, WithBranches,
};

use crate::branches::attr;
use crate::files::{Scratch, done, text, unwind_with};
use crate::here::Recorder;

/// What `perf record --call-graph lbr` asks for: calls in user code, no flags and no cycles.
const LBR: u64 = 1 | 1 << 11 | 1 << 14 | 1 << 15 | 1 << 17;

const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IP
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::CALLCHAIN)
        .union(SampleType::BRANCH_STACK),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::SAMPLE_ID_ALL.union(AttrFlags::EXCLUDE_KERNEL),
    branch_sample_type: BranchSampleType::from_bits_retain(LBR),
};

/// Entries of the record.
const DEPTH: usize = 8;
const TASK: Task = Task { pid: 77, tid: 77 };

/// A thread whose calls are recorded, and the recording.
struct Machine {
    registers: [Option<BranchEntry>; DEPTH],
    top: usize,
    /// The calls that have not returned, the oldest first.
    stack: Vec<BranchEntry>,
    /// No two calls are from one place.
    next_call: u64,
    time: u64,
    records: Vec<u8>,
}

impl Machine {
    fn new() -> Self {
        let mut records = Vec::new();
        let id = SampleId { task: Some(TASK), time: Some(1), ..SampleId::default() };
        let comm = Comm { task: TASK, name: b"lbr", exec: false, id };
        comm.encode(FORMAT, Endian::Little, &mut records).unwrap();
        let registers = [None; DEPTH];
        Self { registers, top: 0, stack: Vec::new(), next_call: 0, time: 1_000_000, records }
    }

    fn call(&mut self) {
        let from = 0x40_0000 + 0x40 * self.next_call;
        self.next_call += 1;
        let call = BranchEntry { from, to: from + 0x20, flags: BranchFlags(0), counters: 0 };
        self.top = (self.top + 1) % DEPTH;
        self.registers[self.top] = Some(call);
        self.stack.push(call);
    }

    fn ret(&mut self) {
        if self.stack.pop().is_some() {
            self.registers[self.top] = None;
            self.top = (self.top + DEPTH - 1) % DEPTH;
        }
    }

    /// The record, the newest call first.
    fn recorded(&self) -> Vec<BranchEntry> {
        let slots = (0..DEPTH).map(|age| self.registers[(self.top + DEPTH - age) % DEPTH]);
        slots.map_while(|call| call).collect()
    }

    /// Where the thread is.
    fn pc(&self) -> u64 {
        self.stack.last().map_or(0x3f_0000, |call| call.to + 8)
    }

    /// Takes a sample, with `walked` frames of the walk along frame pointers.
    fn sample(&mut self, walked: usize) {
        self.time += 1000;
        let returns = self.stack.iter().rev().map(|call| call.from + 5).take(walked);
        let chain: Vec<u64> =
            [Context::User.word(), self.pc()].into_iter().chain(returns).collect();
        let sample = Sample {
            misc: Misc::USER,
            identifier: None,
            ip: Some(self.pc()),
            task: Some(TASK),
            time: Some(self.time),
            addr: None,
            id: None,
            stream_id: None,
            cpu: None,
            period: None,
            callchain: Some(chain),
        };
        let hw_index = Some(u64::try_from(self.top).unwrap());
        let sample = WithBranches { sample, hw_index, branches: self.recorded() };
        sample.encode(FORMAT, Endian::Little, &mut self.records).unwrap();
    }

    /// Writes that the thread executes another program, or that samples were lost.
    fn note(&mut self, exec: bool) {
        self.time += 1000;
        let id = SampleId { task: Some(TASK), time: Some(self.time), ..SampleId::default() };
        let out = &mut self.records;
        if exec {
            let comm = Comm { task: TASK, name: b"lbr", exec: true, id };
            comm.encode(FORMAT, Endian::Little, out).unwrap();
        } else {
            Lost { event: 0, count: 3, id }.encode(FORMAT, Endian::Little, out).unwrap();
        }
    }

    /// The same as `perf record -o -` writes it.
    fn stream(&self) -> Vec<u8> {
        let mut stream = b"PERFILE2".to_vec();
        stream.extend(16_u64.to_le_bytes());
        let mut record = |kind: u32, parts: &[&[u8]]| {
            let body = parts.concat();
            stream.extend(kind.to_le_bytes());
            stream.extend(u32::try_from((8 + body.len()) << 16).unwrap().to_le_bytes());
            stream.extend(body);
        };
        // The attr with an id, the properties of the PMU, which are feature 28.
        record(64, &[&attr(FORMAT), &1_u64.to_le_bytes()]);
        record(80, &[&28_u64.to_le_bytes(), &properties()]);
        stream.extend(&self.records);
        stream
    }

    /// A `perf.data` that says how many entries the record has.
    fn recording(&self) -> Vec<u8> {
        let events = vec![RecordedEvent { attr: attr(FORMAT), ids: vec![] }];
        let chunks = vec![(0, self.records.clone())];
        let mut file = PerfRecording { events, chunks, ..PerfRecording::default() }.to_perf_data();
        let section = properties();
        // The properties of the PMU are feature 28.
        file[72..80].copy_from_slice(&(1_u64 << 28).to_le_bytes());
        let at = file.len() + 16;
        for word in [at, section.len()] {
            file.extend(u64::try_from(word).unwrap().to_le_bytes());
        }
        file.extend(section);
        file
    }
}

/// What a recording says of the PMU: how many entries the record has.
fn properties() -> Vec<u8> {
    let mut section = 1_u32.to_le_bytes().to_vec();
    for part in ["branches", &DEPTH.to_string()] {
        section.extend(64_u32.to_le_bytes());
        let mut padded = part.as_bytes().to_vec();
        padded.resize(64, 0);
        section.extend(padded);
    }
    section
}

/// A program that calls and returns as by chance, with a sample now and then: the stack at
/// each, and whether the oldest entry of the record is in the register that was the newest
/// one's at the sample before.
fn busy(machine: &mut Machine, samples: usize, walked: usize) -> Vec<(Vec<u64>, bool)> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut last_top = 0;
    (0..samples)
        .map(|_| {
            for _ in 0..1 + state % 5 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let deep = machine.stack.len() > 30;
                if machine.stack.is_empty() || (!deep && state >> 32 & 7 < 5) {
                    machine.call();
                } else {
                    machine.ret();
                }
            }
            // Of an empty record perf shows an entry that is not there.
            if machine.recorded().is_empty() {
                machine.call();
            }
            machine.sample(walked);
            let oldest = (machine.top + DEPTH + 1 - machine.recorded().len()) % DEPTH;
            let is_at_top = oldest == last_top;
            last_top = machine.top;
            (machine.stack.iter().rev().map(|call| call.from).collect(), is_at_top)
        })
        .collect()
}

/// The stacks of a listing: lines that begin with a tab.
fn stacks(listing: &str) -> Vec<Vec<String>> {
    let frame = |line: &str| line.trim().to_owned();
    let stack =
        |block: &str| block.lines().filter(|line| line.starts_with('\t')).map(frame).collect();
    listing.split("\n\n").map(stack).filter(|stack: &Vec<_>| !stack.is_empty()).collect()
}

#[test]
fn recorded_call_stacks_are_shown_as_perf_shows_them() {
    let Some(recorder) = Recorder::new("lbr") else { return };
    let mut machine = Machine::new();
    let truth = busy(&mut machine, 600, 2);
    let data = recorder.folder.join("perf.data");
    fs::write(&data, machine.recording()).unwrap();
    let name = data.to_str().unwrap();
    let perf = |options: &[&str]| {
        let mut script = Command::new(&recorder.perf);
        script.env("HOME", &recorder.folder).args(["script", "-i", name]);
        text(&script.args(options).output().unwrap().stdout)
    };
    let own = |options: &[&str]| {
        done(&[&["script", "--layout", recorder.layout, name], options].concat())
    };
    assert_eq!(own(&["-F", "ip,brstack"]), perf(&["-F", "ip,brstack"]), "the records alone");

    // With the samples before: perf has where the last call went in place of the pc.
    let options = ["--stitch-lbr", "-F", "ip"];
    let (expected, found) = (stacks(&perf(&options)), stacks(&own(&options)));
    assert_eq!((found.len(), expected.len()), (truth.len(), truth.len()));
    let (mut same, mut longer, mut lost) = (0, 0, false);
    for ((found, expected), (truth, is_at_top)) in found.iter().zip(&expected).zip(&truth) {
        let calls: Vec<u64> = found.iter().skip(1).map(|frame| call_of(frame)).collect();
        let perf: Vec<u64> = expected.iter().skip(1).map(|frame| call_of(frame)).collect();
        assert_eq!(calls, truth[..calls.len()], "no call that is not on the stack");
        assert_eq!(calls.get(..perf.len()), Some(&*perf), "what perf has");
        // It loses the calls of samples before where the oldest entry is in the register
        // that was the newest one's, and has nothing of the walk.
        lost |= is_at_top;
        let is_stitched = found.iter().any(|frame| frame.contains("[stitched]"));
        let has_walk = found.iter().any(|frame| frame.contains("[walk]"));
        match calls.len() - perf.len() {
            0 => same += usize::from(is_stitched),
            _ => {
                assert!(has_walk || lost, "{found:?} {expected:?}");
                longer += 1;
            }
        }
    }
    assert!(same > 50 && longer > 50, "{same} stitched stacks are perf's, {longer} are longer");
}

/// The address of a call, which is five bytes long, in a line of a listing.
fn call_of(frame: &str) -> u64 {
    let addr = u64::from_str_radix(frame.split(' ').next().unwrap(), 16).unwrap();
    addr - if frame.ends_with("[walk]") { 5 } else { 0 }
}

#[test]
fn each_frame_of_a_joined_stack_says_from_where_it_is_known() {
    let mut machine = Machine::new();
    (0..DEPTH).for_each(|_| machine.call());
    machine.sample(3);
    (0..3).for_each(|_| machine.call());
    machine.sample(2);
    // The walk has all frames.
    machine.sample(20);
    let file = Scratch::new(&machine.recording());
    let listing = done(&["script", "--stitch-lbr", "-F", "ip,sym", file.name()]);
    let sources = |stack: &Vec<String>| -> Vec<String> {
        stack.iter().map(|line| line[line.find('[').unwrap()..].replace("[unknown] ", "")).collect()
    };
    let expected = |parts: &[(&str, usize)]| -> Vec<String> {
        parts.iter().flat_map(|&(name, count)| vec![format!("[{name}]"); count]).collect()
    };
    let found: Vec<Vec<String>> = stacks(&listing).iter().map(sources).collect();
    assert_eq!(
        found,
        [
            expected(&[("sampled", 1), ("lbr+walk", 3), ("lbr", 5)]),
            expected(&[("sampled", 1), ("lbr+walk", 2), ("lbr", 6), ("stitched", 3)]),
            expected(&[("sampled", 1), ("lbr+walk", 8), ("stitched+walk", 3)]),
        ]
    );
    let listing = done(&["script", "--stitch-lbr", "--json", file.name()]);
    let second: Value = serde_json::from_str(listing.lines().nth(2).unwrap()).unwrap();
    let part = &second["chain"][0];
    assert_eq!(part["context"], "user");
    let from: Vec<&str> =
        part["from"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(from.len(), part["ips"].as_array().unwrap().len());
    assert_eq!((from[0], from[2], from[3], from[11]), ("sampled", "lbr+walk", "lbr", "stitched"));
}

#[test]
fn nothing_is_stitched_across_an_exec_or_lost_samples() {
    for exec in [None, Some(true), Some(false)] {
        let mut machine = Machine::new();
        (0..DEPTH).for_each(|_| machine.call());
        machine.sample(0);
        (0..3).for_each(|_| machine.call());
        exec.into_iter().for_each(|exec| machine.note(exec));
        machine.sample(0);
        let file = Scratch::new(&machine.recording());
        let listing = done(&["script", "--stitch-lbr", "-F", "ip", file.name()]);
        let stitched = if exec.is_none() { 3 } else { 0 };
        assert_eq!(listing.matches("[stitched]").count(), stitched, "{exec:?}");
    }
}

#[test]
fn without_the_depth_of_the_record_nothing_is_stitched_and_an_empty_record_leaves_the_chain() {
    let mut machine = Machine::new();
    (0..DEPTH).for_each(|_| machine.call());
    machine.sample(0);
    (0..3).for_each(|_| machine.call());
    machine.sample(0);
    machine.registers = [None; DEPTH];
    machine.sample(4);
    let mut bytes = machine.recording();
    bytes[72..80].fill(0);
    let file = Scratch::new(&bytes);
    let listing = done(&["script", "--stitch-lbr", "-F", "ip", file.name()]);
    let found = stacks(&listing);
    let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
    assert_eq!(lengths, [1 + DEPTH, 1 + DEPTH, 5]);
    assert!(found[2].iter().all(|frame| !frame.contains('[')), "{:?}", found[2]);
}

#[test]
fn joined_call_stacks_are_chains_after_a_merge_and_the_branches_stay() {
    let Some(recorder) = Recorder::new("lbr_merged") else { return };
    let mut machine = Machine::new();
    let truth = busy(&mut machine, 300, 12);
    let (data, out) = (recorder.folder.join("perf.data"), recorder.folder.join("merged.data"));
    fs::write(&data, machine.recording()).unwrap();
    let (data, merged) = (data.to_str().unwrap(), out.to_str().unwrap());
    done(&["merge", "--stitch-lbr", data, "-o", merged]);
    let perf = |fields| {
        let mut script = Command::new(&recorder.perf);
        script.env("HOME", &recorder.folder).args(["script", "-F", fields, "-i", merged]);
        text(&script.output().unwrap().stdout)
    };
    let own = |fields, name| done(&["script", "--layout", recorder.layout, "-F", fields, name]);
    assert_eq!(perf("ip,brstack"), own("ip,brstack", merged));
    assert_eq!(own("brstack", merged), own("brstack", data));
    let joined = stacks(&done(&["script", "--stitch-lbr", "-F", "ip", data]));
    let found = stacks(&perf("ip"));
    assert_eq!(found.len(), truth.len());
    let mut deeper = 0;
    for ((found, joined), (truth, _)) in found.iter().zip(&joined).zip(&truth) {
        assert_eq!(found.len(), joined.len());
        let frames = found.iter().zip(joined).skip(1).zip(truth);
        for ((frame, joined), call) in frames {
            // The walk knows where a call returns to.
            let from_call = if joined.contains("walk") { 5 } else { 0 };
            assert_eq!(call_of(frame), call + from_call, "{joined}");
        }
        deeper += usize::from(found.len() > 1 + 12);
    }
    assert!(deeper > 50, "{deeper} stacks are deeper than the walk");
    // Without the option all stays as it was.
    done(&["merge", data, "-o", merged]);
    assert_eq!(own("ip,brstack", merged), own("ip,brstack", data));
}

#[test]
fn calls_are_stitched_of_a_recording_that_comes_through_a_pipe() {
    let mut machine = Machine::new();
    busy(&mut machine, 300, 2);
    let file = Scratch::new(&machine.recording());
    let options = ["--stitch-lbr", "-F", "ip,brstack"];
    let expected = done(&[&["script", file.name()], &options[..]].concat());
    assert!(expected.contains("[stitched]"));
    let output = unwind_with(&[&["script", "-"], &options[..]].concat(), &machine.stream());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), expected);
}
