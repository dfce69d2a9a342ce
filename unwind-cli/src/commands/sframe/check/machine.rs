//! What rules come to on made-up registers and memory.
//!
//! Two rules are the same if they find the same values. Registers and memory
//! hold numbers that depend on nothing but the register's number or the
//! address, and no two are likely to be equal: so the same value means the same
//! register, or the same place.

use std::cell::Cell;

use gimli::{EvaluationResult, RegisterRule, RunTimeEndian, UnwindSection, Value};
use sframe::Abi;
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

/// Bytes of call frame information.
pub(super) type Reader<'a> = gimli::EndianSlice<'a, RunTimeEndian>;

/// A frame at one place of the code.
pub(super) struct Machine {
    abi: Abi,
    pc: u64,
    /// Whether a rule has asked for the pc.
    pub(super) read_pc: Cell<bool>,
}

/// What is found of a frame's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// There is no caller.
    Outermost,
    /// Only the signal context tells.
    Context,
    /// What the registers of the caller hold.
    Caller(Caller),
}

/// What the registers of a caller hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) cfa: u64,
    pub(super) ra: u64,
    /// `None` if it is lost.
    pub(super) fp: Option<u64>,
    pub(super) sp: u64,
    pub(super) is_ra_signed: bool,
}

/// DWARF numbers of the registers with names.
#[derive(Clone, Copy, Debug)]
struct Names {
    sp: u16,
    fp: u16,
    /// Where calls leave the return address, if in a register.
    link: Option<u16>,
    /// The pc, if rules may name it.
    pc: Option<u16>,
    /// How far the stack pointer is below the CFA.
    sp_below_cfa: u64,
}

const fn names(abi: Abi) -> Names {
    match abi {
        Abi::Aarch64Big | Abi::Aarch64Little => {
            Names { sp: 31, fp: 29, link: Some(30), pc: None, sp_below_cfa: 0 }
        }
        Abi::S390xBig => Names { sp: 15, fp: 11, link: Some(14), pc: None, sp_below_cfa: 160 },
        _ => Names { sp: 7, fp: 6, link: None, pc: Some(16), sp_below_cfa: 0 },
    }
}

