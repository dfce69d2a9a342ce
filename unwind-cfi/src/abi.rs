//! The code that call frame information describes: its CPU, mode and byte order.

use gimli::RunTimeEndian;
use unwind_core::{BaseReg, DwarfReg, RegRule};

/// The CPU, mode and byte order of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CfiAbi {
    /// 64-bit x86 code.
    X86_64,
    /// 32-bit x86 code.
    Ia32,
    /// 64-bit ARM code, little-endian.
    Aarch64Little,
    /// 64-bit ARM code, big-endian.
    Aarch64Big,
    /// 64-bit code of IBM's mainframes.
    S390x,
}

impl CfiAbi {
    /// The registers that calls preserve, but for the frame and stack pointer. The
    /// link register comes back as the return address.
    pub(crate) const fn preserved(self) -> &'static [u8] {
        match self {
            Self::X86_64 => &[3, 12, 13, 14, 15],
            Self::Ia32 => &[3, 6, 7],
            Self::Aarch64Big | Self::Aarch64Little => &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28],
            Self::S390x => &[6, 7, 8, 9, 10, 12, 13],
        }
    }

    pub(crate) const fn endian(self) -> RunTimeEndian {
        match self {
            Self::Aarch64Big | Self::S390x => RunTimeEndian::Big,
            _ => RunTimeEndian::Little,
        }
    }

    /// The size of an address in bytes: 4 or 8.
    #[must_use]
    pub const fn address_size(self) -> u8 {
        match self {
            Self::Ia32 => 4,
            _ => 8,
        }
    }

    /// An address of the code, of which sums were taken without a bound.
    pub(crate) const fn address(self, sum: u64) -> u64 {
        match self {
            Self::Ia32 => sum & 0xffff_ffff,
            _ => sum,
        }
    }
}

/// The registers of an ABI by their DWARF numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterNumbers {
    pub(crate) sp: u8,
    pub(crate) fp: u8,
    /// The register whose rule is kept beside those of the CFA, the return address and the
    /// stack pointer: the frame pointer, unless another one is asked for.
    pub(crate) kept: u8,
    /// AArch64: a column that says whether the return address is signed.
    pub(crate) sign_state: Option<u8>,
    /// The register that calls leave the return address in. It stays there
    /// unless a rule says otherwise.
    link: Option<u8>,
    /// x86: the column of the pc. No register holds a return address that
    /// has no rule there, and expressions may use it.
    pub(crate) pc: Option<u16>,
    /// s390x: functions save SP, which is then 160 below the CFA.
    pub(crate) saves_sp: bool,
    /// Which of the registers 0 to 2, a bit each, a function saves that returns to where an exception
    /// is caught (`__builtin_eh_return`): those that pass data to there, and not the third, by which it
    /// goes there. No other function saves registers so that calls do not preserve. Zero if not known.
    pub(crate) saved_for_handlers: u8,
    /// The registers, a bit each, whose rules are taken note of whatever is kept: SP, the sign state, and of
    /// the first three whether they are saved.
    pub(crate) noted: u64,
    /// In bytes.
    pub(crate) word: u8,
}

/// The bit of a register.
#[inline]
pub(crate) const fn bit_of(register: u8) -> u64 {
    if register < 64 { 1_u64.wrapping_shl(u32::from_le_bytes([register, 0, 0, 0])) } else { 0 }
}

impl RegisterNumbers {
    pub(crate) const fn new(abi: CfiAbi) -> Self {
        let word = abi.address_size();
        let plain = Self {
            sp: 7,
            fp: 6,
            kept: 6,
            sign_state: None,
            link: None,
            pc: None,
            saves_sp: false,
            saved_for_handlers: 0,
            noted: 0b111,
            word,
        };
        let numbers = match abi {
            CfiAbi::X86_64 => Self { pc: Some(16), saved_for_handlers: 0b011, ..plain },
            CfiAbi::Ia32 => {
                Self { sp: 4, fp: 5, kept: 5, pc: Some(8), saved_for_handlers: 0b101, ..plain }
            }
            CfiAbi::Aarch64Big | CfiAbi::Aarch64Little => {
                Self { sp: 31, fp: 29, kept: 29, sign_state: Some(34), link: Some(30), ..plain }
            }
            CfiAbi::S390x => {
                Self { sp: 15, fp: 11, kept: 11, link: Some(14), saves_sp: true, ..plain }
            }
        };
        let sign_state = match numbers.sign_state {
            Some(register) => bit_of(register),
            None => 0,
        };
        Self { noted: numbers.noted | bit_of(numbers.sp) | sign_state, ..numbers }
    }

    /// The rule of a return address that is still in the register of its column.
    #[inline]
    pub(crate) fn unsaved(&self, column: u64) -> Option<RegRule> {
        if Some(column) == self.link.map(u64::from) {
            return Some(RegRule::SameValue);
        }
        let register = u16::try_from(column).ok().filter(|&register| Some(register) != self.pc)?;
        Some(RegRule::Register(self.base(register)?, 0))
    }

    /// Where a caller's stack pointer is, less the CFA.
    pub(crate) const fn sp_below_cfa(&self) -> i32 {
        if self.saves_sp { -160 } else { 0 }
    }

    /// The number of a register as rows name it.
    pub(crate) fn number(&self, base: BaseReg) -> u16 {
        match base {
            BaseReg::Sp => self.sp.into(),
            BaseReg::Fp => self.fp.into(),
            BaseReg::Reg(register) => register.0.into(),
        }
    }

    /// How rows name a register; `None` if they have no room for it.
    #[inline]
    pub(crate) fn base(&self, register: u16) -> Option<BaseReg> {
        if register == u16::from(self.sp) {
            return Some(BaseReg::Sp);
        }
        if register == u16::from(self.fp) {
            return Some(BaseReg::Fp);
        }
        match u8::try_from(register) {
            // Rows have no room for the last two.
            Ok(number @ 0..=0xfd) => Some(BaseReg::Reg(DwarfReg(number))),
            _ => None,
        }
    }
}
