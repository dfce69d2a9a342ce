//! The registers and stack bytes of a sample: a user stack that is not walked yet.

use core::ops::Range;

use super::branches::{BranchStack, after_chain};
use super::bytes::{Cursor, offset};
use super::header::Record;
use super::{Attr, Endian, Error, SampleType, Words};

/// The kind of user code that a sample interrupted (`PERF_SAMPLE_REGS_ABI_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserAbi {
    /// 32-bit code, also under a 64-bit kernel.
    Bits32,
    /// 64-bit code.
    Bits64,
}

/// What `perf record --call-graph dwarf` asks for: the user registers of a
/// sample, and a copy of the stack from the stack pointer up.
#[derive(Clone, Copy, Debug)]
pub struct UserState<'a> {
    /// The kind of code.
    pub abi: UserAbi,
    /// Which registers there are, as bits.
    mask: u64,
    registers: Words<'a>,
    /// The bytes of the stack, the one at the stack pointer first.
    pub stack: &'a [u8],
    /// Bytes of the stack that the record has room for. Where `stack` has fewer, the next byte
    /// was not in memory, or there is none.
    pub room: usize,
}

impl<'a> UserState<'a> {
    /// Decodes what a sample of an event with `attr` has of its user stack:
    /// `None` if the event does not ask for both, or the thread had no user
    /// registers, as a kernel thread has none.
    ///
    /// # Errors
    ///
    /// As [`Sample::decode`](super::Sample::decode).
    pub fn decode(record: &Record<'a>, attr: &Attr) -> Result<Option<Self>, Error> {
        let asked = SampleType::REGS_USER | SampleType::STACK_USER;
        if !attr.format.sample_type.contains(asked) {
            return Ok(None);
        }
        Self::decode_with_place(record, attr).map(|(state, _)| state)
    }

    /// Where a sample of an event with `attr` says how long its copy of the stack is: the place
    /// of that word, in bytes from the start of the record. The copy follows it. `None` if the
    /// event asks for no copy.
    ///
    /// `start` is the start of the record, header included: as much of it as was copied so far.
    /// The rest need not be copied to know how much of it is filled.
    ///
    /// # Errors
    ///
    /// As [`Sample::decode`](super::Sample::decode), also if the word is not in `start`.
    pub fn place_of_stack(
        start: &[u8],
        endian: Endian,
        attr: &Attr,
    ) -> Result<Option<usize>, Error> {
        if !attr.format.sample_type.contains(SampleType::STACK_USER) {
            return Ok(None);
        }
        let (_, mut c) =
            read_registers(fields_after_chain(&Record::of_start(start, endian)?, attr)?, attr)?;
        let at = c.at();
        c.u64()?;
        Ok(usize::try_from(at).ok())
    }

    /// Also returns where in the record it is.
    pub(super) fn decode_with_place(
        record: &Record<'a>,
        attr: &Attr,
    ) -> Result<(Option<Self>, Range<u32>), Error> {
        let c = fields_after_chain(record, attr)?;
        let start = c.at();
        let (registers, mut c) = read_registers(c, attr)?;
        let has_stack = attr.format.sample_type.contains(SampleType::STACK_USER);
        let (stack, room): (&[u8], _) = if has_stack { take_stack(&mut c)? } else { (&[], 0) };
        let mask = attr.user_registers;
        let state = registers.map(|(abi, registers)| Self { abi, mask, registers, stack, room });
        Ok((state, start..c.at()))
    }

    /// The value of a register, by its number in the attr's mask
    /// (`PERF_REG_X86_…`); `None` if the event does not ask for it.
    #[must_use]
    pub fn register(&self, number: u32) -> Option<u64> {
        let bit = 1_u64.checked_shl(number).filter(|bit| self.mask & bit != 0)?;
        let before = self.mask & bit.wrapping_sub(1);
        self.registers.get(usize::try_from(before.count_ones()).ok()?)
    }
}

/// What follows the call chain and what belongs to it: the user registers, if there are any.
fn fields_after_chain<'a>(record: &Record<'a>, attr: &Attr) -> Result<Cursor<'a>, Error> {
    let mut c = after_chain(record, attr.format)?;
    BranchStack::read_if_asked(&mut c, attr.format)?;
    Ok(c)
}

