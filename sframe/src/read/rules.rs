//! What a row says, in the neutral terms of a walk.

use crate::sign::Signed;
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

use crate::{
    error::{Error, TableOffset},
    format::{
        fde::{Dialect, Fde, FdeEntry, FdeType},
        flex::{Control, Flex, FlexRules},
        fre::Fre,
        header::{Abi, Version},
    },
};

/// s390x: the CFA lies this many bytes above the stack pointer at a function's
/// entry, and words count from there.
pub(crate) const S390X_CFA_BIAS: i32 = 160;
/// s390x: the unit of the CFA's offset in bytes.
pub(crate) const S390X_CFA_SCALE: i32 = 8;

impl Fde {
    /// The rules of a function that has no rows at all.
    pub(crate) fn row_of_none(&self) -> Row {
        self.entry().row_of_none(self.dialect.version)
    }

    /// The rules of `fre`, one of this function's rows, to get to the caller's
    /// frame.
    ///
    /// On s390x the caller's stack pointer is the CFA less 160, everywhere else
    /// it is the CFA.
    ///
    /// # Errors
    ///
    /// [`Error`] if the ABI or the function's type is unknown, the number of
    /// words has no meaning, or the CFA does not come from a register or is out
    /// of range.
    pub fn row(&self, fre: &Fre) -> Result<Row, Error> {
        self.entry().row(self.dialect, self.at, fre)
    }
}

impl FdeEntry {
    /// The rules of a function that has no rows at all.
    pub(crate) fn row_of_none(&self, version: Version) -> Row {
        if self.is_signal(version) { Row::signal_context() } else { Row::outermost() }
    }

    /// The rules of one of its rows, in a table like this, where the entry is `at`.
    // Without an `Fde`, and in two parts: it takes less stack.
    #[inline(always)]
    pub(crate) fn row(&self, dialect: Dialect, at: TableOffset, fre: &Fre) -> Result<Row, Error> {
        match &self.rules(dialect, at, fre) {
            Ok(Some(rules)) => row_of(rules, dialect, fre)
                .map(|row| if self.is_signal(dialect.version) { row.with_signal() } else { row }),
            Ok(None) => Ok(Row::outermost()),
            Err(error) => Err(*error),
        }
    }

    /// The words of a row in the terms of a flexible one; `None` of the outermost
    /// frame.
    #[inline(never)]
    fn rules(
        &self,
        dialect: Dialect,
        at: TableOffset,
        fre: &Fre,
    ) -> Result<Option<FlexRules>, Error> {
        if let Abi::Unknown(id) = dialect.abi {
            return Err(Error::UnknownAbi(id));
        }
        let count = fre.info.word_count();
        match self.fde_type() {
            FdeType::Unknown(_) => Err(Error::UnknownFdeType { at, info2: self.info2 }),
            // V1 has no way to say that a frame is outermost.
            _ if count == 0 && dialect.version == Version::V1 => {
                Err(Error::BadWordCount { at: fre.at, count })
            }
            _ if count == 0 => Ok(None),
            FdeType::Default => Ok(Some(default_rules(dialect, fre))),
            FdeType::Flexible => {
                fre.flex().map(Some).ok_or(Error::BadWordCount { at: fre.at, count })
            }
        }
    }
}

/// The rules of a default row, in the terms of a flexible one. Its words are the
/// CFA's offset; the RA's, unless the header fixes it; the FP's.
fn default_rules(dialect: Dialect, fre: &Fre) -> FlexRules {
    let [sp, fp] = pointers(dialect.abi);
    let register = if fre.info.cfa_base_is_sp() { sp } else { fp };
    let control = Control::new(Some(register), false);
    let cfa = Flex { control, offset: fre.word(0).unwrap_or_default() };
    let (ra, fp) = match dialect.fixed_ra {
        Some(_) => (None, fre.word(1)),
        // A zero keeps the FP's place where the RA is not saved.
        None => (fre.word(1).filter(|&word| word != 0), fre.word(2)),
    };
    let fp = match dialect.fixed_fp {
        Some(offset) => Some(at_cfa(offset.into())),
        None => fp.map(|word| slot(dialect, word)),
    };
    FlexRules { cfa, ra: ra.map(|word| slot(dialect, word)), fp }
}

