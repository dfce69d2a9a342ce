//! The rules of the CFA, the return address, the frame pointer and the stack pointer, and
//! the row that they come to.

use unwind_core::{Addend, BaseReg, CfaLoads, CfaRule, RegRule, Row};

use crate::{
    abi::RegisterNumbers,
    entry::Entries,
    error::CfiError,
    expression::{self, Step, Value},
    reader::Reader,
};

/// Why an expression, a register or an offset gives no rule, in 16 bytes: the
/// state of three registers is copied often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRule {
    /// The expression of this many bytes at this address, by which the section counts. Of a
    /// register: of where it is.
    Expression(u16, u64),
    /// The same, of a register's value.
    ValueExpression(u16, u64),
    /// `*(register + offset) + plus`.
    LoadPlus(u16, i32, i32),
    Register(u16),
    Offset(i64),
}

impl NoRule {
    /// The reason, if an expression is `otherwise`, which tells of one at the section's start.
    #[inline(never)]
    fn reason(self, otherwise: CfiError, section: u64) -> CfiError {
        match self {
            Self::Expression(_, at) | Self::ValueExpression(_, at) => {
                otherwise.moved(at.wrapping_sub(section))
            }
            Self::LoadPlus(register, offset, plus) => {
                CfiError::CfaLoadPlus { register, offset, plus }
            }
            Self::Register(register) => CfiError::Register(register),
            Self::Offset(offset) => CfiError::Offset(offset),
        }
    }
}

#[inline]
fn narrow(offset: i64) -> Result<i32, NoRule> {
    i32::try_from(offset).map_err(|_| NoRule::Offset(offset))
}

/// The length of an expression, as far as it matters.
fn length(expression: &Reader<'_>) -> u16 {
    u16::try_from(expression.len()).unwrap_or(u16::MAX)
}

#[inline]
fn base(registers: &RegisterNumbers, register: u16) -> Result<BaseReg, NoRule> {
    registers.base(register).ok_or(NoRule::Register(register))
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

    pub(crate) fn from_expression(
        expression: Reader<'_>,
        at: u64,
        registers: &RegisterNumbers,
    ) -> Self {
        let len = length(&expression);
        let value = expression::evaluate(expression, None, registers);
        let rule = || match value {
            Some(Value::Register(register, offset)) => {
                Ok(Self::Rule(CfaRule::Register(base(registers, register)?, narrow(offset)?)))
            }
            Some(Value::Load(register, offset)) => {
                Ok(Self::Rule(CfaRule::AtRegister(base(registers, register)?, narrow(offset)?)))
            }
            Some(Value::LoadPlus(register, offset, plus)) => {
                let (offset, plus) = (narrow(offset)?, narrow(plus)?);
                let addend = Addend::new(plus).ok_or(NoRule::LoadPlus(register, offset, plus))?;
                Ok(Self::Rule(CfaRule::AtRegisterPlus(base(registers, register)?, offset, addend)))
            }
            Some(Value::Blocks(register, offset, step)) => {
                Ok(Self::Blocks(base(registers, register)?, narrow(offset)?, step))
            }
            _ => Err(NoRule::Expression(len, at)),
        };
        rule().unwrap_or_else(Self::None)
    }

    /// One rule for the whole range, if there is one.
    #[inline]
    fn rule(&self, registers: &RegisterNumbers) -> Option<CfaRule> {
        match *self {
            Self::Register(register, offset) => {
                let offset = i32::try_from(offset).ok()?;
                Some(CfaRule::Register(registers.base(register)?, offset))
            }
            Self::Rule(rule) => Some(rule),
            _ => None,
        }
    }

    /// What has no rule.
    pub(crate) const fn none(&self) -> Option<NoRule> {
        match self {
            Self::None(none) => Some(*none),
            _ => None,
        }
    }

    /// Why there is no rule.
    fn reason(&self, registers: &RegisterNumbers, section: u64) -> CfiError {
        let none = match *self {
            Self::Register(register, offset) => {
                let fault = base(registers, register).and_then(|_| narrow(offset));
                fault.err().unwrap_or(NoRule::Offset(offset))
            }
            Self::None(none) => none,
            _ => return CfiError::NoCfa,
        };
        none.reason(CfiError::CfaExpression { at: 0 }, section)
    }
}

