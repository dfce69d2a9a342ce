//! What an instruction does to the stack pointer, to the frame pointer and to the order of
//! execution.
//!
//! The lengths and operands are those of the opcode maps in Intel's manual (volume 2, appendix A).
//! What a compiler has no use for, such as instructions of a kernel, is not known.

mod bytes;
mod operands;

use unwind_core::WordSize;

use self::bytes::{Code, Prefixes};
use self::operands::{Operands, RegField};

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// Its length in bytes, 1 to 15.
    pub(crate) len: u8,
    pub(crate) effect: Effect,
}

/// What matters of it. Where one is not sure, the register is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    Other,
    /// Adds bytes to the stack pointer, as a push and a pop of another register do.
    MoveSp(i32),
    PushFp,
    PopFp,
    /// Stores the frame pointer at the stack pointer plus bytes.
    StoreFpAtSp(i32),
    /// Loads the frame pointer from there.
    LoadFpAtSp(i32),
    /// Adds bytes to the frame pointer.
    MoveFp(i32),
    /// The frame pointer becomes the stack pointer plus bytes.
    FpFromSp(i32),
    /// The stack pointer becomes the frame pointer plus bytes.
    SpFromFp(i32),
    /// The stack pointer is loaded from memory at the frame pointer plus bytes.
    LoadSpAtFp(i32),
    Leave,
    /// The stack pointer becomes what cannot be told.
    LoseSp,
    /// The frame pointer becomes what cannot be told.
    LoseFp,
    Return,
    /// A call, which comes back.
    Call,
    /// To a place that is this many bytes after its end.
    Jump(i32),
    /// The same, or not.
    Branch(i32),
    /// To where a register or memory says.
    JumpAway,
    /// The code after it is not executed.
    Stop,
}

const SP: u8 = 4;
const FP: u8 = 5;

/// The longest instruction, in bytes.
pub(crate) const LONGEST: usize = 15;

/// The first instruction of these bytes; `None` if it is cut or not known.
pub(crate) fn decode(word: WordSize, bytes: &[u8]) -> Option<Instruction> {
    let mut code = Code { word, rest: bytes, prefixes: Prefixes::default() };
    let effect = code.instruction()?;
    let len = bytes.len().checked_sub(code.rest.len()).filter(|&len| len <= LONGEST)?;
    Some(Instruction { len: u8::try_from(len).ok()?, effect })
}

