//! Rules as the words of a row: the inverse of `read/rules.rs`.

use crate::sign::Signed;
use unwind_core::{BaseReg, CfaRule, RegRule, Row};

use crate::{
    format::{
        bytes::Endian,
        flex::Control,
        header::{Abi, Version},
    },
    read::rules::{S390X_CFA_BIAS, S390X_CFA_SCALE, is_impossible_ra},
    write::{
        function::Format,
        lost::{OmissionReason, WriteError},
    },
};

/// A row without its start: the info byte and the words, zeros after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) bytes: [u8; Self::SIZE],
    pub(crate) len: usize,
}

impl Body {
    /// The info byte and six words of four bytes, and room to write the last
    /// of them four bytes wide whatever its size.
    pub(crate) const SIZE: usize = 28;

    /// Before the first row: what no row is equal to.
    pub(crate) const NONE: Self = Self { bytes: [0; Self::SIZE], len: 0 };
}

/// One of the most common rows, of a function of default rows: words of one or two bytes, of which
/// there are three at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortRow {
    /// Where it begins to hold.
    pub(crate) start: u32,
    /// The number of its bytes without the start.
    pub(crate) len: u8,
    /// Those bytes in the order of the section, the info byte first in the lowest place; zeros
    /// after them.
    pub(crate) bits: u64,
}

/// The words of a short row but for the first, which is the CFA's; zeros after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortRules {
    second: i32,
    third: i32,
    /// The number of words, the first one too.
    count: u8,
}

/// Which of the two kinds of functions a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Default,
    Flexible,
}

/// How rows are written for one ABI and format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoder {
    pub(crate) abi: Abi,
    pub(crate) version: Version,
    pub(crate) endian: Endian,
    /// The offset of the RA that the header says for all rows.
    pub(crate) fixed_ra: Option<i8>,
    sp: u8,
    fp: u8,
}

impl Encoder {
    pub(crate) const fn new(format: Format, abi: Abi) -> Result<Self, WriteError> {
        let (sp, fp, fixed_ra) = match abi {
            Abi::Amd64Little => (7, 6, Some(-8)),
            Abi::Aarch64Big | Abi::Aarch64Little => (31, 29, None),
            Abi::S390xBig => (15, 11, None),
            Abi::Unknown(_) => return Err(WriteError::UnknownAbi(abi)),
        };
        let Some(endian) = abi.endian() else { return Err(WriteError::UnknownAbi(abi)) };
        Ok(Self { abi, version: format.version(), endian, fixed_ra, sp, fp })
    }

    /// The row for a function of `kind`.
    #[inline]
    pub(crate) fn encode(self, kind: Kind, row: &Row) -> Result<Body, OmissionReason> {
        if row.is_outermost() {
            return Ok(Body { bytes: [0; Body::SIZE], len: 1 });
        }
        if row.other_stack_cfa().is_some() {
            return Err(OmissionReason::OtherStack);
        }
        let ra = row.ra();
        let is_sp = matches!(ra, RegRule::Register(base, _) if self.number(base) == self.sp);
        if is_sp || is_impossible_ra(self.abi, ra) {
            return Err(OmissionReason::Ra(ra));
        }
        match kind {
            Kind::Default => self.default(row),
            Kind::Flexible => self.flexible(row),
        }
    }

    /// A row of the [short form](ShortRow).
    ///
    /// `None` is no answer: [`encode`](Self::encode) has one.
    #[inline]
    pub(crate) fn encode_short(self, start: u32, row: &Row) -> Option<ShortRow> {
        self.short_row(start, row.cfa(), self.short_rules(row)?)
    }

    /// What a row of the short form says beside the CFA.
    #[inline]
    pub(crate) fn short_rules(self, row: &Row) -> Option<ShortRules> {
        if row.is_ra_signed() || self.abi == Abi::S390xBig {
            return None;
        }
        let (fp, has_fp) = match row.fp() {
            RegRule::Offset(offset) => (offset, 1),
            RegRule::SameValue => (0, 0),
            _ => return None,
        };
        let (second, third, count) = match (self.fixed_ra, row.ra()) {
            (Some(fixed), RegRule::Offset(ra)) if ra == fixed.into() => {
                (fp, 0, 1_u8.wrapping_add(has_fp))
            }
            (None, RegRule::Offset(ra)) if ra != 0 => (ra, fp, 2_u8.wrapping_add(has_fp)),
            (None, RegRule::SameValue) if has_fp == 0 => (0, 0, 1),
            _ => return None,
        };
        Some(ShortRules { second, third, count })
    }

