//! A `perf.data` of one event: which records are kept, and the file.

use std::io::{self, Write};

use unwind_perf::record::{
    Attr, Comm, Encode, Endian, Error, MappedId, Mapping, Misc, Record, RecordType, Records,
    Sample, SampleId, Task, UserAbi, UserState,
};

use crate::event::FORMAT;

/// A record, and when it was made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timed {
    /// In nanoseconds of the event's clock.
    pub(crate) time: u64,
    pub(crate) is_sample: bool,
    bytes: Vec<u8>,
}

/// Adds copies of the records of a ring that are kept: samples of 64-bit user code, and
/// whatever else has a time. A record that is not of its form is left out.
pub(crate) fn keep(ring: &[u8], attr: &Attr, kept: &mut Vec<Timed>) {
    let records = Records::new(ring, Endian::Little).map_while(Result::ok);
    kept.extend(records.filter_map(|record| timed(&record, attr)));
}

fn timed(record: &Record<'_>, attr: &Attr) -> Option<Timed> {
    let is_sample = record.kind() == RecordType::SAMPLE;
    let time = if is_sample {
        let state = UserState::decode(record, attr).ok()??;
        let is_user = record.header().misc.cpu_mode() == Misc::USER;
        if !is_user || state.abi != UserAbi::Bits64 {
            return None;
        }
        Sample::decode(record, attr.format).ok()?.time?
    } else {
        SampleId::decode(record, attr.format).ok()?.time?
    };
    Some(Timed { time, is_sample, bytes: record.bytes().to_vec() })
}

/// The records that say of a process that was there before what its name is and where
/// it has code. Each item of `code` is a range, the offset in the file, its path, and
/// its build id, which may be empty.
///
/// # Errors
///
/// [`Error`] for a path that is too long for a record.
pub(crate) fn existing<'p>(
    process: u32,
    name: &[u8],
    code: impl IntoIterator<Item = (std::ops::Range<u64>, u64, &'p [u8], Vec<u8>)>,
) -> Result<Vec<Timed>, Error> {
    let task = Task { pid: process, tid: process };
    let sample_id = SampleId { task: Some(task), time: Some(0), ..SampleId::default() };
    let mut records = vec![encoded(&Comm { task, name, exec: false, id: sample_id })?];
    for (range, offset, name, build_id) in code {
        let mut mapping = Mapping::of_code(task, range, name);
        (mapping.offset, mapping.sample_id) = (offset, sample_id);
        if !build_id.is_empty() {
            mapping.id = MappedId::BuildId(&build_id);
        }
        records.push(encoded(&mapping)?);
    }
    Ok(records)
}

fn encoded(record: &impl Encode) -> Result<Timed, Error> {
    let mut bytes = Vec::new();
    record.encode(FORMAT, Endian::Little, &mut bytes)?;
    Ok(Timed { time: 0, is_sample: false, bytes })
}

