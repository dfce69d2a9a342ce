//! Rules that are expressions, which have a row in one frame alone.

use unwind_core::{
    BaseReg, CfaRule, DwarfReg, FrameContext, Memory, Origin, RegRule, Registers, Row, VirtAddr,
};

use crate::{
    abi::{CfiAbi, RegisterNumbers},
    error::CfiError,
    operations::{NoValue, Target},
    reader::Reader,
    rules::{Cfa, NoRule, Reg, Rules},
};

/// The longest expression that is evaluated, in bytes. Those of compilers and of assembler code have
/// up to 30.
const LONGEST: usize = 64;

/// The rules for one address, some of which are expressions that no row can say: with a
/// frame, its registers and memory, they come to a row of this frame.
///
/// Found by [`CfiTable::find_frame_rules`](crate::CfiTable::find_frame_rules) and
/// [`RemoteCfi::find_frame_rules`](crate::RemoteCfi::find_frame_rules). It is about 400 bytes
/// long, of which walks have one at a time, and only where they meet such rules.
#[derive(Clone, Debug)]
pub struct FrameRules {
    abi: CfiAbi,
    rules: Rules,
    /// The column of the return address.
    column: u64,
    is_signal: bool,
    /// The address of the section.
    section: u64,
    /// How far the code was loaded above the addresses of its file.
    bias: u64,
    cfa: Option<Copied>,
    ra: Option<Copied>,
    kept: Option<Copied>,
}

/// An expression, copied from where the table is.
#[derive(Clone, Copy, Debug)]
struct Copied {
    bytes: [u8; LONGEST],
    len: usize,
}

/// Why there is no row: an error, or a row that says what has to be known first.
enum Missing {
    Error(CfiError),
    Needs(Row),
}

/// What an expression of a register comes to.
enum Found {
    Value(u64),
    /// It is in memory there.
    At(u64),
}

impl FrameRules {
    /// Whether a lookup that has found this may have met such rules. If not there is no need to
    /// ask again.
    #[must_use]
    pub const fn may_say_more(found: &Result<Option<Row>, CfiError>) -> bool {
        match found {
            Ok(Some(row)) => row.is_context_only() || matches!(row.fp(), RegRule::Undefined),
            Ok(None) => false,
            Err(error) => matches!(
                error,
                CfiError::CfaLoadPlus { .. }
                    | CfiError::CfaExpression { .. }
                    | CfiError::RaExpression { .. }
            ),
        }
    }

    /// Whether some of the rules are such expressions.
    pub(crate) fn are_needed(rules: &Rules) -> bool {
        Self::not_said(rules).iter().flatten().any(|none| {
            matches!(
                none,
                NoRule::Expression(..) | NoRule::ValueExpression(..) | NoRule::LoadPlus(..)
            )
        })
    }

    /// Of the CFA, the return address and the frame pointer those that have no rule.
    fn not_said(rules: &Rules) -> [Option<NoRule>; 3] {
        let of_register = |rule| match rule {
            Reg::None(none) => Some(none),
            _ => None,
        };
        [rules.cfa.none(), of_register(rules.ra), of_register(rules.kept)]
    }

    /// The rules, where some are such expressions. `section` is the address of the section, and
    /// `copy` fills bytes from an address in it.
    pub(crate) fn new<E>(
        rules: &Rules,
        abi: CfiAbi,
        (column, is_signal): (u64, bool),
        section: u64,
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        if !Self::are_needed(rules) {
            return Ok(None);
        }
        let all = Self::not_said(rules);
        let mut copied = [None; 3];
        for (copied, none) in copied.iter_mut().zip(all) {
            let Some(NoRule::Expression(len, at) | NoRule::ValueExpression(len, at)) = none else {
                continue;
            };
            let mut bytes = [0; LONGEST];
            let len = usize::from(len);
            if let Some(part) = bytes.get_mut(..len) {
                copy(at, part)?;
                *copied = Some(Copied { bytes, len });
            }
        }
        let [cfa, ra, kept] = copied;
        Ok(Some(Self { abi, rules: *rules, column, is_signal, section, bias: 0, cfa, ra, kept }))
    }

    /// The same, of code that was loaded this far above the addresses of its file.
    #[must_use]
    pub const fn loaded(self, bias: u64) -> Self {
        Self { bias, ..self }
    }

