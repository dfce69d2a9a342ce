//! The state of the three registers that a table follows.

use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

use crate::format::header::Abi;

use super::{
    expression::{self, Step, Value},
    lost::CfiOmissionReason,
    reader::Reader,
};

/// The registers of an ABI by their DWARF numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    /// AArch64: a column that says whether the return address is signed.
    pub(crate) sign_state: Option<u64>,
    /// The register that calls leave the return address in. It stays there
    /// unless a rule says otherwise.
    link: Option<u64>,
    /// x86-64: the column of the pc. No register holds a return address that
    /// has no rule there, and expressions may use it.
    pc: Option<u16>,
    /// s390x: functions save SP, which is then 160 below the CFA.
    saves_sp: bool,
}

impl Registers {
    pub(crate) const fn new(abi: Abi) -> Self {
        match abi {
            Abi::Aarch64Big | Abi::Aarch64Little => Self {
                sp: 31,
                fp: 29,
                sign_state: Some(34),
                link: Some(30),
                pc: None,
                saves_sp: false,
            },
            Abi::S390xBig => {
                Self { sp: 15, fp: 11, sign_state: None, link: Some(14), pc: None, saves_sp: true }
            }
            _ => Self { sp: 7, fp: 6, sign_state: None, link: None, pc: Some(16), saves_sp: false },
        }
    }

    /// The rule of a return address that is still in the register of its column.
    #[inline]
    fn unsaved(&self, column: u64) -> Option<RegRule> {
        if Some(column) == self.link {
            return Some(RegRule::SameValue);
        }
        let register = u16::try_from(column).ok().filter(|&register| Some(register) != self.pc)?;
        Some(RegRule::Register(self.base(register).ok()?, 0))
    }

    #[inline]
    fn base(&self, register: u16) -> Result<BaseReg, NoRule> {
        if u64::from(register) == self.sp {
            return Ok(BaseReg::Sp);
        }
        if u64::from(register) == self.fp {
            return Ok(BaseReg::Fp);
        }
        match u8::try_from(register) {
            // Rows have no room for the last two.
            Ok(number @ 0..=0xfd) => Ok(BaseReg::Reg(DwarfReg(number))),
            _ => Err(NoRule::Register(register)),
        }
    }
}

/// Why an expression, a register or an offset gives no rule, in 16 bytes: the
/// state of three registers is copied often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRule {
    /// The expression at this offset of the section.
    Expression(u64),
    /// `*(register + offset) + plus`.
    LoadPlus(u16, i32, i32),
    Register(u16),
    Offset(i64),
}

impl NoRule {
    /// The reason, if an expression is `otherwise`.
    fn reason(self, otherwise: impl FnOnce(u64) -> CfiOmissionReason) -> CfiOmissionReason {
        match self {
            Self::Expression(at) => otherwise(at),
            Self::LoadPlus(register, offset, plus) => {
                CfiOmissionReason::CfaLoadPlus { register, offset, plus }
            }
            Self::Register(register) => CfiOmissionReason::Register(register),
            Self::Offset(offset) => CfiOmissionReason::Offset(offset),
        }
    }
}

#[inline]
fn narrow(offset: i64) -> Result<i32, NoRule> {
    i32::try_from(offset).map_err(|_| NoRule::Offset(offset))
}

/// How the CFA is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    Unset,
    /// A register and an offset, which instructions may change one at a time.
    Register(u16, i64),
    /// What an expression comes to.
    Rule(CfaRule),
    /// One offset in the first part of each block of code, another after it.
    Blocks(BaseReg, i32, Step),
    None(NoRule),
}

impl Cfa {
    #[inline]
    pub(crate) fn register(number: u64, offset: i64) -> Self {
        Self::Register(u16::try_from(number).unwrap_or(u16::MAX), offset)
    }

