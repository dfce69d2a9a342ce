//! The operands that a ModR/M byte names.

use super::bytes::Code;

/// A register, and a register or memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands {
    /// The number of the register, or a part of the opcode.
    pub(super) reg: u8,
    pub(super) rm: RegField,
}

/// A register, or memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum RegField {
    Register(u8),
    /// At a register and an offset, if that is all.
    Memory(Option<(u8, i32)>),
}

impl Operands {
    /// Whether the second operand is this register.
    pub(super) const fn is_register(&self, number: u8) -> bool {
        matches!(self.rm, RegField::Register(found) if found == number)
    }

    /// Whether it is a register.
    pub(super) const fn is_of_register(&self) -> bool {
        matches!(self.rm, RegField::Register(_))
    }

    /// The register and the offset in bytes of what is in memory.
    pub(super) const fn based(&self) -> Option<(u8, i32)> {
        match self.rm {
            RegField::Register(_) => None,
            RegField::Memory(based) => based,
        }
    }
}

impl Code<'_> {
    /// Takes a ModR/M byte and what it says that follows.
    pub(super) fn operands(&mut self) -> Option<Operands> {
        let byte = self.byte()?;
        let (mode, reg, rm) = (byte >> 6, byte >> 3 & 7, byte & 7);
        let reg = reg | (self.prefixes.rex & 4) << 1;
        let rm = match mode {
            3 => RegField::Register(self.register(rm)),
            _ if self.prefixes.is_address_small && !self.is_64() => self.memory_16(mode, rm)?,
            _ => self.memory(mode, rm)?,
        };
        Some(Operands { reg, rm })
    }

    fn memory(&mut self, mode: u8, rm: u8) -> Option<RegField> {
        let mut base = Some(self.register(rm));
        let mut has_index = false;
        let mut has_displacement = mode == 2;
        if rm == 4 {
            let sib = self.byte()?;
            has_index = sib >> 3 & 7 != 4 || self.prefixes.rex & 2 != 0;
            base = Some(self.register(sib));
            if mode == 0 && sib & 7 == 5 {
                (base, has_displacement) = (None, true);
            }
        } else if mode == 0 && rm == 5 {
            // An address, or one relative to the instruction.
            (base, has_displacement) = (None, true);
        }
        let offset = match mode {
            _ if has_displacement => self.i32()?,
            1 => self.i8()?,
            _ => 0,
        };
        Some(RegField::Memory(base.filter(|_| !has_index).map(|base| (base, offset))))
    }

    /// By 16 bits of registers.
    fn memory_16(&mut self, mode: u8, rm: u8) -> Option<RegField> {
        match mode {
            0 if rm == 6 => self.skip(2)?,
            1 => self.skip(1)?,
            2 => self.skip(2)?,
            _ => {}
        }
        Some(RegField::Memory(None))
    }
}
