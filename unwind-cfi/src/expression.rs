//! Expressions as rules, where a rule can say the same.
//!
//! An expression is evaluated on what its operands are, not on their values:
//! sums of a register or the CFA and constants, words of memory at such a sum,
//! and the step in the CFA that lazy PLTs have.

use gimli::{DwOp, Reader as _, constants};
use unwind_core::CfaLoads;

use crate::{abi::RegisterNumbers, reader::Reader, work_counter};

/// What an expression comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number.
    Constant(i64),
    /// A register and an offset.
    Register(u16, i64),
    /// The word at a register and an offset.
    Load(u16, i64),
    /// The word at a register and an offset, and another offset.
    LoadPlus(u16, i64, i64),
    /// The CFA and an offset.
    Cfa(i64),
    /// The word at the CFA and an offset.
    LoadCfa(i64),
    /// These low bits of the pc.
    PcBits(u8),
    /// 1 where the low bits of the pc are at least this number, else 0.
    PcAtLeast(u8, u8),
    /// This number where the low bits of the pc are at least the other one, else 0.
    PcStep(Step),
    /// A register, an offset, and a step.
    Blocks(u16, i64, Step),
}

/// A step in each block of code of a power of two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The size of a block in bytes, less one.
    pub mask: u8,
    /// The offset in the block from which on it counts, in bytes.
    pub at: u8,
    /// How much is added from there on, in bytes.
    pub height: u32,
}

impl Step {
    /// Whether it counts at a pc.
    #[must_use]
    pub const fn is_reached_at(self, pc: u64) -> bool {
        let [low, ..] = pc.to_le_bytes();
        low & self.mask >= self.at
    }
}

/// Deep enough for the PLT's expression, and any that is a rule.
const DEPTH: usize = 8;

/// A stack of values.
struct Stack {
    values: [Value; DEPTH],
    len: usize,
}

impl Stack {
    #[inline(never)]
    fn push(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len = self.len.checked_add(1)?;
        Some(())
    }

    #[inline(never)]
    fn pop(&mut self) -> Option<Value> {
        self.len = self.len.checked_sub(1)?;
        self.values.get(self.len).copied()
    }
}

/// Evaluates an expression that starts with `initial` on its stack.
pub(crate) fn evaluate(
    mut expression: Reader<'_>,
    initial: Option<Value>,
    registers: &RegisterNumbers,
) -> Option<Value> {
    let mut stack = Stack { values: [Value::Constant(0); DEPTH], len: 0 };
    if let Some(value) = initial {
        stack.push(value)?;
    }
    while let Ok(byte) = expression.read_u8() {
        work_counter::steps(1);
        let operation = DwOp(byte);
        let value = match operation {
            constants::DW_OP_nop => continue,
            constants::DW_OP_plus_uconst => {
                let plus = expression.read_uleb128().ok()?;
                add(stack.pop()?, Value::Constant(plus.cast_signed()))?
            }
            constants::DW_OP_plus => {
                let right = stack.pop()?;
                add(stack.pop()?, right)?
            }
            constants::DW_OP_minus => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(right), left) => add(left, Value::Constant(right.checked_neg()?))?,
                _ => return None,
            },
            constants::DW_OP_deref => load(stack.pop()?)?,
            constants::DW_OP_deref_size if expression.read_u8().ok()? == registers.word => {
                load(stack.pop()?)?
            }
            constants::DW_OP_and => mask(stack.pop()?, stack.pop()?, registers.pc?)?,
            constants::DW_OP_ge => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(at), Value::PcBits(mask)) => {
                    let at = u8::try_from(at).ok().filter(|&at| 0 < at && at <= mask)?;
                    Value::PcAtLeast(mask, at)
                }
                _ => return None,
            },
            constants::DW_OP_shl => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(shift @ 0..=30), Value::PcAtLeast(mask, at)) => {
                    let height = 1_u32.checked_shl(u32::try_from(shift).ok()?)?;
                    Value::PcStep(Step { mask, at, height })
                }
                _ => return None,
            },
            _ => operand(operation, &mut expression)?,
        };
        stack.push(value)?;
    }
    stack.pop()
}

/// What an operation puts on the stack that takes nothing from there: a constant, or a register and an
/// offset.
#[inline(never)]
pub(crate) fn operand(operation: DwOp, r: &mut Reader<'_>) -> Option<Value> {
    let constant = |value: u64| Value::Constant(value.cast_signed());
    // Of 32 operations that follow each other.
    let number_from = |first: DwOp| operation.0.checked_sub(first.0).filter(|at| *at < 32);
    if let Some(value) = number_from(constants::DW_OP_lit0) {
        return Some(constant(value.into()));
    }
    if let Some(register) = number_from(constants::DW_OP_breg0) {
        return Some(Value::Register(register.into(), r.read_sleb128().ok()?));
    }
    Some(match operation {
        constants::DW_OP_bregx => {
            let register = u16::try_from(r.read_uleb128().ok()?).ok()?;
            Value::Register(register, r.read_sleb128().ok()?)
        }
        constants::DW_OP_const1u => constant(r.read_u8().ok()?.into()),
        constants::DW_OP_const2u => constant(r.read_u16().ok()?.into()),
        constants::DW_OP_const4u => constant(r.read_u32().ok()?.into()),
        constants::DW_OP_const8u | constants::DW_OP_const8s => constant(r.read_u64().ok()?),
        constants::DW_OP_constu => constant(r.read_uleb128().ok()?),
        constants::DW_OP_const1s => Value::Constant(r.read_i8().ok()?.into()),
        constants::DW_OP_const2s => Value::Constant(r.read_i16().ok()?.into()),
        constants::DW_OP_const4s => Value::Constant(r.read_i32().ok()?.into()),
        constants::DW_OP_consts => Value::Constant(r.read_sleb128().ok()?),
        _ => return None,
    })
}