    /// The row that says the same, with this CFA.
    #[inline]
    pub(crate) fn short_row(self, start: u32, cfa: CfaRule, rules: ShortRules) -> Option<ShortRow> {
        let CfaRule::Register(base, offset) = cfa else { return None };
        let base = match base {
            BaseReg::Sp => 1,
            BaseReg::Fp => 0,
            BaseReg::Reg(reg) if reg.0 == self.sp => 1,
            BaseReg::Reg(reg) if reg.0 == self.fp => 0,
            BaseReg::Reg(_) => return None,
        };
        let ShortRules { second, third, count } = rules;
        // Of -128 and 127 bits 0 to 6 stay.
        let folded = |word: i32| word ^ (word >> 31);
        let info = u64::from(base | count << 1);
        match folded(offset) | folded(second) | folded(third) {
            0..=0x7f => {
                let byte = |word: i32| u64::from(word.unsigned() & 0xff);
                let words = byte(offset) | byte(second) << 8 | byte(third) << 16;
                Some(ShortRow { start, len: count.wrapping_add(1), bits: info | words << 8 })
            }
            0x80..=0x7fff => {
                let half = |word: i32| {
                    let half = word.unsigned() & 0xffff;
                    u64::from(match self.endian {
                        Endian::Little => half,
                        Endian::Big => half.swap_bytes() >> 16,
                    })
                };
                let words = half(offset) | half(second) << 16 | half(third) << 32;
                let len = count.wrapping_mul(2).wrapping_add(1);
                Some(ShortRow { start, len, bits: info | 1 << 5 | words << 8 })
            }
            _ => None,
        }
    }

    /// Words: the CFA's offset; the RA's, unless the header fixes it; the FP's.
    #[inline]
    fn default(self, row: &Row) -> Result<Body, OmissionReason> {
        let CfaRule::Register(base, offset) = row.cfa() else {
            return Err(OmissionReason::CfaLoaded);
        };
        let register = self.number(base);
        if register != self.sp && register != self.fp {
            return Err(OmissionReason::CfaRegister(base));
        }
        let mut words = Words::new(u8::from(register == self.sp) | self.mark(row)?);
        words.push(self.scale(offset)?);
        let (ra, fp) = (row.ra(), row.fp());
        match self.fixed_ra {
            Some(fixed) if ra == RegRule::Offset(fixed.into()) => {}
            Some(_) => return Err(OmissionReason::Ra(ra)),
            None => match (ra, fp) {
                (RegRule::SameValue, RegRule::SameValue) => {}
                (RegRule::SameValue, _) if self.abi == Abi::S390xBig => words.push(0),
                (RegRule::SameValue, _) => return Err(OmissionReason::FpWithoutRa),
                // A zero would say that the RA is not saved.
                (RegRule::Offset(0), _) => return Err(OmissionReason::Ra(ra)),
                _ => words.push(self.slot(ra).ok_or(OmissionReason::Ra(ra))?),
            },
        }
        if fp != RegRule::SameValue {
            words.push(self.slot(fp).ok_or(OmissionReason::Fp(fp))?);
        }
        Ok(words.body(self.endian))
    }

    /// Where a register is saved. V2 on s390x has odd words for registers.
    #[inline]
    fn slot(self, rule: RegRule) -> Option<i32> {
        let names_registers = self.abi == Abi::S390xBig && self.version == Version::V2;
        match rule {
            RegRule::Offset(offset) if !names_registers || offset & 1 == 0 => Some(offset),
            RegRule::Register(base, 0) if names_registers => {
                Some(i32::from(self.number(base)) << 1 | 1)
            }
            _ => None,
        }
    }

    /// Pairs of a control word and an offset, V3 only.
    fn flexible(self, row: &Row) -> Result<Body, OmissionReason> {
        let (base, deref, offset) = match row.cfa() {
            CfaRule::Register(base, offset) => (base, false, offset),
            CfaRule::AtRegister(base, offset) => (base, true, offset),
            CfaRule::AtRegisterPlus(..) => return Err(OmissionReason::CfaLoaded),
        };
        let (ra, fp) = (row.ra(), row.fp());
        // As gas: the bit that means SP elsewhere stays clear.
        let mut words = Words::new(self.mark(row)?);
        words.pair(self.control(base, deref), self.scale(offset)?);
        let implied = match self.fixed_ra {
            Some(fixed) => RegRule::Offset(fixed.into()),
            None => RegRule::SameValue,
        };
        if ra != implied {
            // Not from the CFA, whose control word of zero says that there is no
            // RA pair.
            let (control, offset) = self.pair(ra).ok_or(OmissionReason::Ra(ra))?;
            words.pair(control, offset);
        } else if fp != RegRule::SameValue {
            words.push(0);
        }
        if fp != RegRule::SameValue {
            let (control, offset) = self.pair(fp).ok_or(OmissionReason::Fp(fp))?;
            words.pair(control, offset);
        }
        Ok(words.body(self.endian))
    }