/// Writes a whole file.
///
/// # Errors
///
/// As writing does.
pub(crate) fn write(mut out: impl Write, attr: [u64; 16], records: &[Timed]) -> io::Result<()> {
    const HEADER: u64 = 104;
    const ATTR: u64 = 128;
    /// An attr is followed by the place of its ids, of which one event needs none.
    const ENTRY: u64 = 144;
    const DATA: u64 = HEADER.saturating_add(ENTRY);
    let lengths = records.iter().map(|record| u64::try_from(record.bytes.len()).unwrap_or(0));
    let len = lengths.fold(0, u64::saturating_add);
    out.write_all(b"PERFILE2")?;
    // Sizes of header and entry; attrs, data and event types as offset and length; 256
    // bits of features.
    let header = [HEADER, ENTRY, HEADER, ENTRY, DATA, len, 0, 0, 0, 0, 0, 0];
    let ids = [HEADER.saturating_add(ATTR), 0];
    for word in header.iter().chain(&attr).chain(&ids) {
        out.write_all(&word.to_le_bytes())?;
    }
    records.iter().try_for_each(|record| out.write_all(&record.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;

    fn attr() -> Attr {
        let words = event::Attr { rate: 997, stack: 64, on_exec: false }.words();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Attr::parse(&bytes, Endian::Little).unwrap()
    }

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(body.len().saturating_add(8)).unwrap();
        [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn kept(records: &[u8]) -> Vec<Timed> {
        let mut kept = Vec::new();
        keep(records, &attr(), &mut kept);
        kept
    }

    /// A sample at time 99 with 16 bytes of stack, of which `valid` could be read.
    fn sample_body(abi: u64, valid: u64) -> Vec<u8> {
        let registers = (0..12).chain(16..24);
        let head = [0x40, 8 << 32 | 7, 99, 1, 0, abi].into_iter().chain(registers).chain([16]);
        let head: Vec<u64> = head.collect();
        [words(&head), vec![0xaa; 16], words(&[valid])].concat()
    }

    #[test]
    fn a_sample_is_kept_as_the_kernel_wrote_it() {
        let bytes = record(9, 2, &sample_body(2, 8));
        assert_eq!(kept(&bytes), [Timed { time: 99, is_sample: true, bytes }]);
    }

    #[test]
    fn a_sample_of_other_code_or_that_claims_too_much_is_left_out() {
        assert!(kept(&record(9, 2, &sample_body(2, 17))).is_empty());
        assert!(kept(&record(9, 2, &sample_body(1, 8))).is_empty(), "32-bit code");
        assert!(kept(&record(9, 2, &sample_body(0, 8))).is_empty(), "without registers");
        assert!(kept(&record(9, 1, &sample_body(2, 8))).is_empty(), "of the kernel");
        let whole = sample_body(2, 8);
        for len in (0..whole.len()).step_by(8) {
            assert!(kept(&record(9, 2, &whole[..len])).is_empty(), "{len} bytes");
        }
    }

    #[test]
    fn records_of_a_process_that_was_there_before_name_it_and_its_code() {
        let code = [
            (0x1000..0x3000, 0x3000, &b"/bin/x"[..], vec![7; 20]),
            (0x8000..0x9000, 0, &b"/bin/y"[..], vec![]),
        ];
        let records = existing(5, b"x", code).unwrap();
        assert!(records.iter().all(|record| record.time == 0 && !record.is_sample));
        let parsed = |at: usize| Record::parse(&records[at].bytes, Endian::Little).unwrap();
        let comm = Comm::decode(&parsed(0), FORMAT).unwrap();
        assert_eq!((comm.task.pid, comm.name, comm.exec), (5, &b"x"[..], false));
        let first = Mapping::decode(&parsed(1), FORMAT).unwrap();
        assert_eq!((first.addr, first.len, first.offset), (0x1000, 0x2000, 0x3000));
        assert_eq!((first.name, first.executable), (&b"/bin/x"[..], true));
        assert_eq!(first.id, MappedId::BuildId(&[7; 20]));
        let second = Mapping::decode(&parsed(2), FORMAT).unwrap();
        assert!(!matches!(second.id, MappedId::BuildId(_)), "{second:?}");
    }

    #[test]
    fn the_header_says_where_the_attr_and_the_records_are() {
        let records = kept(&record(9, 2, &sample_body(2, 8)));
        let attr = event::Attr { rate: 997, stack: 64, on_exec: false }.words();
        let mut file = Vec::new();
        write(&mut file, attr, &records).unwrap();
        let word = |at: usize| u64::from_le_bytes(*file[at..].first_chunk().unwrap());
        assert_eq!(file[..8], *b"PERFILE2");
        let data = usize::try_from(word(40)).unwrap();
        assert_eq!(file[data..], records[0].bytes);
        assert_eq!(word(48), u64::try_from(records[0].bytes.len()).unwrap());
        let at = usize::try_from(word(24)).unwrap();
        let found = Attr::parse(&file[at..], Endian::Little).unwrap();
        assert_eq!(found, self::attr());
        assert!(found.format.flags.contains(FORMAT.flags));
        assert_eq!(found.format.sample_type, FORMAT.sample_type);
    }
}
