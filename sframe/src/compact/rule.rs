//! A rule of an image: a row in 24 bytes.

use unwind_core::{Addend, BaseReg, CfaLoads, CfaRule, DwarfReg, RegRule, Row};

use crate::compact::{omission::CompactOmissionReason, rbx::Rbx};

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

/// How the CFA is found.
mod base {
    pub(super) const SP: u8 = 1;
    pub(super) const FP: u8 = 2;
    pub(super) const AT_SP: u8 = 3;
    pub(super) const AT_FP: u8 = 4;
    pub(super) const REGISTER: u8 = 5;
    pub(super) const TWICE_AT_SP: u8 = 6;
    pub(super) const TWICE_AT_FP: u8 = 7;
}

/// What a rule has of the CFA.
#[derive(Clone, Copy)]
struct Cfa {
    base: u8,
    register: u8,
    offset: i32,
    between: i16,
    plus: i32,
}

impl Cfa {
    fn of_rule(rule: CfaRule) -> Result<Self, CompactOmissionReason> {
        let (base, register, offset, plus) = match rule {
            CfaRule::Register(BaseReg::Sp, offset) => (base::SP, 0, offset, 0),
            CfaRule::Register(BaseReg::Fp, offset) => (base::FP, 0, offset, 0),
            CfaRule::Register(BaseReg::Reg(register), offset) => {
                (base::REGISTER, register.0, offset, 0)
            }
            CfaRule::AtRegister(base, offset) => {
                return Self::of_loads(CfaLoads { base, offset, between: None, plus: 0 });
            }
            CfaRule::AtRegisterPlus(base, offset, plus) => {
                let plus = plus.bytes();
                return Self::of_loads(CfaLoads { base, offset, between: None, plus });
            }
        };
        Ok(Self { base, register, offset, between: 0, plus })
    }

    fn of_loads(loads: CfaLoads) -> Result<Self, CompactOmissionReason> {
        let base = match (loads.base, loads.between) {
            (BaseReg::Sp, None) => base::AT_SP,
            (BaseReg::Fp, None) => base::AT_FP,
            (BaseReg::Sp, Some(_)) => base::TWICE_AT_SP,
            (BaseReg::Fp, Some(_)) => base::TWICE_AT_FP,
            (BaseReg::Reg(_), _) => return Err(CompactOmissionReason::CfaRegister),
        };
        let between = loads.between.unwrap_or_default();
        Ok(Self { base, register: 0, offset: loads.offset, between, plus: loads.plus })
    }

    /// The inverses: only one of them has an answer.
    fn rule(self) -> Option<CfaRule> {
        Some(match self.base {
            base::SP => CfaRule::sp(self.offset),
            base::FP => CfaRule::fp(self.offset),
            base::REGISTER => CfaRule::Register(BaseReg::Reg(DwarfReg(self.register)), self.offset),
            _ => rule_of_loads(self.any_loads()?)?,
        })
    }

    fn loads(self) -> Option<CfaLoads> {
        self.any_loads().filter(|loads| rule_of_loads(*loads).is_none())
    }

    fn any_loads(self) -> Option<CfaLoads> {
        let (base, between) = match self.base {
            base::AT_SP => (BaseReg::Sp, None),
            base::AT_FP => (BaseReg::Fp, None),
            base::TWICE_AT_SP => (BaseReg::Sp, Some(self.between)),
            base::TWICE_AT_FP => (BaseReg::Fp, Some(self.between)),
            _ => return None,
        };
        Some(CfaLoads { base, offset: self.offset, between, plus: self.plus })
    }
}

