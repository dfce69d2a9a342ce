//! Control words of flexible rows (V3).

use crate::format::fre::Fre;
use crate::sign::Signed;

/// A control word: what a value is computed from.
///
/// | bits | meaning                                            |
/// |------|----------------------------------------------------|
/// | 0    | start from a register, else from the CFA           |
/// | 1    | the value is loaded from the address computed      |
/// | 3-   | DWARF number of the register                       |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Control(pub u32);

impl Control {
    /// The control word of a value that starts from `register`, or from the
    /// CFA, and is loaded from memory if `deref`.
    #[must_use]
    pub const fn new(register: Option<u32>, deref: bool) -> Self {
        let bits = match register {
            Some(register) => register << 3 | 1,
            None => 0,
        };
        Self(if deref { bits | 2 } else { bits })
    }

    /// The DWARF number of the register to start from; `None` starts from the
    /// CFA.
    #[must_use]
    pub const fn register(self) -> Option<u32> {
        if self.0 & 1 != 0 { Some(self.0 >> 3) } else { None }
    }

    /// Whether the value is loaded from the address computed.
    #[must_use]
    pub const fn deref(self) -> bool {
        self.0 & 2 != 0
    }
}

/// A control word and the offset after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flex {
    /// What the value is computed from.
    pub control: Control,
    /// What is added to it, in bytes (the CFA on s390x: scaled).
    pub offset: i32,
}

/// The rules of a flexible row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlexRules {
    /// The CFA.
    pub cfa: Flex,
    /// The return address; `None` if the header's fixed offset says it, or if
    /// it is still in its register.
    pub ra: Option<Flex>,
    /// The frame pointer; `None` if it is unchanged.
    pub fp: Option<Flex>,
}

impl Fre {
    /// The row's words as a flexible function means them; `None` if their
    /// number has no meaning, which for no words at all is the outermost frame.
    ///
    /// In order: the CFA's pair; the RA's pair, or a single zero in its place;
    /// the FP's pair, or a single zero in its place. A zero may be left out where
    /// nothing follows it.
    #[must_use]
    pub fn flex(&self) -> Option<FlexRules> {
        let is_zero = |at| self.word(at) == Some(0);
        let (ra, fp) = match self.info.word_count() {
            2 => (None, None),
            3 if is_zero(2) => (None, None),
            4 if !is_zero(2) => (Some(2), None),
            4 if is_zero(3) => (None, None),
            5 if is_zero(2) => (None, Some(3)),
            5 if is_zero(4) => (Some(2), None),
            6 if !is_zero(2) => (Some(2), Some(4)),
            _ => return None,
        };
        let pair = |at: Option<usize>| at.and_then(|at| self.pair(at));
        Some(FlexRules { cfa: self.pair(0)?, ra: pair(ra), fp: pair(fp) })
    }

    /// Whether the last word of a flexible function's row is a zero in place of a
    /// pair, which says no more than its absence.
    pub(crate) fn ends_in_padding(&self) -> bool {
        let at = match self.info.word_count() {
            3 => 2,
            4 if self.word(2) == Some(0) => 3,
            5 if self.word(2) != Some(0) => 4,
            _ => return false,
        };
        self.word(at) == Some(0)
    }

