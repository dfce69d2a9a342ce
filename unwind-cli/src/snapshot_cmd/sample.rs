//! The records of a sampling event, as far as snapshots need them.

use std::ops::Range;

use unwind_perf::record::{
    AttrFlags, Comm, Endian, EventFormat, Lifecycle, Misc, ReadFormat, Record, RecordType, Records,
    SampleType,
};

use crate::snapshot_cmd::event::REGISTERS;

/// What happened, and when.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) time: u64,
    pub(crate) what: What,
}

/// What happened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A process has become another program.
    Exec { process: u32 },
    /// A process has started another.
    Fork { process: u32, parent: u32 },
    /// Code was mapped.
    Map { process: u32, range: Range<u64>, offset: u64, path: Vec<u8> },
    /// A thread was interrupted.
    Sample(Box<Sample>),
}

/// A thread at one point of time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) rip: u64,
    /// In the order of the DWARF numbers.
    pub(crate) gpr: [u64; 16],
    /// From the stack pointer on.
    pub(crate) stack: Vec<u8>,
}

/// The layout of the records that [`Attr`](super::event::Attr) asks for, less
/// what follows the fields of a thread and time in a sample.
const FORMAT: EventFormat = EventFormat {
    sample_type: SampleType(SampleType::TID.0 | SampleType::TIME.0),
    read_format: ReadFormat(0),
    flags: AttrFlags::SAMPLE_ID_ALL,
};

/// Decodes records and adds what they tell to `events`. Records that are of no
/// use here, or not of their form, are left out.
pub(crate) fn decode(records: &[u8], events: &mut Vec<Event>) {
    let records = Records::new(records, Endian::Little).map_while(Result::ok);
    events.extend(records.filter_map(|record| event(&record)));
}

fn event(record: &Record<'_>) -> Option<Event> {
    match record.kind() {
        RecordType::COMM => {
            let comm = Comm::decode(record, FORMAT).ok()?;
            let what = What::Exec { process: comm.task.pid };
            comm.exec.then_some(Event { time: comm.id.time?, what })
        }
        RecordType::FORK => {
            let fork = Lifecycle::decode(record, FORMAT).ok()?;
            let (process, parent) = (fork.task.pid, fork.parent.pid);
            let what = What::Fork { process, parent };
            (process != parent).then_some(Event { time: fork.time, what })
        }
        RecordType::MMAP2 => mapping(record.body()),
        RecordType::SAMPLE if record.header().misc.cpu_mode() == Misc::USER => {
            sample(record.body())
        }
        _ => None,
    }
}

/// ```text
///     pid tid           32 bits each
///     start len offset  64 bits each
///     device and inode  24 bytes
///     prot flags        32 bits each
///     path              zeros behind it up to a multiple of 8
///     pid tid time      16 bytes, of the sampled thread
/// ```
fn mapping(body: &[u8]) -> Option<Event> {
    let (body, time) = body.split_last_chunk::<8>()?;
    let (body, _) = body.split_last_chunk::<8>()?;
    let mut fields = Fields(body);
    let (process, _) = (fields.u32()?, fields.u32()?);
    let (start, len, offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let path = fields.0.get(32..)?.split(|&byte| byte == 0).next()?.to_vec();
    let range = start..start.checked_add(len)?;
    let what = What::Map { process, range, offset, path };
    Some(Event { time: u64::from_le_bytes(*time), what })
}

/// ```text
///     pid tid           32 bits each
///     time              64 bits
///     abi               64 bits: 2 for 64-bit code, 0 if there are no registers
///     registers         64 bits each, by the kernel's numbers
///     size              64 bits, of the stack bytes
///     stack             that many bytes
///     valid             64 bits: how many of them could be read
/// ```
fn sample(body: &[u8]) -> Option<Event> {
    const ABI_64: u64 = 2;
    let mut fields = Fields(body);
    let (process, thread, time) = (fields.u32()?, fields.u32()?, fields.u64()?);
    if fields.u64()? != ABI_64 {
        return None;
    }
    let mut all = [0; 24];
    for (number, register) in (0_u32..).zip(&mut all) {
        if REGISTERS & 1_u64.wrapping_shl(number) != 0 {
            *register = fields.u64()?;
        }
    }
    #[rustfmt::skip]
    let [ax, bx, cx, dx, si, di, bp, sp, rip, _, _, _, _, _, _, _,
         r8, r9, r10, r11, r12, r13, r14, r15] = all;
    let gpr = [ax, dx, cx, bx, si, di, bp, sp, r8, r9, r10, r11, r12, r13, r14, r15];
    let size = usize::try_from(fields.u64()?).ok()?;
    let (stack, rest) = fields.0.split_at_checked(size)?;
    let valid = if size == 0 { 0 } else { usize::try_from(Fields(rest).u64()?).ok()? };
    let stack = stack.get(..valid)?.to_vec();
    let sample = Sample { process, thread, rip, gpr, stack };
    Some(Event { time, what: What::Sample(Box::new(sample)) })
}

/// The fields of a record that are left.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(body.len().saturating_add(8)).unwrap();
        [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decoded(records: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        decode(records, &mut events);
        events
    }

    /// A sample whose registers have their kernel numbers as values.
    fn sample_body(valid: u64) -> Vec<u8> {
        let registers = (0..12).chain(16..24);
        let head = [8 << 32 | 7, 99, 2].into_iter().chain(registers).chain([16]);
        let head: Vec<u64> = head.collect();
        [words(&head), vec![0xaa; 16], words(&[valid])].concat()
    }

    #[test]
    fn registers_come_in_the_order_of_their_dwarf_numbers() {
        let events = decoded(&record(9, 2, &sample_body(8)));
        let [Event { time: 99, what: What::Sample(sample) }] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!((sample.process, sample.thread, sample.rip), (7, 8, 8));
        assert_eq!(sample.gpr, [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!(sample.stack, [0xaa; 8], "what could be read");
    }

    #[test]
    fn a_sample_of_other_code_or_that_claims_too_much_is_left_out() {
        assert!(decoded(&record(9, 2, &sample_body(17))).is_empty());
        let mut compat = sample_body(8);
        compat[16] = 1;
        assert!(decoded(&record(9, 2, &compat)).is_empty());
        assert!(decoded(&record(9, 1, &sample_body(8))).is_empty(), "of the kernel");
        for len in 0..sample_body(8).len() {
            assert!(decoded(&record(9, 2, &sample_body(8)[..len])).is_empty(), "{len} bytes");
        }
    }

    #[test]
    fn a_mapping_tells_its_file() {
        let body = words(&[6 << 32 | 5, 0x1000, 0x2000, 0x3000, 0, 0, 0, 0]);
        let body = [body, b"/bin/x\0\0".to_vec(), words(&[6 << 32 | 5, 44])].concat();
        let what =
            What::Map { process: 5, range: 0x1000..0x3000, offset: 0x3000, path: b"/bin/x".into() };
        assert_eq!(decoded(&record(10, 2, &body)), [Event { time: 44, what }]);
    }
}
