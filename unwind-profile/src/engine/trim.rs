//! Records as they are copied out of a ring: samples without the part of their copy of the
//! stack that nothing was copied to.

use std::ops::Range;

use unwind_perf::record::{Attr, Endian, UserState};

use crate::engine::StoredRecord;

/// How much of a sample is copied to see where its copy of the stack is. Nearly all samples have
/// it there; the longest call chain that the kernel writes takes 1,016 bytes.
const HEAD: [usize; 2] = [512, 4_096];

/// A word of a sample.
const WORD: usize = 8;

/// Adds bytes of a record to `out`.
pub(crate) fn push(out: &mut Vec<u8>, record: &dyn StoredRecord, bytes: Range<usize>) {
    let mut piece = [0; 1024];
    let mut from = bytes.start;
    while from < bytes.end {
        let len = bytes.end.saturating_sub(from).min(piece.len());
        let now = piece.get_mut(..len).unwrap_or_default();
        record.copy(from, now);
        out.extend_from_slice(now);
        from = from.saturating_add(len);
    }
}

/// Adds a sample to `out`, its copy of the stack as long as what the kernel found there. The
/// kernel makes room for as many bytes in each sample as the event asks for; many stacks have
/// fewer. A word is left to tell that there was more room. The rest is not read.
pub(crate) fn push_trimmed(out: &mut Vec<u8>, record: &dyn StoredRecord, attr: &Attr) {
    let (start, size) = (out.len(), usize::from(record.header().size));
    let place = HEAD.into_iter().find_map(|head| {
        let copied = out.len().saturating_sub(start);
        push(out, record, copied..head.min(size));
        let head = out.get(start..)?;
        UserState::place_of_stack(head, Endian::NATIVE, attr).ok()?
    });
    let copied = out.len().saturating_sub(start);
    match place.and_then(|place| Trimmed::of(record, out.get(start..)?, place)) {
        Some(trimmed) => {
            out.truncate(start.saturating_add(trimmed.stack_end));
            push(out, record, copied..trimmed.stack_end);
            push(out, record, size.saturating_sub(WORD)..size);
            if let Some(sample) = out.get_mut(start..) {
                trimmed.tell(sample);
            }
        }
        None => push(out, record, copied..size),
    }
}

/// A sample that has less of its copy of the stack than its event asks for.
#[derive(Clone, Copy, Debug)]
struct Trimmed {
    /// Where it says how long the copy is.
    place: usize,
    /// Where what is kept of the copy ends.
    stack_end: usize,
}

impl Trimmed {
    /// Of a sample that begins with `head`, which has at `place` how long the copy is. `None` if
    /// all of the copy is filled, or the sample does not end as is expected.
    fn of(record: &dyn StoredRecord, head: &[u8], place: usize) -> Option<Self> {
        let stack = place.checked_add(WORD)?;
        let room = u64::from_le_bytes(*head.get(place..)?.first_chunk()?);
        let room = usize::try_from(room).ok()?;
        // At the end: how much of the copy is filled.
        let told_at = stack.checked_add(room)?;
        if told_at.checked_add(WORD)? != usize::from(record.header().size) {
            return None;
        }
        let mut told = [0; WORD];
        record.copy(told_at, &mut told);
        let filled = usize::try_from(u64::from_le_bytes(told)).ok()?;
        // Without a copy there would be no field for how much of it is filled.
        let kept = filled.checked_add(1)?.checked_next_multiple_of(WORD)?;
        let stack_end = stack.checked_add(kept).filter(|_| kept < room)?;
        Some(Self { place, stack_end })
    }

