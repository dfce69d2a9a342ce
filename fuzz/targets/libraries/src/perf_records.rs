//! Any bytes as a stream of records: typed errors, chains that stay inside
//! their records, and what is decoded is encoded again as it was.

use unwind_perf::record::{
    Attr, AttrFlags, BranchSampleType, BranchStack, CallchainDeferred, Comm, DeferredLayout,
    Encode, Endian, EventFormat, IdPlace, Lifecycle, Lost, ReadFormat, Record, Records, Sample,
    SampleId, SampleType, UserState, WithBranches, WithCallchain,
};

use crate::input::Input;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let endian = if input.bool() { Endian::Big } else { Endian::Little };
    let sample_type = SampleType::from_bits_retain(u64::from(input.u32() & 0x1f_ffff));
    let values = input.u8();
    let format = EventFormat {
        sample_type,
        read_format: ReadFormat::from_bits_retain(u64::from(values & 0x1f)),
        flags: AttrFlags::from_bits_retain(u64::from(input.u8()) << 14),
        // The other bits say what belongs to branches.
        branch_sample_type: BranchSampleType::from_bits_retain(
            u64::from(values >> 5 & 1) << 17 | u64::from(values >> 6 & 1) << 19,
        ),
    };
    let _ = Attr::parse(input.rest(), endian);
    let bytes = input.rest();
    let mut records = Records::new(bytes, endian);
    let mut end = 0;
    while let Ok(Some(record)) = records.next() {
        end += record.bytes().len();
        assert_eq!(records.offset(), end);
        decode(&record, format);
        assert_eq!(record.body().len() + 8, record.bytes().len());
    }
    assert!(end <= bytes.len());
    assert!(records.next().unwrap().is_none(), "at its end after an error");
}

fn decode(record: &Record<'_>, format: EventFormat) {
    let endian = record.endian();
    if let Ok(sample) = Sample::decode(record, format)
        && let Some(chain) = sample.callchain
    {
        assert!(chain.words().as_bytes().len() <= record.body().len());
        assert_eq!(chain.entries().count(), chain.words().count());
        let _ = (chain.user_part(), chain.without_cookie().count());
        rechain(record, format);
    }
    rebranch(record, format);
    find_stack(record, format);
    for layout in [DeferredLayout::Cookie, DeferredLayout::MarkerFirst] {
        let Ok(stack) = CallchainDeferred::decode(record, format, layout) else { continue };
        assert!(stack.ips.as_bytes().len() <= record.body().len());
        if layout == DeferredLayout::Cookie {
            let mut bytes = Vec::new();
            stack.encode(format, endian, &mut bytes).expect("what was decoded has all fields");
            // Reserved bits are not kept.
            let again = Record::parse(&bytes, endian).unwrap();
            let again = CallchainDeferred::decode(&again, format, layout).unwrap();
            assert_eq!((again.cookie, again.id), (stack.cookie, stack.id));
            assert!(again.ips.eq(stack.ips));
        }
    }
    let _ = Comm::decode(record, format);
    let _ = Lifecycle::decode(record, format);
    let _ = Lost::decode(record, format);
    let _ = SampleId::decode(record, format);
    let _ = IdPlace::of([format]).map(|place| place.id_of(record));
}

/// The copy of a stack is where its place is said to be, once the start of the sample has that.
fn find_stack(record: &Record<'_>, format: EventFormat) {
    let mut attr = [0; 112];
    attr[4] = 112;
    let mut attr = Attr::parse(&attr, Endian::Little).unwrap();
    (attr.format, attr.user_registers) = (format, u64::from(record.header().misc.0));
    let (bytes, endian) = (record.bytes(), record.endian());
    let place = UserState::place_of_stack(bytes, endian, &attr);
    if let Ok(Some(state)) = UserState::decode(record, &attr) {
        let place = place.unwrap().unwrap();
        let room = endian.u64(*bytes[place..].first_chunk().unwrap());
        assert_eq!(room, u64::try_from(state.room).unwrap());
        assert_eq!(bytes[place + 8..].get(..state.stack.len()), Some(state.stack));
    }
    if let Ok(Some(place)) = place {
        let start = |len| UserState::place_of_stack(&bytes[..len], endian, &attr);
        assert_eq!(start(place + 8), Ok(Some(place)));
        assert!(start(place + 7).is_err());
    }
}

/// What is read of branches is what is written.
fn rebranch(record: &Record<'_>, format: EventFormat) {
    let Ok(Some(branches)) = BranchStack::decode(record, format) else { return };
    assert!(24 * branches.entries().len() <= record.body().len());
    let sample = Sample::decode(record, format).unwrap();
    let with = WithBranches { sample, hw_index: branches.hw_index, branches: branches.entries() };
    let mut bytes = Vec::new();
    if with.encode(format, record.endian(), &mut bytes).is_ok() {
        let again = Record::parse(&bytes, record.endian()).unwrap();
        let again = BranchStack::decode(&again, format).unwrap().unwrap();
        assert_eq!(again.hw_index, branches.hw_index);
        assert!(again.entries().eq(branches.entries()));
    }
}

/// A sample with its own chain put in is the sample.
fn rechain(record: &Record<'_>, format: EventFormat) {
    let sample = Sample::decode(record, format).unwrap();
    let words: Vec<u64> = sample.callchain.unwrap().words().collect();
    let Ok(same) = WithCallchain::new(record, format, words.iter().copied()) else { return };
    let mut bytes = Vec::new();
    if same.encode(format, record.endian(), &mut bytes).is_ok() {
        let again = Record::parse(&bytes, record.endian()).unwrap();
        assert_eq!(again.body(), record.body());
    }
}