    pub(crate) fn from_expression(expression: Reader<'_>, at: u64, registers: &Registers) -> Self {
        let value = expression::evaluate(expression, None, registers.pc);
        let rule = || match value {
            Some(Value::Register(register, offset)) => {
                Ok(Self::Rule(CfaRule::Register(registers.base(register)?, narrow(offset)?)))
            }
            Some(Value::Load(register, offset)) => {
                Ok(Self::Rule(CfaRule::AtRegister(registers.base(register)?, narrow(offset)?)))
            }
            Some(Value::LoadPlus(register, offset, plus)) => {
                Err(NoRule::LoadPlus(register, narrow(offset)?, narrow(plus)?))
            }
            Some(Value::Blocks(register, offset, step)) => {
                Ok(Self::Blocks(registers.base(register)?, narrow(offset)?, step))
            }
            _ => Err(NoRule::Expression(at)),
        };
        rule().unwrap_or_else(Self::None)
    }

    /// One rule for the whole range, if there is one.
    #[inline]
    fn rule(&self, registers: &Registers) -> Option<CfaRule> {
        match *self {
            Self::Register(register, offset) => {
                let offset = i32::try_from(offset).ok()?;
                Some(CfaRule::Register(registers.base(register).ok()?, offset))
            }
            Self::Rule(rule) => Some(rule),
            _ => None,
        }
    }

    /// Why there is no rule.
    fn reason(&self, registers: &Registers) -> CfiOmissionReason {
        let none = match *self {
            Self::Register(register, offset) => {
                let fault = registers.base(register).and_then(|_| narrow(offset));
                fault.err().unwrap_or(NoRule::Offset(offset))
            }
            Self::None(none) => none,
            _ => return CfiOmissionReason::NoCfa,
        };
        none.reason(|at| CfiOmissionReason::CfaExpression { at })
    }
}

/// How one register of the caller is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reg {
    Unset,
    Rule(RegRule),
    None(NoRule),
}

impl Reg {
    #[inline]
    pub(crate) fn at_cfa(offset: i64) -> Self {
        narrow(offset).map_or_else(Self::None, |offset| Self::Rule(RegRule::Offset(offset)))
    }

    pub(crate) fn cfa(offset: i64) -> Self {
        narrow(offset).map_or_else(Self::None, |offset| Self::Rule(RegRule::ValOffset(offset)))
    }

    pub(crate) fn register(number: u64, registers: &Registers) -> Self {
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        registers
            .base(number)
            .map_or_else(Self::None, |base| Self::Rule(RegRule::Register(base, 0)))
    }

    /// An expression whose value is the register's, or where that is.
    pub(crate) fn from_expression(
        expression: Reader<'_>,
        at: u64,
        is_value: bool,
        registers: &Registers,
    ) -> Self {
        let value = expression::evaluate(expression, Some(Value::Cfa(0)), registers.pc);
        let rule = || {
            Ok(match (value, is_value) {
                (Some(Value::Register(register, offset)), false)
                | (Some(Value::Load(register, offset)), true) => {
                    RegRule::AtRegister(registers.base(register)?, narrow(offset)?)
                }
                (Some(Value::Register(register, offset)), true) => {
                    RegRule::Register(registers.base(register)?, narrow(offset)?)
                }
                (Some(Value::Cfa(offset)), false) | (Some(Value::LoadCfa(offset)), true) => {
                    RegRule::Offset(narrow(offset)?)
                }
                (Some(Value::Cfa(offset)), true) => RegRule::ValOffset(narrow(offset)?),
                _ => return Err(NoRule::Expression(at)),
            })
        };
        rule().map_or_else(Self::None, Self::Rule)
    }
}

/// Whether a return address is signed, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signed {
    No,
    Yes,
    WithPc,
    /// A rule of its own says it.
    Unknown,
}

/// The rules at one place of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) cfa: Cfa,
    pub(crate) ra: Reg,
    pub(crate) fp: Reg,
    pub(crate) sp: Reg,
    pub(crate) signed: Signed,
}

/// What rules come to that is not one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRow {
    /// One row for the first part of each block of code, another for the rest.
    Blocks(Row, Row, Step),
    /// Nothing that can be said.
    Omission(CfiOmissionReason),
}

impl Rules {
    pub(crate) const UNSET: Self = Self {
        cfa: Cfa::Unset,
        ra: Reg::Unset,
        fp: Reg::Unset,
        sp: Reg::Unset,
        signed: Signed::No,
    };