    /// Has the sample say how long it is, and its copy.
    fn tell(self, sample: &mut [u8]) {
        let Self { place, stack_end } = self;
        let kept = stack_end.saturating_sub(place).saturating_sub(WORD);
        let size = u16::try_from(sample.len()).unwrap_or(u16::MAX).to_le_bytes();
        let kept = u64::try_from(kept).unwrap_or(u64::MAX).to_le_bytes();
        for (at, bytes) in [(6, size.as_slice()), (place, &kept)] {
            let field = sample.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
            field.into_iter().for_each(|field| field.copy_from_slice(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use unwind_perf::record::{EventFormat, Record, RecordHeader, SampleType};

    use super::*;

    fn attr() -> Attr {
        let mut bytes = [0; 112];
        bytes[4] = 112;
        let mut attr = Attr::parse(&bytes, Endian::Little).unwrap();
        let sample_type =
            SampleType::IP | SampleType::CALLCHAIN | SampleType::REGS_USER | SampleType::STACK_USER;
        attr.format = EventFormat { sample_type, ..EventFormat::default() };
        attr.user_registers = 1 << 8;
        attr
    }

    /// A sample with so long a call chain, a copy of the stack of `size` bytes, and `filled` of
    /// them filled.
    fn sample(chain: u64, size: u64, filled: u64) -> Vec<u8> {
        let mut words = vec![0, 0x40_1000, chain];
        words.extend(0..chain);
        words.extend([2, 0x40_1000, size]);
        words.extend((0..size).step_by(8));
        words.push(filled);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        bytes[0] = 9;
        let len = u16::try_from(bytes.len()).unwrap();
        bytes[6..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// A record that counts the bytes that are copied of it.
    struct Counted<'a> {
        record: Record<'a>,
        copied: Cell<usize>,
    }

    impl<'a> Counted<'a> {
        fn new(bytes: &'a [u8]) -> Self {
            let record = Record::parse(bytes, Endian::Little).unwrap();
            Self { record, copied: Cell::new(0) }
        }
    }

    impl StoredRecord for Counted<'_> {
        fn header(&self) -> RecordHeader {
            self.record.header()
        }

        fn copy(&self, from: usize, out: &mut [u8]) {
            self.copied.set(self.copied.get().checked_add(out.len()).unwrap());
            out.copy_from_slice(&self.record.bytes()[from..][..out.len()]);
        }
    }

    #[test]
    fn a_trimmed_sample_has_the_same_stack() {
        for (chain, size) in [(0, 64), (0, 8_192), (100, 8_192), (127, 32_768)] {
            for filled in [0, 1, 7, 8, 9, 55, 400, 450, 500, 3_900, 4_100, 8_000] {
                if filled + 9 > size {
                    continue;
                }
                let bytes = sample(chain, size, filled);
                let stored = Counted::new(&bytes);
                let mut out = vec![7];
                push_trimmed(&mut out, &stored, &attr());
                let trimmed = Record::parse(&out[1..], Endian::Little).unwrap();
                let left_out = usize::try_from(size - (filled + 1).next_multiple_of(8)).unwrap();
                assert_eq!(trimmed.bytes().len(), bytes.len() - left_out);
                assert_eq!(out.len(), trimmed.bytes().len() + 1);
                // Its start, what is kept, and twice the word at its end.
                assert!(stored.copied.get() <= trimmed.bytes().len().max(HEAD[1]) + 2 * WORD);
                let stack = |record: &Record<'_>| {
                    let state = UserState::decode(record, &attr()).unwrap().unwrap();
                    (state.stack.to_vec(), state.register(8), state.room > state.stack.len())
                };
                assert_eq!(stack(&trimmed), stack(&stored.record), "{chain} {size} {filled}");
            }
        }
    }

    #[test]
    fn a_sample_of_another_form_stays_as_it_is() {
        let kernels = [&[9, 0, 0, 0, 0, 0, 40, 0][..], &[0; 32]].concat();
        for bytes in [
            sample(0, 64, 56),
            sample(0, 64, 64),
            sample(0, 64, 65),
            sample(0, 0, 8),
            sample(0, 8_192, 8_190),
            sample(0, 8_192, u64::MAX),
            // No call chain of the kernel is as long.
            sample(600, 8_192, 16),
            kernels,
        ] {
            let mut out = vec![7];
            push_trimmed(&mut out, &Counted::new(&bytes), &attr());
            assert_eq!(out[1..], bytes);
        }
        // The size of the copy is not what is left of the record.
        for size in [56, 72, u64::MAX] {
            let mut bytes = sample(0, 64, 16);
            bytes[40..48].copy_from_slice(&size.to_le_bytes());
            let mut out = Vec::new();
            push_trimmed(&mut out, &Counted::new(&bytes), &attr());
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn any_part_of_a_record_is_added() {
        let bytes = sample(0, 8_192, 8_190);
        let record = Counted::new(&bytes);
        for range in [0..0, 5..5, 8..9, 3..1_027, 100..5_000, 0..bytes.len()] {
            let mut out = vec![7];
            push(&mut out, &record, range.clone());
            assert_eq!(out[1..], bytes[range]);
        }
    }
}