/// How one register of the caller is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reg {
    Unset,
    Rule(RegRule),
    /// Undefined, and that is no reason to have no row.
    Lost,
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

    pub(crate) fn register(number: u64, registers: &RegisterNumbers) -> Self {
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        base(registers, number)
            .map_or_else(Self::None, |base| Self::Rule(RegRule::Register(base, 0)))
    }

    /// An expression whose value is the register's, or where that is.
    pub(crate) fn from_expression(
        expression: Reader<'_>,
        at: u64,
        is_value: bool,
        registers: &RegisterNumbers,
    ) -> Self {
        let len = length(&expression);
        let value = expression::evaluate(expression, Some(Value::Cfa(0)), registers);
        let rule = || {
            Ok(match (value, is_value) {
                (Some(Value::Register(register, offset)), false)
                | (Some(Value::Load(register, offset)), true) => {
                    RegRule::AtRegister(base(registers, register)?, narrow(offset)?)
                }
                (Some(Value::Register(register, offset)), true) => {
                    RegRule::Register(base(registers, register)?, narrow(offset)?)
                }
                (Some(Value::Cfa(offset)), false) | (Some(Value::LoadCfa(offset)), true) => {
                    RegRule::Offset(narrow(offset)?)
                }
                (Some(Value::Cfa(offset)), true) => RegRule::ValOffset(narrow(offset)?),
                _ if is_value => return Err(NoRule::ValueExpression(len, at)),
                _ => return Err(NoRule::Expression(len, at)),
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
pub struct Rules {
    pub(crate) cfa: Cfa,
    pub(crate) ra: Reg,
    /// Of the frame pointer, unless another register is
    /// [kept](RegisterNumbers::kept).
    pub(crate) kept: Reg,
    pub(crate) sp: Reg,
    pub(crate) signed: Signed,
    /// Which of the registers 0 to 2 are saved, a bit each.
    pub(crate) saved: u8,
}

/// Where a function goes that has taken its frame down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// All that is left is the return address.
    ToCaller,
    /// The CFA is in one of the registers that pass data to where an exception is caught.
    ToHandler,
}

/// What rules come to that is not one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRow {
    /// One row for the first part of each block of code, another for the rest, as in a
    /// linkage table.
    Blocks(Row, Row, Step),
    /// Nothing that can be said.
    Error(CfiError),
}

impl Rules {
    /// No rules yet.
    pub const UNSET: Self = Self {
        cfa: Cfa::Unset,
        ra: Reg::Unset,
        kept: Reg::Unset,
        sp: Reg::Unset,
        signed: Signed::No,
        saved: 0,
    };

    /// The same, without a rule of the register that is kept.
    #[must_use]
    pub const fn without_kept(mut self) -> Self {
        self.kept = Reg::Unset;
        self
    }

    /// The same, where a frame pointer that no row can tell counts as undefined. Tables
    /// cannot say so, rows can.
    pub(crate) const fn with_lost_fp(mut self) -> Self {
        self.kept = self.lost_fp();
        self
    }

    /// The rule of the frame pointer there.
    const fn lost_fp(&self) -> Reg {
        match self.kept {
            Reg::None(_) | Reg::Rule(RegRule::Undefined) => Reg::Lost,
            kept => kept,
        }
    }

    /// The row of [`with_lost_fp`](Self::with_lost_fp), without a copy of all rules.
    pub(crate) fn row_with_lost_fp(&self, registers: &RegisterNumbers, column: u64) -> Option<Row> {
        self.row_keeping(self.lost_fp(), registers, column)
    }

    /// Whether the function is one that may return to where an exception is caught.
    #[inline]
    pub(crate) const fn is_eh_return(&self, registers: &RegisterNumbers) -> bool {
        self.saved == registers.saved_for_handlers && self.saved != 0
    }

    /// Where the function goes, if nothing but the return address is left of its frame.
    pub(crate) fn leaving(&self, registers: &RegisterNumbers) -> Option<Leaving> {
        match self.cfa {
            Cfa::Register(0..=2, _) => Some(Leaving::ToHandler),
            Cfa::Register(register, offset)
                if register == registers.sp.into() && offset == registers.word.into() =>
            {
                Some(Leaving::ToCaller)
            }
            _ => None,
        }
    }

    /// The row that says the same, if one does. `column` is that of the return
    /// address.
    #[inline]
    pub(crate) fn row(&self, registers: &RegisterNumbers, column: u64) -> Option<Row> {
        self.row_keeping(self.kept, registers, column)
    }

    fn row_keeping(&self, kept: Reg, registers: &RegisterNumbers, column: u64) -> Option<Row> {
        let ra = match self.ra {
            Reg::Rule(RegRule::Undefined) => return Some(Row::outermost()),
            Reg::Rule(rule) if rule != RegRule::SameValue => rule,
            Reg::None(_) | Reg::Lost => return None,
            _ => registers.unsaved(column)?,
        };
        let fp = match kept {
            Reg::Unset => RegRule::SameValue,
            Reg::Lost => RegRule::Undefined,
            Reg::Rule(rule) if rule != RegRule::Undefined => rule,
            _ => return None,
        };
        let cfa = self.cfa.rule(registers)?;
        if !self.sp_is_cfa(Some(cfa), registers) {
            return None;
        }
        let row = Row::new(cfa, ra, fp);
        match self.signed {
            Signed::No => Some(row),
            Signed::Yes => Some(row.with_signed_ra()),
            Signed::WithPc | Signed::Unknown => None,
        }
    }

    /// The rule of the register that is kept. One that no rule can tell has lost its value.
    pub(crate) const fn kept_rule(&self) -> RegRule {
        match self.kept {
            Reg::Unset => RegRule::SameValue,
            Reg::Rule(rule) => rule,
            Reg::Lost | Reg::None(_) => RegRule::Undefined,
        }
    }

    /// The CFA's rule, if it is all that a row takes from what has changed in
    /// the CFA.
    #[inline]
    pub(crate) fn only_cfa(&self, registers: &RegisterNumbers) -> Option<CfaRule> {
        if self.sp == Reg::Unset && !self.adds_to_load() { self.cfa.rule(registers) } else { None }
    }

    /// Whether the CFA is a word that was loaded and something else, which rows can say and no
    /// table can.
    #[inline]
    pub(crate) const fn adds_to_load(&self) -> bool {
        matches!(self.cfa, Cfa::Rule(CfaRule::AtRegisterPlus(..)))
    }

    /// What the rules come to where [`row`](Self::row) finds no row, of a section at this address.
    pub(crate) fn no_row(&self, registers: &RegisterNumbers, column: u64, section: u64) -> NoRow {
        let Cfa::Blocks(base, offset, step) = self.cfa else {
            return NoRow::Error(self.reason(registers, column, section));
        };
        let height = i32::try_from(step.height).unwrap_or(i32::MAX);
        let Some(after) = offset.checked_add(height) else {
            return NoRow::Error(CfiError::Offset(offset.into()));
        };
        let [before, after] = [offset, after].map(|offset| {
            let cfa = Cfa::Rule(CfaRule::Register(base, offset));
            Self { cfa, ..*self }.row(registers, column)
        });
        match (before, after) {
            (Some(before), Some(after)) => NoRow::Blocks(before, after, step),
            _ => NoRow::Error(self.reason(registers, column, section)),
        }
    }

    /// The row but for its CFA, and how that is found, where it is found by loads that no row says.
    pub(crate) fn by_loads(&self, entries: &Entries<'_>, column: u64) -> Option<(Row, CfaLoads)> {
        let (registers, section) = (&entries.registers, entries.section());
        let loads = match self.cfa {
            Cfa::None(NoRule::LoadPlus(register, offset, plus)) => {
                CfaLoads { base: registers.base(register)?, offset, between: None, plus }
            }
            Cfa::None(NoRule::Expression(len, at)) => {
                let at = usize::try_from(at.wrapping_sub(section.addr)).ok()?;
                let bytes = section.bytes.get(at..)?.get(..len.into())?;
                expression::loads(Reader::new(bytes, entries.abi.endian()), registers)?
            }
            _ => return None,
        };
        let cfa = Cfa::Rule(CfaRule::sp(0));
        let rules = Self { cfa, ..*self };
        let row = (self.sp == Reg::Unset).then(|| rules.row(registers, column))?;
        Some((row?, loads))
    }

    /// Why there is no row, of a section at this address.
    pub(crate) fn reason(
        &self,
        registers: &RegisterNumbers,
        column: u64,
        section: u64,
    ) -> CfiError {
        match self.ra {
            Reg::None(none) => return none.reason(CfiError::RaExpression { at: 0 }, section),
            Reg::Unset | Reg::Rule(RegRule::SameValue) if registers.unsaved(column).is_none() => {
                return CfiError::NoReturnAddress;
            }
            _ => {}
        }
        match self.kept {
            Reg::None(none) => return none.reason(CfiError::FpExpression { at: 0 }, section),
            Reg::Rule(RegRule::Undefined) => return CfiError::FpUndefined,
            _ => {}
        }
        let cfa = self.cfa.rule(registers);
        if cfa.is_none() && !matches!(self.cfa, Cfa::Blocks(..)) {
            return self.cfa.reason(registers, section);
        }
        match (self.sp_is_cfa(cfa, registers), self.signed, cfa) {
            (false, ..) => CfiError::StackPointer,
            // A row of a table cannot say it.
            (true, Signed::No, Some(CfaRule::AtRegisterPlus(base, offset, plus))) => {
                let register = registers.number(base);
                CfiError::CfaLoadPlus { register, offset, plus: plus.bytes() }
            }
            (true, Signed::WithPc, _) => CfiError::RaSignedWithPc,
            (true, ..) => CfiError::RaSignState,
        }
    }

    /// A table has no rule for SP: it is what the CFA says.
    #[inline]
    fn sp_is_cfa(&self, cfa: Option<CfaRule>, registers: &RegisterNumbers) -> bool {
        match (self.sp, cfa) {
            (Reg::Unset, _) => true,
            (Reg::Rule(RegRule::Offset(_)), _) => registers.saves_sp,
            (Reg::Rule(RegRule::ValOffset(offset)), _) => offset == registers.sp_below_cfa(),
            (Reg::Rule(RegRule::Register(base, offset)), Some(CfaRule::Register(cfa, at)))
            | (Reg::Rule(RegRule::AtRegister(base, offset)), Some(CfaRule::AtRegister(cfa, at))) => {
                (base, offset) == (cfa, at) && !registers.saves_sp
            }
            _ => false,
        }
    }
}

const _: () = assert!(size_of::<Rules>() <= 80);
