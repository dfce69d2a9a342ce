//! Records in a ring that is too small for all of them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

use std::collections::VecDeque;

use unwind_perf::record::{
    AttrFlags, BranchSampleType, CallchainDeferred, DeferredLayout, Endian, Error, EventFormat,
    Lost, Output, ReadFormat, Record, RecordType, Records, Ring, RingWriter, SampleId, SampleType,
    Task, WriteError,
};

/// A ring as in a kernel: bytes wrap, a reservation shows when committed.
struct Pages {
    memory: Vec<u8>,
    tail: usize,
    head: usize,
    reserved: usize,
    put: usize,
}

impl Pages {
    fn new(len: usize) -> Self {
        Self { memory: vec![0xee; len], tail: 0, head: 0, reserved: 0, put: 0 }
    }

    fn drain(&mut self) -> Vec<u8> {
        let len = self.memory.len();
        let bytes = (self.tail..self.head).map(|at| self.memory[at % len]).collect();
        self.tail = self.head;
        bytes
    }
}

impl Output for Pages {
    fn put(&mut self, bytes: &[u8]) {
        let len = self.memory.len();
        for &byte in bytes {
            assert!(self.put < self.reserved, "more than was reserved");
            self.memory[(self.head + self.put) % len] = byte;
            self.put += 1;
        }
    }
}

impl Ring for Pages {
    fn reserve(&mut self, len: usize) -> bool {
        assert_eq!((self.reserved, self.put), (0, 0), "one reservation at a time");
        if self.memory.len() - (self.head - self.tail) < len {
            return false;
        }
        self.reserved = len;
        true
    }

    fn commit(&mut self) {
        assert_eq!(self.put, self.reserved, "all that was reserved");
        self.head += self.reserved;
        (self.reserved, self.put) = (0, 0);
    }
}

const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType::TID
        .union(SampleType::TIME)
        .union(SampleType::CPU)
        .union(SampleType::IDENTIFIER),
    read_format: ReadFormat::empty(),
    flags: AttrFlags::SAMPLE_ID_ALL,
    branch_sample_type: BranchSampleType::empty(),
};

fn id(time: u64) -> SampleId {
    SampleId {
        task: Some(Task { pid: 3, tid: 4 }),
        time: Some(time),
        cpu: Some(1),
        identifier: Some(11),
        ..SampleId::default()
    }
}

fn stack(cookie: u64, frames: usize) -> CallchainDeferred<impl Iterator<Item = u64> + Clone> {
    let ips = (0..frames).map(|frame| 0x40_1000 + u64::try_from(frame).unwrap());
    CallchainDeferred { cookie: Some(cookie), ips, id: id(cookie) }
}

/// What a reader has seen.
#[derive(Default)]
struct Seen {
    records: u64,
    told: u64,
}

impl Seen {
    /// Reads `bytes`, which hold the records of `expected` in this order.
    fn read(&mut self, bytes: &[u8], endian: Endian, expected: &mut VecDeque<(u64, usize)>) {
        let mut after_report = false;
        for record in Records::new(bytes, endian) {
            let record = record.unwrap();
            if record.kind() == RecordType::LOST {
                let lost = Lost::decode(&record, FORMAT).unwrap();
                assert!(lost.event == 11 && lost.count > 0 && !after_report);
                self.told += lost.count;
                after_report = true;
                continue;
            }
            let decoded =
                CallchainDeferred::decode(&record, FORMAT, DeferredLayout::Cookie).unwrap();
            let (cookie, frames) = expected.pop_front().unwrap();
            assert_eq!((decoded.cookie, decoded.ips.count()), (Some(cookie), frames));
            assert_eq!(decoded.id, id(cookie));
            self.records += 1;
            after_report = false;
        }
        assert!(!after_report, "a report comes with the record after it");
    }
}

#[test]
fn x6_every_record_that_found_no_room_is_told_to_the_reader() {
    let mut random = 5_u64;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % below
    };
    for endian in [Endian::Little, Endian::Big] {
        let mut writer = RingWriter::new(Pages::new(1 << 12), endian);
        let mut refused = 0;
        let mut seen = Seen::default();
        let mut expected = VecDeque::new();
        for cookie in 1..20_000 {
            let frames = next(80);
            match writer.write(&stack(cookie, frames), FORMAT, 11, id(cookie)) {
                Ok(()) => expected.push_back((cookie, frames)),
                Err(WriteError::NoRoom) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            if next(20) == 0 {
                seen.read(&writer.ring_mut().drain(), endian, &mut expected);
            }
        }
        // What is not told yet comes with the next record that fits.
        seen.read(&writer.ring_mut().drain(), endian, &mut expected);
        writer.write(&stack(1, 1), FORMAT, 11, id(1)).unwrap();
        expected.push_back((1, 1));
        seen.read(&writer.ring_mut().drain(), endian, &mut expected);
        assert!(expected.is_empty());
        assert!(refused > 1000 && seen.records > 1000, "{refused} refused");
        assert_eq!((seen.told, writer.lost()), (refused, refused));
        assert_eq!(seen.records + refused, 20_000);
    }
}

