//! The rings of the kernel that runs, read by the crate: a software clock of this thread.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use unwind_perf::event_attr::EventAttr;
use unwind_perf::record::{
    AttrFlags, Endian, EventFormat, Lost, RecordType, Sample, SampleId, SampleType,
};
use unwind_perf::ring::{MmapPage, OverwriteReader, RingReader};

const PAGE: usize = 4096;
const WRITE_BACKWARD: u64 = 1 << 27;
/// `PERF_EVENT_IOC_PAUSE_OUTPUT`.
const PAUSE_OUTPUT: libc::c_ulong = 0x4004_2409;

/// An event of this thread and the memory that it shares.
struct Event {
    file: OwnedFd,
    words: &'static [AtomicU64],
}

fn attr(flags: u64) -> EventAttr {
    let mut attr = EventAttr::default();
    // The clock of the CPU, 10,000 times a second.
    (attr.kind, attr.config, attr.sample_period) = (1, 0, 10_000);
    attr.size = u32::try_from(EventAttr::SIZE).unwrap();
    attr.sample_type = SampleType::IP | SampleType::TID | SampleType::TIME | SampleType::CALLCHAIN;
    attr.flags = AttrFlags::FREQ
        | AttrFlags::EXCLUDE_KERNEL
        | AttrFlags::SAMPLE_ID_ALL
        | AttrFlags::from_bits_retain(flags);
    attr
}

impl Event {
    /// `None`, with a message, where the kernel does not allow it.
    fn open(attr: &EventAttr, pages: usize) -> Option<Self> {
        let mut bytes = [0; EventAttr::SIZE];
        attr.encode(&mut bytes, Endian::NATIVE).unwrap();
        // SAFETY: the kernel copies as many bytes as `size` in them says, which are there.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, bytes.as_ptr(), 0, -1, -1, 8) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            assert!(std::env::var_os("UNWIND_REQUIRE_TOOLS").is_none(), "{error}");
            eprintln!("skipped: the kernel lets no event be opened: {error}");
            return None;
        }
        // SAFETY: the kernel has just opened it for this value alone.
        let file = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) };
        let len = (pages + 1) * PAGE;
        // The kernel overwrites what it takes for a ring without a reader's tail.
        let writes = attr.flags.bits() & WRITE_BACKWARD == 0;
        let access = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping touches no other memory. It stays until the test ends.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: as many bytes are mapped, for ever, and all sides access them as atomics.
        let words = unsafe { slice::from_raw_parts(start.cast::<AtomicU64>(), len / 8) };
        Some(Self { file, words })
    }

    fn page(&self) -> MmapPage<'static> {
        MmapPage::new(&self.words[..PAGE / 8]).unwrap()
    }

    fn data(&self) -> &'static [AtomicU64] {
        &self.words[PAGE / 8..]
    }

    fn pause(&self, pauses: bool) {
        let fd = self.file.as_raw_fd();
        // SAFETY: the kernel takes the argument as a number.
        let result = unsafe { libc::ioctl(fd, PAUSE_OUTPUT, libc::c_ulong::from(pauses)) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
}

fn format(attr: &EventAttr) -> EventFormat {
    EventFormat { sample_type: attr.sample_type, flags: attr.flags, ..EventFormat::default() }
}

/// Runs until this thread has had as much of the CPU, which is what samples are taken of.
fn work(time: Duration) {
    let start = cpu_time();
    while cpu_time() - start < time {
        std::hint::black_box(start);
    }
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is one for a time.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// The number of this thread as records have it.
fn own_task() -> u32 {
    // SAFETY: it has no conditions.
    u32::try_from(unsafe { libc::gettid() }).unwrap()
}

#[test]
fn g14_the_kernels_ring_is_read_record_by_record_around_its_end() {
    let attr = attr(0);
    let Some(event) = Event::open(&attr, 1) else { return };
    assert_eq!(event.page().data_offset(), 4096);
    assert_eq!(event.page().data_size(), 4096);
    let mut reader = RingReader::new(event.page(), event.data()).unwrap();
    let mut buf = [0; RingReader::MAX_RECORD];
    let (mut samples, mut bytes, mut last) = (0, 0, 0);
    for _ in 0..50 {
        work(Duration::from_millis(4));
        while let Some(record) = reader.next(&mut buf).unwrap() {
            bytes += record.bytes().len();
            if record.kind() != RecordType::SAMPLE {
                continue;
            }
            let sample = Sample::decode(&record, format(&attr)).unwrap();
            assert_eq!(sample.task.unwrap().tid, own_task());
            assert!(sample.time.unwrap() > last);
            last = sample.time.unwrap();
            samples += 1;
        }
    }
    assert!(samples > 100, "{samples}");
    assert!(bytes > 3 * PAGE, "the ring wrapped: {bytes}");
}

#[test]
fn g14_what_the_kernel_could_not_write_is_told_by_the_next_record() {
    let attr = attr(0);
    let Some(event) = Event::open(&attr, 1) else { return };
    let mut reader = RingReader::new(event.page(), event.data()).unwrap();
    let mut buf = [0; RingReader::MAX_RECORD];
    let mut lost = 0;
    // The ring is full after a hundred samples. On a machine that has other work they take
    // longer than here.
    for _ in 0..20 {
        work(Duration::from_millis(60));
        while let Some(record) = reader.next(&mut buf).unwrap() {
            if record.kind() == RecordType::LOST {
                lost += Lost::decode(&record, format(&attr)).unwrap().count;
            }
        }
        work(Duration::from_millis(1));
        if lost > 50 {
            return;
        }
    }
    panic!("{lost} are lost");
}

#[test]
fn g14_the_kernels_ring_that_overwrites_has_the_newest_samples() {
    let attr = attr(WRITE_BACKWARD);
    let Some(event) = Event::open(&attr, 1) else { return };
    let mut reader = OverwriteReader::new(event.page(), event.data()).unwrap();
    let mut buf = [0; RingReader::MAX_RECORD];
    let mut newest = 0;
    for round in 0..3 {
        // A part of it is enough for a page: a machine that is late takes fewer samples.
        work(Duration::from_millis(300));
        event.pause(true);
        let mut snapshot = reader.look();
        let (mut count, mut first, mut last, mut bytes) = (0, 0, u64::MAX, 0);
        while let Some(record) = snapshot.next(&mut buf).unwrap() {
            bytes += record.bytes().len();
            let time = match record.kind() {
                RecordType::SAMPLE => Sample::decode(&record, format(&attr)).unwrap().time,
                _ => SampleId::decode(&record, format(&attr)).unwrap().time,
            };
            let time = time.unwrap();
            assert!(time <= last && time > newest, "the newest first, and none twice");
            first = first.max(time);
            last = time;
            count += 1;
        }
        assert!(snapshot.is_cut(), "more than a page in 300 ms of the CPU");
        assert!(count > 10 && bytes > PAGE - 1024, "round {round}: {count} {bytes}");
        newest = first;
        event.pause(false);
    }
}