    /// The row that says the same, if one does. `column` is that of the return
    /// address.
    #[inline]
    pub(crate) fn row(&self, registers: &Registers, column: u64) -> Option<Row> {
        let ra = match self.ra {
            Reg::Rule(RegRule::Undefined) => return Some(Row::outermost()),
            Reg::Rule(rule) if rule != RegRule::SameValue => rule,
            Reg::None(_) => return None,
            _ => registers.unsaved(column)?,
        };
        let fp = match self.fp {
            Reg::Unset => RegRule::SameValue,
            Reg::Rule(rule) if rule != RegRule::Undefined => rule,
            _ => return None,
        };
        let cfa = self.cfa.rule(registers)?;
        if !self.sp_is_cfa(Some(cfa), registers) {
            return None;
        }
        match self.signed {
            Signed::No => Some(Row::new(cfa, ra, fp)),
            Signed::Yes => Some(Row::new(cfa, ra, fp).with_signed_ra()),
            Signed::WithPc | Signed::Unknown => None,
        }
    }

    /// The CFA's rule, if it is all that a row takes from what has changed in
    /// the CFA.
    #[inline]
    pub(crate) fn only_cfa(&self, registers: &Registers) -> Option<CfaRule> {
        if self.sp == Reg::Unset { self.cfa.rule(registers) } else { None }
    }

    /// What the rules come to where [`row`](Self::row) finds no row.
    pub(crate) fn no_row(&self, registers: &Registers, column: u64) -> NoRow {
        let Cfa::Blocks(base, offset, step) = self.cfa else {
            return NoRow::Omission(self.reason(registers, column));
        };
        let height = i32::try_from(step.height).unwrap_or(i32::MAX);
        let Some(after) = offset.checked_add(height) else {
            return NoRow::Omission(CfiOmissionReason::Offset(offset.into()));
        };
        let [before, after] = [offset, after].map(|offset| {
            let cfa = Cfa::Rule(CfaRule::Register(base, offset));
            Self { cfa, ..*self }.row(registers, column)
        });
        match (before, after) {
            (Some(before), Some(after)) => NoRow::Blocks(before, after, step),
            _ => NoRow::Omission(self.reason(registers, column)),
        }
    }

    /// Why there is no row.
    fn reason(&self, registers: &Registers, column: u64) -> CfiOmissionReason {
        match self.ra {
            Reg::None(none) => return none.reason(|at| CfiOmissionReason::RaExpression { at }),
            Reg::Unset | Reg::Rule(RegRule::SameValue) if registers.unsaved(column).is_none() => {
                return CfiOmissionReason::NoReturnAddress;
            }
            _ => {}
        }
        match self.fp {
            Reg::None(none) => return none.reason(|at| CfiOmissionReason::FpExpression { at }),
            Reg::Rule(RegRule::Undefined) => return CfiOmissionReason::FpUndefined,
            _ => {}
        }
        let cfa = self.cfa.rule(registers);
        if cfa.is_none() && !matches!(self.cfa, Cfa::Blocks(..)) {
            return self.cfa.reason(registers);
        }
        match (self.sp_is_cfa(cfa, registers), self.signed) {
            (false, _) => CfiOmissionReason::StackPointer,
            (true, Signed::WithPc) => CfiOmissionReason::RaSignedWithPc,
            (true, _) => CfiOmissionReason::RaSignState,
        }
    }

    /// A table has no rule for SP: it is what the CFA says.
    #[inline]
    fn sp_is_cfa(&self, cfa: Option<CfaRule>, registers: &Registers) -> bool {
        let below_cfa = if registers.saves_sp { -160 } else { 0 };
        match (self.sp, cfa) {
            (Reg::Unset, _) => true,
            (Reg::Rule(RegRule::Offset(_)), _) => registers.saves_sp,
            (Reg::Rule(RegRule::ValOffset(offset)), _) => offset == below_cfa,
            (Reg::Rule(RegRule::Register(base, offset)), Some(CfaRule::Register(cfa, at)))
            | (Reg::Rule(RegRule::AtRegister(base, offset)), Some(CfaRule::AtRegister(cfa, at))) => {
                (base, offset) == (cfa, at) && !registers.saves_sp
            }
            _ => false,
        }
    }
}

const _: () = assert!(size_of::<Rules>() <= 80);
