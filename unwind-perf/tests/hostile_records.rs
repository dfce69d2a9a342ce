//! Malformed records: each gives a typed error that says where, and nothing
//! else is lost.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "a wrong test input shall end the test")]

use unwind_perf::record::{
    Attr, AttrFlags, BranchSampleType, BranchStack, CallchainDeferred, Comm, Context,
    DeferredLayout, Encode, Endian, Error, EventFormat, IdPlace, Lifecycle, Lost, Misc, ReadFormat,
    Record, RecordHeader, RecordType, Records, Sample, SampleId, SampleType, Task, UserPart,
};

/// A record of the given type, without `misc` bits.
fn record(kind: u32, endian: Endian, words: &[u64]) -> Vec<u8> {
    let size = u16::try_from(8 + 8 * words.len()).unwrap();
    let mut bytes = Vec::new();
    bytes.extend(endian.bytes_of_u32(kind));
    bytes.extend(endian.bytes_of_u16(0));
    bytes.extend(endian.bytes_of_u16(size));
    bytes.extend(words.iter().flat_map(|&word| endian.bytes_of_u64(word)));
    bytes
}

fn format(fields: SampleType) -> EventFormat {
    EventFormat { sample_type: fields, flags: AttrFlags::SAMPLE_ID_ALL, ..EventFormat::default() }
}

/// Every decoder, on any record. Returns how many accepted it.
fn decode_all(record: &Record<'_>, format: EventFormat) -> usize {
    let layouts = [DeferredLayout::Cookie, DeferredLayout::MarkerFirst];
    let sample = Sample::decode(record, format);
    if let Ok(sample) = &sample
        && let Some(chain) = sample.callchain
    {
        // A chain never reaches past its record.
        assert!(chain.words().as_bytes().len() <= record.body().len());
        let entries = chain.entries().count();
        assert_eq!(entries, chain.words().count());
    }
    let branches = BranchStack::decode(record, format);
    if let Ok(Some(branches)) = &branches {
        assert!(24 * branches.entries().len() <= record.body().len());
        assert_eq!(branches.entries().count(), branches.entries().len());
    }
    let deferred = layouts.map(|layout| CallchainDeferred::decode(record, format, layout));
    for decoded in deferred.iter().flatten() {
        assert!(decoded.ips.as_bytes().len() <= record.body().len());
    }
    usize::from(sample.is_ok())
        + deferred.iter().flatten().count()
        + usize::from(Comm::decode(record, format).is_ok())
        + usize::from(Lifecycle::decode(record, format).is_ok())
        + usize::from(Lost::decode(record, format).is_ok())
        + usize::from(SampleId::decode(record, format).is_ok())
}

#[test]
fn a_count_that_lies_is_named_with_its_place() {
    let fields = SampleType::TID;
    for nr in [2_u64, 3, 1 << 13, 1 << 61, (1 << 61) + 1, u64::MAX] {
        // Cookie, count, one address, TID.
        let bytes = record(22, Endian::Little, &[7, nr, 0x40_1000, 1]);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        assert_eq!(
            CallchainDeferred::decode(&parsed, format(fields), DeferredLayout::Cookie).map(drop),
            Err(Error::BadCount { at: 16, room: 1, count: nr })
        );
        // Count, one address.
        let bytes = record(9, Endian::Little, &[nr, 0x40_1000]);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        assert_eq!(
            Sample::decode(&parsed, format(SampleType::CALLCHAIN)).map(drop),
            Err(Error::BadCount { at: 8, room: 1, count: nr })
        );
    }
    let bytes = record(22, Endian::Little, &[7, 0, 0x40_1000, 1]);
    let parsed = Record::parse(&bytes, Endian::Little).unwrap();
    assert_eq!(
        CallchainDeferred::decode(&parsed, format(fields), DeferredLayout::Cookie).map(drop),
        Err(Error::Trailing { at: 24, len: 8 })
    );
}

#[test]
fn an_empty_stack_is_a_stack() {
    let bytes = record(22, Endian::Little, &[7, 0]);
    let parsed = Record::parse(&bytes, Endian::Little).unwrap();
    let none = EventFormat::default();
    let decoded = CallchainDeferred::decode(&parsed, none, DeferredLayout::Cookie).unwrap();
    assert_eq!((decoded.cookie, decoded.ips.len(), decoded.id), (Some(7), 0, SampleId::default()));
}

