//! Registers by their numbers in instructions.

use unwind_core::{DwarfReg, WordSize};

/// The register with these three bits of its number in an instruction, in code with words of this size. `is_high` is
/// the fourth bit, which 32-bit code does not have.
pub(crate) fn dwarf_register(word: WordSize, is_high: bool, number: u8) -> DwarfReg {
    // The DWARF numbers of 64-bit registers come in another order.
    const LOW: [u8; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    let number = number & 7;
    match word {
        WordSize::Four => DwarfReg(number),
        WordSize::Eight if is_high => DwarfReg(number | 8),
        WordSize::Eight => DwarfReg(LOW.get(usize::from(number)).copied().unwrap_or(0)),
    }
}
