//! The line of an instruction, by the table of its code object.

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineTable {
    /// Pairs of bytes: how many bytes further, how many lines (`co_lnotab`, to 3.9).
    Deltas,
    /// Pairs of bytes: the length of a range, and how many lines further it is than the one before
    /// (`co_linetable`, 3.10).
    Ranges,
    /// Entries of several forms, with columns (`co_linetable`, since 3.11).
    Locations,
}

impl LineTable {
    /// The line of the instruction `at` bytes from the start of code whose first line is `first`. Before
    /// its first instruction a function is at its first line.
    pub(super) fn line(self, table: &[u8], first: u32, at: i64) -> Option<u32> {
        let line = match self {
            _ if at < 0 => Some(i64::from(first)),
            Self::Deltas => Some(by_deltas(table, first, at)),
            Self::Ranges => by_ranges(table, first, at),
            Self::Locations => by_locations(table, first, at),
        };
        line.and_then(|line| u32::try_from(line).ok()).filter(|&line| line != 0)
    }
}

fn by_deltas(table: &[u8], first: u32, at: i64) -> i64 {
    let (mut line, mut start) = (i64::from(first), 0_i64);
    for &[bytes, lines] in table.as_chunks().0 {
        start = start.saturating_add(bytes.into());
        if start > at {
            break;
        }
        line = line.saturating_add(lines.cast_signed().into());
    }
    line
}

fn by_ranges(table: &[u8], first: u32, at: i64) -> Option<i64> {
    let (mut line, mut end) = (i64::from(first), 0_i64);
    for &[bytes, lines] in table.as_chunks().0 {
        let lines = Some(i64::from(lines.cast_signed())).filter(|&lines| lines != -128);
        line = line.saturating_add(lines.unwrap_or(0));
        end = end.saturating_add(bytes.into());
        if at < end {
            return lines.map(|_| line);
        }
    }
    None
}

fn by_locations(table: &[u8], first: u32, at: i64) -> Option<i64> {
    /// The first byte of an entry has it, and no other one.
    const START: u8 = 0x80;
    const UNIT: i64 = 2;
    let (mut line, mut end) = (i64::from(first), 0_i64);
    let mut rest = table;
    while let Some((&head, after)) = rest.split_first() {
        let len = after.iter().position(|byte| byte & START != 0).unwrap_or(after.len());
        let (entry, others) = after.split_at_checked(len)?;
        let form = head >> 3 & 0xf;
        let lines = match form {
            // No place.
            15 => None,
            13 | 14 => Some(signed(entry)),
            10..=12 => Some(i64::from(form).saturating_sub(10)),
            _ => Some(0),
        };
        line = line.saturating_add(lines.unwrap_or(0));
        let units = i64::from(head & 7).saturating_add(1);
        end = end.saturating_add(units.saturating_mul(UNIT));
        if at < end {
            return lines.map(|_| line);
        }
        rest = others;
    }
    None
}

/// A number of six bits a byte, the lowest ones first, whose last bit is its sign.
fn signed(bytes: &[u8]) -> i64 {
    let (mut value, mut shift) = (0_u64, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x3f).checked_shl(shift).unwrap_or(0);
        shift = u32::saturating_add(shift, 6);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = (value >> 1).cast_signed();
    if value & 1 == 0 { size } else { size.saturating_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_table_has_the_line_of_an_instruction() {
        // Line 5 for four bytes, then line 7, then line 6.
        let deltas = [4, 2, 2, 0xff];
        let lines = |at| LineTable::Deltas.line(&deltas, 5, at);
        assert_eq!([-1, 0, 3, 4, 6, 90].map(lines), [5, 5, 5, 7, 6, 6].map(Some));
        // Line 5, none, line 8.
        let ranges = [4, 0, 2, 0x80, 2, 3];
        let lines = |at| LineTable::Ranges.line(&ranges, 5, at);
        assert_eq!([0, 4, 6, 8].map(lines), [Some(5), None, Some(8), None]);
        let locations = [
            0x80 | 1 << 3 | 1, // a short form, two instructions: line 5
            0x12,
            0x80 | 11 << 3, // one line further, one instruction: line 6
            1,
            2,
            0x80 | 15 << 3, // no place
            0x80 | 13 << 3, // 33 lines back, no columns: line -27
            0x43,
            0x01,
            0x80 | 14 << 3, // 40 lines further: line 13
            0x50,
            0x01,
            0,
            1,
            1,
        ];
        let lines = |at| LineTable::Locations.line(&locations, 5, at);
        assert_eq!(
            [-2, 0, 2, 4, 6, 8, 10, 12].map(lines),
            [Some(5), Some(5), Some(5), Some(6), None, None, Some(13), None]
        );
    }

    #[test]
    fn any_bytes_end() {
        for form in [LineTable::Deltas, LineTable::Ranges, LineTable::Locations] {
            for byte in 0..=u8::MAX {
                form.line(&[byte; 99], u32::MAX, i64::MAX);
            }
        }
    }
}
