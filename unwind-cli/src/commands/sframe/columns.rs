//! Rows in the notation of `readelf --sframe`.
//!
//! | text      | meaning                                                       |
//! |-----------|---------------------------------------------------------------|
//! | `sp+8`    | the stack pointer plus 8                                      |
//! | `c-16`    | saved at the CFA less 16                                      |
//! | `r10+0`   | register 10 (DWARF) plus 0                                    |
//! | `(fp-8)`  | loaded from the frame pointer less 8                          |
//! | `=c-16`   | the CFA less 16 itself                                        |
//! | `u`       | unchanged; V1: or where the ABI fixes it                      |
//! | `f`       | where the header fixes it                                     |
//! | `U`       | not said, though what follows it is                           |
//! | `[s]`     | signed                                                        |
//!
//! Where readelf is not followed: releases 2.40 to 2.47 print a negative
//! offset from a register as `sp+-128`; 2.46 and 2.47 print `=c-16` as `c-16`,
//! which is another rule; 2.44 prints a row without words, an outermost frame,
//! as `fp+-1`.

use sframe::{Abi, Error, Fde, FdeType, Flags, Flex, Fre, Header, Version};

/// The columns of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cells {
    pub(crate) cfa: String,
    pub(crate) fp: String,
    pub(crate) ra: String,
}

impl Cells {
    /// The columns of `fre`, or `None` for an outermost frame.
    ///
    /// # Errors
    ///
    /// [`Error`] if the row's words have no meaning.
    pub(crate) fn new(header: &Header, fde: &Fde, fre: &Fre) -> Result<Option<Self>, Error> {
        if fre.info.word_count() == 0 && header.version != Version::V1 {
            return Ok(None);
        }
        let mut cells = match fde.fde_type() {
            FdeType::Flexible => flexible(header, fre)?,
            _ => default(header, fre)?,
        };
        if fre.info.mangled_ra() && is_aarch64(header.abi) {
            cells.ra.push_str("[s]");
        }
        Ok(Some(cells))
    }
}

fn default(header: &Header, fre: &Fre) -> Result<Cells, Error> {
    let Some(offset) = fre.word(0) else {
        return Err(Error::BadWordCount { at: fre.at, count: 0 });
    };
    let base = if fre.info.cfa_base_is_sp() { "sp" } else { "fp" };
    let (ra, fp) = match header.fixed_ra_offset {
        Some(_) => (None, fre.word(1)),
        None => (fre.word(1), fre.word(2)),
    };
    Ok(Cells {
        cfa: format!("{base}{:+}", cfa_offset(header, offset)),
        fp: match (header.fixed_fp_offset, fp) {
            (Some(offset), _) => format!("c{offset:+}"),
            (None, None) => "u".into(),
            (None, Some(word)) => slot(header, word),
        },
        ra: match (header.fixed_ra_offset, ra) {
            // The reader of V1 knew no `f`.
            (Some(_), _) if header.version == Version::V1 => "u".into(),
            (Some(_), _) => "f".into(),
            (None, None) => "u".into(),
            (None, Some(0)) => "U".into(),
            (None, Some(word)) => slot(header, word),
        },
    })
}

/// Where a register is saved, by one word.
fn slot(header: &Header, word: i32) -> String {
    // V2 on s390x: an odd offset is a register's number.
    if (header.abi, header.version) == (Abi::S390xBig, Version::V2) && word & 1 != 0 {
        return format!("r{}", word >> 1);
    }
    format!("c{word:+}")
}

fn flexible(header: &Header, fre: &Fre) -> Result<Cells, Error> {
    let count = fre.info.word_count();
    let Some(rules) = fre.flex() else {
        return Err(Error::BadWordCount { at: fre.at, count });
    };
    if rules.cfa.control.register().is_none() {
        return Err(Error::CfaWithoutRegister(fre.at));
    }
    let offset = cfa_offset(header, rules.cfa.offset);
    Ok(Cells {
        cfa: flex(header, rules.cfa, offset),
        fp: rules.fp.map_or("u".into(), |fp| flex(header, fp, fp.offset.into())),
        ra: match rules.ra {
            Some(ra) => flex(header, ra, ra.offset.into()),
            None if count > 2 => "U".into(),
            None if header.fixed_ra_offset.is_some() => "f".into(),
            None => "u".into(),
        },
    })
}

fn flex(header: &Header, flex: Flex, offset: i64) -> String {
    match (flex.control.register(), flex.control.deref()) {
        (None, true) => format!("c{offset:+}"),
        (None, false) => format!("=c{offset:+}"),
        (Some(register), true) => format!("({}{offset:+})", name(header.abi, register)),
        (Some(register), false) => format!("{}{offset:+}", name(header.abi, register)),
    }
}

fn name(abi: Abi, register: u32) -> String {
    match (abi, register) {
        (Abi::Amd64Little, 7) | (Abi::S390xBig, 15) => "sp".into(),
        (Abi::Amd64Little, 6) | (Abi::S390xBig, 11) => "fp".into(),
        (abi, 31) if is_aarch64(abi) => "sp".into(),
        (abi, 29) if is_aarch64(abi) => "fp".into(),
        _ => format!("r{register}"),
    }
}

/// s390x counts the CFA's offset in units of 8 bytes from 160 on.
fn cfa_offset(header: &Header, word: i32) -> i64 {
    let word = i64::from(word);
    match header.abi {
        Abi::S390xBig => word.saturating_mul(8).saturating_add(160),
        _ => word,
    }
}