    /// The pair whose control word is at this index.
    fn pair(&self, at: usize) -> Option<Flex> {
        // Control words are unsigned, of the row's word size.
        let mask = match self.info.word_size()? {
            1 => 0xff,
            2 => 0xffff,
            _ => u32::MAX,
        };
        let &[control, offset, ..] = self.words().get(at..)? else { return None };
        Some(Flex { control: Control(control.unsigned() & mask), offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::TableOffset,
        format::{bytes::Endian, fde::FreType},
    };

    /// A row with these one-byte words.
    fn row(words: &[u8]) -> Fre {
        let mut bytes = [0; 17];
        bytes[1] = u8::try_from(words.len()).unwrap() << 1;
        bytes[2..][..words.len()].copy_from_slice(words);
        Fre::decode(&bytes, TableOffset(0), FreType::Addr1, Endian::Little).unwrap()
    }

    const fn flex(control: u32, offset: i32) -> Flex {
        Flex { control: Control(control), offset }
    }

    #[test]
    fn pairs_come_in_the_order_cfa_ra_fp() {
        let cfa = flex(0x33, -8);
        for (words, ra, fp) in [
            (&[0x33, 0xf8][..], None, None),
            (&[0x33, 0xf8, 0x59, 0], Some(flex(0x59, 0)), None),
            // A zero in place of the RA's pair.
            (&[0x33, 0xf8, 0, 0x33, 0], None, Some(flex(0x33, 0))),
            (&[0x33, 0xf8, 0x02, 0xe8, 0x61, 0], Some(flex(0x02, -24)), Some(flex(0x61, 0))),
            // A pair after the zero, however small its numbers are.
            (&[0x33, 0xf8, 0, 0, 0], None, Some(flex(0, 0))),
        ] {
            assert_eq!(row(words).flex(), Some(FlexRules { cfa, ra, fp }), "{words:x?}");
        }
    }

    #[test]
    fn d3_a_zero_in_place_of_a_pair_may_be_the_last_word() {
        let cfa = flex(0x39, 40);
        for (words, ra) in [
            (&[0x39, 40, 0][..], None),
            // As libsframe's own writer is given it: zeros for the RA and the FP.
            (&[0x39, 40, 0, 0], None),
            (&[0x39, 40, 0x59, 0, 0], Some(flex(0x59, 0))),
        ] {
            assert_eq!(row(words).flex(), Some(FlexRules { cfa, ra, fp: None }), "{words:x?}");
            assert!(row(words).ends_in_padding(), "{words:x?}");
        }
        for words in [
            &[0x39, 40][..],
            &[0x39, 40, 1],
            &[0x39, 40, 0x02, 0],
            &[0x39, 40, 0, 1],
            &[0x39, 40, 0, 0x33, 0],
            &[0x39, 40, 0x02, 0, 1],
            &[0x39, 40, 0x02, 0, 0x33, 0],
        ] {
            assert!(!row(words).ends_in_padding(), "{words:x?}");
        }
    }

    #[test]
    fn other_numbers_of_words_have_no_meaning() {
        for words in [
            &[][..],
            &[0x33],
            &[0x33, 0, 0x02],
            &[0x33, 0, 0, 1],          // half a pair after the zero
            &[0x33, 0, 0x02, 0, 0x33], // half a pair after the RA's
            &[0x33, 0, 0, 0x33, 0, 7], // one word too many
            &[0x33, 0, 0x02, 0, 0x33, 0, 0],
        ] {
            assert_eq!(row(words).flex(), None, "{words:x?}");
        }
    }

    #[test]
    fn control_words_are_unsigned() {
        // r31, loaded: 0xfb would be negative as a one-byte word.
        let rules = row(&[0xfb, 0x80]).flex().unwrap();
        assert_eq!(rules.cfa.control.register(), Some(31));
        assert!(rules.cfa.control.deref());
        assert_eq!(rules.cfa.offset, -128);
    }

    #[test]
    fn control_words_of_two_and_four_bytes_keep_all_their_bits() {
        for (info, word, register) in [
            (0x24, &[0x01, 0xff, 0, 0][..], 0xff01 >> 3),
            (0x44, &[0x01, 0, 0, 0xff, 0, 0, 0, 0], 0xff00_0001 >> 3),
        ] {
            let mut bytes = [0; 10];
            bytes[1] = info;
            bytes[2..][..word.len()].copy_from_slice(word);
            let fre = Fre::decode(&bytes, TableOffset(0), FreType::Addr1, Endian::Little).unwrap();
            assert_eq!(fre.flex().unwrap().cfa.control.register(), Some(register));
        }
    }

    #[test]
    fn a_control_word_comes_back_as_it_was_made() {
        for register in [None, Some(0), Some(6), Some(31)] {
            for deref in [false, true] {
                let control = Control::new(register, deref);
                assert_eq!((control.register(), control.deref()), (register, deref));
            }
        }
        assert_eq!(Control::new(Some(6), true), Control(0x33));
        assert_eq!(Control::new(None, true), Control(0x02));
        assert_eq!(Control::new(Some(11), false), Control(0x59));
    }
}
