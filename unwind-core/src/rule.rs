//! How the CFA and the registers of the caller are found.

use core::fmt;

use crate::register::BaseReg;

/// How the CFA is found: the value that the stack pointer had in the caller
/// just before its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CfaRule {
    /// The register's value plus an offset in bytes.
    Register(BaseReg, i32),
    /// The word in memory at the register's value plus an offset in bytes.
    AtRegister(BaseReg, i32),
    /// That word, and what is added to it: code that has aligned its stack, or has changed to
    /// another one, keeps the stack pointer that it had.
    AtRegisterPlus(BaseReg, i32, Addend),
}

/// What is added to a word that was loaded: a few stack slots, which a [`Row`](crate::Row) has
/// room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addend(pub(crate) i8);

impl Addend {
    /// This many bytes; `None` but for multiples of 4 from -64 to 60.
    #[must_use]
    pub const fn new(bytes: i32) -> Option<Self> {
        if bytes % 4 != 0 || bytes < -64 || bytes > 60 {
            return None;
        }
        let [low, ..] = bytes.to_le_bytes();
        Some(Self(i8::from_ne_bytes([low])))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> i32 {
        let [low] = self.0.to_ne_bytes();
        // The sign of the low byte is that of the whole.
        let high = if self.0 < 0 { 0xff } else { 0 };
        i32::from_le_bytes([low, high, high, high])
    }
}

/// A CFA that no [`CfaRule`] says, found by one load or two: `*(base + offset) + plus`, or
/// `*(*(base + offset) + between) + plus`. Code that runs on several stacks, such as OCaml's, keeps the
/// way back to another one so. All in bytes.
///
/// ```
/// use unwind_core::{BaseReg, CfaLoads};
///
/// let loads = CfaLoads { base: BaseReg::Sp, offset: 56, between: Some(0), plus: 8 };
/// let words = [(0x7038, 0x9000), (0x9000, 0x9a00)];
/// let load = |at| words.iter().find(|(addr, _)| *addr == at).map(|(_, word)| *word);
/// assert_eq!(loads.cfa(0x7000, load), Some(0x9a08));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CfaLoads {
    /// The register.
    pub base: BaseReg,
    /// What is added to its value.
    pub offset: i32,
    /// What is added to the first word, if there is a second one.
    pub between: Option<i16>,
    /// What is added to the last word.
    pub plus: i32,
}

impl CfaLoads {
    /// The CFA, where the register has the value `base` and `load` reads a word of the program; `None` if
    /// that cannot be read.
    pub fn cfa(&self, base: u64, mut load: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let mut word = load(base.wrapping_add_signed(self.offset.into()))?;
        if let Some(between) = self.between {
            word = load(word.wrapping_add_signed(between.into()))?;
        }
        Some(word.wrapping_add_signed(self.plus.into()))
    }
}

impl CfaRule {
    /// The stack pointer plus `offset` bytes.
    #[must_use]
    pub const fn sp(offset: i32) -> Self {
        Self::Register(BaseReg::Sp, offset)
    }

    /// The frame pointer plus `offset` bytes.
    #[must_use]
    pub const fn fp(offset: i32) -> Self {
        Self::Register(BaseReg::Fp, offset)
    }
}

/// How a register of the caller is found.
///
/// The names are those of DWARF's register rules (DWARF 5, section 6.4.1), with an
/// offset also where a rule starts from a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegRule {
    /// Unchanged: the register still has the caller's value. For a return
    /// address: the link register has it, on CPUs with one.
    SameValue,
    /// Not recoverable. For a return address: this is the outermost frame.
    Undefined,
    /// The word in memory at the CFA plus an offset in bytes.
    Offset(i32),
    /// The CFA plus an offset in bytes.
    ValOffset(i32),
    /// A register's value plus an offset in bytes. For a return address: not the
    /// stack pointer's, and only where all registers are known.
    Register(BaseReg, i32),
    /// The word in memory at a register's value plus an offset in bytes.
    AtRegister(BaseReg, i32),
}

impl fmt::Display for CfaRule {
    /// As `sp+16`; in brackets if it is the word in memory there; `[sp+16]+8` with what is added.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(base, offset) => write!(f, "{base}{offset:+}"),
            Self::AtRegister(base, offset) => write!(f, "[{base}{offset:+}]"),
            Self::AtRegisterPlus(base, offset, plus) => {
                write!(f, "[{base}{offset:+}]{:+}", plus.bytes())
            }
        }
    }
}

impl fmt::Display for RegRule {
    /// As `[CFA-8]`; `same value` and `undefined` as DWARF has them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameValue => f.write_str("same value"),
            Self::Undefined => f.write_str("undefined"),
            Self::Offset(offset) => write!(f, "[CFA{offset:+}]"),
            Self::ValOffset(offset) => write!(f, "CFA{offset:+}"),
            Self::Register(base, offset) => write!(f, "{base}{offset:+}"),
            Self::AtRegister(base, offset) => write!(f, "[{base}{offset:+}]"),
        }
    }
}