/// Reads the user registers, if the thread had some. Returns also what follows them.
fn read_registers<'a>(
    mut c: Cursor<'a>,
    attr: &Attr,
) -> Result<(Option<(UserAbi, Words<'a>)>, Cursor<'a>), Error> {
    if !attr.format.sample_type.contains(SampleType::REGS_USER) {
        return Ok((None, c));
    }
    let abi = match c.u64()? {
        0 => return Ok((None, c)),
        1 => UserAbi::Bits32,
        _ => UserAbi::Bits64,
    };
    let count = usize::try_from(attr.user_registers.count_ones()).unwrap_or(0);
    let registers = Words::new(c.take(count.saturating_mul(8))?, c.endian());
    Ok((Some((abi, registers)), c))
}

/// Reads a stack dump: its size, its bytes, and how many of them the stack had.
/// Returns those, and the size.
fn take_stack<'a>(c: &mut Cursor<'a>) -> Result<(&'a [u8], usize), Error> {
    let at = c.at();
    let count = c.u64()?;
    if count == 0 {
        return Ok((&[], 0));
    }
    let len = usize::try_from(count).ok().filter(|&len| len <= c.left().len());
    let len = len.ok_or(Error::BadCount { at, room: offset(c.left().len()), count })?;
    let stack = c.take(len)?;
    let at = c.at();
    let count = c.u64()?;
    let filled = usize::try_from(count).ok().and_then(|len| stack.get(..len));
    let filled = filled.ok_or(Error::BadCount { at, room: offset(len), count })?;
    Ok((filled, len))
}

