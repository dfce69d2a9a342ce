//! Expressions as rules, where a rule can say the same.
//!
//! An expression is evaluated on what its operands are, not on their values:
//! sums of a register or the CFA and constants, words of memory at such a sum,
//! and the step in the CFA that lazy PLTs have.

use gimli::{Encoding, Operation, Reader as _};

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
    fn push(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len = self.len.checked_add(1)?;
        Some(())
    }

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
    let encoding =
        Encoding { format: gimli::Format::Dwarf32, version: 5, address_size: registers.word };
    while !expression.is_empty() {
        work_counter::steps(1);
        let operation = Operation::parse(&mut expression, encoding).ok()?;
        let value = match operation {
            Operation::Nop => continue,
            Operation::RegisterOffset { register, offset, .. } => {
                Value::Register(register.0, offset)
            }
            Operation::UnsignedConstant { value } => Value::Constant(value.cast_signed()),
            Operation::SignedConstant { value } => Value::Constant(value),
            Operation::PlusConstant { value } => {
                add(stack.pop()?, Value::Constant(value.cast_signed()))?
            }
            Operation::Plus => {
                let right = stack.pop()?;
                add(stack.pop()?, right)?
            }
            Operation::Minus => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(right), left) => add(left, Value::Constant(right.checked_neg()?))?,
                _ => return None,
            },
            Operation::Deref { size, space: false, .. } if size == registers.word => {
                load(stack.pop()?)?
            }
            Operation::And => mask(stack.pop()?, stack.pop()?, registers.pc?)?,
            Operation::Ge => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(at), Value::PcBits(mask)) => {
                    let at = u8::try_from(at).ok().filter(|&at| 0 < at && at <= mask)?;
                    Value::PcAtLeast(mask, at)
                }
                _ => return None,
            },
            Operation::Shl => match (stack.pop()?, stack.pop()?) {
                (Value::Constant(shift @ 0..=30), Value::PcAtLeast(mask, at)) => {
                    let height = 1_u32.checked_shl(u32::try_from(shift).ok()?)?;
                    Value::PcStep(Step { mask, at, height })
                }
                _ => return None,
            },
            _ => return None,
        };
        stack.push(value)?;
    }
    stack.pop()
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