fn is_aarch64(abi: Abi) -> bool {
    matches!(abi, Abi::Aarch64Big | Abi::Aarch64Little)
}

/// The names of the flags that are set.
pub(crate) fn flag_names(header: &Header) -> Vec<&'static str> {
    [
        (header.flags.contains(Flags::SORTED), "SFRAME_F_FDE_SORTED"),
        (header.flags.contains(Flags::FRAME_POINTER), "SFRAME_F_FRAME_POINTER"),
        (header.flags.contains(Flags::PCREL), "SFRAME_F_FDE_FUNC_START_PCREL"),
    ]
    .into_iter()
    .filter_map(|(set, name)| set.then_some(name))
    .collect()
}

#[cfg(test)]
mod tests {
    use sframe::Table;
    use testdata::{Function, Row, TableBuilder};

    use super::*;

    /// The columns of one row, of a function with these words.
    fn cells(builder: &TableBuilder, row: Row, flexible: bool) -> Result<String, Error> {
        let function = Function::new(0, 16, vec![row]);
        let function = if flexible { function.flexible() } else { function };
        let bytes = builder.clone().function(function).build();
        let table = Table::parse(&bytes)?;
        let fde = table.fde(0)?.unwrap();
        let fre = table.fres(&fde)?.next()?.unwrap();
        Ok(match Cells::new(&table.header(), &fde, &fre)? {
            Some(Cells { cfa, fp, ra }) => format!("{cfa} {fp} {ra}"),
            None => "RA undefined".into(),
        })
    }

    #[test]
    fn default_rows_have_the_notation_of_readelf() {
        let amd64 = TableBuilder::amd64;
        let fixed_fp = TableBuilder { fixed_fp: -16, ..amd64(3) };
        let aarch64 = TableBuilder::aarch64(3, false);
        for (builder, row, expected) in [
            (&amd64(1), Row::sp(0, &[16, -16]), "sp+16 c-16 u"),
            (&amd64(2), Row::sp(0, &[8]), "sp+8 u f"),
            (&amd64(3), Row::fp(0, &[16, -16]), "fp+16 c-16 f"),
            (&amd64(2), Row::fp(0, &[]), "RA undefined"),
            (&fixed_fp, Row::sp(0, &[8]), "sp+8 c-16 f"),
            (&aarch64, Row::sp(0, &[0]), "sp+0 u u"),
            (&aarch64, Row::new(0, 0x81, &[16, -8, -16]), "sp+16 c-16 c-8[s]"),
            (&aarch64, Row::new(0, 0x81, &[0]), "sp+0 u u[s]"),
            (&aarch64, Row::sp(0, &[16, 0, -16]), "sp+16 c-16 U"),
            (&TableBuilder::s390x(3), Row::sp(0, &[20, 0, -72]), "sp+320 c-72 U"),
            (&TableBuilder::s390x(2), Row::sp(0, &[0, 33, 35]), "sp+160 r17 r16"),
        ] {
            assert_eq!(cells(builder, row.clone(), false).as_deref(), Ok(expected), "{row:?}");
        }
    }

    #[test]
    fn flexible_rows_have_the_notation_of_readelf() {
        let amd64 = TableBuilder::amd64(3);
        for (words, expected) in [
            (&[0x39, 8][..], "sp+8 u f"),
            (&[0x33, -8, 0, 0x33, 0], "(fp-8) (fp+0) U"),
            (&[0x51, 0, 0x02, -24], "r10+0 u c-24"),
            (&[0x39, 16, 0x59, 0, 0x61, 8], "sp+16 r12+8 r11+0"),
            // Zeros in place of the RA's and the FP's rule.
            (&[0x39, 16, 0], "sp+16 u U"),
            (&[0x39, 40, 0, 0], "sp+40 u U"),
            (&[0x39, 40, 0x59, 0, 0], "sp+40 u r11+0"),
            (&[], "RA undefined"),
        ] {
            assert_eq!(cells(&amd64, Row::fp(0, words), true).as_deref(), Ok(expected));
        }
        let s390x = TableBuilder::s390x(3);
        assert_eq!(cells(&s390x, Row::fp(0, &[0x79, 2]), true).unwrap(), "sp+176 u u");
    }

    #[test]
    fn the_faults_of_readelf_are_not_copied() {
        let amd64 = TableBuilder::amd64(3);
        // readelf: sp+-128
        assert_eq!(cells(&amd64, Row::sp(0, &[-128]), false).unwrap(), "sp-128 u f");
        // readelf: c+4
        let words = &[0x39, 16, 0, 0x04, 4];
        assert_eq!(cells(&amd64, Row::fp(0, words), true).unwrap(), "sp+16 =c+4 U");
    }

    #[test]
    fn rows_without_a_meaning_are_errors() {
        let none = cells(&TableBuilder::amd64(1), Row::fp(0, &[]), false);
        assert!(matches!(none, Err(Error::BadWordCount { count: 0, .. })));
        let odd = cells(&TableBuilder::amd64(3), Row::fp(0, &[0x39, 8, 2]), true);
        assert!(matches!(odd, Err(Error::BadWordCount { count: 3, .. })));
        let no_register = cells(&TableBuilder::amd64(3), Row::fp(0, &[2, 8]), true);
        assert!(matches!(no_register, Err(Error::CfaWithoutRegister(_))));
    }
}
