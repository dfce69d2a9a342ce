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

use sframe::{Abi, Error, Fde, FdeKind, Flex, Fre, Header, Version};

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
        let mut cells = match fde.kind() {
            FdeKind::Flexible => flexible(header, fre)?,
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
    let fixed = if header.version == Version::V1 { "u" } else { "f" };
    Ok(Cells {
        cfa: format!("{base}{:+}", cfa_offset(header, offset)),
        fp: match (header.fixed_fp_offset, fp) {
            (Some(_), _) => fixed.into(),
            (None, None) => "u".into(),
            (None, Some(word)) => slot(header, word),
        },
        ra: match (header.fixed_ra_offset, ra) {
            (Some(_), _) => fixed.into(),
            (None, None) => "u".into(),
            (None, Some(0)) if header.abi == Abi::S390xBig => "U".into(),
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
