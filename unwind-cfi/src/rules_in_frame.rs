//! The row of one frame, by rules of which some are expressions.

use unwind_core::{
    BaseReg, CfaRule, DwarfReg, FrameContext, Memory, Origin, RegRule, Registers, Row, VirtAddr,
};

use crate::{
    abi::{CfiAbi, RegisterNumbers},
    error::CfiError,
    evaluation::PcRules,
    operations::{NoValue, Target, Values},
    reader::Reader,
    rules::{Cfa, NoRule, Reg},
};

/// The longest expression that is evaluated, in bytes. Those of compilers and of assembler code have
/// up to 30.
pub(crate) const LONGEST: usize = 64;

/// The rules for one pc, some of which are expressions that no row can say: with a frame, its registers
/// and memory, they come to a row of this frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RulesInFrame<'r> {
    pub(crate) at_pc: &'r PcRules,
    pub(crate) abi: CfiAbi,
    /// The address of the section.
    pub(crate) section: u64,
    /// How far the code was loaded above the addresses of its file.
    pub(crate) bias: u64,
}

/// A frame, the memory of its program, and what copies bytes from an address in the section; false if
/// that cannot be.
pub(crate) struct InFrame<'f, 'r, R, M, C> {
    pub(crate) frame: &'f FrameContext<'r, R>,
    pub(crate) mem: &'f mut M,
    pub(crate) copy: C,
}

