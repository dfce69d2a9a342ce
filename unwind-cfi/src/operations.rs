//! The operations of an expression, on values: DWARF 5, section 2.5, but for those that section
//! 6.4.2 leaves out of call frame information.

use gimli::{DwOp, Reader as _, constants};

use crate::{
    abi::RegisterNumbers,
    expression::{Value, operand},
    reader::Reader,
    work_counter,
};

/// How many values may be on an expression's stack. Those of compilers have up to four.
const DEPTH: usize = 16;

/// How many operations are run: branches may lead back.
const MOST: usize = 256;

/// Why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoValue {
    /// It is malformed, or does what is not done in call frame information.
    Malformed,
    /// The value of this register is not known.
    Register(u16),
    /// The word at this address cannot be read.
    Unreadable(u64),
}

/// What expressions ask of a frame.
pub(crate) trait Values {
    /// The value of a register by its number, if it is known.
    fn register(&mut self, number: u16, numbers: &RegisterNumbers) -> Option<u64>;

    /// Reads the memory of the program; false if that cannot be.
    fn memory(&mut self, addr: u64, bytes: &mut [u8]) -> bool;

    /// Reads the section that the rules are of, by the address that it counts from; false if that
    /// cannot be.
    fn section(&mut self, addr: u64, bytes: &mut [u8]) -> bool;
}

/// What an expression is evaluated in.
pub(crate) struct Target<'t, V: ?Sized> {
    pub(crate) numbers: &'t RegisterNumbers,
    /// How far the code was loaded above the addresses of its file.
    pub(crate) bias: u64,
    pub(crate) values: &'t mut V,
}

/// Values of the size of an address, of which the higher bits are zero.
struct Stack {
    values: [u64; DEPTH],
    len: usize,
}

impl Stack {
    #[inline(never)]
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len = self.len.checked_add(1)?;
        Some(())
    }

    #[inline(never)]
    fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.values.get(self.len).copied()
    }

    /// The value this far below the last one.
    fn pick(&self, depth: u8) -> Option<u64> {
        let after = self.len.checked_sub(usize::from(depth))?;
        self.values.get(after.checked_sub(1)?).copied()
    }

    /// The values of the last `count` places, the lowest first.
    fn last(&mut self, count: usize) -> Option<&mut [u64]> {
        let from = self.len.checked_sub(count)?;
        self.values.get_mut(from..self.len)
    }
}

