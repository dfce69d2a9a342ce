//! Tables of positions in the source: of the bytecode of a function, and of code that was compiled from it.

/// A position in the source of a script, and of which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Characters from the start, if that is known.
    pub(super) offset: Option<u64>,
    /// The index of the function among those that are inlined; `None` if it is the code's own.
    pub(super) inlined: Option<u64>,
}

impl Position {
    /// What a word of a table says.
    pub(super) const fn of(word: i64) -> Self {
        // The lowest bit says that it is of another kind, which code of JavaScript never is.
        let word = word.cast_unsigned();
        Self {
            offset: (word >> 1 & 0x3fff_ffff).checked_sub(1),
            inlined: (word >> 31 & 0xffff).checked_sub(1),
        }
    }
}

/// The position of the instruction at an offset: the last at or before it.
pub(super) fn position(table: &[u8], at: u64) -> Option<Position> {
    let at = i64::try_from(at).ok()?;
    let mut numbers = Numbers(table);
    // The function's entry is before its first instruction.
    let (mut offset, mut position) = (-1_i64, 0_i64);
    let mut found = None;
    while let (Some(code), Some(source)) = (numbers.signed(), numbers.signed()) {
        // The sign says whether it is a statement.
        offset = offset.checked_add(if code < 0 { !code } else { code })?;
        position = position.wrapping_add(source);
        if offset > at {
            break;
        }
        found = Some(Position::of(position));
    }
    found
}

/// The offset in bytecode that compiled code has at an offset of its instructions. `sizes` are those of bytecodes: of
/// all, of all after the first prefix and after the second.
pub(super) fn bytecode_offset(table: &[u8], bytecode: &[u8], sizes: &[u8], at: u64) -> Option<u64> {
    let mut numbers = Numbers(table);
    let count = sizes.len().checked_div(3)?;
    let mut end = numbers.unsigned()?;
    // The first part is before all bytecode.
    let (mut place, mut next) = (0_usize, 0_usize);
    while end < at {
        end = end.checked_add(numbers.unsigned()?)?;
        place = next;
        let first = usize::from(*bytecode.get(place)?);
        // The wide prefixes, and those of debuggers, are the first four.
        let (prefix, scale) = match first {
            0 | 2 => (1_usize, 1_usize),
            1 | 3 => (1, 2),
            _ => (0, 0),
        };
        let code = usize::from(*bytecode.get(place.checked_add(prefix)?)?);
        let index = scale.checked_mul(count)?.checked_add(code).filter(|_| code < count)?;
        let size = usize::from(*sizes.get(index)?).max(1);
        next = place.checked_add(prefix)?.checked_add(size)?;
    }
    u64::try_from(place).ok()
}

/// Numbers of seven bits a byte, the lowest first.
struct Numbers<'t>(&'t [u8]);

impl Numbers<'_> {
    fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        let sign = if number & 1 == 0 { 0 } else { -1 };
        Some((number >> 1).cast_signed() ^ sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as tables have them.
    fn table(numbers: &[i64]) -> Vec<u8> {
        let mut table = Vec::new();
        for &number in numbers {
            let mut rest = (number << 1 ^ number >> 63).cast_unsigned();
            while rest > 0x7f {
                table.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
                rest >>= 7;
            }
            table.push(u8::try_from(rest).unwrap());
        }
        table
    }

    #[test]
    fn an_instruction_has_the_last_position_at_or_before_it() {
        // At 3 there is character 99, and at 13 as an expression character 1,099, both of the function itself.
        let places = table(&[4, 100 << 1, !10, 1000 << 1]);
        let offsets = [2, 3, 12, 13, 400].map(|at| position(&places, at));
        let offsets = offsets.map(|place| place.map(|place| (place.offset, place.inlined)));
        let (first, second) = (Some((Some(99), None)), Some((Some(1099), None)));
        assert_eq!(offsets, [None, first, first, second, second]);
    }

    #[test]
    fn a_position_says_which_function_it_is_of() {
        let place = Position::of(3 << 31 | 8 << 1);
        assert_eq!(place, Position { offset: Some(7), inlined: Some(2) });
        assert_eq!(Position::of(0), Position { offset: None, inlined: None });
    }

    #[test]
    fn instructions_of_baseline_code_are_counted_by_its_bytecodes() {
        // Of five bytecodes 4 has two bytes, and four after a prefix.
        let sizes = [1, 1, 1, 1, 2, 1, 1, 1, 1, 3, 1, 1, 1, 1, 5];
        let bytecode = [4, 9, 0, 4, 9, 9, 4, 9];
        let table = [8, 10, 200, 1, 10];
        let at = |at| bytecode_offset(&table, &bytecode, &sizes, at);
        assert_eq!(
            [8, 9, 18, 19, 218, 219].map(at)[..5],
            [Some(0), Some(0), Some(0), Some(2), Some(2)]
        );
        assert_eq!(at(219), Some(6));
        assert_eq!(at(4000), None);
    }

    #[test]
    fn damaged_tables_have_no_positions() {
        assert_eq!(position(&[0xff; 40], 5), None);
        assert_eq!(bytecode_offset(&[0xff; 40], &[], &[], 5), None);
        assert_eq!(bytecode_offset(&[1, 1, 1], &[], &[1; 15], 5), None);
    }
}