impl<R: Registers, M: Memory, C: FnMut(&mut M, u64, &mut [u8]) -> bool> Values
    for InFrame<'_, '_, R, M, C>
{
    fn register(&mut self, number: u16, numbers: &RegisterNumbers) -> Option<u64> {
        if number == u16::from(numbers.sp) {
            Some(self.frame.sp())
        } else if number == u16::from(numbers.fp) {
            self.frame.fp()
        } else if Some(number) == numbers.pc {
            Some(self.frame.pc().addr().get())
        } else {
            self.frame.registers()?.get(DwarfReg(u8::try_from(number).ok()?))
        }
    }

    fn memory(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        self.mem.read(VirtAddr::new(addr), bytes).is_ok()
    }

    fn section(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        (self.copy)(self.mem, addr, bytes)
    }
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

impl RulesInFrame<'_> {
    /// Whether there is more in a frame than the row that was found without it.
    pub(crate) fn say_more(at_pc: &PcRules, found: &Result<Row, CfiError>) -> bool {
        Self::may_say_more(found.as_ref()) && Self::are_needed(at_pc)
    }

    /// Whether there may be, by that alone.
    pub(crate) const fn may_say_more(found: Result<&Row, &CfiError>) -> bool {
        match found {
            Ok(row) => row.is_context_only() || matches!(row.fp(), RegRule::Undefined),
            Err(error) => matches!(
                error,
                CfiError::CfaLoadPlus { .. }
                    | CfiError::CfaExpression { .. }
                    | CfiError::RaExpression { .. }
            ),
        }
    }

    /// Whether some of the rules are expressions that no row can say.
    pub(crate) fn are_needed(at_pc: &PcRules) -> bool {
        let rules = &at_pc.rules;
        let is_expression = |none| {
            matches!(
                none,
                NoRule::Expression(..) | NoRule::ValueExpression(..) | NoRule::LoadPlus(..)
            )
        };
        rules.cfa.none().is_some_and(is_expression)
            || [rules.ra, rules.kept]
                .iter()
                .any(|rule| matches!(rule, Reg::None(none) if is_expression(*none)))
    }

    /// The row of a frame that these rules are about, whose stack pointer is `sp`.
    ///
    /// The row is right for this frame alone. It may say that [more has to be known](Row::needs)
    /// to tell the caller: a walk finds that out and asks again, or ends with that reason.
    ///
    /// # Errors
    ///
    /// [`CfiError`] if an expression is malformed or longer than 64 bytes, or comes to what no row
    /// says: a return address that is nowhere in memory, or a CFA 2 GiB or more below the frame,
    /// unless the code has the mark of a signal frame.
    // By a pointer to what is asked, so that what few frames need is compiled once and for size, and not
    // with each walk, unless calls are to be direct.
    #[cfg(not(feature = "direct-calls"))]
    pub(crate) fn row(&self, sp: u64, values: &mut dyn Values) -> Result<Row, CfiError> {
        self.row_by(sp, values)
    }

    #[cfg(feature = "direct-calls")]
    pub(crate) fn row<V: Values>(&self, sp: u64, values: &mut V) -> Result<Row, CfiError> {
        self.row_by(sp, values)
    }

    #[inline(never)]
    fn row_by<V: Values + ?Sized>(&self, sp: u64, values: &mut V) -> Result<Row, CfiError> {
        let numbers = &RegisterNumbers::new(self.abi);
        let target = &mut Target { numbers, bias: self.bias, values };
        match self.evaluate(target, sp) {
            Ok(row) => Ok(row),
            Err(Missing::Needs(row)) => Ok(row.with_origin(Origin::CallFrames)),
            Err(Missing::Error(error)) => Err(error),
        }
    }

    fn evaluate<V: Values + ?Sized>(
        &self,
        target: &mut Target<'_, V>,
        sp: u64,
    ) -> Result<Row, Missing> {
        let numbers = target.numbers;
        let PcRules { mut rules, column, is_signal, .. } = *self.at_pc;
        let malformed = CfiError::CfaExpression { at: self.offset(rules.cfa.none()) };
        let cfa = self.cfa_of(target);
        let cfa = cfa.map_err(|none| missing(none, numbers, malformed))?;
        if !self.is_sp_cfa(target, cfa) {
            return Err(Missing::Error(CfiError::StackPointer));
        }
        rules.sp = Reg::Unset;
        let near = distance(cfa, sp);
        rules.cfa = Cfa::Rule(CfaRule::sp(near.unwrap_or(0)));
        if let Reg::None(none) = rules.ra {
            let malformed = CfiError::RaExpression { at: self.offset(Some(none)) };
            let found = self.value_of(target, none, cfa);
            let found = found.map_err(|none| missing(none, numbers, malformed))?;
            rules.ra = match found {
                Found::At(at) => at_place(at, cfa, sp).ok_or(Missing::Error(malformed))?,
                Found::Value(_) => return Err(Missing::Error(malformed)),
            };
        }
        if let Reg::None(none) = rules.kept {
            // The caller is known without its frame pointer.
            rules.kept = match self.value_of(target, none, cfa) {
                Ok(Found::At(at)) => at_place(at, cfa, sp).unwrap_or(Reg::Lost),
                Ok(Found::Value(value)) => of_value(value, cfa, sp).unwrap_or(Reg::Lost),
                Err(_) => Reg::Lost,
            };
        }
        let rules = rules.with_lost_fp();
        let row = rules.row(numbers, column);
        let reason = || Missing::Error(rules.reason(numbers, column, self.section));
        let row = row.ok_or_else(reason)?;
        let row = match near {
            Some(_) => row,
            // Stacks of other threads of execution may be anywhere; gdb, too, has a frame below
            // its callee for an error, but with that mark.
            None if cfa > sp || is_signal => {
                row.with_other_stack(cfa).ok_or(Missing::Error(malformed))?
            }
            None => return Err(Missing::Error(malformed)),
        };
        Ok(self.at_pc.marked(row, numbers))
    }

    /// The CFA.
    #[inline(never)]
    fn cfa_of<V: Values + ?Sized>(&self, target: &mut Target<'_, V>) -> Result<u64, NoValue> {
        let number = |base| target.numbers.number(base);
        let offset = |offset: i32| i64::from(offset);
        match self.at_pc.rules.cfa {
            Cfa::Register(register, offset) => target.sum(register, offset),
            Cfa::Rule(CfaRule::Register(base, by)) => target.sum(number(base), offset(by)),
            Cfa::Rule(CfaRule::AtRegister(base, by)) => {
                target.load_plus(number(base), offset(by), 0)
            }
            Cfa::Rule(CfaRule::AtRegisterPlus(base, by, plus)) => {
                target.load_plus(number(base), offset(by), offset(plus.bytes()))
            }
            Cfa::Blocks(base, by, step) => {
                let height = if step.is_reached_at(self.at_pc.pc) { step.height.into() } else { 0 };
                target.sum(number(base), offset(by).wrapping_add(height))
            }
            Cfa::None(NoRule::LoadPlus(register, by, plus)) => {
                target.load_plus(register, offset(by), offset(plus))
            }
            Cfa::None(NoRule::Expression(len, at)) => self.expression(target, (len, at), None),
            Cfa::None(_) | Cfa::Unset => Err(NoValue::Malformed),
        }
    }

    /// Whether the caller's stack pointer is the CFA, as rows have it.
    fn is_sp_cfa<V: Values + ?Sized>(&self, target: &mut Target<'_, V>, cfa: u64) -> bool {
        let numbers = target.numbers;
        let value = match self.at_pc.rules.sp {
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
    #[inline(never)]
    fn value_of<V: Values + ?Sized>(
        &self,
        target: &mut Target<'_, V>,
        none: NoRule,
        cfa: u64,
    ) -> Result<Found, NoValue> {
        match none {
            NoRule::Expression(len, at) => {
                self.expression(target, (len, at), Some(cfa)).map(Found::At)
            }
            NoRule::ValueExpression(len, at) => {
                self.expression(target, (len, at), Some(cfa)).map(Found::Value)
            }
            _ => Err(NoValue::Malformed),
        }
    }

    /// The value of the expression of this many bytes at this address, which starts with `initial`.
    #[inline(never)]
    fn expression<V: Values + ?Sized>(
        &self,
        target: &mut Target<'_, V>,
        (len, at): (u16, u64),
        initial: Option<u64>,
    ) -> Result<u64, NoValue> {
        let mut bytes = [0; LONGEST];
        let bytes = bytes.get_mut(..usize::from(len)).ok_or(NoValue::Malformed)?;
        if !target.values.section(at, bytes) {
            return Err(NoValue::Malformed);
        }
        target.evaluate(Reader::new(bytes, self.abi.endian()), initial)
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