impl<V: Values + ?Sized> Target<'_, V> {
    /// A register and an offset.
    #[inline(never)]
    pub(crate) fn sum(&mut self, register: u16, offset: i64) -> Result<u64, NoValue> {
        let value = self.values.register(register, self.numbers);
        let value = value.ok_or(NoValue::Register(register))?;
        Ok(self.narrow(value.wrapping_add_signed(offset)))
    }

    /// The word at a register and an offset, and another offset.
    #[inline(never)]
    pub(crate) fn load_plus(
        &mut self,
        register: u16,
        offset: i64,
        plus: i64,
    ) -> Result<u64, NoValue> {
        let at = self.sum(register, offset)?;
        let word = self.load(at, self.numbers.word)?;
        Ok(self.narrow(word.wrapping_add_signed(plus)))
    }

    /// The value of an expression that starts with `initial` on its stack.
    #[inline(never)]
    pub(crate) fn evaluate(
        &mut self,
        expression: Reader<'_>,
        initial: Option<u64>,
    ) -> Result<u64, NoValue> {
        let mut stack = Stack { values: [0; DEPTH], len: 0 };
        if let Some(value) = initial {
            stack.push(value).ok_or(NoValue::Malformed)?;
        }
        let mut rest = expression;
        for _ in 0..MOST {
            let Ok(byte) = rest.read_u8() else {
                return stack.pop().ok_or(NoValue::Malformed);
            };
            work_counter::steps(1);
            self.operation(DwOp(byte), expression, &mut rest, &mut stack)?;
        }
        Err(NoValue::Malformed)
    }

    fn operation<'e>(
        &mut self,
        operation: DwOp,
        whole: Reader<'e>,
        rest: &mut Reader<'e>,
        stack: &mut Stack,
    ) -> Result<(), NoValue> {
        let size = match operation {
            constants::DW_OP_deref => self.numbers.word,
            constants::DW_OP_deref_size => rest.read_u8().map_err(|_| NoValue::Malformed)?,
            _ => {
                let done = match operand(operation, rest) {
                    Some(Value::Register(register, offset)) => {
                        let sum = self.sum(register, offset)?;
                        stack.push(sum)
                    }
                    Some(Value::Constant(value)) => stack.push(self.narrow(value.cast_unsigned())),
                    _ => self.calculate(operation, whole, rest, stack),
                };
                return done.ok_or(NoValue::Malformed);
            }
        };
        let at = stack.pop().ok_or(NoValue::Malformed)?;
        let value = self.load(at, size)?;
        stack.push(value).ok_or(NoValue::Malformed)
    }

    /// The low `size` bytes at an address.
    fn load(&mut self, at: u64, size: u8) -> Result<u64, NoValue> {
        if size > self.numbers.word {
            return Err(NoValue::Malformed);
        }
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..usize::from(size)).unwrap_or_default();
        if !self.values.memory(at, part) {
            return Err(NoValue::Unreadable(at));
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Everything that takes nothing but the stack.
    fn calculate<'e>(
        &self,
        operation: DwOp,
        whole: Reader<'e>,
        rest: &mut Reader<'e>,
        stack: &mut Stack,
    ) -> Option<()> {
        let value = match operation {
            constants::DW_OP_nop => return Some(()),
            constants::DW_OP_dup => stack.pick(0)?,
            constants::DW_OP_over => stack.pick(1)?,
            constants::DW_OP_pick => stack.pick(rest.read_u8().ok()?)?,
            constants::DW_OP_drop => return stack.pop().map(|_| ()),
            constants::DW_OP_swap => {
                stack.last(2)?.reverse();
                return Some(());
            }
            constants::DW_OP_rot => {
                // The last one comes before the other two.
                stack.last(3)?.rotate_right(1);
                return Some(());
            }
            constants::DW_OP_skip => {
                let distance = rest.read_i16().ok()?;
                return branch(whole, rest, distance);
            }
            constants::DW_OP_bra => {
                let distance = rest.read_i16().ok()?;
                return if stack.pop()? == 0 { Some(()) } else { branch(whole, rest, distance) };
            }
            constants::DW_OP_plus_uconst => {
                let plus = rest.read_uleb128().ok()?;
                stack.pop()?.wrapping_add(plus)
            }
            constants::DW_OP_abs => self.signed(stack.pop()?).unsigned_abs(),
            constants::DW_OP_neg => stack.pop()?.wrapping_neg(),
            constants::DW_OP_not => !stack.pop()?,
            constants::DW_OP_addr => {
                let addr = match self.numbers.word {
                    4 => rest.read_u32().ok()?.into(),
                    _ => rest.read_u64().ok()?,
                };
                addr.wrapping_add(self.bias)
            }
            _ => {
                let right = stack.pop()?;
                let left = stack.pop()?;
                self.of_two(operation, left, right)?
            }
        };
        stack.push(self.narrow(value))
    }

    /// What is made of two values.
    fn of_two(&self, operation: DwOp, left: u64, right: u64) -> Option<u64> {
        let bits = u32::from(self.numbers.word).wrapping_mul(8);
        // A shift by all bits or more.
        let shift = u32::try_from(right).ok().filter(|&shift| shift < bits);
        let compared = self.signed(left).cmp(&self.signed(right));
        Some(match operation {
            constants::DW_OP_and => left & right,
            constants::DW_OP_or => left | right,
            constants::DW_OP_xor => left ^ right,
            constants::DW_OP_plus => left.wrapping_add(right),
            constants::DW_OP_minus => left.wrapping_sub(right),
            constants::DW_OP_mul => left.wrapping_mul(right),
            // Signed, but for the remainder.
            constants::DW_OP_div if right != 0 => {
                // The lowest number by -1 is itself.
                let quotient = self.signed(left).checked_div(self.signed(right));
                quotient.unwrap_or(self.signed(left)).cast_unsigned()
            }
            constants::DW_OP_mod => left.checked_rem(right)?,
            constants::DW_OP_shl => shift.map_or(0, |shift| left.wrapping_shl(shift)),
            constants::DW_OP_shr => shift.map_or(0, |shift| left.wrapping_shr(shift)),
            constants::DW_OP_shra => {
                let most = bits.saturating_sub(1);
                self.signed(left).wrapping_shr(shift.unwrap_or(most)).cast_unsigned()
            }
            constants::DW_OP_eq => compared.is_eq().into(),
            constants::DW_OP_ne => compared.is_ne().into(),
            constants::DW_OP_lt => compared.is_lt().into(),
            constants::DW_OP_le => compared.is_le().into(),
            constants::DW_OP_gt => compared.is_gt().into(),
            constants::DW_OP_ge => compared.is_ge().into(),
            _ => return None,
        })
    }

    const fn narrow(&self, value: u64) -> u64 {
        match self.numbers.word {
            4 => value & 0xffff_ffff,
            _ => value,
        }
    }

    const fn signed(&self, value: u64) -> i64 {
        match self.numbers.word {
            4 => value.wrapping_shl(32).cast_signed().wrapping_shr(32),
            _ => value.cast_signed(),
        }
    }
}