#[test]
fn the_first_layout_wants_its_mark() {
    let user = Context::User.word();
    let decode = |words: &[u64]| {
        let bytes = record(22, Endian::Little, words);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        CallchainDeferred::decode(&parsed, EventFormat::default(), DeferredLayout::MarkerFirst)
            .map(|decoded| decoded.ips.collect::<Vec<_>>())
    };
    assert_eq!(decode(&[3, user, 0x1, 0x2]), Ok(vec![1, 2]));
    assert_eq!(decode(&[1, user]), Ok(vec![]));
    assert_eq!(decode(&[2, 0x1, 0x2]), Err(Error::NoUserMarker(1)));
    assert_eq!(decode(&[0]), Err(Error::NoUserMarker(0)));
    assert_eq!(decode(&[]), Err(Error::Truncated { at: 8, needed: 8 }));
}

#[test]
fn sizes_that_no_record_has_are_refused() {
    for endian in [Endian::Little, Endian::Big] {
        for size in 0..=64_u16 {
            for kind in [1_u32, 9, 22, 63, 64, 81] {
                let mut bytes = record(kind, endian, &[0; 7]);
                bytes[6..8].copy_from_slice(&endian.bytes_of_u16(size));
                let parsed = RecordHeader::parse(&bytes, endian);
                // Tools do write odd sizes.
                if size < 8 || (kind < 64 && size % 8 != 0) {
                    assert_eq!(parsed, Err(Error::BadSize(size)), "type {kind}");
                } else {
                    assert_eq!(parsed.unwrap().size, size);
                }
            }
        }
    }
}

#[test]
fn a_record_longer_than_the_stream_loses_none_of_those_before_it() {
    let mut bytes = record(9, Endian::Little, &[]);
    bytes.extend(record(22, Endian::Little, &[1, 0]));
    let whole = bytes.len();
    bytes.extend(record(9, Endian::Little, &[1, 2, 3]));
    for len in 0..=bytes.len() {
        let mut records = Records::new(&bytes[..len], Endian::Little);
        let mut found = 0;
        let end = loop {
            match records.next() {
                Ok(Some(_)) => found += 1,
                end => break end,
            }
        };
        let expected = [8, whole, bytes.len()].iter().filter(|&&end| end <= len).count();
        assert_eq!(found, expected, "{len} bytes");
        let complete = [0, 8, whole, bytes.len()].contains(&len);
        assert_eq!(end.is_ok(), complete, "{len} bytes: {end:?}");
        assert!(records.offset() <= len);
        assert!(records.next().unwrap().is_none(), "fused after an error");
    }
}

#[test]
fn a_body_cut_at_any_word_is_truncated_and_never_misread() {
    let fields = SampleType::IP
        | SampleType::TID
        | SampleType::TIME
        | SampleType::ID
        | SampleType::CPU
        | SampleType::CALLCHAIN
        | SampleType::IDENTIFIER;
    // IDENTIFIER, IP, TID, TIME, ID, CPU, count, two words.
    let sample = [1, 2, 3, 4, 5, 6, 2, Context::UserDeferred.word(), 8];
    // Cookie, count, two addresses, TID, TIME, ID, CPU, IDENTIFIER.
    let deferred = [8, 2, 0x40_1000, 0x40_2000, 3, 4, 5, 6, 1];
    for len in 0..sample.len() {
        let bytes = record(9, Endian::Little, &sample[..len]);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        let error = Sample::decode(&parsed, format(fields)).unwrap_err();
        let at = u32::try_from(8 + 8 * len).unwrap();
        match len {
            7 | 8 => assert_eq!(
                error,
                Error::BadCount { at: 56, room: u32::try_from(len).unwrap() - 7, count: 2 }
            ),
            _ => assert!(
                matches!(error, Error::Truncated { at: found, .. } if found == at),
                "{error:?}"
            ),
        }
        let bytes = record(22, Endian::Little, &deferred[..len]);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        let layout = DeferredLayout::Cookie;
        assert!(CallchainDeferred::decode(&parsed, format(fields), layout).is_err(), "{len} words");
    }
}

