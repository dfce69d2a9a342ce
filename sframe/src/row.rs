//! What a row says, in the neutral terms of a walk.

use unwind_core::{Base, CfaRule, DwarfReg, RegRule, Row};

use crate::{Abi, Error, Fde, FdeKind, Flex, Found, Fre, Version};

/// s390x: the CFA lies this many bytes above the stack pointer at a function's
/// entry, and words count from there.
const S390X_CFA_BIAS: i32 = 160;
/// s390x: the unit of the CFA's offset in bytes.
const S390X_CFA_SCALE: i32 = 8;

impl Found {
    /// The rules to get to the caller's frame.
    ///
    /// On s390x the caller's stack pointer is the CFA less 160, everywhere else
    /// it is the CFA.
    ///
    /// # Errors
    ///
    /// [`Error`] if the ABI is unknown, the number of words has no meaning, or
    /// the CFA does not come from a register or is out of range.
    #[inline]
    pub fn row(&self) -> Result<Row, Error> {
        let row = match &self.fre {
            Some(fre) => fre_row(&self.fde, fre)?,
            None if self.fde.is_signal() => return Ok(Row::signal_context()),
            None => return Ok(Row::outermost()),
        };
        Ok(if self.fde.is_signal() && !row.is_outermost() { row.with_signal() } else { row })
    }
}

fn fre_row(fde: &Fde, fre: &Fre) -> Result<Row, Error> {
    let abi = fde.dialect.abi;
    if let Abi::Unknown(id) = abi {
        return Err(Error::UnknownAbi(id));
    }
    // V1 has no way to say it.
    if fre.info.word_count() == 0 && fde.dialect.version != Version::V1 {
        return Ok(Row::outermost());
    }
    let row = match fde.kind() {
        FdeKind::Default => default_row(fde, fre)?,
        FdeKind::Flexible => flexible_row(fde, fre)?,
        FdeKind::Unknown(_) => {
            return Err(Error::UnknownFdeType { at: fde.at, info2: fde.info2 });
        }
    };
    let signed = fre.info.mangled_ra() && matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little);
    Ok(if signed { row.with_signed_ra() } else { row })
}

/// Words: the CFA's offset; the RA's, unless the header fixes it; the FP's.
#[inline]
fn default_row(fde: &Fde, fre: &Fre) -> Result<Row, Error> {
    let dialect = &fde.dialect;
    let Some(cfa_offset) = fre.word(0) else {
        return Err(Error::BadWordCount { at: fre.at, count: 0 });
    };
    let base = if fre.info.cfa_base_is_sp() { Base::Sp } else { Base::Fp };
    let cfa = CfaRule::Offset(base, scale_cfa(dialect.abi, fre, cfa_offset)?);

    let slot = |word: Option<i32>| match word {
        None => RegRule::Same,
        Some(word) => slot_rule(fde, word),
    };
    let (ra, fp_word) = match dialect.fixed_ra {
        Some(offset) => (RegRule::AtCfa(offset.into()), fre.word(1)),
        None => {
            // A zero keeps the FP's place where the RA is not saved.
            let padding = dialect.abi == Abi::S390xBig;
            (slot(fre.word(1).filter(|&word| !(padding && word == 0))), fre.word(2))
        }
    };
    let fp = match dialect.fixed_fp {
        Some(offset) => RegRule::AtCfa(offset.into()),
        None => slot(fp_word),
    };
    Ok(Row::new(cfa, ra, fp))
}

/// Where a register is saved: at an offset from the CFA or, in V2 on s390x, in
/// another register where the word is odd.
#[inline]
fn slot_rule(fde: &Fde, word: i32) -> RegRule {
    let in_register = fde.dialect.abi == Abi::S390xBig && fde.dialect.version == Version::V2;
    if in_register && word & 1 != 0 {
        return RegRule::Reg(base(Abi::S390xBig, (word >> 1).cast_unsigned()), 0);
    }
    RegRule::AtCfa(word)
}

/// Pairs of a control word and an offset.
fn flexible_row(fde: &Fde, fre: &Fre) -> Result<Row, Error> {
    let abi = fde.dialect.abi;
    let Some(rules) = fre.flex() else {
        return Err(Error::BadWordCount { at: fre.at, count: fre.info.word_count() });
    };
    let Some(register) = rules.cfa.control.register() else {
        return Err(Error::CfaWithoutRegister(fre.at));
    };
    let offset = scale_cfa(abi, fre, rules.cfa.offset)?;
    let cfa = match rules.cfa.control.deref() {
        true => CfaRule::Deref(base(abi, register), offset),
        false => CfaRule::Offset(base(abi, register), offset),
    };
    let ra = match (rules.ra, fde.dialect.fixed_ra) {
        (Some(flex), _) => flex_rule(abi, flex),
        (None, Some(offset)) => RegRule::AtCfa(offset.into()),
        (None, None) => RegRule::Same,
    };
    let fp = rules.fp.map_or(RegRule::Same, |flex| flex_rule(abi, flex));
    Ok(Row::new(cfa, ra, fp))
}

fn flex_rule(abi: Abi, Flex { control, offset }: Flex) -> RegRule {
    match (control.register(), control.deref()) {
        (None, false) => RegRule::Cfa(offset),
        (None, true) => RegRule::AtCfa(offset),
        (Some(register), false) => RegRule::Reg(base(abi, register), offset),
        (Some(register), true) => RegRule::AtReg(base(abi, register), offset),
    }
}

#[inline]
fn scale_cfa(abi: Abi, fre: &Fre, offset: i32) -> Result<i32, Error> {
    if abi != Abi::S390xBig {
        return Ok(offset);
    }
    offset
        .checked_mul(S390X_CFA_SCALE)
        .and_then(|offset| offset.checked_add(S390X_CFA_BIAS))
        .ok_or(Error::CfaOffsetOverflow(fre.at))
}

/// A register by its DWARF number, or by its neutral name if it has one.
fn base(abi: Abi, register: u32) -> Base {
    match (abi, register) {
        (Abi::Amd64Little, 7) | (Abi::Aarch64Big | Abi::Aarch64Little, 31) => Base::Sp,
        (Abi::Amd64Little, 6) | (Abi::Aarch64Big | Abi::Aarch64Little, 29) => Base::Fp,
        (Abi::S390xBig, 15) => Base::Sp,
        (Abi::S390xBig, 11) => Base::Fp,
        // No ABI has a register 255: the walk will say that it is not known.
        _ => Base::Reg(DwarfReg(u8::try_from(register).unwrap_or(u8::MAX))),
    }
}