/// The loads by which an expression finds a CFA, if it does nothing else.
pub(crate) fn loads(mut expression: Reader<'_>, registers: &RegisterNumbers) -> Option<CfaLoads> {
    let first = DwOp(expression.read_u8().ok()?);
    let Value::Register(register, offset) = operand(first, &mut expression)? else { return None };
    let mut offsets = [offset, 0, 0];
    let mut count = 0_usize;
    while let Ok(byte) = expression.read_u8() {
        work_counter::steps(1);
        match DwOp(byte) {
            constants::DW_OP_deref => count = count.checked_add(1)?,
            constants::DW_OP_plus_uconst => {
                let plus = expression.read_uleb128().ok()?;
                let sum = offsets.get_mut(count)?;
                *sum = sum.checked_add_unsigned(plus)?;
            }
            _ => return None,
        }
    }
    let [offset, between, plus] = offsets;
    let (between, plus) = match count {
        1 => (None, between),
        2 => (Some(i16::try_from(between).ok()?), plus),
        _ => return None,
    };
    let base = registers.base(register)?;
    let (offset, plus) = (i32::try_from(offset).ok()?, i32::try_from(plus).ok()?);
    Some(CfaLoads { base, offset, between, plus })
}

fn add(left: Value, right: Value) -> Option<Value> {
    let (left, plus) = match (left, right) {
        (left, Value::Constant(plus)) => (left, plus),
        // What is not constant goes to the left.
        (Value::Constant(plus), right) => (right, plus),
        (Value::Register(register, offset), Value::PcStep(step))
        | (Value::PcStep(step), Value::Register(register, offset)) => {
            return Some(Value::Blocks(register, offset, step));
        }
        _ => return None,
    };
    Some(match left {
        Value::Constant(value) => Value::Constant(value.checked_add(plus)?),
        Value::Register(register, offset) => Value::Register(register, offset.checked_add(plus)?),
        Value::Cfa(offset) => Value::Cfa(offset.checked_add(plus)?),
        Value::Load(register, offset) if plus == 0 => Value::Load(register, offset),
        Value::Load(register, offset) => Value::LoadPlus(register, offset, plus),
        Value::LoadPlus(register, offset, before) => {
            Value::LoadPlus(register, offset, before.checked_add(plus)?)
        }
        Value::Blocks(register, offset, step) => {
            Value::Blocks(register, offset.checked_add(plus)?, step)
        }
        _ => return None,
    })
}

const fn load(address: Value) -> Option<Value> {
    match address {
        Value::Register(register, offset) => Some(Value::Load(register, offset)),
        Value::Cfa(offset) => Some(Value::LoadCfa(offset)),
        _ => None,
    }
}

/// The low bits of the pc, which make blocks if they are one less than a power
/// of two that a block size can be.
fn mask(left: Value, right: Value, pc: u16) -> Option<Value> {
    let mask = match (left, right) {
        (Value::Constant(mask), Value::Register(register, 0))
        | (Value::Register(register, 0), Value::Constant(mask))
            if register == pc =>
        {
            u8::try_from(mask).ok()?
        }
        _ => return None,
    };
    let is_mask = mask < u8::MAX && mask.checked_add(1)?.is_power_of_two();
    is_mask.then_some(Value::PcBits(mask))
}

#[cfg(test)]
mod tests {
    use gimli::{Encoding, Format, Operation, RunTimeEndian};

    use super::*;

    #[test]
    fn every_operation_puts_on_the_stack_what_gimli_says() {
        let encoding = Encoding { format: Format::Dwarf32, version: 5, address_size: 8 };
        let mut constants = 0;
        for byte in 0..=u8::MAX {
            // One that is not a value alone, as an address, or a register of a type.
            let is_other = matches!(byte, 0x03 | 0xa5 | 0xf5);
            for operands in
                [[1; 10], [0x7f; 10], [0x81; 10], [0xff; 10], [0x85, 0x83, 1, 2, 3, 4, 5, 6, 7, 8]]
            {
                let bytes = [&[byte], &operands[..]].concat();
                let mut theirs = Reader::new(&bytes, RunTimeEndian::Little);
                let expected = match Operation::parse(&mut theirs, encoding) {
                    Ok(Operation::UnsignedConstant { value }) => {
                        Some(Value::Constant(value.cast_signed()))
                    }
                    Ok(Operation::SignedConstant { value }) => Some(Value::Constant(value)),
                    Ok(Operation::RegisterOffset { register, offset, .. }) => {
                        Some(Value::Register(register.0, offset))
                    }
                    _ => None,
                };
                let mut ours = Reader::new(&bytes, RunTimeEndian::Little);
                _ = ours.skip(1);
                let found = operand(DwOp(byte), &mut ours);
                assert!(
                    found == expected || is_other && found.is_none(),
                    "{byte:#x} {operands:x?}: {found:?}, {expected:?}"
                );
                if found.is_some() {
                    assert_eq!(ours.len(), theirs.len(), "{byte:#x}");
                    constants += 1;
                }
            }
        }
        assert!(constants > 300, "{constants}");
    }
}