/// A number that differs for every other one (`SplitMix64`).
const fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Machine {
    pub(super) const fn new(abi: Abi, pc: u64) -> Self {
        Self { abi, pc, read_pc: Cell::new(false) }
    }

    fn register(&self, number: u16) -> u64 {
        if Some(number) == names(self.abi).pc {
            self.read_pc.set(true);
            return self.pc;
        }
        scatter(u64::from(number) << 32)
    }

    /// The word at an address.
    fn load(addr: u64) -> u64 {
        // Other numbers than those of registers.
        scatter(addr ^ 0x5555_5555_5555_5555)
    }

    fn base(&self, base: BaseReg) -> u64 {
        let names = names(self.abi);
        match base {
            BaseReg::Sp => self.register(names.sp),
            BaseReg::Fp => self.register(names.fp),
            BaseReg::Reg(DwarfReg(number)) => self.register(number.into()),
        }
    }

    /// What a row of a table comes to.
    pub(super) fn row(&self, row: &Row) -> Found {
        if row.is_context_only() {
            return Found::Context;
        }
        if row.is_outermost() {
            return Found::Outermost;
        }
        let names = names(self.abi);
        let plus = |value: u64, offset: i32| value.wrapping_add_signed(offset.into());
        let cfa = match row.cfa() {
            CfaRule::Register(base, offset) => plus(self.base(base), offset),
            CfaRule::AtRegister(base, offset) => Self::load(plus(self.base(base), offset)),
            CfaRule::AtRegisterPlus(base, offset, addend) => {
                plus(Self::load(plus(self.base(base), offset)), addend.bytes())
            }
        };
        let value = |rule, same: u64| match rule {
            RegRule::SameValue => Some(same),
            RegRule::Undefined => None,
            RegRule::Offset(offset) => Some(Self::load(plus(cfa, offset))),
            RegRule::ValOffset(offset) => Some(plus(cfa, offset)),
            RegRule::Register(base, offset) => Some(plus(self.base(base), offset)),
            RegRule::AtRegister(base, offset) => Some(Self::load(plus(self.base(base), offset))),
        };
        let link = self.register(names.link.unwrap_or(u16::MAX));
        Found::Caller(Caller {
            cfa,
            // An undefined one is an outermost row.
            ra: value(row.ra(), link).unwrap_or(0),
            fp: value(row.fp(), self.register(names.fp)),
            sp: cfa.wrapping_sub(names.sp_below_cfa),
            is_ra_signed: row.is_ra_signed(),
        })
    }

    /// What a row of gimli's comes to. `ra` is the column of the return
    /// address. `None`, if that has no rule and is no register.
    ///
    /// # Errors
    ///
    /// [`gimli::Error`] if an expression cannot be evaluated.
    pub(super) fn gimli_row<'a, S, C>(
        &self,
        section: &S,
        encoding: gimli::Encoding,
        row: &gimli::UnwindTableRow<usize, C>,
        ra: gimli::Register,
    ) -> gimli::Result<Option<Found>>
    where
        S: UnwindSection<Reader<'a>>,
        C: gimli::UnwindContextStorage<usize>,
    {
        let names = names(self.abi);
        let expression = |expression: gimli::UnwindExpression<usize>, initial| {
            self.evaluate(expression.get(section)?.evaluation(encoding), initial)
        };
        let cfa = match *row.cfa() {
            gimli::CfaRule::RegisterAndOffset { register, offset } => {
                self.register(register.0).wrapping_add_signed(offset)
            }
            gimli::CfaRule::Expression(e) => expression(e, None)?,
        };
        let value = |number: u16| {
            Ok(match row.register(gimli::Register(number)) {
                // Only then is the register read, which may be the pc.
                None | Some(RegisterRule::SameValue) => Some(self.register(number)),
                Some(RegisterRule::Undefined) => None,
                Some(RegisterRule::Offset(offset)) => {
                    Some(Self::load(cfa.wrapping_add_signed(offset)))
                }
                Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::Register(source)) => Some(self.register(source.0)),
                Some(RegisterRule::Expression(e)) => Some(Self::load(expression(e, Some(cfa))?)),
                Some(RegisterRule::ValExpression(e)) => Some(expression(e, Some(cfa))?),
                Some(RegisterRule::Constant(value)) => Some(value),
                Some(_) => return Err(gimli::Error::UnsupportedEvaluation),
            })
        };
        let has_ra = row.register(ra).is_some_and(|rule| rule != RegisterRule::SameValue);
        if !has_ra && Some(ra.0) == names.pc {
            return Ok(None);
        }
        let Some(ra) = value(ra.0)? else {
            return Ok(Some(Found::Outermost));
        };
        let sign_state = row.register(gimli::AArch64::RA_SIGN_STATE);
        let default_sp = cfa.wrapping_sub(names.sp_below_cfa);
        let has_sp_rule = row.register(gimli::Register(names.sp)).is_some();
        Ok(Some(Found::Caller(Caller {
            cfa,
            ra,
            fp: value(names.fp)?,
            sp: match has_sp_rule {
                // Where functions save it, what is saved is what the CFA says.
                true if names.sp_below_cfa == 0 => value(names.sp)?.unwrap_or(0),
                _ => default_sp,
            },
            is_ra_signed: sign_state == Some(RegisterRule::Constant(1)),
        })))
    }

    /// Evaluates an expression, with `initial` on its stack.
    fn evaluate(
        &self,
        mut evaluation: gimli::Evaluation<Reader<'_>>,
        initial: Option<u64>,
    ) -> gimli::Result<u64> {
        /// More operations than any has, in case one does not end.
        const MAX_OPERATIONS: u32 = 10_000;
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut result = evaluation.evaluate()?;
        loop {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let unused = 64_u32.saturating_sub(u32::from(size).saturating_mul(8));
                    let word = Self::load(address).unbounded_shl(unused).unbounded_shr(unused);
                    evaluation.resume_with_memory(Value::Generic(word))?
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(self.register(register.0)))?
                }
                EvaluationResult::RequiresCallFrameCfa => match initial {
                    Some(cfa) => evaluation.resume_with_call_frame_cfa(cfa)?,
                    None => return Err(gimli::Error::UnsupportedEvaluation),
                },
                _ => return Err(gimli::Error::UnsupportedEvaluation),
            };
        }
        let value = evaluation.value_result().ok_or(gimli::Error::UnsupportedEvaluation)?;
        value.to_u64(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: RegRule = RegRule::Offset(-8);

    fn row(cfa: CfaRule, ra: RegRule, fp: RegRule) -> Found {
        Machine::new(Abi::Amd64Little, 0x1000).row(&Row::new(cfa, ra, fp))
    }

    #[test]
    fn rules_that_say_the_same_come_to_the_same() {
        let by_cfa = row(CfaRule::sp(16), SAVED, RegRule::Offset(-16));
        let by_register = row(
            CfaRule::Register(BaseReg::Reg(DwarfReg(7)), 16),
            RegRule::AtRegister(BaseReg::Sp, 8),
            RegRule::AtRegister(BaseReg::Sp, 0),
        );
        assert_eq!(by_cfa, by_register);
    }

    #[test]
    fn rules_that_differ_come_to_something_else() {
        let mut all = vec![Found::Outermost, Found::Context];
        let bases =
            [BaseReg::Sp, BaseReg::Fp, BaseReg::Reg(DwarfReg(0)), BaseReg::Reg(DwarfReg(10))];
        for base in bases {
            for offset in [0, 8, 16, -8] {
                for cfa in [CfaRule::Register(base, offset), CfaRule::AtRegister(base, offset)] {
                    all.push(row(cfa, SAVED, RegRule::SameValue));
                    all.push(row(cfa, RegRule::Offset(-16), RegRule::SameValue));
                    all.push(row(cfa, SAVED, RegRule::Offset(-16)));
                    all.push(row(cfa, SAVED, RegRule::Register(BaseReg::Sp, 0)));
                    all.push(row(cfa, SAVED, RegRule::Undefined));
                }
            }
        }
        for (index, found) in all.iter().enumerate() {
            assert!(!all[..index].contains(found), "{index}: {found:?}");
        }
    }
}