/// Continues this far after what was read last.
fn branch<'a>(whole: Reader<'a>, rest: &mut Reader<'a>, distance: i16) -> Option<()> {
    let at = rest.offset_from(whole).checked_add_signed(distance.into())?;
    let mut target = whole;
    target.skip(at).ok()?;
    *rest = target;
    Some(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::{vec, vec::Vec};

    use gimli::{Encoding, EvaluationResult, Format, Location, RunTimeEndian, Value};
    use proptest::collection::vec as vec_of;
    use proptest::prelude::*;

    use super::*;
    use crate::CfiAbi;
    use unwind_core::{Memory, ReadError, VirtAddr};

    /// Memory in which each byte is made of its address; some is not there.
    #[derive(Clone, Copy)]
    struct Made(u64);

    impl Made {
        fn byte(self, at: u64) -> u8 {
            let [.., low] = (at ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            low
        }
    }

    impl Memory for Made {
        fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
            if addr.get() % 16 == 5 {
                return Err(ReadError::NotResident);
            }
            for (at, byte) in (0..).zip(buf) {
                *byte = self.byte(addr.get().wrapping_add(at));
            }
            Ok(())
        }
    }

    fn register(seed: u64, number: u16) -> Option<u64> {
        (number < 24).then(|| seed.rotate_left(u32::from(number)) >> 3)
    }

    /// The same by gimli; `Err` if it has none, or needs what is not there.
    impl Values for Made {
        fn register(&mut self, number: u16, numbers: &RegisterNumbers) -> Option<u64> {
            let mask = if numbers.word == 4 { 0xffff_ffff } else { u64::MAX };
            Some(register(self.0, number)? & mask)
        }

        fn memory(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
            self.read(VirtAddr::new(addr), bytes).is_ok()
        }

        fn section(&mut self, _: u64, _: &mut [u8]) -> bool {
            false
        }
    }

    fn expected(bytes: &[u8], word: u8, seed: u64, initial: Option<u64>) -> Result<u64, ()> {
        let encoding = Encoding { format: Format::Dwarf32, version: 5, address_size: word };
        let expression = gimli::Expression(Reader::new(bytes, RunTimeEndian::Little));
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_max_iterations(200);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mask = if word == 4 { 0xffff_ffff } else { u64::MAX };
        let mut result = evaluation.evaluate();
        loop {
            let ready = result.map_err(|_| ())?;
            result = match ready {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size, space: None, .. } => {
                    let mut buf = vec![0; usize::from(size)];
                    Made(seed).read(VirtAddr::new(address), &mut buf).map_err(|_| ())?;
                    buf.resize(8, 0);
                    let value = u64::from_le_bytes(buf.try_into().unwrap());
                    evaluation.resume_with_memory(Value::Generic(value))
                }
                EvaluationResult::RequiresRegister { register: number, .. } => {
                    let value = register(seed, number.0).ok_or(())?;
                    evaluation.resume_with_register(Value::Generic(value & mask))
                }
                EvaluationResult::RequiresRelocatedAddress(addr) => {
                    evaluation.resume_with_relocated_address(addr.wrapping_add(0x1000) & mask)
                }
                _ => return Err(()),
            };
        }
        match &evaluation.result()[..] {
            [piece] if piece.size_in_bits.is_none() => match piece.location {
                Location::Address { address } => Ok(address & mask),
                _ => Err(()),
            },
            _ => Err(()),
        }
    }

    fn operation() -> impl Strategy<Value = Vec<u8>> {
        let leb = |value: u16| {
            let [low, high] = value.to_le_bytes();
            vec![low | 0x80, high & 0x3f]
        };
        prop_oneof![
            8 => (0x30_u8..0x50).prop_map(|byte| vec![byte]),
            4 => (0x70_u8..0x90, any::<u16>()).prop_map(move |(b, n)| [vec![b], leb(n)].concat()),
            8 => (0x12_u8..0x2f).prop_filter("operands", |b| !matches!(b, 0x15 | 0x18 | 0x23 | 0x28)).prop_map(|b| vec![b]),
            2 => any::<u16>().prop_map(move |n| [vec![0x23], leb(n)].concat()),
            1 => (0_u8..4).prop_map(|n| vec![0x15, n]),
            3 => Just(vec![0x06]),
            2 => (0_u8..10).prop_map(|n| vec![0x94, n]),
            2 => (0_u8..2, -9_i8..12).prop_map(|(which, n)| {
                let [a, b] = i16::from(n).to_le_bytes();
                vec![if which == 0 { 0x2f } else { 0x28 }, a, b]
            }),
            2 => (0x08_u8..0x10, any::<u64>()).prop_map(|(b, n)| {
                let len = [1, 1, 2, 2, 4, 4, 8, 8][usize::from(b & 7)];
                [&[b][..], &n.to_le_bytes()[..len]].concat()
            }),
            1 => (0x10_u8..0x12, any::<u16>()).prop_map(move |(b, n)| [vec![b], leb(n)].concat()),
            1 => any::<u64>().prop_map(|n| [&[0x03][..], &n.to_le_bytes()].concat()),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
            1 => Just(vec![0x96]),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

        #[test]
        fn u2_an_expression_has_the_value_that_gimli_says(
            operations in vec_of(operation(), 1..14),
            word in prop_oneof![Just(4_u8), Just(8_u8)],
            seed in any::<u64>(),
            initial in any::<Option<u32>>(),
        ) {
            let bytes = operations.concat();
            let initial = initial.map(u64::from);
            let abi = if word == 4 { CfiAbi::Ia32 } else { CfiAbi::X86_64 };
            let numbers = &RegisterNumbers::new(abi);
            let mut target = Target { numbers, bias: 0x1000, values: &mut Made(seed) };
            let found = target.evaluate(Reader::new(&bytes, RunTimeEndian::Little), initial);
            let theirs = expected(&bytes, word, seed, initial);
            // It gives up where branches lead back and forth.
            let is_known = |value| theirs == Ok(value);
            // gimli keeps the upper half of what `not` and a shift of 32 bits yield, so the next
            // shift by such a value is longer there.
            let of = |from: u8, to: u8| bytes.iter().filter(|b| (from..=to).contains(*b)).count();
            let keeps_upper_half = word == 4 && of(0x24, 0x26) > 0 && of(0x20, 0x20).saturating_add(of(0x24, 0x26)) > 1;
            match found {
                Ok(_) if keeps_upper_half => {}
                Ok(value) => prop_assert!(is_known(value), "{bytes:x?}: {value:#x}, {theirs:x?}"),
                // Typed values need the types of a unit, which a table does not have. A branch may
                // lead to any byte.
                Err(_) if bytes.iter().any(|byte| matches!(byte, 0xa3..=0xa9 | 0xf3..=0xf9)) => {}
                Err(_) => prop_assert!(theirs.is_err(), "{bytes:x?}: {found:?}, {theirs:x?}"),
            }
        }
    }

    #[test]
    fn u2_an_expression_ends_after_a_bounded_number_of_operations() {
        // lit0; skip -4: back to where it starts.
        let bytes = [0x30, 0x13, 0x2f, 0xfb, 0xff];
        let numbers = &RegisterNumbers::new(CfiAbi::X86_64);
        let mut target = Target { numbers, bias: 0, values: &mut Made(0) };
        let mut evaluate = |bytes: &[u8]| {
            let mut found = Ok(0);
            let expression = Reader::new(bytes, RunTimeEndian::Little);
            let steps = work_counter::count(|| found = target.evaluate(expression, None));
            (found, steps)
        };
        assert_eq!(evaluate(&bytes), (Err(NoValue::Malformed), MOST));
        let deep = [0x30; DEPTH + 1];
        assert_eq!(evaluate(&deep).0, Err(NoValue::Malformed));
        assert_eq!(evaluate(&deep[..DEPTH]).0, Ok(0));
    }
}
