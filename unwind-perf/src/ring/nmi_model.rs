//! A writer with an NMI at every point that writes, too, and a reader at every point.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, reason = "tests")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::RefCell;

use test_support::interrupt::interrupt_everywhere;

use super::{CpuRing, Direction, MmapPage, OverwriteReader, RingError, RingReader};
use crate::record::{EventFormat, Lost, LostSamples, RecordType, SampleId};
use crate::sync::AtomicU64;

/// Bytes of a [`LostSamples`] and of a [`Lost`].
const RECORD: usize = 16;
const LOST: usize = 24;

/// A ring and who reads it, in memory that is never given back.
struct World {
    ring: CpuRing<'static>,
    reader: RefCell<RingReader<'static>>,
    overwrite: RefCell<OverwriteReader<'static>>,
    written: RefCell<Vec<u64>>,
    wakes: RefCell<u32>,
    tried: RefCell<u64>,
    read: RefCell<Vec<u64>>,
    told: RefCell<u64>,
}

fn words(count: usize) -> &'static [AtomicU64] {
    Box::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}

impl World {
    fn new(bytes: usize, direction: Direction) -> Self {
        let page = MmapPage::new(words(MmapPage::WORDS)).unwrap();
        let data = words(bytes / 8);
        Self {
            ring: CpuRing::new(page, data, direction, 32).unwrap(),
            reader: RefCell::new(RingReader::new(page, data).unwrap()),
            overwrite: RefCell::new(OverwriteReader::new(page, data).unwrap()),
            written: RefCell::default(),
            wakes: RefCell::default(),
            tried: RefCell::default(),
            read: RefCell::default(),
            told: RefCell::default(),
        }
    }

    fn write(&self) {
        let number = {
            let mut tried = self.tried.borrow_mut();
            *tried += 1;
            *tried
        };
        let record = LostSamples { count: number, id: SampleId::default() };
        let written = self.ring.write(&record, EventFormat::default(), 7, SampleId::default());
        if let Ok(written) = written {
            self.written.borrow_mut().push(number);
            *self.wakes.borrow_mut() += u32::from(written.wake);
        }
    }

    fn read(&self) {
        let mut buf = [0; 64];
        // There is one reader: one that comes while it reads waits for its turn.
        let Ok(mut reader) = self.reader.try_borrow_mut() else { return };
        while let Some(record) = reader.next(&mut buf).unwrap() {
            match record.kind() {
                RecordType::LOST => {
                    let lost = Lost::decode(&record, EventFormat::default()).unwrap();
                    assert_eq!((lost.event, lost.count > 0), (7, true));
                    *self.told.borrow_mut() += lost.count;
                }
                _ => {
                    let record = LostSamples::decode(&record, EventFormat::default()).unwrap();
                    self.read.borrow_mut().push(record.count);
                }
            }
        }
    }

    /// All that was written was read, once, and all that was lost was counted.
    fn check(&self) {
        self.read();
        let (mut read, mut written) = (self.read.borrow().clone(), self.written.borrow().clone());
        read.sort_unstable();
        written.sort_unstable();
        assert_eq!(read, written);
        let lost = self.ring.lost();
        assert_eq!(u64::try_from(written.len()).unwrap() + lost, *self.tried.borrow());
        // What is not told yet is told by the next record.
        self.write();
        self.read();
        assert_eq!((*self.told.borrow(), self.ring.lost()), (lost, lost));
    }
}

#[test]
fn g14_a_writer_may_be_interrupted_by_writers_anywhere_and_each_record_is_read_once() {
    let two: [fn(&World); 2] = [World::write, World::write];
    let mixed: [fn(&World); 3] = [World::read, World::write, World::read];
    let world = || World::new(256, Direction::Forward);
    let check = |world: &World| {
        assert_eq!(world.ring.lost(), 0);
        world.check();
    };
    let runs = interrupt_everywhere(world, &two, World::write, check);
    assert!(runs > 300, "{runs}");
    let runs = interrupt_everywhere(world, &mixed, World::write, check);
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn g14_a_ring_without_room_loses_records_and_counts_each_once() {
    // Room for two records, not for three, whoever comes first.
    let world = || {
        let world = World::new(64, Direction::Forward);
        for _ in 0..4 {
            world.write();
        }
        assert_eq!(world.ring.lost(), 1, "one byte stays free");
        world.read();
        world.write();
        world
    };
    let writes: [fn(&World); 2] = [World::write, World::write];
    interrupt_everywhere(world, &writes, World::write, World::check);
    let mixed: [fn(&World); 3] = [World::write, World::read, World::write];
    interrupt_everywhere(world, &mixed, World::write, World::check);
    const { assert!(RECORD * 2 + LOST < 64) };
}

#[test]
fn g14_of_nested_writers_the_outermost_wakes_the_reader() {
    let world = || {
        let world = World::new(256, Direction::Forward);
        world.write();
        assert_eq!(*world.wakes.borrow(), 0);
        world
    };
    let one: [fn(&World); 1] = [World::write];
    interrupt_everywhere(world, &one, World::write, |world| {
        // Three records of 16 bytes, woken at 32. An NMI that comes before all that its
        // victim does may be a reason for both to wake.
        assert!((1..=2).contains(&*world.wakes.borrow()));
    });
}

#[test]
fn g14_a_ring_that_overwrites_has_the_newest_records_whoever_interrupted_whom() {
    let world = || {
        let world = World::new(64, Direction::Overwrite);
        for _ in 0..3 {
            world.write();
        }
        world
    };
    let two: [fn(&World); 2] = [World::write, World::write];
    interrupt_everywhere(world, &two, World::write, |world| {
        let mut buf = [0; 64];
        let mut snapshot = world.overwrite.borrow_mut().look();
        let mut found = Vec::new();
        while let Some(record) = snapshot.next(&mut buf).unwrap() {
            found.push(LostSamples::decode(&record, EventFormat::default()).unwrap().count);
        }
        assert_eq!((found.len(), snapshot.is_cut()), (4, *world.tried.borrow() > 4));
        // All but the one that is overwritten last.
        let newest = *world.tried.borrow() - 3;
        found.sort_unstable();
        assert!(found.iter().all(|&number| number + 2 > newest), "{found:?}");
        assert_eq!(world.ring.lost(), 0);
    });
}

#[test]
fn g14_a_writer_that_was_not_paused_is_noticed() {
    let world = World::new(64, Direction::Overwrite);
    world.write();
    let mut snapshot = world.overwrite.borrow_mut().look();
    world.write();
    let error = snapshot.next(&mut [0; 64]).map(drop);
    assert!(matches!(error, Err(RingError::Overwritten { .. })), "{error:?}");
    assert!(snapshot.next(&mut [0; 64]).unwrap().is_none());
}