/// The word in memory at an offset from the CFA.
const fn at_cfa(offset: i32) -> Flex {
    Flex { control: Control::new(None, true), offset }
}

/// Where a register is saved: at an offset from the CFA or, in V2 on s390x, in
/// another register where the word is odd.
fn slot(dialect: Dialect, word: i32) -> Flex {
    let in_register = dialect.abi == Abi::S390xBig && dialect.version == Version::V2;
    if in_register && word & 1 != 0 {
        // No ABI has a register 255.
        let register = (word >> 1).unsigned().min(0xff);
        return Flex { control: Control::new(Some(register), false), offset: 0 };
    }
    at_cfa(word)
}

/// The rules of `fre` as a row, in a table like this.
#[inline(never)]
fn row_of(rules: &FlexRules, dialect: Dialect, fre: &Fre) -> Result<Row, Error> {
    let abi = dialect.abi;
    let Some(register) = rules.cfa.control.register() else {
        return Err(Error::CfaWithoutRegister(fre.at));
    };
    let offset = scale_cfa(abi, rules.cfa.offset).ok_or(Error::CfaOffsetOverflow(fre.at))?;
    let cfa = match rules.cfa.control.deref() {
        true => CfaRule::AtRegister(base(abi, register), offset),
        false => CfaRule::Register(base(abi, register), offset),
    };
    let ra = match (rules.ra, dialect.fixed_ra) {
        (Some(flex), _) => Some(flex),
        (None, Some(offset)) => Some(at_cfa(offset.into())),
        (None, None) => None,
    };
    let row = Row::new(cfa, reg_rule(abi, ra), reg_rule(abi, rules.fp));
    let is_signed = fre.info.mangled_ra() && abi.is_aarch64();
    Ok(if is_signed { row.with_signed_ra() } else { row })
}

/// Whether no call leaves its return address where a rule says: a row with it
/// would make up a pc.
pub(crate) fn is_impossible_ra(abi: Abi, rule: RegRule) -> bool {
    match rule {
        RegRule::Register(BaseReg::Sp, _) | RegRule::ValOffset(_) => true,
        // Everywhere else calls leave it in a register.
        RegRule::SameValue => abi == Abi::Amd64Little,
        _ => false,
    }
}

/// The rule of a register that is found so, or unchanged.
// Out of line: it is used often, and fast nowhere.
#[inline(never)]
fn reg_rule(abi: Abi, flex: Option<Flex>) -> RegRule {
    let Some(Flex { control, offset }) = flex else { return RegRule::SameValue };
    match (control.register().map(|register| base(abi, register)), control.deref()) {
        (None, false) => RegRule::ValOffset(offset),
        (None, true) => RegRule::Offset(offset),
        (Some(base), false) => RegRule::Register(base, offset),
        (Some(base), true) => RegRule::AtRegister(base, offset),
    }
}

fn scale_cfa(abi: Abi, offset: i32) -> Option<i32> {
    match abi {
        Abi::S390xBig => offset.checked_mul(S390X_CFA_SCALE)?.checked_add(S390X_CFA_BIAS),
        _ => Some(offset),
    }
}

/// The DWARF numbers of the stack pointer and the frame pointer.
const fn pointers(abi: Abi) -> [u32; 2] {
    match abi {
        Abi::Aarch64Big | Abi::Aarch64Little => [31, 29],
        Abi::S390xBig => [15, 11],
        Abi::Amd64Little | Abi::Unknown(_) => [7, 6],
    }
}