    /// The row of a frame that these rules are about. `mem` is the memory of its program.
    ///
    /// The row is right for this frame alone. It may say that [more has to be known](Row::needs)
    /// to tell the caller: a walk finds that out and asks again, or ends with that reason.
    ///
    /// # Errors
    ///
    /// [`CfiError`] if an expression is malformed or longer than 64 bytes, or comes to what no row
    /// says: a return address that is nowhere in memory, or a CFA 2 GiB or more below the frame,
    /// unless the code has the mark of a signal frame.
    #[inline(never)]
    pub fn row<R: Registers, M: Memory>(
        &self,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Result<Row, CfiError> {
        let numbers = &RegisterNumbers::new(self.abi);
        let sp = frame.sp();
        let register = |number: u16| {
            if number == u16::from(numbers.sp) {
                Some(sp)
            } else if number == u16::from(numbers.fp) {
                frame.fp()
            } else if Some(number) == numbers.pc {
                Some(frame.pc().addr().get())
            } else {
                frame.registers()?.get(DwarfReg(u8::try_from(number).ok()?))
            }
        };
        let pc = frame.lookup_addr().get().wrapping_sub(self.bias);
        let target = Target { word: numbers.word, bias: self.bias, register, mem };
        match self.evaluate(target, numbers, pc, sp) {
            Ok(row) => Ok(row),
            Err(Missing::Needs(row)) => Ok(row.with_origin(Origin::CallFrames)),
            Err(Missing::Error(error)) => Err(error),
        }
    }

    fn evaluate<M: Memory, F: Fn(u16) -> Option<u64>>(
        &self,
        mut target: Target<'_, M, F>,
        numbers: &RegisterNumbers,
        pc: u64,
        sp: u64,
    ) -> Result<Row, Missing> {
        let malformed = || CfiError::CfaExpression { at: self.offset(self.rules.cfa.none()) };
        let cfa = self.cfa_of(&mut target, numbers, pc);
        let cfa = cfa.map_err(|none| missing(none, numbers, malformed()))?;
        let mut rules = self.rules;
        if !self.is_sp_cfa(&mut target, numbers, cfa) {
            return Err(Missing::Error(CfiError::StackPointer));
        }
        rules.sp = Reg::Unset;
        let near = distance(cfa, sp);
        rules.cfa = Cfa::Rule(CfaRule::sp(near.unwrap_or(0)));
        if let Reg::None(none) = rules.ra {
            let malformed = CfiError::RaExpression { at: self.offset(Some(none)) };
            let found = self.value_of(&mut target, none, self.ra.as_ref(), cfa);
            let found = found.map_err(|none| missing(none, numbers, malformed))?;
            rules.ra = match found {
                Found::At(at) => at_place(at, cfa, sp).ok_or(Missing::Error(malformed))?,
                Found::Value(_) => return Err(Missing::Error(malformed)),
            };
        }
        if let Reg::None(none) = rules.kept {
            // The caller is known without its frame pointer.
            rules.kept = match self.value_of(&mut target, none, self.kept.as_ref(), cfa) {
                Ok(Found::At(at)) => at_place(at, cfa, sp).unwrap_or(Reg::Lost),
                Ok(Found::Value(value)) => of_value(value, cfa, sp).unwrap_or(Reg::Lost),
                Err(_) => Reg::Lost,
            };
        }
        let rules = rules.with_lost_fp();
        let row = rules.row(numbers, self.column);
        let reason = || Missing::Error(rules.reason(numbers, self.column, self.section));
        let row = row.ok_or_else(reason)?;
        let row = match near {
            Some(_) => row,
            // Stacks of other threads of execution may be anywhere; gdb, too, has a frame below
            // its callee for an error, but with that mark.
            None if cfa > sp || self.is_signal => {
                row.with_other_stack(cfa).ok_or(Missing::Error(malformed()))?
            }
            None => return Err(Missing::Error(malformed())),
        };
        let row = row.with_origin(Origin::CallFrames);
        let row = if rules.is_eh_return(numbers) { row.with_eh_return() } else { row };
        Ok(if self.is_signal { row.with_signal() } else { row })
    }

    /// The CFA.
    fn cfa_of<M: Memory, F: Fn(u16) -> Option<u64>>(
        &self,
        target: &mut Target<'_, M, F>,
        numbers: &RegisterNumbers,
        pc: u64,
    ) -> Result<u64, NoValue> {
        let number = |base| numbers.number(base);
        let offset = |offset: i32| i64::from(offset);
        match self.rules.cfa {
            Cfa::Register(register, offset) => target.sum(register, offset),
            Cfa::Rule(CfaRule::Register(base, by)) => target.sum(number(base), offset(by)),
            Cfa::Rule(CfaRule::AtRegister(base, by)) => {
                target.load_plus(number(base), offset(by), 0)
            }
            Cfa::Rule(CfaRule::AtRegisterPlus(base, by, plus)) => {
                target.load_plus(number(base), offset(by), offset(plus.bytes()))
            }
            Cfa::Blocks(base, by, step) => {
                let height = if step.is_reached_at(pc) { step.height.into() } else { 0 };
                target.sum(number(base), offset(by).wrapping_add(height))
            }
            Cfa::None(NoRule::LoadPlus(register, by, plus)) => {
                target.load_plus(register, offset(by), offset(plus))
            }
            Cfa::None(NoRule::Expression(..)) => {
                let copied = self.cfa.as_ref().ok_or(NoValue::Malformed)?;
                target.evaluate(self.reader(copied), None)
            }
            Cfa::None(_) | Cfa::Unset => Err(NoValue::Malformed),
        }
    }

    /// Whether the caller's stack pointer is the CFA, as rows have it.
    fn is_sp_cfa<M: Memory, F: Fn(u16) -> Option<u64>>(
        &self,
        target: &mut Target<'_, M, F>,
        numbers: &RegisterNumbers,
        cfa: u64,
    ) -> bool {
        let value = match self.rules.sp {
            Reg::Unset => return true,
            Reg::Rule(RegRule::Register(base, offset)) => {
                target.sum(numbers.number(base), offset.into())
            }
            Reg::Rule(RegRule::AtRegister(base, offset)) => {
                target.load_plus(numbers.number(base), offset.into(), 0)
            }
            Reg::Rule(RegRule::Offset(_)) => return numbers.saves_sp,
            Reg::Rule(RegRule::ValOffset(offset)) => {
                return offset == numbers.sp_below_cfa();
            }
            _ => return false,
        };
        value == Ok(cfa) && !numbers.saves_sp
    }

    /// What the expression of a register comes to.
    fn value_of<M: Memory, F: Fn(u16) -> Option<u64>>(
        &self,
        target: &mut Target<'_, M, F>,
        none: NoRule,
        copied: Option<&Copied>,
        cfa: u64,
    ) -> Result<Found, NoValue> {
        let copied = copied.ok_or(NoValue::Malformed)?;
        let value = target.evaluate(self.reader(copied), Some(cfa))?;
        match none {
            NoRule::Expression(..) => Ok(Found::At(value)),
            NoRule::ValueExpression(..) => Ok(Found::Value(value)),
            _ => Err(NoValue::Malformed),
        }
    }

    fn reader<'c>(&self, copied: &'c Copied) -> Reader<'c> {
        Reader::new(copied.bytes.get(..copied.len).unwrap_or_default(), self.abi.endian())
    }

    /// Where in the section an expression is.
    fn offset(&self, none: Option<NoRule>) -> u64 {
        match none {
            Some(NoRule::Expression(_, at) | NoRule::ValueExpression(_, at)) => {
                at.wrapping_sub(self.section)
            }
            _ => 0,
        }
    }
}

