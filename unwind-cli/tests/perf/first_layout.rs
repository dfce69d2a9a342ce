//! Recordings whose deferred call chains have no cookies.

use serde_json::Value;
use unwind_perf::record::{
    AttrFlags, CallchainDeferred, Context, Encode as _, Endian, EventFormat, Lost, Misc, Sample,
    SampleId, SampleType, Task,
};

use crate::files::unwind_with;
use crate::memory::{FORMAT, ROUND_MARK, pipe_start_of};

/// That of an event of a kernel that knows no cookies.
const PLAIN: EventFormat =
    EventFormat { flags: FORMAT.flags.difference(AttrFlags::DEFER_OUTPUT), ..FORMAT };

const THREADS: [Task; 2] = [Task { pid: 100, tid: 101 }, Task { pid: 100, tid: 102 }];

struct Stream {
    format: EventFormat,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(format: EventFormat) -> Self {
        Self { format, bytes: pipe_start_of(format) }
    }

    fn time(&self, time: u64) -> Option<u64> {
        self.format.sample_type.contains(SampleType::TIME).then_some(time)
    }

    /// A sample in the kernel, with a mark and no cookie.
    fn sample(&mut self, task: Task, time: u64) {
        let chain = [Context::Kernel.word(), u64::MAX << 20, Context::UserDeferred.word()];
        let sample = Sample {
            misc: Misc::KERNEL,
            identifier: None,
            ip: Some(chain[1]),
            task: Some(task),
            time: self.time(time),
            addr: None,
            id: None,
            stream_id: None,
            cpu: None,
            period: None,
            callchain: Some(chain),
        };
        sample.encode(self.format, Endian::Little, &mut self.bytes).unwrap();
    }

    fn id(&self, task: Task, time: u64) -> SampleId {
        SampleId { task: Some(task), time: self.time(time), ..SampleId::default() }
    }

    fn stack(&mut self, task: Task, time: u64, ip: u64) {
        let stack =
            CallchainDeferred { cookie: None, ips: [ip].into_iter(), id: self.id(task, time) };
        stack.encode(self.format, Endian::Little, &mut self.bytes).unwrap();
    }

    fn lost(&mut self, time: u64) {
        let lost = Lost { event: 1, count: 3, id: self.id(THREADS[0], time) };
        lost.encode(self.format, Endian::Little, &mut self.bytes).unwrap();
    }

    /// Of each sample its time, how it ended and the user part of its chain; and what
    /// `--stats` says.
    fn script(mut self) -> (Vec<(u64, String, Vec<String>)>, String) {
        self.bytes.extend(ROUND_MARK);
        let output = unwind_with(&["script", "--json", "--stats", "-"], &self.bytes);
        let text = String::from_utf8(output.stdout).unwrap();
        let stats = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stats}");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let samples = lines.filter(|line| line["type"] == "sample").map(|line| {
            let end = line["reason"].as_str().or(line["end"].as_str()).unwrap().to_owned();
            let parts = line["chain"].as_array().unwrap();
            let user = parts.iter().filter(|part| part["context"] == "user");
            let ips = user.flat_map(|part| part["ips"].as_array().unwrap());
            let ips = ips.map(|ip| ip.as_str().unwrap().to_owned()).collect();
            assert_eq!(line["cookie"], Value::Null);
            (line["time"].as_u64().unwrap_or(0), end, ips)
        });
        (samples.collect(), stats)
    }
}

fn merged(time: u64, ip: &str) -> (u64, String, Vec<String>) {
    (time, "merged".to_owned(), vec![ip.to_owned()])
}

#[test]
fn g3_stacks_without_cookies_are_joined_with_the_samples_of_their_thread_before_them() {
    let mut stream = Stream::new(PLAIN);
    let [one, other] = THREADS;
    stream.sample(one, 10);
    stream.sample(other, 11);
    stream.sample(one, 12);
    stream.stack(one, 20, 0x1000);
    // A second event's record of the same stack.
    stream.stack(one, 21, 0x1000);
    stream.sample(one, 30);
    stream.stack(other, 31, 0x2000);
    stream.stack(one, 32, 0x3000);
    let (mut samples, stats) = stream.script();
    samples.sort();
    let expected =
        [merged(10, "0x1000"), merged(11, "0x2000"), merged(12, "0x1000"), merged(30, "0x3000")];
    assert_eq!(samples, expected);
    assert!(
        stats.contains("4 samples were joined by time: their stacks have no cookies"),
        "{stats}"
    );
    assert!(stats.contains("1 of no sample"), "{stats}");
}

#[test]
fn g3_a_stack_after_a_loss_is_not_that_of_a_sample_before_it() {
    let mut stream = Stream::new(PLAIN);
    let [one, other] = THREADS;
    stream.sample(one, 10);
    stream.sample(other, 11);
    // Perhaps the stack of the first.
    stream.lost(15);
    stream.sample(one, 20);
    stream.stack(one, 21, 0x1000);
    stream.stack(other, 22, 0x2000);
    let (mut samples, stats) = stream.script();
    samples.sort();
    let lost = |time| (time, "lost".to_owned(), Vec::new());
    assert_eq!(samples, [lost(10), lost(11), merged(20, "0x1000")]);
    assert!(stats.contains("1 sample was joined by time"), "{stats}");
    assert!(stats.contains("2 unmatched: records were lost"), "{stats}");
}

#[test]
fn g3_without_times_nothing_is_joined_and_that_is_said() {
    let sample_type = PLAIN.sample_type.difference(SampleType::TIME);
    let mut stream = Stream::new(EventFormat { sample_type, ..PLAIN });
    stream.sample(THREADS[0], 0);
    stream.stack(THREADS[0], 0, 0x1000);
    let (samples, stats) = stream.script();
    assert_eq!(samples, [(0, "no-cookie".to_owned(), Vec::new())]);
    assert!(stats.contains("1 unmatched: the call chain has no cookie"), "{stats}");
}

#[test]
fn g3_a_merge_has_the_stacks_in_the_samples_and_no_records_of_them() {
    let mut stream = Stream::new(PLAIN);
    stream.sample(THREADS[0], 10);
    stream.stack(THREADS[0], 20, 0x1234_5000);
    stream.bytes.extend(ROUND_MARK);
    let output = unwind_with(&["merge", "-", "-o", "-"], &stream.bytes);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let has = |word: u64| output.stdout.windows(8).filter(|at| **at == word.to_le_bytes()).count();
    assert_eq!((has(0x1234_5000), has(Context::UserDeferred.word())), (1, 0));
    let again = unwind_with(&["script", "--json", "-"], &output.stdout);
    assert!(String::from_utf8_lossy(&again.stdout).contains("\"0x12345000\""));
}
