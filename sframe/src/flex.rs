//! Control words of flexible rows (V3).

use crate::Fre;

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

/// A control word and the offset behind it.
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
    /// the FP's pair.
    #[must_use]
    pub fn flex(&self) -> Option<FlexRules> {
        let cfa = self.pair(0)?;
        Some(match self.info.word_count() {
            2 => FlexRules { cfa, ra: None, fp: None },
            4 if self.word(2) != Some(0) => FlexRules { cfa, ra: self.pair(2), fp: None },
            5 if self.word(2) == Some(0) => FlexRules { cfa, ra: None, fp: self.pair(3) },
            6 if self.word(2) != Some(0) => FlexRules { cfa, ra: self.pair(2), fp: self.pair(4) },
            _ => return None,
        })
    }

    fn pair(&self, index: usize) -> Option<Flex> {
        // Control words are unsigned, of the row's word size.
        let mask = match self.info.word_size()? {
            1 => 0xff,
            2 => 0xffff,
            _ => u32::MAX,
        };
        let control = Control(self.word(index)?.cast_unsigned() & mask);
        let offset = self.word(index.checked_add(1)?)?;
        Some(Flex { control, offset })
    }
}
