//! The branches of samples: read as they were laid out, written as they are
//! read, and refused where a record has no room for them.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

use unwind_perf::record::{
    BranchEntry, BranchFlags, BranchSampleType, BranchStack, Encode as _, Endian, Error,
    EventFormat, Misc, Record, RecordType, Sample, SampleType, WithBranches,
};

const ENDIANS: [Endian; 2] = [Endian::Little, Endian::Big];

const EMPTY: Sample<Vec<u64>> = Sample {
    misc: Misc::USER,
    identifier: None,
    ip: None,
    task: None,
    time: None,
    addr: None,
    id: None,
    stream_id: None,
    cpu: None,
    period: None,
    callchain: None,
};

fn format(sample_type: SampleType, branches: u64) -> EventFormat {
    EventFormat {
        sample_type,
        branch_sample_type: BranchSampleType::from_bits_retain(branches),
        ..EventFormat::default()
    }
}

fn record(endian: Endian, words: &[u64]) -> Vec<u8> {
    let mut bytes = endian.bytes_of_u32(RecordType::SAMPLE.0).to_vec();
    bytes.extend(endian.bytes_of_u16(Misc::USER.0));
    bytes.extend(endian.bytes_of_u16(u16::try_from(8 + 8 * words.len()).unwrap()));
    bytes.extend(words.iter().flat_map(|&word| endian.bytes_of_u64(word)));
    bytes
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

const HW_INDEX: u64 = BranchSampleType::HW_INDEX.bits();
const COUNTERS: u64 = BranchSampleType::COUNTERS.bits();

#[test]
fn branches_are_read_where_the_header_of_linux_has_them() {
    let fields = SampleType::IP | SampleType::CALLCHAIN | SampleType::BRANCH_STACK;
    // Predicted, 300 cycles, a call; mispredicted, in a transaction.
    let flags = [2 | 300 << 4 | 5 << 20, 1 | 4];
    for branches in [0, HW_INDEX, COUNTERS, HW_INDEX | COUNTERS] {
        let mut words = vec![0x40, 1, 0x41, 2];
        words.extend((branches & HW_INDEX != 0).then_some(7));
        words.extend([0x100, 0x200, flags[0], 0x300, 0x400, flags[1]]);
        words.extend([0x11, 0x22].iter().filter(|_| branches & COUNTERS != 0));
        let bytes = record(Endian::Little, &words);
        let format = format(fields, branches);
        let sample = Record::parse(&bytes, Endian::Little).unwrap();
        let stack = BranchStack::decode(&sample, format).unwrap().unwrap();
        assert_eq!(stack.hw_index, (branches & HW_INDEX != 0).then_some(7));
        let entries: Vec<BranchEntry> = stack.entries().collect();
        let counted = |count| if branches & COUNTERS != 0 { count } else { 0 };
        let entry = |from, to, flags, count| BranchEntry {
            from,
            to,
            flags: BranchFlags(flags),
            counters: counted(count),
        };
        let first = entry(0x100, 0x200, flags[0], 0x11);
        assert_eq!(entries, [first, entry(0x300, 0x400, flags[1], 0x22)]);
        assert!(first.flags.is_predicted() && !first.flags.is_mispredicted());
        assert_eq!((first.flags.cycles(), first.flags.kind()), (300, 5));
        assert!(entries[1].flags.is_mispredicted() && entries[1].flags.is_in_transaction());
    }
}

#[test]
fn each_field_of_the_flags_is_where_it_is_said_to_be() {
    let all = BranchFlags(u64::MAX);
    assert_eq!((all.cycles(), all.kind(), all.speculation()), (0xffff, 15, 3));
    assert_eq!((all.new_kind(), all.privilege()), (15, 7));
    assert!(all.is_abort() && all.is_predicted());
    let fields = |flags: BranchFlags| {
        [
            u64::from(flags.is_mispredicted()),
            u64::from(flags.is_predicted()),
            u64::from(flags.is_in_transaction()),
            u64::from(flags.is_abort()),
            flags.cycles().into(),
            flags.kind().into(),
            flags.speculation().into(),
            flags.new_kind().into(),
            flags.privilege().into(),
        ]
    };
    let mut at = 0;
    for (index, width) in [1, 1, 1, 1, 16, 4, 2, 4, 3].into_iter().enumerate() {
        let mut expected = [0; 9];
        expected[index] = (1 << width) - 1;
        assert_eq!(fields(BranchFlags(((1 << width) - 1) << at)), expected);
        at += width;
    }
}

#[test]
fn flags_of_a_big_endian_machine_fill_their_word_from_the_other_end() {
    let fields = SampleType::BRANCH_STACK;
    // As a compiler lays bit fields out there: the first one is the highest.
    let word = 1_u64 << 62 | 0x1234 << 44 | 5 << 40 | 2 << 38;
    let bytes = record(Endian::Big, &[1, 0x100, 0x200, word]);
    let sample = Record::parse(&bytes, Endian::Big).unwrap();
    let stack = BranchStack::decode(&sample, format(fields, 0)).unwrap().unwrap();
    let flags = stack.entries().next().unwrap().flags;
    assert_eq!(flags, BranchFlags(2 | 0x1234 << 4 | 5 << 20 | 2 << 24));
}

#[test]
fn what_is_written_is_read_again() {
    let mut numbers = Numbers(0x9e37_79b9);
    for round in 0..2000 {
        let mut sample_type = SampleType::BRANCH_STACK;
        for (bit, field) in
            [SampleType::IP, SampleType::TIME, SampleType::CALLCHAIN].into_iter().enumerate()
        {
            if round >> bit & 1 != 0 {
                sample_type |= field;
            }
        }
        let format = format(sample_type, numbers.next() & (HW_INDEX | COUNTERS | 1));
        let count = numbers.next() % 40;
        let has_counters = format.branch_sample_type.contains(BranchSampleType::COUNTERS);
        let branches: Vec<BranchEntry> = (0..count)
            .map(|_| BranchEntry {
                from: numbers.next(),
                to: numbers.next(),
                flags: BranchFlags(numbers.next()),
                counters: if has_counters { numbers.next() } else { 0 },
            })
            .collect();
        let has_index = format.branch_sample_type.contains(BranchSampleType::HW_INDEX);
        let sample = Sample {
            ip: Some(numbers.next()),
            time: Some(numbers.next()),
            callchain: Some((0..numbers.next() % 5).collect()),
            ..EMPTY
        };
        let hw_index = has_index.then(|| numbers.next());
        let written = WithBranches { sample, hw_index, branches: branches.clone() };
        for endian in ENDIANS {
            let mut bytes = Vec::new();
            written.encode(format, endian, &mut bytes).unwrap();
            assert_eq!(bytes.len(), usize::from(written.encoded_len(format).unwrap()));
            let record = Record::parse(&bytes, endian).unwrap();
            let read = BranchStack::decode(&record, format).unwrap().unwrap();
            assert_eq!(read.hw_index, hw_index);
            assert_eq!(read.entries().collect::<Vec<_>>(), branches);
            let ip = sample_type.contains(SampleType::IP);
            assert_eq!(Sample::decode(&record, format).unwrap().ip.is_some(), ip);
            // A byte less, and it is not whole.
            for len in (8..bytes.len()).step_by(8) {
                let mut cut = bytes[..len].to_vec();
                cut[6..8].copy_from_slice(&endian.bytes_of_u16(u16::try_from(len).unwrap()));
                let record = Record::parse(&cut, endian).unwrap();
                match BranchStack::decode(&record, format) {
                    Err(_) => {}
                    // The index of a register is left out where there is no branch.
                    Ok(stack) => {
                        assert_eq!((count, stack.unwrap().hw_index, has_index), (0, None, true));
                    }
                }
            }
        }
    }
}

#[test]
fn a_count_that_lies_is_named_with_its_place() {
    for (branches, room) in [(0, 2), (HW_INDEX, 2), (COUNTERS, 1), (HW_INDEX | COUNTERS, 1)] {
        for count in [3_u64, 1 << 32, u64::MAX / 24 + 1, u64::MAX / 32 + 1, u64::MAX] {
            let words = [count, 1, 2, 3, 4, 5, 6, 7];
            let bytes = record(Endian::Little, &words);
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            let format = format(SampleType::BRANCH_STACK, branches);
            let error = BranchStack::decode(&record, format).unwrap_err();
            assert_eq!(error, Error::BadCount { at: 8, room, count }, "{branches:#x} {count:#x}");
        }
    }
    let bytes = record(Endian::Little, &[1, 2, 3, 4, 5]);
    let trailing = Record::parse(&bytes, Endian::Little).unwrap();
    let plain = format(SampleType::BRANCH_STACK, 0);
    let error = BranchStack::decode(&trailing, plain).unwrap_err();
    assert_eq!(error, Error::Trailing { at: 40, len: 8 });
    // Fields may follow that are not read.
    let weighted =
        format(SampleType::from_bits_retain(SampleType::BRANCH_STACK.bits() | 1 << 14), 0);
    assert!(BranchStack::decode(&trailing, weighted).unwrap().is_some());
}

#[test]
fn a_sample_without_a_record_has_no_index() {
    let format = format(SampleType::IP | SampleType::BRANCH_STACK, HW_INDEX);
    for (words, hw_index) in [(&[0x40, 0][..], None), (&[0x40, 0, 9], Some(9))] {
        let bytes = record(Endian::Little, words);
        let record = Record::parse(&bytes, Endian::Little).unwrap();
        let stack = BranchStack::decode(&record, format).unwrap().unwrap();
        assert_eq!((stack.entries().len(), stack.hw_index), (0, hw_index));
    }
    let bytes = record(Endian::Little, &[0x40]);
    let plain = Record::parse(&bytes, Endian::Little).unwrap();
    let none = EventFormat { sample_type: SampleType::IP, ..format };
    assert!(BranchStack::decode(&plain, none).unwrap().is_none(), "not asked for");
}

#[test]
fn a_value_without_what_the_event_asks_for_is_not_written() {
    let with = WithBranches { sample: EMPTY, hw_index: None, branches: [] };
    let length = |branches| with.encoded_len(format(SampleType::BRANCH_STACK, branches));
    assert_eq!(length(0), Ok(16));
    assert_eq!(length(HW_INDEX), Err(Error::MissingFields(SampleType::BRANCH_STACK.bits())));
    assert_eq!(with.encoded_len(EventFormat::default()), Ok(8), "not asked for");
    let with_raw = format(SampleType::BRANCH_STACK | SampleType::RAW, 0);
    assert_eq!(with.encoded_len(with_raw), Err(Error::UnsupportedFields(SampleType::RAW.bits())));
}