/// Why there is no row: what is not known, or the error for what is malformed.
fn missing(none: NoValue, numbers: &RegisterNumbers, malformed: CfiError) -> Missing {
    match none {
        NoValue::Malformed => Missing::Error(malformed),
        NoValue::Register(number) => match numbers.base(number) {
            Some(base) => Missing::Needs(Row::needs_register(base)),
            None => Missing::Error(CfiError::Register(number)),
        },
        NoValue::Unreadable(at) => Missing::Needs(Row::needs_memory(VirtAddr::new(at))),
    }
}

/// How far `to` is above `from`, as rows count.
fn distance(to: u64, from: u64) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok()
}

/// The rule of what is in memory there.
fn at_place(at: u64, cfa: u64, sp: u64) -> Option<Reg> {
    let by_sp = || Some(RegRule::AtRegister(BaseReg::Sp, distance(at, sp)?));
    distance(at, cfa).map(RegRule::Offset).or_else(by_sp).map(Reg::Rule)
}

/// The rule of a register with this value.
fn of_value(value: u64, cfa: u64, sp: u64) -> Option<Reg> {
    let by_sp = || Some(RegRule::Register(BaseReg::Sp, distance(value, sp)?));
    distance(value, cfa).map(RegRule::ValOffset).or_else(by_sp).map(Reg::Rule)
}
