//! Readers of a ring: beside its writer, and on memory that holds anything.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use unwind_perf::record::{
    Aux, AuxFlags, Comm, Encode, Endian, EventFormat, ItraceStart, Lost, LostSamples, Record,
    RecordType, SampleId, Task, Throttle, WriteError,
};
use unwind_perf::ring::{
    AuxReader, CpuRing, Direction, MmapPage, OverwriteReader, RingError, RingReader,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

const FORMAT: EventFormat = EventFormat {
    sample_type: unwind_perf::record::SampleType::empty(),
    read_format: unwind_perf::record::ReadFormat::empty(),
    flags: unwind_perf::record::AttrFlags::empty(),
    branch_sample_type: unwind_perf::record::BranchSampleType::empty(),
};

/// A record whose length and bytes follow from its number.
fn name(number: u64) -> Vec<u8> {
    let len = usize::try_from(number * 37 % 200).unwrap();
    vec![b'a' + u8::try_from(number % 26).unwrap(); len]
}

fn comm<'a>(number: u64, name: &'a [u8]) -> Comm<'a> {
    let number = u32::try_from(number).unwrap();
    Comm { task: Task { pid: number, tid: !number }, name, exec: false, id: SampleId::default() }
}

fn check_comm(record: &Record<'_>) -> u64 {
    let found = Comm::decode(record, FORMAT).unwrap();
    let number = u64::from(found.task.pid);
    assert_eq!(found, comm(number, &name(number)));
    number
}

#[test]
fn g14_a_reader_beside_its_writer_gets_each_record_once_or_is_told_of_its_loss() {
    const RECORDS: u64 = 200_000;
    let (page, data) = (words(MmapPage::WORDS), words(512));
    let page = MmapPage::new(&page).unwrap();
    let is_done = AtomicBool::new(false);
    let (wakes, lost, (read, told)) = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let ring = CpuRing::new(page, &data, Direction::Forward, 1024).unwrap();
            let mut wakes = 0_u64;
            for number in 0..RECORDS {
                let name = name(number);
                // Now and then the reader is given the time to empty the ring.
                if number % 64 == 0 {
                    thread::yield_now();
                }
                match ring.write(&comm(number, &name), FORMAT, 7, SampleId::default()) {
                    Ok(written) => wakes += u64::from(written.wake),
                    Err(error) => assert_eq!(error, WriteError::NoRoom),
                }
            }
            // The last loss is told by a record after it.
            let last = LostSamples { count: 0, id: SampleId::default() };
            while ring.write(&last, FORMAT, 7, SampleId::default()).is_err() {
                thread::yield_now();
            }
            is_done.store(true, Ordering::Release);
            (wakes, ring.lost())
        });
        let reader = scope.spawn(|| {
            let mut reader = RingReader::new(page, &data).unwrap();
            let mut buf = vec![0; 512];
            let (mut read, mut told, mut next) = (0_u64, 0_u64, 0);
            loop {
                let ends = is_done.load(Ordering::Acquire);
                while let Some(record) = reader.next(&mut buf).unwrap() {
                    match record.kind() {
                        RecordType::LOST => told += Lost::decode(&record, FORMAT).unwrap().count,
                        RecordType::LOST_SAMPLES => {}
                        _ => {
                            let number = check_comm(&record);
                            assert!(number >= next, "{number} after {next}");
                            next = number + 1;
                            read += 1;
                        }
                    }
                }
                if ends {
                    return (read, told);
                }
                thread::yield_now();
            }
        });
        let (wakes, lost) = writer.join().unwrap();
        (wakes, lost, reader.join().unwrap())
    });
    assert_eq!(told, lost);
    assert!(read <= RECORDS && read + lost >= RECORDS, "{read} {lost}");
    assert!(read > 1_000 && wakes > 100, "{read} {wakes}");
}

