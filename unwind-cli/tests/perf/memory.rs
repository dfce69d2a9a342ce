//! Streams larger than what may be held.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use unwind_perf::record::{
    AttrFlags, BranchSampleType, CallchainDeferred, Context, Encode as _, Endian, EventFormat,
    Misc, ReadFormat, Sample, SampleId, SampleType, Task,
};

pub(crate) const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::IP
        .union(SampleType::TID)
        .union(SampleType::TIME)
        .union(SampleType::CALLCHAIN),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::SAMPLE_ID_ALL
        .union(AttrFlags::DEFER_CALLCHAIN)
        .union(AttrFlags::DEFER_OUTPUT),
    branch_sample_type: BranchSampleType::empty(),
};

/// The start of a pipe with one event of [`FORMAT`].
pub(crate) fn pipe_start() -> Vec<u8> {
    pipe_start_of(FORMAT)
}

/// The start of a pipe with one event.
pub(crate) fn pipe_start_of(format: EventFormat) -> Vec<u8> {
    let mut attr = Vec::new();
    attr.extend(1_u32.to_le_bytes()); // software
    attr.extend(64_u32.to_le_bytes());
    for word in [0, 1000, format.sample_type.bits(), 0, format.flags.bits(), 0, 0] {
        attr.extend(word.to_le_bytes());
    }
    let mut pipe = b"PERFILE2".to_vec();
    pipe.extend(16_u64.to_le_bytes());
    pipe.extend(64_u32.to_le_bytes());
    pipe.extend(0_u16.to_le_bytes());
    pipe.extend(80_u16.to_le_bytes());
    pipe.extend(attr);
    pipe.extend(1_u64.to_le_bytes());
    pipe
}

/// A sample, and its stack, of the kernel entry `entry`.
fn kernel_entry(entry: u64, out: &mut Vec<u8>) {
    let task = Task { pid: 100, tid: 100 + u32::try_from(entry % 50).unwrap() };
    sample(task, entry << 1 | 1, 1000 * entry + 1, out);
    stack(task, entry << 1 | 1, 1000 * entry + 500, out);
}

/// A sample in the kernel.
pub(crate) fn sample(task: Task, cookie: u64, time: u64, out: &mut Vec<u8>) {
    let chain = [Context::Kernel.word(), u64::MAX << 20, Context::UserDeferred.word(), cookie];
    let sample = Sample {
        misc: Misc::KERNEL,
        identifier: None,
        ip: Some(chain[1]),
        task: Some(task),
        time: Some(time),
        addr: None,
        id: None,
        stream_id: None,
        cpu: None,
        period: None,
        callchain: Some(chain),
    };
    sample.encode(FORMAT, Endian::Little, out).unwrap();
}

/// A stack of 30 frames.
pub(crate) fn stack(task: Task, cookie: u64, time: u64, out: &mut Vec<u8>) {
    let id = SampleId { task: Some(task), time: Some(time), ..SampleId::default() };
    let ips = (0..30).map(|frame| 0x40_1000 + 16 * frame);
    let stack = CallchainDeferred { cookie: Some(cookie), ips, id };
    stack.encode(FORMAT, Endian::Little, out).unwrap();
}

/// `PERF_RECORD_FINISHED_ROUND`.
pub(crate) const ROUND_MARK: [u8; 8] = [68, 0, 0, 0, 0, 0, 8, 0];

/// Feeds `len` bytes to `unwind ARGUMENTS` on a pipe. Returns what its output
/// counts, and the most memory it had, in bytes.
fn feed(arguments: &[&str], len: u64, marks: bool) -> (u64, u64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_unwind"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match stdout.read(&mut buffer).unwrap() {
                0 => return bytes,
                read => bytes += u64::try_from(read).unwrap(),
            }
        }
    });
    let mut sent = 0;
    let mut entry = 1;
    let mut chunk = pipe_start();
    while sent < len {
        while chunk.len() < 1 << 16 {
            kernel_entry(entry, &mut chunk);
            entry += 1;
        }
        if marks {
            chunk.extend(ROUND_MARK);
        }
        stdin.write_all(&chunk).unwrap();
        sent += u64::try_from(chunk.len()).unwrap();
        chunk.clear();
    }
    // It has begun to read, and has its buffers: the pipe alone would take what is little.
    let read = || -> u64 {
        let counts = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
        counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    while read() < sent {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    (reader.join().unwrap(), kib * 1024)
}

/// How much to feed, in MiB.
fn size() -> u64 {
    let mib = std::env::var("PERF_STREAM_MIB").ok();
    mib.map_or(24, |mib| mib.parse().unwrap()) << 20
}

#[test]
fn a_stream_is_read_in_constant_memory_with_and_without_round_marks() {
    let limit = 4 << 20;
    // Beside the records: buffers and names. The program itself is measured.
    let beside = 6 << 20;
    assert!(size() > limit + beside, "the stream is larger than what may be held");
    for command in [&crate::files::plain(&["-"])[..], &["merge", "-", "-o", "-"]] {
        for marks in [true, false] {
            let arguments = [command, &["--memory", "4"]].concat();
            let (_, program) = feed(&arguments, 1 << 10, marks);
            let allowed = program + limit + beside;
            let (written, peak) = feed(&arguments, size(), marks);
            println!(
                "{arguments:?}, marks {marks}: {} MiB in, peak {} KiB, {} KiB without",
                size() >> 20,
                peak >> 10,
                program >> 10
            );
            assert!(written > size() / 2, "{written} bytes of output");
            assert!(peak < allowed, "{peak} bytes of memory");
        }
    }
}