#[test]
fn every_prefix_and_every_changed_byte_of_a_record_is_an_error_or_bounded() {
    let fields = SampleType::IP | SampleType::TID | SampleType::TIME | SampleType::CALLCHAIN;
    let stack = CallchainDeferred {
        cookie: Some(0x3_0000_0001),
        ips: [0x40_1136_u64, 0x40_1020].into_iter(),
        id: SampleId { task: Some(Task { pid: 7, tid: 8 }), time: Some(9), ..SampleId::default() },
    };
    for endian in [Endian::Little, Endian::Big] {
        let mut whole = Vec::new();
        stack.encode(format(fields), endian, &mut whole).unwrap();
        for len in 0..whole.len() {
            let needed = if len < 8 {
                [4, 2, 2][[0, 4, 6].partition_point(|&at| at <= len) - 1]
            } else {
                56
            };
            let error = Record::parse(&whole[..len], endian).map(drop).unwrap_err();
            assert!(matches!(error, Error::Truncated { needed: found, .. } if found == needed));
        }
        for at in 0..whole.len() {
            for value in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = value;
                if let Ok(record) = Record::parse(&bytes, endian) {
                    decode_all(&record, format(fields));
                }
            }
        }
    }
}

#[test]
fn random_bytes_never_panic_and_are_walked_to_the_end() {
    let mut random = 3_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    let kinds = [2, 3, 4, 7, 9, 10, 22, 71];
    let mut accepted = 0;
    for round in 0..30_000 {
        let endian = if round % 2 == 0 { Endian::Little } else { Endian::Big };
        // Small counts and marks come more often than by chance.
        let words: Vec<u64> = (0..next() % 12)
            .map(|_| match next() % 4 {
                0 => next() % 6,
                1 => Context::FIRST_WORD + next() % 4095,
                2 => u64::MAX - next() % 3,
                _ => next() << 31 | next(),
            })
            .collect();
        let mut bytes = record(kinds[usize::try_from(next() % 8).unwrap()], endian, &words);
        if next() % 4 == 0 {
            let at = usize::try_from(next()).unwrap() % bytes.len();
            bytes[at] ^= 1 << (next() % 8);
        }
        let format = EventFormat {
            sample_type: SampleType::from_bits_retain(next() & 0x1ffff),
            read_format: ReadFormat::from_bits_retain(next() & 0x1f),
            flags: AttrFlags::from_bits_retain((next() & 1) << 18),
            branch_sample_type: BranchSampleType::from_bits_retain(next() & (1 << 17 | 1 << 19)),
        };
        for record in Records::new(&bytes, endian).flatten() {
            accepted += decode_all(&record, format);
            let _ = IdPlace::of([format]).unwrap().id_of(&record);
        }
    }
    assert!(accepted > 5_000, "{accepted}: the input gets past the first checks");
}

#[test]
fn counter_values_in_front_of_a_chain_are_stepped_over_by_their_format() {
    // Neither group, nor times, nor id: one word. All: count, two times, and
    // value, id, lost for each.
    for (read_format, words) in [
        (0b00000, vec![50]),
        (0b00100, vec![50, 1]),
        (0b10111, vec![50, 10, 9, 1, 0]),
        (0b01000, vec![2, 50, 60]),
        (0b11111, vec![2, 10, 9, 50, 1, 0, 60, 2, 0]),
        (0b01000, vec![0]),
    ] {
        let format = EventFormat {
            sample_type: SampleType::READ | SampleType::CALLCHAIN,
            read_format: ReadFormat::from_bits_retain(read_format),
            ..EventFormat::default()
        };
        let mut body = words.clone();
        body.extend([1, 0xffff_8000]);
        let bytes = record(9, Endian::Little, &body);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        let sample = Sample::decode(&parsed, format).unwrap();
        assert_eq!(sample.callchain.unwrap().words().collect::<Vec<_>>(), [0xffff_8000]);
    }
    for count in [3, 1 << 60, u64::MAX] {
        let format = EventFormat {
            sample_type: SampleType::READ,
            read_format: ReadFormat::from_bits_retain(0b01100),
            ..EventFormat::default()
        };
        // Count, and room for two pairs.
        let bytes = record(9, Endian::Little, &[count, 1, 2, 3, 4]);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        assert_eq!(
            Sample::decode(&parsed, format).map(drop),
            Err(Error::BadCount { at: 8, room: 2, count })
        );
    }
}