#[test]
fn x6_losses_and_reports_add_up() {
    let mut writer = RingWriter::new(Pages::new(256), Endian::Little);
    // 8 header, 16 cookie and count, 8 an address, 32 trailer: 3 of 64 fit.
    let fits: Vec<bool> = (1..=10)
        .map(|cookie| writer.write(&stack(cookie, 1), FORMAT, 11, id(cookie)).is_ok())
        .collect();
    assert_eq!(fits, [true, true, true, true, false, false, false, false, false, false]);
    assert_eq!(writer.ring_mut().drain().len(), 256);
    // Both the report (56 bytes) and the record must fit.
    assert_eq!(writer.write(&stack(11, 20), FORMAT, 11, id(11)), Err(WriteError::NoRoom));
    assert_eq!(writer.write(&stack(12, 1), FORMAT, 11, id(12)), Ok(()));
    let bytes = writer.ring_mut().drain();
    let records: Vec<Record<'_>> =
        Records::new(&bytes, Endian::Little).collect::<Result<_, _>>().unwrap();
    let lost = Lost::decode(&records[0], FORMAT).unwrap();
    assert_eq!((lost.event, lost.count, lost.id), (11, 7, id(12)));
    let kinds: Vec<u32> = records.iter().map(|record| record.kind().0).collect();
    assert_eq!(kinds, [2, 22]);
    assert_eq!(writer.lost(), 7);
}

#[test]
fn x6_a_record_that_cannot_be_encoded_counts_as_lost_and_leaves_the_ring_alone() {
    let mut writer = RingWriter::new(Pages::new(256), Endian::Little);
    let nameless = SampleId::default();
    let missing = Error::MissingFields(FORMAT.sample_type.bits());
    let bad = CallchainDeferred { id: nameless, ..stack(1, 1) };
    assert_eq!(writer.write(&bad, FORMAT, 11, id(1)), Err(WriteError::Encode(missing)));
    // The report itself has to be writable too.
    assert_eq!(writer.write(&stack(2, 1), FORMAT, 11, nameless), Err(WriteError::Encode(missing)));
    assert!(writer.ring_mut().drain().is_empty());
    writer.write(&stack(3, 1), FORMAT, 11, id(3)).unwrap();
    let bytes = writer.ring_mut().drain();
    let first = Record::parse(&bytes, Endian::Little).unwrap();
    assert_eq!(Lost::decode(&first, FORMAT).unwrap().count, 2);
}

/// A ring that has no room for one of the reservations.
struct FullAt {
    pages: Pages,
    reservations: u32,
    full_at: u32,
    times: u32,
}

impl Output for FullAt {
    fn put(&mut self, bytes: &[u8]) {
        self.pages.put(bytes);
    }
}

impl Ring for FullAt {
    fn reserve(&mut self, len: usize) -> bool {
        self.reservations += 1;
        let full = self.full_at..self.full_at + self.times;
        !full.contains(&self.reservations) && self.pages.reserve(len)
    }

    fn commit(&mut self) {
        self.pages.commit();
    }
}

#[test]
fn x6_a_ring_that_is_full_at_any_point_loses_what_came_then_and_says_how_much() {
    for endian in [Endian::Little, Endian::Big] {
        for (full_at, times) in (1..=12).flat_map(|at| (1..4).map(move |times| (at, times))) {
            let pages = Pages::new(1 << 16);
            let ring = FullAt { pages, reservations: 0, full_at, times };
            let mut writer = RingWriter::new(ring, endian);
            let mut expected = VecDeque::new();
            for cookie in 1..=16_u64 {
                let frames = usize::try_from(cookie).unwrap();
                match writer.write(&stack(cookie, frames), FORMAT, 11, id(cookie)) {
                    Ok(()) => expected.push_back((cookie, frames)),
                    Err(error) => assert_eq!(error, WriteError::NoRoom),
                }
            }
            let lost = u64::from(times);
            let written = u64::try_from(expected.len()).unwrap();
            assert_eq!((writer.lost(), written), (lost, 16 - lost));
            let mut seen = Seen::default();
            seen.read(&writer.ring_mut().pages.drain(), endian, &mut expected);
            assert_eq!((seen.records, seen.told), (written, lost), "full at {full_at}");
        }
    }
}
