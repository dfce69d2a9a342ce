//! Models of a ring whose writer and reader run on two CPUs.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-perf --release --test loom_ring`
//!
//! NMIs on the writer's CPU are modelled in the unit tests of the ring.
#![cfg(loom)]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

#[path = "guarded/mod.rs"]
mod guarded;

use guarded::Guarded;
use loom::sync::Arc;
use loom::thread;
use unwind_core::sync::{AtomicU64, Ordering, fence};
use unwind_perf::record::{EventFormat, LostSamples, SampleId};
use unwind_perf::ring::{AuxReader, CpuRing, Direction, MmapPage, OverwriteReader, RingReader};

/// Words of the page.
const LOCK: usize = 1;
const AUX_HEAD: usize = 132;
const AUX_TAIL: usize = 133;

/// What a writer and a reader share.
struct Memory {
    page: Vec<AtomicU64>,
    data: Vec<AtomicU64>,
    /// The place of each record, apart from its words: loom watches who uses it.
    places: [Guarded; 4],
}

impl Memory {
    fn new(words: usize) -> Arc<Self> {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let places = core::array::from_fn(|_| Guarded::new());
        Arc::new(Self { page: zeros(MmapPage::WORDS), data: zeros(words), places })
    }

    fn page(&self) -> MmapPage<'_> {
        MmapPage::new(&self.page).unwrap()
    }
}

fn write(ring: &CpuRing<'_>, number: u64) -> bool {
    let record = LostSamples { count: number, id: SampleId::default() };
    ring.write(&record, EventFormat::default(), 7, SampleId::default()).is_ok()
}

/// Reads what is there after `count` records. Returns how many were read by now.
fn read(memory: &Memory, reader: &mut RingReader<'_>, mut count: u64) -> u64 {
    loop {
        if reader.waiting() > 0 {
            // Before the place is given back.
            memory.places[usize::try_from(count).unwrap()].read();
        }
        let mut buf = [0; 64];
        let Some(record) = reader.next(&mut buf).unwrap() else { return count };
        count += 1;
        let record = LostSamples::decode(&record, EventFormat::default()).unwrap();
        assert_eq!(record.count, count);
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_no_record_is_read_before_it_is_written_nor_written_over_before_it_is_read() {
    check(|| {
        // Room for one record: the next one takes its place.
        let memory = Memory::new(4);
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let direction = Direction::Forward;
                let ring = CpuRing::new(memory.page(), &memory.data, direction, 1 << 20).unwrap();
                let mut written = 0;
                while written < 3 && write(&ring, written + 1) {
                    written += 1;
                    if let Some(before) = written.checked_sub(2) {
                        memory.places[usize::try_from(before).unwrap()].write();
                    }
                }
                written
            })
        };
        let mut reader = RingReader::new(memory.page(), &memory.data).unwrap();
        let mut count = read(&memory, &mut reader, 0);
        let written = writer.join().unwrap();
        count = read(&memory, &mut reader, count);
        assert_eq!(count, written);
    });
}

#[test]
fn loom_a_trace_is_read_after_it_is_written_and_its_place_is_given_back_after_that() {
    check(|| {
        let memory = Memory::new(1);
        let hardware = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory.places[0].write();
                memory.page[AUX_HEAD].store(8, Ordering::Release);
                if memory.page[AUX_TAIL].load(Ordering::Acquire) == 8 {
                    memory.places[0].write();
                }
            })
        };
        let mut aux = AuxReader::new(memory.page(), &memory.data).unwrap();
        if aux.written() == (0..8) {
            memory.places[0].read();
            aux.release(8);
        }
        hardware.join().unwrap();
    });
}

#[test]
fn loom_the_fields_of_a_clock_belong_together() {
    const FIELDS: [usize; 2] = [7, 11];
    check(|| {
        let memory = Memory::new(1);
        // The conversion is known, in the half of the word that is the same for both orders.
        memory.page[5].store(0x18, Ordering::Relaxed);
        let kernel = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory.page[LOCK].store(1, Ordering::Relaxed);
                fence(Ordering::Release);
                for field in FIELDS {
                    memory.page[field].store(1, Ordering::Relaxed);
                }
                memory.page[LOCK].store(2, Ordering::Release);
            })
        };
        if let Some(clock) = memory.page().clock() {
            assert_eq!(clock.offset, clock.mask);
        }
        kernel.join().unwrap();
    });
}

#[test]
fn loom_what_is_read_of_a_ring_that_overwrites_is_whole_or_refused() {
    check(|| {
        let memory = Memory::new(4);
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let direction = Direction::Overwrite;
                let ring = CpuRing::new(memory.page(), &memory.data, direction, 1 << 20).unwrap();
                // Both have room: what is read is not written again.
                assert!(write(&ring, 1) && write(&ring, 2));
            })
        };
        let mut snapshot = OverwriteReader::new(memory.page(), &memory.data).unwrap().look();
        let mut last = 3;
        while let Ok(Some(record)) = snapshot.next(&mut [0; 64]) {
            let record = LostSamples::decode(&record, EventFormat::default()).unwrap();
            assert!((1..last).contains(&record.count), "{}", record.count);
            last = record.count;
        }
        writer.join().unwrap();
    });
}
