//! The notes of an ELF file.

use object::{Endian as _, Endianness};

/// `NT_GNU_BUILD_ID`.
pub const NOTE_GNU_BUILD_ID: u32 = 3;

/// One note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note<'a> {
    /// Without the zero at its end.
    pub name: &'a [u8],
    pub kind: u32,
    pub desc: &'a [u8],
}

/// The notes of one segment, in order. Ends at a note that is cut short.
///
/// ```text
///     0   u32   bytes of the name, with its zero
///     4   u32   bytes of the description
///     8   u32   kind
///    12         name, then description, each padded to the alignment
/// ```
#[derive(Clone, Debug)]
pub struct Notes<'a> {
    rest: &'a [u8],
    endian: Endianness,
    align: usize,
}

impl<'a> Notes<'a> {
    /// `align` is the segment's; every value but 8 means 4.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endianness, align: u64) -> Self {
        Self { rest: bytes, endian, align: if align == 8 { 8 } else { 4 } }
    }

    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(self.endian.read_u32(*word))
    }

    /// Takes `len` bytes. `before` is what the note had before them, to which
    /// the padding counts.
    fn padded(&mut self, len: u32, before: usize) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let (taken, rest) = self.rest.split_at_checked(len)?;
        let end = before.checked_add(len)?;
        let padding = end.checked_next_multiple_of(self.align)?.checked_sub(end)?;
        // The last note's padding may be left out.
        self.rest = rest.get(padding..).unwrap_or_default();
        Some(taken)
    }
}

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        let (name_len, desc_len, kind) = (self.word()?, self.word()?, self.word()?);
        let name = self.padded(name_len, 12)?;
        let desc = self.padded(desc_len, 0)?;
        Some(Note { name: name.strip_suffix(&[0]).unwrap_or(name), kind, desc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = &[
        4, 0, 0, 0, // name length
        3, 0, 0, 0, // description length
        3, 0, 0, 0, // kind
        b'G', b'N', b'U', 0, //
        1, 2, 3, 0xee, // description and padding
        5, 0, 0, 0, //
        4, 0, 0, 0, //
        1, 0, 0, 0, //
        b'C', b'O', b'R', b'E', 0, 0xee, 0xee, 0xee, //
        9, 8, 7, 6, //
    ];

    fn notes(bytes: &[u8]) -> Vec<Note<'_>> {
        Notes::new(bytes, Endianness::Little, 4).collect()
    }

    #[test]
    fn notes_follow_each_other_padded_to_four_bytes() {
        assert_eq!(
            notes(TWO),
            [
                Note { name: b"GNU", kind: 3, desc: &[1, 2, 3] },
                Note { name: b"CORE", kind: 1, desc: &[9, 8, 7, 6] },
            ]
        );
    }

    #[test]
    fn a_cut_note_ends_the_list() {
        for len in 0..TWO.len() {
            let whole = usize::from(len >= 19) + usize::from(len >= 44);
            assert_eq!(notes(&TWO[..len]).len(), whole, "{len} bytes");
        }
    }

    #[test]
    fn a_length_beyond_the_segment_is_no_note() {
        let mut bytes = TWO.to_vec();
        bytes[4..8].copy_from_slice(&[0xff; 4]);
        assert_eq!(notes(&bytes), []);
    }
}