#[test]
fn g14_any_part_of_a_record_is_copied_while_it_is_in_the_ring() {
    let mut random = Random(11);
    let (page_words, data) = (words(MmapPage::WORDS), words(64));
    let page = MmapPage::new(&page_words).unwrap();
    let ring = CpuRing::new(page, &data, Direction::Forward, 64).unwrap();
    let mut reader = RingReader::new(page, &data).unwrap();
    let waiting = || {
        let [head, tail] = [128, 129].map(|at| page_words[at].load(Ordering::Relaxed));
        head - tail
    };
    for number in 0..2_000 {
        let name = name(number);
        ring.write(&comm(number, &name), FORMAT, 7, SampleId::default()).unwrap();
        let taken = reader.take(|record| {
            let size = usize::from(record.header().size);
            let mut whole = vec![0xff; size + 9];
            record.copy(0, &mut whole);
            assert_eq!(&whole[size..], [0xff; 9]);
            for _ in 0..20 {
                let from = usize::try_from(random.next()).unwrap() % (size + 2);
                let mut part = vec![0xff; usize::try_from(random.next()).unwrap() % 40];
                record.copy(from, &mut part);
                let expected = whole[..size].get(from..).unwrap_or_default();
                let copied = part.len().min(expected.len());
                assert_eq!(part[..copied], expected[..copied], "{from}");
                assert!(part[copied..].iter().all(|&byte| byte == 0xff), "{from}");
            }
            // It has its place until the call is over.
            assert_eq!(waiting(), u64::from(record.header().size));
            whole.truncate(size);
            whole
        });
        let bytes = taken.unwrap().unwrap();
        assert_eq!(check_comm(&Record::parse(&bytes, Endian::NATIVE).unwrap()), number);
        assert_eq!(waiting(), 0);
    }
    assert_eq!(reader.take(|_| ()).unwrap(), None);
}

#[test]
fn g14_records_of_all_lengths_are_read_around_the_end_of_the_ring() {
    let mut random = Random(7);
    for size in [32, 64, 512] {
        let (page, data) = (words(MmapPage::WORDS), words(size));
        let page = MmapPage::new(&page).unwrap();
        let ring = CpuRing::new(page, &data, Direction::Forward, 64).unwrap();
        let mut reader = RingReader::new(page, &data).unwrap();
        let mut buf = [0; 256];
        let (mut waiting, mut lost) = (std::collections::VecDeque::new(), 0);
        for number in 0..20_000 {
            let name = name(number);
            match ring.write(&comm(number, &name), FORMAT, 7, SampleId::default()) {
                Ok(_) => waiting.push_back(number),
                Err(error) => {
                    assert_eq!(error, WriteError::NoRoom);
                    lost += 1;
                }
            }
            for _ in 0..random.below(3) {
                let Some(record) = reader.next(&mut buf).unwrap() else { break };
                if record.kind() != RecordType::LOST {
                    assert_eq!(Some(check_comm(&record)), waiting.pop_front());
                }
            }
        }
        assert_eq!(ring.lost(), lost);
        while let Some(record) = reader.next(&mut buf).unwrap() {
            if record.kind() != RecordType::LOST {
                assert_eq!(Some(check_comm(&record)), waiting.pop_front());
            }
        }
        assert!(waiting.is_empty() && reader.waiting() == 0, "{size} words");
    }
}

#[test]
fn g14_a_ring_that_overwrites_always_has_its_newest_records() {
    let mut random = Random(9);
    let (page, data) = (words(MmapPage::WORDS), words(128));
    let page = MmapPage::new(&page).unwrap();
    let ring = CpuRing::new(page, &data, Direction::Overwrite, 64).unwrap();
    let mut reader = OverwriteReader::new(page, &data).unwrap();
    let mut buf = [0; 256];
    let (mut number, mut cut) = (0, 0);
    for _ in 0..5_000 {
        let seen = number;
        for _ in 0..random.below(12) {
            let name = name(number);
            ring.write(&comm(number, &name), FORMAT, 7, SampleId::default()).unwrap();
            number += 1;
        }
        let mut snapshot = reader.look();
        let (mut next, mut bytes) = (number, 0);
        while let Some(record) = snapshot.next(&mut buf).unwrap() {
            next -= 1;
            bytes += record.bytes().len();
            assert_eq!(check_comm(&record), next);
        }
        assert!(next >= seen);
        assert_eq!(snapshot.is_cut(), next > seen, "{next} {seen}");
        // What is missing has no room.
        let missing =
            u64::from(comm(next.max(1) - 1, &name(next.max(1) - 1)).encoded_len(FORMAT).unwrap());
        assert!(next == seen || u64::try_from(bytes).unwrap() + missing > 1024);
        cut += u32::from(snapshot.is_cut());
    }
    assert!((100..4_900).contains(&cut), "{cut}");
}

#[test]
fn g14_a_record_that_is_longer_than_the_ring_is_lost_in_either_direction() {
    let (page, data, other) = (words(MmapPage::WORDS), words(8), words(7));
    let page = MmapPage::new(&page).unwrap();
    let long = name(100);
    assert!(long.len() > 64);
    for direction in [Direction::Forward, Direction::Overwrite] {
        let error = CpuRing::new(page, &other, direction, 0).err();
        assert!(matches!(error, Some(RingError::BadLength { .. })), "{error:?}");
        // A watermark of no bytes is one of any.
        let ring = CpuRing::new(page, &data, direction, 0).unwrap();
        let written = ring.write(&comm(100, &long), FORMAT, 7, SampleId::default());
        assert_eq!((written.err(), ring.lost()), (Some(WriteError::NoRoom), 1));
    }
    let ring = CpuRing::new(page, &data, Direction::Overwrite, 0).unwrap();
    let written = ring.write(&comm(0, &name(0)), FORMAT, 7, SampleId::default()).unwrap();
    assert!(written.wake, "each record wakes the reader");
}