/// A register by its DWARF number, or by its neutral name if it has one.
#[inline]
fn base(abi: Abi, register: u32) -> BaseReg {
    let [sp, fp] = pointers(abi);
    if register == sp {
        BaseReg::Sp
    } else if register == fp {
        BaseReg::Fp
    } else {
        // No ABI has a register 255: the walk will say that it is not known.
        BaseReg::Reg(DwarfReg(u8::try_from(register).unwrap_or(u8::MAX)))
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::format;

    use testdata::{Function, Row as Words, TableBuilder};
    use unwind_core::Origin;

    use super::*;
    use crate::read::table::Table;

    const RAX: BaseReg = BaseReg::Reg(DwarfReg(0));

    /// The rules of a function of one row, in a table like `builder`.
    fn rules(builder: &TableBuilder, function: Function) -> Result<Row, Error> {
        let bytes = builder.clone().function(function).build();
        Table::parse(&bytes)?.find(0x1000)?.unwrap().row()
    }

    fn default(builder: &TableBuilder, row: Words) -> Result<Row, Error> {
        rules(builder, Function::new(0x1000, 16, [row].into()))
    }

    fn flexible(builder: &TableBuilder, words: &[i32]) -> Result<Row, Error> {
        rules(builder, Function::new(0x1000, 16, [Words::fp(0, words)].into()).flexible())
    }

    #[test]
    fn amd64_saves_the_ra_where_the_header_says() {
        for version in [1, 2, 3] {
            let amd64 = TableBuilder::amd64(version);
            let row = default(&amd64, Words::sp(0, &[16])).unwrap();
            assert_eq!(row, Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue));
            assert_eq!(row.origin(), Origin::Table);
            let row = default(&amd64, Words::fp(0, &[16, -16])).unwrap();
            assert_eq!(row, Row::new(CfaRule::fp(16), RegRule::Offset(-8), RegRule::Offset(-16)));
            // Not by the ABI.
            let other = TableBuilder { fixed_ra: -24, ..amd64 };
            let row = default(&other, Words::sp(0, &[16])).unwrap();
            assert_eq!(row.ra(), RegRule::Offset(-24));
        }
    }

    #[test]
    fn aarch64_saves_the_ra_first_and_the_fp_second() {
        for (version, big) in [(1, false), (2, true), (3, false), (3, true)] {
            let aarch64 = TableBuilder::aarch64(version, big);
            for (words, ra, fp) in [
                (&[32][..], RegRule::SameValue, RegRule::SameValue),
                (&[32, -24], RegRule::Offset(-24), RegRule::SameValue),
                (&[32, -24, -32], RegRule::Offset(-24), RegRule::Offset(-32)),
                // Zero is not a place: it keeps the FP's.
                (&[32, 0, -32], RegRule::SameValue, RegRule::Offset(-32)),
            ] {
                let row = default(&aarch64, Words::sp(0, words)).unwrap();
                assert_eq!(row, Row::new(CfaRule::sp(32), ra, fp), "v{version} {words:?}");
            }
        }
    }

    #[test]
    fn a_signed_ra_is_marked_on_aarch64_only() {
        let signed = |builder: &TableBuilder| {
            default(builder, Words::new(0, 0x81, &[16])).unwrap().is_ra_signed()
        };
        assert!(signed(&TableBuilder::aarch64(2, false)));
        assert!(signed(&TableBuilder::aarch64(3, true)));
        assert!(!signed(&TableBuilder::amd64(3)));
        assert!(!signed(&TableBuilder::s390x(3)));
    }

    #[test]
    fn a_fixed_fp_offset_overrides_the_rows() {
        let fixed = TableBuilder { fixed_fp: -16, ..TableBuilder::amd64(2) };
        for words in [&[16][..], &[16, -32]] {
            let row = default(&fixed, Words::sp(0, words)).unwrap();
            assert_eq!(row.fp(), RegRule::Offset(-16));
        }
    }

    #[test]
    fn s390x_scales_the_cfa_and_skips_an_ra_of_zero() {
        for version in [2, 3] {
            let s390x = TableBuilder::s390x(version);
            let row = default(&s390x, Words::sp(0, &[20, -48, -72])).unwrap();
            assert_eq!(row, Row::new(CfaRule::sp(320), RegRule::Offset(-48), RegRule::Offset(-72)));
            let row = default(&s390x, Words::sp(0, &[0, 0, -72])).unwrap();
            assert_eq!(row, Row::new(CfaRule::sp(160), RegRule::SameValue, RegRule::Offset(-72)));
        }
    }

    #[test]
    fn s390x_cfa_offsets_beyond_32_bits_are_refused() {
        let s390x = TableBuilder::s390x(3);
        let fits = (i32::MAX - 160) / 8;
        assert!(default(&s390x, Words::sp(0, &[fits])).is_ok());
        for offset in [fits + 1, i32::MAX, i32::MIN] {
            let error = default(&s390x, Words::sp(0, &[offset])).unwrap_err();
            assert!(matches!(error, Error::CfaOffsetOverflow(_)), "{offset}: {error}");
        }
    }

    #[test]
    fn odd_offsets_name_registers_in_v2_on_s390x_only() {
        let f0 = RegRule::Register(BaseReg::Reg(DwarfReg(16)), 0);
        let f2 = RegRule::Register(BaseReg::Reg(DwarfReg(17)), 0);
        let row = default(&TableBuilder::s390x(2), Words::sp(0, &[0, 33, 35])).unwrap();
        assert_eq!((row.ra(), row.fp()), (f0, f2));
        let row = default(&TableBuilder::s390x(3), Words::sp(0, &[0, 33, 35])).unwrap();
        assert_eq!((row.ra(), row.fp()), (RegRule::Offset(33), RegRule::Offset(35)));
        let row = default(&TableBuilder::aarch64(2, false), Words::sp(0, &[0, 33])).unwrap();
        assert_eq!(row.ra(), RegRule::Offset(33));
    }

    #[test]
    fn flexible_rules_start_from_any_register_or_the_cfa() {
        let amd64 = TableBuilder::amd64(3);
        let saved = RegRule::Offset(-8);
        for (words, expected) in [
            // CFA = *(rbp-8)
            (
                &[0x33, -8][..],
                Row::new(CfaRule::AtRegister(BaseReg::Fp, -8), saved, RegRule::SameValue),
            ),
            // CFA = r10, FP = *(rbp+0)
            (
                &[0x51, 0, 0, 0x33, 0],
                Row::new(
                    CfaRule::Register(BaseReg::Reg(DwarfReg(10)), 0),
                    saved,
                    RegRule::AtRegister(BaseReg::Fp, 0),
                ),
            ),
            // CFA = rsp+16, RA = *(CFA-24)
            (
                &[0x39, 16, 0x02, -24],
                Row::new(CfaRule::sp(16), RegRule::Offset(-24), RegRule::SameValue),
            ),
            // RA = r11, FP = r12+8
            (
                &[0x39, 16, 0x59, 0, 0x61, 8],
                Row::new(
                    CfaRule::sp(16),
                    RegRule::Register(BaseReg::Reg(DwarfReg(11)), 0),
                    RegRule::Register(BaseReg::Reg(DwarfReg(12)), 8),
                ),
            ),
            // RA = *(rax-4), FP = CFA+4
            (
                &[0x39, 16, 0x03, -4, 0x04, 4],
                Row::new(CfaRule::sp(16), RegRule::AtRegister(RAX, -4), RegRule::ValOffset(4)),
            ),
        ] {
            assert_eq!(flexible(&amd64, words), Ok(expected), "{words:?}");
        }
    }

    #[test]
    fn flexible_rows_without_an_ra_keep_it_on_cpus_with_a_link_register() {
        let row = flexible(&TableBuilder::s390x(3), &[0x79, 20]).unwrap();
        assert_eq!(row, Row::new(CfaRule::sp(320), RegRule::SameValue, RegRule::SameValue));
    }

    #[test]
    fn flexible_rows_on_s390x_scale_the_cfa_only() {
        let row = flexible(&TableBuilder::s390x(3), &[0x59, 0, 0x02, -48, 0x02, -72]).unwrap();
        assert_eq!(row, Row::new(CfaRule::fp(160), RegRule::Offset(-48), RegRule::Offset(-72)));
    }

    #[test]
    fn a_flexible_cfa_has_to_come_from_a_register() {
        for control in [0x00, 0x02, 0x30] {
            let error = flexible(&TableBuilder::amd64(3), &[control, 8]).unwrap_err();
            assert!(matches!(error, Error::CfaWithoutRegister(_)), "{control:#x}: {error}");
        }
    }

    #[test]
    fn a_register_that_no_cpu_has_stays_one() {
        let unknown = CfaRule::Register(BaseReg::Reg(DwarfReg(0xff)), 0);
        let row = flexible(&TableBuilder::amd64(3), &[0x7ff9, 0]).unwrap();
        assert_eq!(row, Row::new(unknown, RegRule::Offset(-8), RegRule::SameValue));
    }

    #[test]
    fn flexible_rows_of_other_lengths_are_refused() {
        for (words, count) in [(&[0x39][..], 1), (&[0x39, 8, 0x02], 3), (&[0x39, 8, 0, 1], 4)] {
            let error = flexible(&TableBuilder::amd64(3), words).unwrap_err();
            assert!(
                matches!(error, Error::BadWordCount { count: found, .. } if found == count),
                "{error}"
            );
        }
    }

    #[test]
    fn no_words_are_the_outermost_frame_from_v2_on() {
        for builder in [
            TableBuilder::amd64(2),
            TableBuilder::amd64(3),
            TableBuilder::aarch64(3, true),
            TableBuilder::s390x(2),
        ] {
            let row = default(&builder, Words::fp(0, &[])).unwrap();
            assert!(row.is_outermost());
        }
        assert!(flexible(&TableBuilder::amd64(3), &[]).unwrap().is_outermost());
        let error = default(&TableBuilder::amd64(1), Words::fp(0, &[])).unwrap_err();
        assert!(matches!(error, Error::BadWordCount { count: 0, .. }), "{error}");
    }

    #[test]
    fn signal_frames_are_marked() {
        let amd64 = TableBuilder::amd64(3);
        let function = Function::new(0x1000, 16, [Words::sp(0, &[16])].into()).signal();
        let row = rules(&amd64, function).unwrap();
        assert!(row.is_signal() && !row.is_context_only());
        assert_eq!(row.cfa(), CfaRule::sp(16));
    }

    #[test]
    fn no_rows_at_all_are_the_outermost_frame_or_a_bare_signal_frame() {
        let amd64 = TableBuilder::amd64(3);
        let bare = Function::new(0x1000, 16, [].into());
        assert_eq!(rules(&amd64, bare.clone()), Ok(Row::outermost()));
        assert_eq!(rules(&amd64, bare.signal()), Ok(Row::signal_context()));
    }

    #[test]
    fn rows_of_an_unknown_abi_are_not_used() {
        let unknown = TableBuilder { abi: 9, ..TableBuilder::amd64(2) };
        assert_eq!(default(&unknown, Words::sp(0, &[8])), Err(Error::UnknownAbi(9)));
    }

    #[test]
    fn surplus_words_are_ignored() {
        let row = default(&TableBuilder::amd64(2), Words::sp(0, &[16, -16, 1, 2, 3, 4, 5, 6]));
        let expected = Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::Offset(-16));
        assert_eq!(row, Ok(expected));
    }

    #[test]
    fn errors_say_where_in_hexadecimal() {
        let error = Error::CfaWithoutRegister(crate::TableOffset(0x1c));
        assert_eq!(
            format!("{error}"),
            ".sframe+0x1c: the cfa of the row is not computed from a register"
        );
    }
}
