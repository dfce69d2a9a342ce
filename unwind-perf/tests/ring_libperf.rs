//! Rings of this crate, read by libperf: the library of the kernel's own tools.
//!
//! `UNWIND_LIBPERF_READER=$(unwind-perf/tests/libperf/build) cargo test -p unwind-perf --test
//! ring_libperf`
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::ptr;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::thread;

use unwind_perf::record::{
    Comm, Encode as _, Endian, EventFormat, LostSamples, RecordType, Records, SampleId, Task,
    WriteError,
};
use unwind_perf::ring::{CpuRing, Direction, MmapPage, OverwriteReader};

const PAGE: usize = 4096;
const BYTES: usize = 8192;

/// A ring in a file that other programs map, too.
struct SharedRing {
    path: PathBuf,
    words: &'static [AtomicU64],
}

impl SharedRing {
    fn new(test: &str) -> Self {
        let path = env::temp_dir().join(format!("unwind-ring-{}-{test}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let len = PAGE + BYTES;
        file.set_len(len.try_into().unwrap()).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping touches no other memory. It stays until the test ends.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: as many bytes are mapped, for ever, and all sides access them as atomics.
        let words = unsafe { slice::from_raw_parts(start.cast::<AtomicU64>(), len / 8) };
        let ring = Self { path, words };
        ring.page().init(PAGE.try_into().unwrap(), BYTES.try_into().unwrap());
        ring
    }

    fn page(&self) -> MmapPage<'static> {
        MmapPage::new(&self.words[..PAGE / 8]).unwrap()
    }

    fn data(&self) -> &'static [AtomicU64] {
        &self.words[PAGE / 8..]
    }

    /// libperf's reader of the ring; `None`, with a message, if it was not built.
    fn reader(&self, direction: &str) -> Option<Command> {
        let Some(program) = env::var_os("UNWIND_LIBPERF_READER") else {
            eprintln!(
                "skipped: UNWIND_LIBPERF_READER names no reader: tests/libperf/build makes it"
            );
            return None;
        };
        let mut command = Command::new(program);
        command.arg(&self.path).arg(BYTES.to_string()).arg(direction).stdout(Stdio::piped());
        Some(command)
    }
}

impl Drop for SharedRing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

const FORMAT: EventFormat = EventFormat {
    sample_type: unwind_perf::record::SampleType::empty(),
    read_format: unwind_perf::record::ReadFormat::empty(),
    flags: unwind_perf::record::AttrFlags::empty(),
    branch_sample_type: unwind_perf::record::BranchSampleType::empty(),
};

/// A record of one of fifteen lengths.
fn write(ring: &CpuRing<'_>, number: u32) -> Result<Vec<u8>, WriteError> {
    let name =
        vec![b'a' + u8::try_from(number % 26).unwrap(); usize::try_from(number % 120).unwrap()];
    let comm = Comm {
        task: Task { pid: number, tid: !number },
        name: &name,
        exec: false,
        id: SampleId::default(),
    };
    let mut bytes = Vec::new();
    comm.encode(FORMAT, Endian::NATIVE, &mut bytes).unwrap();
    ring.write(&comm, FORMAT, 7, SampleId::default()).map(|_| bytes)
}

#[test]
fn g14_libperf_reads_each_record_as_it_was_written_while_the_ring_is_written() {
    let shared = SharedRing::new("forward");
    let Some(mut reader) = shared.reader("forward") else { return };
    let mut reader = reader.spawn().unwrap();
    let mut output = reader.stdout.take().unwrap();
    let reading = thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| bytes).unwrap()
    });
    let ring = CpuRing::new(shared.page(), shared.data(), Direction::Forward, 1).unwrap();
    let (mut expected, mut full) = (Vec::new(), 0);
    for number in 0..100_000 {
        match write(&ring, number) {
            Ok(bytes) => expected.push(bytes),
            Err(error) => {
                assert_eq!(error, WriteError::NoRoom);
                full += 1;
                thread::yield_now();
            }
        }
    }
    let last = LostSamples { count: 0, id: SampleId::default() };
    while ring.write(&last, FORMAT, 7, SampleId::default()).is_err() {
        assert_eq!(reader.try_wait().unwrap(), None, "it has ended before the last record");
        thread::yield_now();
    }
    assert!(reader.wait().unwrap().success());
    let read = reading.join().unwrap();
    let mut told = 0;
    let mut expected_next = expected.iter();
    for record in Records::new(&read, Endian::NATIVE) {
        let record = record.unwrap();
        match record.kind() {
            RecordType::LOST => {
                told += unwind_perf::record::Lost::decode(&record, FORMAT).unwrap().count;
            }
            RecordType::LOST_SAMPLES => {}
            _ => assert_eq!(record.bytes(), expected_next.next().unwrap()),
        }
    }
    assert_eq!(expected_next.next(), None);
    // What had no room is told, but for tries to write the last record.
    assert!(told >= full && expected.len() > 1_000, "{told} {full} {}", expected.len());
    println!("{} records read by libperf, {full} told to be lost", expected.len());
}

#[test]
fn g14_libperf_reads_a_ring_that_overwrites_as_our_reader_does() {
    let shared = SharedRing::new("overwrite");
    let ring = CpuRing::new(shared.page(), shared.data(), Direction::Overwrite, 1).unwrap();
    for (first, count) in [(0, 3), (3, 20), (23, 1_000), (1_023, 20_000)] {
        for number in first..first + count {
            write(&ring, number).unwrap();
        }
        let Some(mut reader) = shared.reader("overwrite") else { return };
        let output = reader.output().unwrap();
        assert!(output.status.success());
        // Ours begins with all that was ever written, as it has seen nothing either.
        let mut ours = OverwriteReader::new(shared.page(), shared.data()).unwrap();
        let (mut look, mut buf, mut bytes) = (ours.look(), vec![0; 1 << 16], Vec::new());
        let mut records = 0;
        while let Some(record) = look.next(&mut buf).unwrap() {
            bytes.extend(record.bytes());
            records += 1;
        }
        assert_eq!(output.stdout, bytes, "{first} {count}");
        assert!(records >= 3);
        println!("{records} records of {} in a ring that overwrites: equal", first + count);
    }
}