#[test]
fn fields_after_the_chain_are_left_alone() {
    const RAW: SampleType = SampleType::from_bits_retain(1 << 10);
    let bytes = record(9, Endian::Little, &[1, 0x40_1000, 4, 0]);
    let parsed = Record::parse(&bytes, Endian::Little).unwrap();
    assert!(Sample::decode(&parsed, format(SampleType::CALLCHAIN | RAW)).is_ok());
    assert_eq!(
        Sample::decode(&parsed, format(SampleType::CALLCHAIN)).map(drop),
        Err(Error::Trailing { at: 24, len: 16 })
    );
}

#[test]
fn user_part_is_told_by_the_last_two_words_only() {
    let mark = Context::UserDeferred.word();
    for (words, expected) in [
        (vec![], UserPart::Inline),
        (vec![7], UserPart::Inline),
        (vec![mark], UserPart::CookieLost),
        (vec![mark, 7], UserPart::Deferred(7)),
        (vec![mark, 0], UserPart::Deferred(0)),
        (vec![mark, 7, 8], UserPart::Inline),
        (vec![1, mark, u64::MAX], UserPart::Deferred(u64::MAX)),
    ] {
        let mut body = vec![u64::try_from(words.len()).unwrap()];
        body.extend(&words);
        let bytes = record(9, Endian::Little, &body);
        let parsed = Record::parse(&bytes, Endian::Little).unwrap();
        let sample = Sample::decode(&parsed, format(SampleType::CALLCHAIN)).unwrap();
        assert_eq!(sample.callchain.unwrap().user_part(), expected, "{words:x?}");
    }
}

#[test]
fn a_record_too_long_for_its_size_field_is_refused_and_nothing_written() {
    // 65,536 - 8 does not fit; the longest is 65,528 bytes.
    let most = (65_528 - 8 - 16) / 8;
    for (frames, fits) in [(most, true), (most + 1, false), (100_000, false)] {
        let stack = CallchainDeferred {
            cookie: Some(1),
            ips: (0..u64::try_from(frames).unwrap()).map(|ip| ip + 1),
            id: SampleId::default(),
        };
        let mut bytes = Vec::new();
        let result = stack.encode(EventFormat::default(), Endian::Little, &mut bytes);
        if fits {
            assert_eq!((result, bytes.len()), (Ok(()), 65_528));
            let parsed = Record::parse(&bytes, Endian::Little).unwrap();
            let none = EventFormat::default();
            let decoded = CallchainDeferred::decode(&parsed, none, DeferredLayout::Cookie).unwrap();
            assert_eq!(decoded.ips.count(), frames);
        } else {
            let len = u32::try_from(24 + 8 * frames).unwrap();
            assert_eq!((result, bytes.len()), (Err(Error::TooLong { len }), 0));
        }
    }
}

#[test]
fn what_the_attr_asks_for_must_be_there_to_encode() {
    let none = SampleId::default();
    let stack = CallchainDeferred { cookie: Some(1), ips: [].into_iter(), id: none };
    let asked = SampleType::TID | SampleType::CPU;
    assert_eq!(stack.encoded_len(format(asked)), Err(Error::MissingFields(asked.bits())));
    assert_eq!(
        stack.encoded_len(EventFormat { flags: AttrFlags::empty(), ..format(asked) }),
        Ok(24)
    );
    let sample = Sample::<core::iter::Empty<u64>> {
        misc: Misc::USER,
        identifier: None,
        ip: Some(1),
        task: None,
        time: None,
        addr: None,
        id: None,
        stream_id: None,
        cpu: None,
        period: None,
        callchain: None,
    };
    let ask = |fields| sample.encoded_len(format(fields));
    assert_eq!(ask(SampleType::IP), Ok(16));
    assert_eq!(ask(SampleType::TIME), Err(Error::MissingFields(SampleType::TIME.bits())));
    assert_eq!(ask(SampleType::READ), Err(Error::UnsupportedFields(SampleType::READ.bits())));
    assert_eq!(ask(SampleType::from_bits_retain(1 << 13)), Err(Error::UnsupportedFields(1 << 13)));
}