#[test]
fn s3_g14_a_record_of_exactly_the_rings_size_goes_into_a_ring_that_overwrites() {
    let (page, data) = (words(MmapPage::WORDS), words(8));
    let page = MmapPage::new(&page).unwrap();
    let size = data.len() * 8;
    let name = (1..=size)
        .map(|len| vec![b'x'; len])
        .find(|name| comm(0, name).encoded_len(FORMAT).map(usize::from) == Ok(size))
        .expect("a name that fills the ring");
    let ring = CpuRing::new(page, &data, Direction::Overwrite, 1).unwrap();
    let mut reader = OverwriteReader::new(page, &data).unwrap();
    for _ in 0..2 {
        ring.write(&comm(0, &name), FORMAT, 7, SampleId::default()).unwrap();
        let (mut buf, mut snapshot) = ([0; 256], reader.look());
        let record = snapshot.next(&mut buf).unwrap().unwrap();
        assert_eq!(record.bytes().len(), size);
        assert_eq!((snapshot.next(&mut [0; 256]).unwrap().is_none(), ring.lost()), (true, 0));
    }
    // One that is read forward has to tell full from empty.
    let (page, data) = (words(MmapPage::WORDS), words(8));
    let ring = CpuRing::new(MmapPage::new(&page).unwrap(), &data, Direction::Forward, 1).unwrap();
    let written = ring.write(&comm(0, &name), FORMAT, 7, SampleId::default());
    assert_eq!((written.err(), ring.lost()), (Some(WriteError::NoRoom), 1));
}