/// The rule of a row that says the same, if there is one.
fn rule_of_loads(loads: CfaLoads) -> Option<CfaRule> {
    let CfaLoads { base, offset, between: None, plus } = loads else { return None };
    Some(match plus {
        0 => CfaRule::AtRegister(base, offset),
        _ => CfaRule::AtRegisterPlus(base, offset, Addend::new(plus)?),
    })
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
            return Ok(Self::with([kind::OUTERMOST, 0, 0, 0, 0, 0], 0, [0; 4]));
        }
        if row.is_context_only() {
            let head = [kind::SIGNAL_CONTEXT, 0, 0, 0, 0, flags(row)];
            return Ok(Self::with(head, 0, [0; 4]));
        }
        Self::ordinary(row, Cfa::of_rule(row.cfa())?)
    }

    /// The same with a CFA that is found by loads, whatever the row says of it.
    pub(crate) fn by_loads(row: &Row, loads: CfaLoads) -> Result<Self, CompactOmissionReason> {
        let by_row = rule_of_loads(loads);
        let rule = Self::new(&row.with_cfa(by_row.unwrap_or(CfaRule::sp(0))))?;
        match by_row.is_none() && rule.is_ordinary() {
            true => Self::ordinary(row, Cfa::of_loads(loads)?),
            false => Ok(rule),
        }
    }

    fn ordinary(row: &Row, cfa: Cfa) -> Result<Self, CompactOmissionReason> {
        let (fp, fp_offset) = way_of(row.fp()).ok_or(CompactOmissionReason::FpRegister)?;
        let (ra, ra_offset) = way_of(row.ra()).ok_or(CompactOmissionReason::RaRegister)?;
        let ra = of_return_address(ra);
        let head = [kind::ORDINARY, cfa.base, fp, ra, cfa.register, flags(row)];
        Ok(Self::with(head, cfa.between, [cfa.offset, cfa.plus, fp_offset, ra_offset]))
    }

    fn with(head: [u8; 6], between: i16, numbers: [i32; 4]) -> Self {
        let (between, numbers) = (between.to_le_bytes(), numbers.map(i32::to_le_bytes));
        let mut bytes = [0; SIZE];
        let all = head.iter().chain(&between).chain(numbers.as_flattened());
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        Self(bytes)
    }

    /// The same where the caller's rbx is found so. An outermost frame, a signal context and a rule whose CFA is
    /// found from a register do not say it.
    pub(crate) fn with_rbx(mut self, rbx: Rbx) -> Self {
        match &mut self.0 {
            [kind::ORDINARY, base, _, _, place, ..] if *base != base::REGISTER => *place = rbx.0,
            _ => {}
        }
        self
    }

    /// Where the caller's rbx is.
    pub(crate) const fn rbx(&self) -> Rbx {
        match self.0 {
            [kind::ORDINARY, base, _, _, place, ..] if base != base::REGISTER => Rbx(place),
            _ => Rbx::UNKNOWN,
        }
    }

    const fn is_ordinary(&self) -> bool {
        matches!(self.0, [kind::ORDINARY, ..])
    }

    /// Whether these are the bytes of a rule, in which nothing is that it does not say.
    pub(crate) fn is_good(&self) -> bool {
        let without_rbx = Ok(self.with_rbx(Rbx::UNKNOWN));
        let by_row = || Some(Self::new(&self.row()?) == without_rbx);
        let by_loads = || {
            let (row, loads) = self.loads()?;
            Some(Self::by_loads(&row, loads) == without_rbx)
        };
        *self == Self::NONE || by_row().or_else(by_loads).unwrap_or(false)
    }

    /// The row that it is, if any.
    pub(crate) fn row(&self) -> Option<Row> {
        let [kind, _, _, _, _, flags, ..] = self.0;
        match kind {
            kind::ORDINARY => {
                let (row, cfa) = self.parts()?;
                Some(row.with_cfa(cfa.rule()?))
            }
            kind::OUTERMOST => Some(Row::outermost()),
            kind::SIGNAL_CONTEXT => Some(marked(Row::signal_context(), flags)),
            _ => None,
        }
    }

    /// The loads by which it finds the CFA, where no row says so, and a row of what it says else.
    pub(crate) fn loads(&self) -> Option<(Row, CfaLoads)> {
        let (row, cfa) = self.parts().filter(|_| self.is_ordinary())?;
        Some((row, cfa.loads()?))
    }

    /// What an ordinary rule says of the CFA, and a row of what it says else.
    fn parts(&self) -> Option<(Row, Cfa)> {
        let [_, base, fp, ra, register, flags, low, high, numbers @ ..] = self.0;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = numbers;
        let [offset, plus, fp_offset, ra_offset] =
            [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(i32::from_le_bytes);
        let ra = rule_of(of_return_address(ra), ra_offset)?;
        let row = Row::new(CfaRule::sp(0), ra, rule_of(fp, fp_offset)?);
        let between = i16::from_le_bytes([low, high]);
        Some((marked(row, flags), Cfa { base, register, offset, between, plus }))
    }
}

/// The marks of a row, a bit each.
fn flags(row: &Row) -> u8 {
    let marks = MARKS.iter().filter(|mark| (mark.is_set)(row));
    marks.fold(0, |flags, mark| flags | mark.flag)
}

/// A row with these marks.
fn marked(row: Row, flags: u8) -> Row {
    let marks = MARKS.iter().filter(|mark| flags & mark.flag != 0);
    marks.fold(row, |row, mark| (mark.set)(row))
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
