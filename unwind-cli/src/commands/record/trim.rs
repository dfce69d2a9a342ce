//! Samples without the part of their copy of the stack that nothing was copied to.

use unwind_perf::record::{Attr, Record, UserState};

/// Adds a sample to `out`, its copy of the stack as long as what the kernel found there. The
/// kernel makes room for as many bytes in each sample as the event asks for; most stacks have
/// fewer. A word is left to tell that there was more room.
pub(crate) fn push_trimmed(out: &mut Vec<u8>, record: &Record<'_>, attr: &Attr) {
    if trim(out, record, attr).is_none() {
        out.extend(record.bytes());
    }
}

/// `None`, and nothing is added, if the record does not end as is expected.
fn trim(out: &mut Vec<u8>, record: &Record<'_>, attr: &Attr) -> Option<()> {
    let state = UserState::decode(record, attr).ok()??;
    let filled = state.stack.len();
    // At the end: how long the copy is, the copy, and how much of it is filled.
    let (rest, told) = record.bytes().split_last_chunk::<8>()?;
    let at = rest.len().checked_sub(state.room)?;
    let (head, copy) = rest.split_at_checked(at)?;
    let (head, size) = head.split_last_chunk::<8>()?;
    let is_so = usize::try_from(u64::from_le_bytes(*size)) == Ok(state.room)
        && usize::try_from(u64::from_le_bytes(*told)) == Ok(filled);
    // Without a copy there would be no field for how much of it is filled.
    let with_room = filled.checked_add(1)?.checked_next_multiple_of(8)?;
    let kept = Some(with_room).filter(|&kept| is_so && kept < copy.len())?;
    let kept_bytes = copy.get(..kept)?;
    let len = record.bytes().len().checked_sub(copy.len().checked_sub(kept)?)?;
    let (kind, after_size) = (head.get(..6)?, head.get(8..)?);
    out.extend(kind);
    out.extend(u16::try_from(len).ok()?.to_le_bytes());
    out.extend(after_size);
    out.extend(u64::try_from(kept).ok()?.to_le_bytes());
    out.extend(kept_bytes);
    out.extend(told);
    Some(())
}

#[cfg(test)]
mod tests {
    use unwind_perf::record::{Endian, EventFormat, SampleType};

    use super::*;

    fn attr() -> Attr {
        let mut bytes = [0; 112];
        bytes[4] = 112;
        let mut attr = Attr::parse(&bytes, Endian::Little).unwrap();
        let sample_type = SampleType::IP | SampleType::REGS_USER | SampleType::STACK_USER;
        attr.format = EventFormat { sample_type, ..EventFormat::default() };
        attr.user_registers = 1 << 8;
        attr
    }

    fn sample(size: u64, filled: u64) -> Vec<u8> {
        let mut words = vec![0, 0x40_1000, 2, 0x40_1000, size];
        words.extend((0..size).step_by(8));
        words.push(filled);
        let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        bytes[0] = 9;
        let len = u16::try_from(bytes.len()).unwrap();
        bytes[6..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    #[test]
    fn a_trimmed_sample_has_the_same_stack() {
        for filled in [0, 1, 7, 8, 9, 55] {
            let bytes = sample(64, filled);
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            let mut out = vec![7];
            push_trimmed(&mut out, &record, &attr());
            let trimmed = Record::parse(&out[1..], Endian::Little).unwrap();
            let left_out = usize::try_from(64 - (filled + 1).next_multiple_of(8)).unwrap();
            assert_eq!(trimmed.bytes().len(), bytes.len() - left_out);
            assert_eq!(out.len(), trimmed.bytes().len() + 1);
            let stack = |record: &Record<'_>| {
                let state = UserState::decode(record, &attr()).unwrap().unwrap();
                (state.stack.to_vec(), state.register(8), state.room > state.stack.len())
            };
            assert_eq!(stack(&trimmed), stack(&record), "{filled}");
        }
    }

    #[test]
    fn a_sample_of_another_form_stays_as_it_is() {
        for bytes in [sample(64, 56), sample(64, 64), sample(64, 65), sample(0, 8)] {
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            let mut out = Vec::new();
            push_trimmed(&mut out, &record, &attr());
            assert_eq!(out, bytes);
        }
    }
}