#[test]
fn g14_whatever_is_in_the_memory_a_reader_ends_and_continues() {
    let mut random = Random(11);
    let (page_words, data) = (words(MmapPage::WORDS), words(64));
    let mut errors = [0_u32; 3];
    for _ in 0..20_000 {
        for word in &data {
            // Now and then a header that could be one.
            let size = random.below(12) * 8;
            let header = size << 48 | random.below(70);
            word.store(
                if random.below(3) == 0 { header } else { random.next() },
                Ordering::Relaxed,
            );
        }
        let near = random.below(600);
        for (at, value) in [(128, near * 8), (129, random.below(64) * 8), (132, near)] {
            let value = if random.below(20) == 0 { random.next() } else { value };
            page_words[at].store(value, Ordering::Relaxed);
        }
        let page = MmapPage::new(&page_words).unwrap();
        let tail = page_words[129].load(Ordering::Relaxed);
        let mut reader = RingReader::new(page, &data).unwrap();
        let mut buf = [0; 64];
        for calls in 0.. {
            assert!(calls < 100, "it does not end");
            match reader.next(&mut buf) {
                Ok(None) => break,
                Ok(Some(record)) => assert_eq!(record.bytes().len() % 8, 0),
                Err(RingError::ShortBuffer { needed }) => {
                    errors[0] += 1;
                    assert!(needed > 64);
                    assert!(reader.next(&mut [0; 1024]).unwrap().is_some(), "it stayed");
                }
                Err(RingError::BadRecord { .. }) => errors[1] += 1,
                Err(RingError::Overrun { .. }) => errors[2] += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(reader.waiting(), 0);
        page_words[129].store(tail, Ordering::Relaxed);
        let mut reader = RingReader::new(page, &data).unwrap();
        for calls in 0.. {
            assert!(calls < 100, "it does not end");
            let mut end = [0; 8];
            let taken = reader.take(|record| {
                let size = usize::from(record.header().size);
                record.copy(size - 8, &mut end);
                size
            });
            match taken {
                Ok(None) => break,
                Ok(Some(size)) => assert_eq!(size % 8, 0),
                Err(RingError::BadRecord { .. } | RingError::Overrun { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(reader.waiting(), 0);
        let mut snapshot = OverwriteReader::new(page, &data).unwrap().look();
        for calls in 0.. {
            assert!(calls < 100, "it does not end");
            match snapshot.next(&mut [0; 64]) {
                Ok(None) => break,
                Err(RingError::ShortBuffer { .. }) => {
                    assert!(snapshot.next(&mut [0; 1024]).unwrap().is_some(), "it stayed");
                }
                _ => {}
            }
        }
    }
    assert!(errors.iter().all(|&count| count > 100), "{errors:?}");
}

#[test]
fn g14_rings_have_lengths_that_are_powers_of_two() {
    let page = words(MmapPage::WORDS);
    let page = MmapPage::new(&page).unwrap();
    let (good, bad) = (words(64), words(65));
    assert_eq!(RingReader::new(page, &good).unwrap().size(), 512);
    let refused = RingError::BadLength { words: 65 };
    assert_eq!(RingReader::new(page, &bad).unwrap_err(), refused);
    assert_eq!(OverwriteReader::new(page, &bad).unwrap_err(), refused);
}

#[test]
fn g14_a_record_that_ends_inside_a_word_is_refused() {
    struct Odd;
    impl Encode for Odd {
        fn kind(&self) -> RecordType {
            RecordType(99)
        }
        fn misc(&self) -> unwind_perf::record::Misc {
            unwind_perf::record::Misc::UNKNOWN
        }
        fn encode_body<O: unwind_perf::record::Output>(
            &self,
            _: EventFormat,
            e: &mut unwind_perf::record::Encoder<'_, O>,
        ) -> Result<(), unwind_perf::record::Error> {
            let _ = e;
            Ok(())
        }
        fn encoded_len(&self, _: EventFormat) -> Result<u16, unwind_perf::record::Error> {
            Ok(12)
        }
    }
    let (page, data) = (words(MmapPage::WORDS), words(8));
    let page = MmapPage::new(&page).unwrap();
    let ring = CpuRing::new(page, &data, Direction::Forward, 8).unwrap();
    let written = ring.write(&Odd, FORMAT, 7, SampleId::default());
    assert!(matches!(written, Err(WriteError::Encode(_))), "{written:?}");
    assert_eq!(RingReader::new(page, &data).unwrap().waiting(), 0);
}

#[test]
fn g14_a_trace_is_copied_from_where_its_record_says() {
    let (page, data) = (words(MmapPage::WORDS), words(8));
    for (word, at) in data.iter().zip(0_u8..) {
        word.store(u64::from_ne_bytes([at * 8; 8]), Ordering::Relaxed);
    }
    let aux_head = &page[132];
    let mut aux = AuxReader::new(MmapPage::new(&page).unwrap(), &data).unwrap();
    assert_eq!((aux.written(), aux.size()), (0..0, 64));
    aux_head.store(100, Ordering::Release);
    assert_eq!(aux.written(), 36..100);
    let mut bytes = [0; 12];
    aux.copy(60, &mut bytes).unwrap();
    assert_eq!(bytes, [56, 56, 56, 56, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(aux.copy(90, &mut bytes), Err(RingError::NotInAux { at: 90 }));
    assert_eq!(aux.copy(35, &mut bytes), Err(RingError::NotInAux { at: 35 }));
    assert_eq!(aux.copy(u64::MAX, &mut bytes), Err(RingError::NotInAux { at: u64::MAX }));
    aux.release(96);
    assert_eq!((aux.written(), page[133].load(Ordering::Acquire)), (96..100, 96));
}

#[test]
fn g14_records_of_traces_and_of_pauses_are_read_as_they_were_written() {
    let id = SampleId::default();
    let mut bytes = Vec::new();
    let flags = AuxFlags::TRUNCATED | AuxFlags::from_bits_retain(0x200);
    let aux = Aux { offset: 1, len: 2, flags, id };
    let start = ItraceStart { task: Task { pid: 3, tid: 4 }, id };
    let stops = Throttle { stops: true, time: 5, event: 6, stream: 7, id };
    let again = Throttle { stops: false, ..stops };
    let lost = LostSamples { count: 8, id };
    aux.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
    start.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
    stops.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
    again.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
    lost.encode(FORMAT, Endian::Little, &mut bytes).unwrap();
    let records: Vec<_> =
        unwind_perf::record::Records::new(&bytes, Endian::Little).map(Result::unwrap).collect();
    assert_eq!(records.iter().map(|r| r.kind().0).collect::<Vec<_>>(), [11, 12, 5, 6, 13]);
    assert_eq!(Aux::decode(&records[0], FORMAT), Ok(aux));
    assert_eq!(ItraceStart::decode(&records[1], FORMAT), Ok(start));
    assert_eq!(Throttle::decode(&records[2], FORMAT), Ok(stops));
    assert_eq!(Throttle::decode(&records[3], FORMAT), Ok(again));
    assert_eq!(LostSamples::decode(&records[4], FORMAT), Ok(lost));
    for record in &records {
        let cut = [&record.bytes()[..6], &8_u16.to_le_bytes()].concat();
        let cut = Record::parse(&cut, Endian::Little).unwrap();
        assert!(Aux::decode(&cut, FORMAT).is_err() && Throttle::decode(&cut, FORMAT).is_err());
        assert!(ItraceStart::decode(&cut, FORMAT).is_err());
        assert!(LostSamples::decode(&cut, FORMAT).is_err());
    }
}