    fn pair(self, rule: RegRule) -> Option<(Control, i32)> {
        match rule {
            RegRule::SameValue | RegRule::Undefined => None,
            RegRule::Offset(offset) => Some((Control::new(None, true), offset)),
            RegRule::ValOffset(offset) => Some((Control::new(None, false), offset)),
            RegRule::Register(base, offset) => Some((self.control(base, false), offset)),
            RegRule::AtRegister(base, offset) => Some((self.control(base, true), offset)),
        }
    }

    fn control(self, base: BaseReg, deref: bool) -> Control {
        Control::new(Some(self.number(base).into()), deref)
    }

    #[inline]
    const fn number(self, base: BaseReg) -> u8 {
        match base {
            BaseReg::Sp => self.sp,
            BaseReg::Fp => self.fp,
            BaseReg::Reg(reg) => reg.0,
        }
    }

    /// The CFA's offset in the ABI's unit.
    #[inline]
    fn scale(self, offset: i32) -> Result<i32, OmissionReason> {
        if self.abi != Abi::S390xBig {
            return Ok(offset);
        }
        let above = offset.checked_sub(S390X_CFA_BIAS).ok_or(OmissionReason::CfaScale(offset))?;
        match (above.checked_div(S390X_CFA_SCALE), above.checked_rem(S390X_CFA_SCALE)) {
            (Some(scaled), Some(0)) => Ok(scaled),
            _ => Err(OmissionReason::CfaScale(offset)),
        }
    }

    /// The mark of a signed RA.
    #[inline]
    const fn mark(self, row: &Row) -> Result<u8, OmissionReason> {
        match row.is_ra_signed() {
            false => Ok(0),
            true if self.is_aarch64() => Ok(0x80),
            true => Err(OmissionReason::SignedRa),
        }
    }

    /// Whether return addresses may be signed.
    #[inline]
    pub(crate) const fn is_aarch64(self) -> bool {
        matches!(self.abi, Abi::Aarch64Big | Abi::Aarch64Little)
    }
}

/// The words of a row, collected before their common size is known.
struct Words {
    info: u8,
    /// At most [`Fre::MAX_WORDS`](crate::Fre::MAX_WORDS) are pushed.
    words: [u32; 6],
    count: u8,
    /// Bits that are set where a word has a bit beyond one or two bytes: in
    /// control words as they are, in offsets after folding the sign away.
    extent: u32,
}

impl Words {
    #[inline]
    const fn new(info: u8) -> Self {
        Self { info, words: [0; 6], count: 0, extent: 0 }
    }

    /// Adds a signed word.
    #[inline]
    fn push(&mut self, word: i32) {
        // Of -128 and 127 bits 0 to 6 stay: seven bits and the sign.
        let folded = (word ^ (word >> 31)).unsigned();
        self.put(word.unsigned(), folded.wrapping_shl(1) | folded);
    }

    /// Adds an unsigned and a signed word.
    fn pair(&mut self, control: Control, offset: i32) {
        self.put(control.0, control.0);
        self.push(offset);
    }

    #[inline]
    fn put(&mut self, word: u32, extent: u32) {
        if let Some(slot) = self.words.get_mut(usize::from(self.count)) {
            *slot = word;
        }
        self.count = self.count.wrapping_add(1);
        self.extent |= extent;
    }

    /// The info byte and the words, in the smallest size that holds them all.
    #[inline]
    fn body(&self, endian: Endian) -> Body {
        let (code, size) = match self.extent {
            0..=0xff => (0, 1),
            0x100..=0xffff => (1, 2),
            _ => (2, 4),
        };
        let mut bytes = [0; Body::SIZE];
        let [info, tail @ ..] = &mut bytes;
        *info = self.info | self.count << 1 | code << 5;
        let mut at = 0_usize;
        for &word in self.words.iter().take(self.count.into()) {
            put(tail, at, word, size, endian);
            // Six words of four bytes at most.
            at = at.wrapping_add(size);
        }
        Body { bytes, len: at.wrapping_add(1) }
    }
}

/// Writes the low `size` bytes of `word` at `at`, and zeros after them up to
/// four bytes.
#[inline]
pub(crate) fn put(bytes: &mut [u8], at: usize, word: u32, size: usize, endian: Endian) {
    let Some(room) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<4>) else { return };
    *room = match (size, endian) {
        (1, _) => (word & 0xff).to_le_bytes(),
        (2, Endian::Little) => (word & 0xffff).to_le_bytes(),
        (2, Endian::Big) => word.wrapping_shl(16).to_be_bytes(),
        (_, Endian::Little) => word.to_le_bytes(),
        (_, Endian::Big) => word.to_be_bytes(),
    };
}
