//! The bytes of an instruction, from the first to the last.

use unwind_core::WordSize;

/// What comes before an opcode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prefixes {
    pub(super) is_operand_16: bool,
    pub(super) is_address_small: bool,
    /// `f2` or `f3`, the last of them; 0 if there is none.
    pub(super) repeat: u8,
    /// The REX prefix; 0 if there is none.
    pub(super) rex: u8,
}

/// What is not read yet of an instruction.
#[derive(Debug)]
pub(super) struct Code<'a> {
    pub(super) word: WordSize,
    pub(super) rest: &'a [u8],
    pub(super) prefixes: Prefixes,
}

impl Code<'_> {
    pub(super) const fn is_64(&self) -> bool {
        matches!(self.word, WordSize::Eight)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*first)
    }

    pub(super) fn skip(&mut self, count: usize) -> Option<()> {
        self.rest = self.rest.get(count..)?;
        Some(())
    }

    pub(super) fn i8(&mut self) -> Option<i32> {
        self.byte().map(|byte| i8::from_ne_bytes([byte]).into())
    }

    pub(super) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    /// An operand of 16 or 32 bits in the instruction.
    pub(super) fn immediate(&mut self) -> Option<i32> {
        match self.prefixes.is_operand_16 {
            true => self.array().map(i16::from_le_bytes).map(i32::from),
            false => self.i32(),
        }
    }

    /// The number of a register in the last three bits, with that of the REX prefix.
    pub(super) const fn register(&self, number: u8) -> u8 {
        number & 7 | (self.prefixes.rex & 1) << 3
    }

    /// Whether registers are written as a whole.
    pub(super) const fn is_wide(&self) -> bool {
        match self.word {
            WordSize::Four => !self.prefixes.is_operand_16,
            WordSize::Eight => self.prefixes.rex & 8 != 0,
        }
    }

    /// A slot of the stack in bytes.
    pub(super) const fn slot(&self) -> i32 {
        match self.word {
            WordSize::Four => 4,
            WordSize::Eight => 8,
        }
    }
}
