//! A rule of an image: a row in 24 bytes.

use unwind_core::{Addend, BaseReg, CfaRule, DwarfReg, RegRule, Row};

use crate::compact::omission::CompactOmissionReason;

/// The bytes of a rule.
pub(crate) const SIZE: usize = 24;

/// A row in the form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule(pub(crate) [u8; SIZE]);

/// What a rule is, its first byte.
mod kind {
    pub(super) const ORDINARY: u8 = 1;
    pub(super) const OUTERMOST: u8 = 2;
    pub(super) const SIGNAL_CONTEXT: u8 = 3;
}

/// What of a row is no rule.
struct Mark {
    flag: u8,
    is_set: fn(&Row) -> bool,
    set: fn(Row) -> Row,
}

const MARKS: [Mark; 4] = [
    Mark { flag: 1, is_set: Row::is_signal, set: Row::with_signal },
    Mark { flag: 2, is_set: Row::is_guess, set: Row::with_guess },
    Mark { flag: 4, is_set: Row::is_eh_return, set: Row::with_eh_return },
    Mark { flag: 8, is_set: Row::is_ra_signed, set: Row::with_signed_ra },
];

/// How the frame pointer is found. The return address has the first and the third number the other
/// way round.
mod way {
    pub(super) const SAME_VALUE: u8 = 0;
    pub(super) const AT_CFA: u8 = 1;
    pub(super) const UNDEFINED: u8 = 2;
    pub(super) const CFA: u8 = 3;
    pub(super) const SP: u8 = 4;
    pub(super) const FP: u8 = 5;
    pub(super) const AT_SP: u8 = 6;
    pub(super) const AT_FP: u8 = 7;
}

impl Rule {
    /// No row.
    pub(crate) const NONE: Self = Self([0; SIZE]);

    /// The rule that says what a row does.
    pub(crate) fn new(row: &Row) -> Result<Self, CompactOmissionReason> {
        if row.needs().is_some() || row.other_stack_cfa().is_some() {
            return Err(CompactOmissionReason::OneFrame);
        }
        if row.is_outermost() {
            return Ok(Self::with([kind::OUTERMOST, 0, 0, 0, 0, 0], [0; 4]));
        }
        let flags = MARKS.iter().filter(|mark| (mark.is_set)(row));
        let flags = flags.fold(0, |flags, mark| flags | mark.flag);
        if row.is_context_only() {
            return Ok(Self::with([kind::SIGNAL_CONTEXT, 0, 0, 0, 0, flags], [0; 4]));
        }
        let (cfa, register, offset, addend) = match row.cfa() {
            CfaRule::Register(BaseReg::Sp, offset) => (1, 0, offset, 0),
            CfaRule::Register(BaseReg::Fp, offset) => (2, 0, offset, 0),
            CfaRule::Register(BaseReg::Reg(register), offset) => (5, register.0, offset, 0),
            CfaRule::AtRegister(BaseReg::Sp, offset) => (3, 0, offset, 0),
            CfaRule::AtRegister(BaseReg::Fp, offset) => (4, 0, offset, 0),
            CfaRule::AtRegisterPlus(BaseReg::Sp, offset, plus) => (3, 0, offset, plus.bytes()),
            CfaRule::AtRegisterPlus(BaseReg::Fp, offset, plus) => (4, 0, offset, plus.bytes()),
            CfaRule::AtRegister(..) | CfaRule::AtRegisterPlus(..) => {
                return Err(CompactOmissionReason::CfaRegister);
            }
        };
        let (fp, fp_offset) = way_of(row.fp()).ok_or(CompactOmissionReason::FpRegister)?;
        let (ra, ra_offset) = way_of(row.ra()).ok_or(CompactOmissionReason::RaRegister)?;
        let head = [kind::ORDINARY, cfa, fp, of_return_address(ra), register, flags];
        Ok(Self::with(head, [offset, addend, fp_offset, ra_offset]))
    }