#[test]
fn events_that_cannot_be_told_apart_are_refused() {
    let (tid, id, identifier) = (SampleType::TID, SampleType::ID, SampleType::IDENTIFIER);
    let place = |formats: &[SampleType]| IdPlace::of(formats.iter().map(|&fields| format(fields)));
    // One layout needs no id.
    assert_eq!(place(&[tid]), Ok(IdPlace::Nowhere));
    assert_eq!(place(&[tid, tid]), Ok(IdPlace::Nowhere));
    assert_eq!(place(&[]), Ok(IdPlace::Nowhere));
    assert_eq!(place(&[tid, tid | SampleType::TIME]), Err(Error::NoCommonId));
    // At one place in all.
    let at = |in_sample, from_end| Ok(IdPlace::At { in_sample, from_end: Some(from_end) });
    assert_eq!(place(&[identifier, identifier | tid | SampleType::CPU]), at(0, 1));
    assert_eq!(place(&[tid | id | SampleType::CPU, tid | id | SampleType::CPU]), at(1, 2));
    assert_eq!(place(&[tid | id, tid | id | SampleType::PERIOD]), at(1, 1));
    assert_eq!(place(&[tid | id, id]), Err(Error::NoCommonId));
    assert_eq!(place(&[identifier, tid | id]), Err(Error::NoCommonId));
    assert_eq!(place(&[identifier, id]), at(0, 1));
}

#[test]
fn an_attr_reads_alike_in_both_byte_orders() {
    for endian in [Endian::Little, Endian::Big] {
        let flags = AttrFlags::SAMPLE_ID_ALL | AttrFlags::DEFER_CALLCHAIN | AttrFlags::DEFER_OUTPUT;
        let mut attr = Vec::new();
        attr.extend(endian.bytes_of_u32(1)); // type: software
        attr.extend(endian.bytes_of_u32(72)); // size
        attr.extend(endian.bytes_of_u64(2)); // config: page faults
        attr.extend(endian.bytes_of_u64(16)); // sample_period
        attr.extend(endian.bytes_of_u64(0x27)); // sample_type
        attr.extend(endian.bytes_of_u64(0x14)); // read_format
        attr.extend(endian.bytes_of_u64(Attr::flags_word(flags, endian)));
        attr.extend([0; 24]);
        if endian == Endian::Big {
            // The first bit field of the C struct is the highest bit of the
            // first byte; bit 18 is the third highest of the third byte.
            assert_eq!(attr[Attr::FLAGS_AT + 2], 0b0010_0000);
        }
        let parsed = Attr::parse(&attr, endian).unwrap();
        assert_eq!((parsed.kind, parsed.size, parsed.config), (1, 72, 2));
        assert_eq!(parsed.sample_period, 16);
        assert_eq!(parsed.format.sample_type, SampleType::from_bits_retain(0x27));
        assert_eq!(parsed.format.flags, flags);
        assert_eq!(DeferredLayout::of([parsed.format.flags]), DeferredLayout::Cookie);
        for len in 0..attr.len() {
            assert!(
                matches!(Attr::parse(&attr[..len], endian), Err(Error::Truncated { .. })),
                "{len} bytes"
            );
        }
        for size in [0, 8, 63, u32::MAX] {
            attr[4..8].copy_from_slice(&endian.bytes_of_u32(size));
            let expected = match size {
                u32::MAX => Error::Truncated { at: 0, needed: size },
                _ => Error::BadAttrSize(size),
            };
            assert_eq!(Attr::parse(&attr, endian), Err(expected));
        }
    }
}

#[test]
fn the_layout_follows_from_the_switches() {
    let (defer, output) = (AttrFlags::DEFER_CALLCHAIN, AttrFlags::DEFER_OUTPUT);
    assert_eq!(DeferredLayout::of([defer, defer | output]), DeferredLayout::Cookie);
    assert_eq!(DeferredLayout::of([defer]), DeferredLayout::MarkerFirst);
    assert_eq!(RecordType::CALLCHAIN_DEFERRED, RecordType(22));
}