#[cfg(all(test, feature = "alloc"))]
#[expect(clippy::unwrap_used, clippy::arithmetic_side_effects, reason = "tests")]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::record::{Endian, EventFormat, RecordType, WithCallchain};

    fn attr(sample_type: SampleType, user_registers: u64) -> Attr {
        let format = EventFormat { sample_type, ..EventFormat::default() };
        Attr { kind: 1, size: 120, config: 0, sample_period: 1, format, user_registers }
    }

    fn record(body: &[u64]) -> Vec<u8> {
        let len = u16::try_from(8 * body.len() + 8).unwrap();
        let mut bytes = RecordType::SAMPLE.0.to_le_bytes().to_vec();
        bytes.extend([2, 0]);
        bytes.extend(len.to_le_bytes());
        bytes.extend(body.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    const DWARF: SampleType = SampleType::IP
        .union(SampleType::CALLCHAIN)
        .union(SampleType::REGS_USER)
        .union(SampleType::STACK_USER);

    #[test]
    fn a7_registers_are_found_by_their_number_and_the_stack_has_what_was_copied() {
        // IP, one address, 64-bit, BP and SP and IP, 24 bytes of which 16 are filled.
        let body = [0x40, 1, 0x41, 2, 0xb, 0x5, 0x1, 24, 0x11, 0x22, 0x33, 16];
        let bytes = record(&body);
        let record = Record::parse(&bytes, Endian::Little).unwrap();
        let attr = attr(DWARF, 1 << 6 | 1 << 7 | 1 << 8);
        let state = UserState::decode(&record, &attr).unwrap().unwrap();
        assert_eq!(state.abi, UserAbi::Bits64);
        let registers = [5, 6, 7, 8, 9, 64].map(|number| state.register(number));
        assert_eq!(registers, [None, Some(0xb), Some(0x5), Some(0x1), None, None]);
        let stack: Vec<u64> = Words::new(state.stack, Endian::Little).collect();
        assert_eq!(stack, [0x11, 0x22]);
    }

    #[test]
    fn a7_the_place_of_a_copy_is_found_in_the_start_of_a_sample() {
        let body = [0x40, 1, 0x41, 2, 0xb, 0x5, 0x1, 24, 0x11, 0x22, 0x33, 16];
        let bytes = record(&body);
        let mask = 1 << 6 | 1 << 7 | 1 << 8;
        let place = |bytes: &[u8], attr| UserState::place_of_stack(bytes, Endian::Little, &attr);
        for len in 0..bytes.len() {
            let found = place(&bytes[..len], attr(DWARF, mask));
            assert_eq!(found.ok(), (len >= 72).then_some(Some(64)), "{len}");
        }
        let without = SampleType::from_bits_retain(DWARF.bits() & !SampleType::STACK_USER.bits());
        assert_eq!(place(&bytes, attr(without, mask)), Ok(None));
        // Of a kernel thread there are no registers.
        assert_eq!(place(&record(&[0x40, 0, 0, 0]), attr(DWARF, mask)), Ok(Some(32)));
        let other = [&[10, 0, 0, 0], &bytes[4..]].concat();
        assert!(matches!(place(&other, attr(DWARF, mask)), Err(Error::WrongType { .. })));
    }

    #[test]
    fn a7_a_kernel_thread_has_no_user_state_and_counts_that_lie_are_refused() {
        let parse = |body: &[u64], attr: &Attr| {
            let bytes = record(body);
            let record = Record::parse(&bytes, Endian::Little).unwrap();
            UserState::decode(&record, attr).map(|state| state.is_some())
        };
        let attr_of = |fields| attr(fields, 1 << 7);
        assert_eq!(parse(&[0x40, 0, 0, 0], &attr_of(DWARF)), Ok(false));
        assert_eq!(parse(&[0x40, 0, 1, 5, 0], &attr_of(DWARF)), Ok(true));
        let no_stack = SampleType::from_bits_retain(DWARF.bits() & !SampleType::STACK_USER.bits());
        assert_eq!(parse(&[0x40, 0, 1, 5], &attr_of(no_stack)), Ok(false), "not asked for");
        for body in [
            &[0x40, 0, 1, 5, 16, 1, 2][..],
            &[0x40, 0, 1, 5, u64::MAX, 1, 2, 16],
            &[0x40, 0, 1, 5, 16, 1, 2, 17],
            &[0x40, 0, 1],
            &[0x40, 0],
        ] {
            assert!(parse(body, &attr_of(DWARF)).is_err(), "{body:x?}");
        }
        let branches = SampleType::from_bits_retain(DWARF.bits() | SampleType::BRANCH_STACK.bits());
        assert_eq!(parse(&[0x40, 0, 1, 7, 8, 9, 1, 5, 0], &attr_of(branches)), Ok(true));
        assert!(parse(&[0x40, 0, u64::MAX / 8, 7, 8, 9, 1, 5, 0], &attr_of(branches)).is_err());
    }

    #[test]
    fn a7_a_sample_that_had_neither_registers_nor_stack_loses_nothing() {
        let fields = SampleType::IP.union(SampleType::CALLCHAIN).union(SampleType::WEIGHT);
        let bytes = record(&[0x40, 1, 0x41, 0x77]);
        let sample = Record::parse(&bytes, Endian::Little).unwrap();
        let attr = attr(fields, 1 << 7);
        let walked = WithCallchain::without_user_state(&sample, &attr, [7, 8].into_iter()).unwrap();
        let mut out = Vec::new();
        super::super::Encode::encode(&walked, attr.format, Endian::Little, &mut out).unwrap();
        assert_eq!(out, record(&[0x40, 2, 7, 8, 0x77]));
    }

    #[test]
    fn a7_a_walked_sample_has_its_chain_and_neither_registers_nor_stack() {
        let weighted = SampleType::from_bits_retain(DWARF.bits() | 1 << 14);
        let bytes = record(&[0x40, 1, 0x41, 2, 0xb, 8, 0x11, 8, 0x77]);
        let sample = Record::parse(&bytes, Endian::Little).unwrap();
        let attr = attr(weighted, 1 << 7);
        let walked =
            WithCallchain::without_user_state(&sample, &attr, [7, 8, 9].into_iter()).unwrap();
        let mut out = Vec::new();
        super::super::Encode::encode(&walked, attr.format, Endian::Little, &mut out).unwrap();
        assert_eq!(out, record(&[0x40, 3, 7, 8, 9, 0x77]));
    }
}