    fn with(head: [u8; 6], numbers: [i32; 4]) -> Self {
        let [kind, cfa, fp, ra, register, flags] = head;
        let numbers = numbers.map(i32::to_le_bytes);
        let mut bytes = [0; SIZE];
        let parts = [kind, cfa, fp, ra, register, flags, 0, 0];
        let all = parts.iter().chain(numbers.as_flattened());
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        Self(bytes)
    }

    /// Whether these are the bytes of a rule, in which nothing is that no row says.
    pub(crate) fn is_good(&self) -> bool {
        *self == Self::NONE || self.row().is_some_and(|row| Self::new(&row) == Ok(*self))
    }

    /// The row that it is, if any.
    pub(crate) fn row(&self) -> Option<Row> {
        let [kind, cfa, fp, ra, register, flags, _, _, numbers @ ..] = self.0;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = numbers;
        let [offset, addend, fp_offset, ra_offset] =
            [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(i32::from_le_bytes);
        let row = match kind {
            kind::ORDINARY => {
                let cfa = match (cfa, addend) {
                    (1, _) => CfaRule::sp(offset),
                    (2, _) => CfaRule::fp(offset),
                    (3, 0) => CfaRule::AtRegister(BaseReg::Sp, offset),
                    (4, 0) => CfaRule::AtRegister(BaseReg::Fp, offset),
                    (3, _) => CfaRule::AtRegisterPlus(BaseReg::Sp, offset, Addend::new(addend)?),
                    (4, _) => CfaRule::AtRegisterPlus(BaseReg::Fp, offset, Addend::new(addend)?),
                    (5, _) => CfaRule::Register(BaseReg::Reg(DwarfReg(register)), offset),
                    _ => return None,
                };
                let ra = rule_of(of_return_address(ra), ra_offset)?;
                Row::new(cfa, ra, rule_of(fp, fp_offset)?)
            }
            kind::OUTERMOST => return Some(Row::outermost()),
            kind::SIGNAL_CONTEXT => Row::signal_context(),
            _ => return None,
        };
        let marks = MARKS.iter().filter(|mark| flags & mark.flag != 0);
        Some(marks.fold(row, |row, mark| (mark.set)(row)))
    }
}

/// The number of a rule, as the frame pointer has them, and the offset; `None` of one from another
/// register.
const fn way_of(rule: RegRule) -> Option<(u8, i32)> {
    Some(match rule {
        RegRule::SameValue => (way::SAME_VALUE, 0),
        RegRule::Undefined => (way::UNDEFINED, 0),
        RegRule::Offset(offset) => (way::AT_CFA, offset),
        RegRule::ValOffset(offset) => (way::CFA, offset),
        RegRule::Register(BaseReg::Sp, offset) => (way::SP, offset),
        RegRule::Register(BaseReg::Fp, offset) => (way::FP, offset),
        RegRule::AtRegister(BaseReg::Sp, offset) => (way::AT_SP, offset),
        RegRule::AtRegister(BaseReg::Fp, offset) => (way::AT_FP, offset),
        RegRule::Register(..) | RegRule::AtRegister(..) => return None,
    })
}

/// The inverse.
const fn rule_of(way: u8, offset: i32) -> Option<RegRule> {
    Some(match way {
        way::SAME_VALUE => RegRule::SameValue,
        way::UNDEFINED => RegRule::Undefined,
        way::AT_CFA => RegRule::Offset(offset),
        way::CFA => RegRule::ValOffset(offset),
        way::SP => RegRule::Register(BaseReg::Sp, offset),
        way::FP => RegRule::Register(BaseReg::Fp, offset),
        way::AT_SP => RegRule::AtRegister(BaseReg::Sp, offset),
        way::AT_FP => RegRule::AtRegister(BaseReg::Fp, offset),
        _ => return None,
    })
}

/// From the number that the frame pointer has to that of the return address, and back.
const fn of_return_address(way: u8) -> u8 {
    match way {
        way::SAME_VALUE => way::UNDEFINED,
        way::UNDEFINED => way::SAME_VALUE,
        other => other,
    }
}