impl Code<'_> {
    /// A push of one of these slots, or a pop.
    const fn moves(&self, slots: i32) -> Effect {
        match self.prefixes.is_operand_16 {
            true => Effect::LoseSp,
            false => Effect::MoveSp(slots.wrapping_mul(self.slot())),
        }
    }

    fn instruction(&mut self) -> Option<Effect> {
        let opcode = self.opcode()?;
        match opcode {
            0x0f => self.map_0f(),
            0xc4 | 0xc5 if self.is_vector() => self.vex(opcode),
            0x62 if self.is_vector() => self.evex(),
            // What the others of these are in 32-bit code no compiler writes.
            0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x27 | 0x2f | 0x37 | 0x3f => None,
            0x00..=0x3f => self.arithmetic(opcode),
            0x40..=0x4f => Some(written(opcode & 7)),
            0x50..=0x57 => Some(self.push(opcode)),
            0x58..=0x5f => Some(self.pop(opcode)),
            0x68 => {
                self.immediate()?;
                Some(self.moves(-1))
            }
            0x6a => {
                self.byte()?;
                Some(self.moves(-1))
            }
            0x63 | 0x69 | 0x6b => self.widening(opcode),
            0x70..=0x7f | 0xe0..=0xe3 => self.branch(true),
            0x80..=0x8f => self.moving(opcode),
            0x90..=0x97 => Some(self.exchange(opcode)),
            0x98 | 0x99 | 0x9b | 0x9e | 0x9f => Some(Effect::Other),
            0x9c => Some(self.moves(-1)),
            0x9d => Some(self.moves(1)),
            0xa0..=0xa3 => {
                self.skip(match (self.is_64(), self.prefixes.is_address_small) {
                    (true, false) => 8,
                    (false, true) => 2,
                    _ => 4,
                })?;
                Some(Effect::Other)
            }
            0xa4..=0xa7 | 0xaa..=0xaf | 0xd7 | 0xf5 | 0xf8..=0xfd => Some(Effect::Other),
            0xa8 | 0xcd => self.byte().map(|_| Effect::Other),
            0xa9 => self.immediate().map(|_| Effect::Other),
            0xb0..=0xbf => self.constant(opcode),
            0xc0..=0xc1 | 0xc6..=0xc7 | 0xd0..=0xd3 => self.shift_or_store(opcode),
            0xc2 => self.skip(2).map(|()| Effect::Return),
            0xc3 => Some(Effect::Return),
            0xc9 => Some(Effect::Leave),
            0xcc | 0xf1 | 0xf4 => Some(Effect::Stop),
            0xd8..=0xdf => self.operands().map(|_| Effect::Other),
            0xe8 | 0xe9 | 0xeb => self.transfer(opcode),
            0xf6 | 0xf7 | 0xfe | 0xff => self.group(opcode),
            _ => None,
        }
    }

    /// Takes the prefixes and the opcode.
    fn opcode(&mut self) -> Option<u8> {
        // An instruction that is all prefixes has no opcode.
        for _ in 0..LONGEST {
            let byte = self.byte()?;
            match byte {
                0x66 => self.prefixes.is_operand_16 = true,
                0x67 => self.prefixes.is_address_small = true,
                0xf2 | 0xf3 => self.prefixes.repeat = byte,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 => {}
                0x40..=0x4f if self.is_64() => {
                    // It comes last; a wide operand is not one of 16 bits.
                    self.prefixes.rex = byte;
                    self.prefixes.is_operand_16 &= byte & 8 == 0;
                    let opcode = self.byte()?;
                    let is_prefix =
                        matches!(opcode, 0x40..=0x4f | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3)
                            || matches!(opcode, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
                    return (!is_prefix).then_some(opcode);
                }
                opcode => return Some(opcode),
            }
        }
        None
    }

    /// Whether `c4`, `c5` and `62` begin an instruction of vectors: in 32-bit code they are others
    /// with an operand in memory.
    fn is_vector(&self) -> bool {
        self.is_64() || self.rest.first().is_some_and(|next| next >> 6 == 3)
    }

    fn push(&self, opcode: u8) -> Effect {
        match self.register(opcode) {
            FP if !self.prefixes.is_operand_16 => Effect::PushFp,
            _ => self.moves(-1),
        }
    }

    fn pop(&self, opcode: u8) -> Effect {
        match self.register(opcode) {
            SP => Effect::LoseSp,
            FP if !self.prefixes.is_operand_16 => Effect::PopFp,
            FP => Effect::LoseFp,
            _ => self.moves(1),
        }
    }

    /// `add` to `cmp`, of registers and memory.
    fn arithmetic(&mut self, opcode: u8) -> Option<Effect> {
        let is_compare = opcode >> 3 == 7;
        match opcode & 7 {
            4 => {
                self.byte()?;
                return Some(Effect::Other);
            }
            5 => {
                self.immediate()?;
                return Some(Effect::Other);
            }
            _ => {}
        }
        let operands = self.operands()?;
        let is_byte = opcode & 1 == 0;
        Some(match opcode & 2 {
            _ if is_compare => Effect::Other,
            0 => self.written_rm(operands, is_byte),
            _ => self.written_reg(operands, is_byte),
        })
    }

    /// `movsxd` and `imul` by a constant.
    fn widening(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        match opcode {
            0x69 => _ = self.immediate()?,
            0x6b => _ = self.byte()?,
            // In 32-bit code it is one that no compiler writes.
            _ if !self.is_64() => return None,
            _ => {}
        }
        Some(self.written_reg(operands, false))
    }

    fn exchange(&self, opcode: u8) -> Effect {
        written(self.register(opcode))
    }

    /// `mov` of a constant into a register.
    fn constant(&mut self, opcode: u8) -> Option<Effect> {
        let is_byte = opcode & 8 == 0;
        if is_byte {
            self.byte()?;
        } else if self.is_64() && self.is_wide() {
            self.skip(8)?;
        } else {
            self.immediate()?;
        }
        Some(self.written_as(self.register(opcode), is_byte))
    }

    fn shift_or_store(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        match opcode {
            0xc0 | 0xc1 => _ = self.byte()?,
            // `mov` alone; the others begin and end transactions.
            0xc6 | 0xc7 if operands.reg & 7 != 0 => return None,
            0xc6 => _ = self.byte()?,
            0xc7 => _ = self.immediate()?,
            _ => {}
        }
        Some(self.written_rm(operands, opcode & 1 == 0))
    }

    fn branch(&mut self, is_short: bool) -> Option<Effect> {
        // With the prefix CPUs differ.
        if self.prefixes.is_operand_16 {
            return None;
        }
        let distance = if is_short { self.i8() } else { self.i32() };
        distance.map(Effect::Branch)
    }

    fn transfer(&mut self, opcode: u8) -> Option<Effect> {
        // With the prefix CPUs differ.
        if self.prefixes.is_operand_16 {
            return None;
        }
        Some(match opcode {
            0xeb => Effect::Jump(self.i8()?),
            0xe9 => Effect::Jump(self.i32()?),
            // To what follows it: to have its own address.
            _ if self.i32()? == 0 => self.moves(-1),
            _ => Effect::Call,
        })
    }

    /// `80` to `8f`.
    fn moving(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        let is_byte = opcode & 1 == 0;
        Some(match opcode {
            0x80..=0x83 => return self.arithmetic_constant(opcode, operands),
            0x84 | 0x85 => Effect::Other,
            // `xchg` writes both.
            0x86 | 0x87 => match self.written_rm(operands, is_byte) {
                Effect::Other => self.written_reg(operands, is_byte),
                effect => effect,
            },
            0x89 if self.is_wide() && operands.is_register(FP) && operands.reg == SP => {
                Effect::FpFromSp(0)
            }
            0x89 if self.is_wide() && operands.is_register(SP) && operands.reg == FP => {
                Effect::SpFromFp(0)
            }
            0x89 if self.is_wide() && operands.reg == FP => match operands.based() {
                Some((SP, offset)) if !self.prefixes.is_address_small => {
                    Effect::StoreFpAtSp(offset)
                }
                _ => self.written_rm(operands, is_byte),
            },
            0x88 | 0x89 => self.written_rm(operands, is_byte),
            0x8a => self.written_reg(operands, true),
            0x8b if self.is_wide() => self.load(operands),
            0x8b => self.written_reg(operands, false),
            0x8c => self.written_rm(operands, false),
            0x8d => return self.address(operands),
            0x8e => Effect::Other,
            // The others are AMD's XOP.
            _ if operands.reg & 7 != 0 => return None,
            _ if operands.is_register(SP) => Effect::LoseSp,
            _ if operands.is_register(FP) => Effect::LoseFp,
            // The address of what is popped into memory is counted from the stack pointer.
            _ => self.moves(1),
        })
    }

    fn arithmetic_constant(&mut self, opcode: u8, operands: Operands) -> Option<Effect> {
        let constant = match opcode {
            0x81 => self.immediate()?,
            0x82 if self.is_64() => return None,
            _ => self.i8()?,
        };
        let is_whole = opcode & 1 == 1 && self.is_wide();
        let is_stack = is_whole && operands.is_register(SP);
        let is_frame = is_whole && operands.is_register(FP);
        Some(match operands.reg & 7 {
            7 => Effect::Other,
            0 if is_stack => Effect::MoveSp(constant),
            5 if is_stack => Effect::MoveSp(constant.checked_neg()?),
            0 if is_frame => Effect::MoveFp(constant),
            5 if is_frame => Effect::MoveFp(constant.checked_neg()?),
            _ => self.written_rm(operands, opcode & 1 == 0),
        })
    }

    /// `mov` into a whole register.
    fn load(&self, operands: Operands) -> Effect {
        match operands.reg {
            FP if operands.is_register(SP) => Effect::FpFromSp(0),
            SP if operands.is_register(FP) => Effect::SpFromFp(0),
            SP => match operands.based() {
                Some((FP, offset)) => Effect::LoadSpAtFp(offset),
                _ => Effect::LoseSp,
            },
            FP => match operands.based() {
                Some((SP, offset)) if !self.prefixes.is_address_small => Effect::LoadFpAtSp(offset),
                _ => Effect::LoseFp,
            },
            reg => written(reg),
        }
    }

    /// `lea`.
    fn address(&self, operands: Operands) -> Option<Effect> {
        if operands.is_of_register() {
            return None;
        }
        let is_whole = self.is_wide() && !self.prefixes.is_address_small;
        Some(match (operands.reg, operands.based()) {
            (SP, Some((SP, offset))) if is_whole => Effect::MoveSp(offset),
            (SP, Some((FP, offset))) if is_whole => Effect::SpFromFp(offset),
            (FP, Some((SP, offset))) if is_whole => Effect::FpFromSp(offset),
            (FP, Some((FP, offset))) if is_whole => Effect::MoveFp(offset),
            (reg, _) => written(reg),
        })
    }

    /// `f6`, `f7`, `fe`, `ff`: what they do is in the operands.
    fn group(&mut self, opcode: u8) -> Option<Effect> {
        let operands = self.operands()?;
        let is_byte = opcode & 1 == 0;
        Some(match (opcode, operands.reg & 7) {
            (0xf6, 0 | 1) => {
                self.byte()?;
                Effect::Other
            }
            (0xf7, 0 | 1) => {
                self.immediate()?;
                Effect::Other
            }
            // Into registers that are named nowhere.
            (0xf6 | 0xf7, 4..) => Effect::Other,
            (0xf6 | 0xf7, _) | (0xfe | 0xff, 0 | 1) => self.written_rm(operands, is_byte),
            (0xff, 2) => Effect::Call,
            (0xff, 4) => Effect::JumpAway,
            (0xff, 6) => self.moves(-1),
            _ => return None,
        })
    }

    /// What follows `0f`.
    fn map_0f(&mut self) -> Option<Effect> {
        let opcode = self.byte()?;
        match opcode {
            0x05 | 0x0b | 0x31 | 0x77 | 0xa2 | 0x80..=0x8f | 0xa0 | 0xa1 | 0xa8 | 0xa9 => {
                self.without_operands(opcode)
            }
            0xc8..=0xcf => Some(written(self.register(opcode))),
            0x38 => {
                let opcode = self.byte()?;
                let operands = self.operands()?;
                let is_general = matches!(opcode, 0xf0 | 0xf1 | 0xf6);
                Some(if is_general { self.written_reg(operands, false) } else { Effect::Other })
            }
            0x3a => {
                let opcode = self.byte()?;
                let operands = self.operands()?;
                self.byte()?;
                let is_general = matches!(opcode, 0x14..=0x17);
                Some(if is_general { self.written_rm(operands, false) } else { Effect::Other })
            }
            _ => self.with_operands(opcode),
        }
    }

    fn without_operands(&mut self, opcode: u8) -> Option<Effect> {
        Some(match opcode {
            0x0b => Effect::Stop,
            0x80..=0x8f => return self.branch(false),
            0xa0 | 0xa8 => self.moves(-1),
            0xa1 | 0xa9 => self.moves(1),
            _ => Effect::Other,
        })
    }

    /// Those of the map `0f` that have operands.
    fn with_operands(&mut self, opcode: u8) -> Option<Effect> {
        let is_known = matches!(opcode,
            0x0d | 0x10..=0x1f | 0x28..=0x2f | 0x40..=0x76 | 0x7c..=0x7f | 0x90..=0x9f
            | 0xa3..=0xa5 | 0xab..=0xaf | 0xb0 | 0xb1 | 0xb3 | 0xb6..=0xc7 | 0xd0..=0xff);
        if !is_known {
            return None;
        }
        let operands = self.operands()?;
        if matches!(opcode, 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6) {
            self.byte()?;
        }
        Some(match opcode {
            // Between vectors.
            0x2c | 0x2d if self.prefixes.repeat == 0 => Effect::Other,
            // `rdssp` and `rdfsbase` have the prefix.
            0x1e | 0xae if self.prefixes.repeat != 0xf3 => Effect::Other,
            0x2c | 0x2d | 0x40..=0x4f | 0x50 | 0xaf | 0xb6..=0xb8 | 0xbc..=0xbf | 0xc5 | 0xd7 => {
                self.written_reg(operands, false)
            }
            0x90..=0x9f | 0xb0 => self.written_rm(operands, true),
            0x1e | 0xa4 | 0xa5 | 0xab | 0xac | 0xad | 0xae | 0xb1 | 0xb3 | 0xbb | 0xc7 => {
                self.written_rm(operands, false)
            }
            // Between vectors, or out of one.
            0x7e if self.prefixes.repeat != 0xf3 => self.written_rm(operands, false),
            // `bt` only reads.
            0xba if operands.reg & 7 > 4 => self.written_rm(operands, false),
            0xba if operands.reg & 7 < 4 => return None,
            0xc0 | 0xc1 => match self.written_rm(operands, opcode == 0xc0) {
                Effect::Other => self.written_reg(operands, opcode == 0xc0),
                effect => effect,
            },
            0xb9 | 0xff => Effect::Stop,
            _ => Effect::Other,
        })
    }

    /// An instruction of vectors with a prefix of two or three bytes.
    fn vex(&mut self, opcode: u8) -> Option<Effect> {
        if self.prefixes.rex != 0 || self.prefixes.repeat != 0 || self.prefixes.is_operand_16 {
            return None;
        }
        let first = self.byte()?;
        let (map, last) = match opcode {
            0xc5 => (1, first),
            _ => (first & 0x1f, self.byte()?),
        };
        // The bits stand for their opposite.
        let rex = match opcode {
            0xc5 => (!first >> 7 & 1) << 2,
            _ => !first >> 5 & 7,
        };
        self.prefixes.rex = if self.is_64() { rex } else { 0 };
        let third = !last >> 3 & 15;
        let opcode = self.byte()?;
        if map == 1 && opcode == 0x77 {
            return Some(Effect::Other);
        }
        let operands = self.operands()?;
        self.vector_constant(map, opcode)?;
        Some(match (map, opcode) {
            (1, 0x2c | 0x2d | 0x50 | 0x93 | 0xd7)
            | (2, 0xe0..=0xef | 0xf2 | 0xf5 | 0xf7)
            | (3, 0xf0) => self.written_reg(operands, false),
            // One more register.
            (2, 0xf3) => written(third),
            (2, 0xf6) => match written(third) {
                Effect::Other => self.written_reg(operands, false),
                effect => effect,
            },
            // With `f3` it is a move between vectors.
            (1, 0x7e) if last & 3 == 2 => Effect::Other,
            (1, 0x7e | 0xc5) | (3, 0x14..=0x17) => match opcode {
                0xc5 => self.written_reg(operands, false),
                _ => self.written_rm(operands, false),
            },
            (1..=3, _) => Effect::Other,
            _ => return None,
        })
    }

    /// An instruction of vectors with a prefix of four bytes.
    fn evex(&mut self) -> Option<Effect> {
        if self.prefixes.rex != 0 || self.prefixes.repeat != 0 || self.prefixes.is_operand_16 {
            return None;
        }
        let [first, second, _] = self.array()?;
        // What has these bits otherwise is of extensions that no compiler uses yet.
        if first & 8 != 0 || second & 4 == 0 {
            return None;
        }
        let map = first & 7;
        self.prefixes.rex = if self.is_64() { !first >> 5 & 7 } else { 0 };
        let opcode = self.byte()?;
        let operands = self.operands()?;
        self.vector_constant(map, opcode)?;
        Some(match (map, opcode) {
            (1 | 5, 0x2c | 0x2d | 0x78 | 0x79) | (1, 0xc5) => self.written_reg(operands, false),
            (1 | 5, 0x7e) | (3, 0x14..=0x17) => self.written_rm(operands, false),
            (1..=3 | 5 | 6, _) => Effect::Other,
            _ => return None,
        })
    }

    /// Skips a constant at the end of an instruction of vectors, if it has one.
    fn vector_constant(&mut self, map: u8, opcode: u8) -> Option<()> {
        let has_one = match map {
            1 => matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6),
            map => map == 3,
        };
        if has_one { self.byte().map(|_| ()) } else { Some(()) }
    }

    /// The effect of writing the register of the first kind.
    fn written_reg(&self, operands: Operands, is_byte: bool) -> Effect {
        self.written_as(operands.reg, is_byte)
    }

    /// The effect of writing the other operand.
    fn written_rm(&self, operands: Operands, is_byte: bool) -> Effect {
        match operands.rm {
            RegField::Register(number) => self.written_as(number, is_byte),
            RegField::Memory(_) => Effect::Other,
        }
    }

    /// The effect of writing a register, or a byte of one: without a REX prefix these numbers are
    /// those of `ah` and `ch`.
    const fn written_as(&self, number: u8, is_byte: bool) -> Effect {
        match is_byte && self.prefixes.rex == 0 {
            true => Effect::Other,
            false => written(number),
        }
    }
}

/// The effect of writing a register.
const fn written(number: u8) -> Effect {
    match number {
        SP => Effect::LoseSp,
        FP => Effect::LoseFp,
        _ => Effect::Other,
    }
}

#[cfg(test)]
mod tests;
