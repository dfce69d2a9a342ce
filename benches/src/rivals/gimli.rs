//! gimli's rows, applied one after another with the registers that return
//! addresses are mostly found by.

use std::fmt;

use gimli::{
    CfaRule, EhFrame, EvaluationResult, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection as _, Value,
};
use unwind_snapshot::Snapshot;

use super::stack_word;
use crate::call_frames::CallFrames;
use crate::corpus::Corpus;
use crate::{MAX_FRAMES, Unwinder};

const RSP: Register = Register(7);
const RA: Register = Register(16);

/// rbp, rsp and the return address.
const THREE: &[u16] = &[6, 7, 16];

/// gimli's rows, found by the search table of `.eh_frame_hdr`.
pub struct Gimli {
    modules: Vec<CallFrames>,
    context: UnwindContext<usize>,
    frames: Vec<u64>,
    end: End,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The last frame has no caller.
    Outermost,
    /// No module or no entry covers the last frame.
    NotCovered,
    /// Its row could not be applied: the stack bytes ended, mostly.
    Failed,
}

impl fmt::Debug for Gimli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gimli").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Gimli {
    /// An unwinder with the modules of a corpus.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        Self {
            modules: CallFrames::of(corpus),
            context: UnwindContext::new(),
            frames: Vec::with_capacity(MAX_FRAMES),
            end: End::Failed,
        }
    }

    /// The registers of the caller; the pc is at 16.
    fn step(
        &mut self,
        snapshot: &Snapshot<'_>,
        regs: &[Option<u64>; 17],
        lookup: u64,
    ) -> Result<[Option<u64>; 17], End> {
        let module = CallFrames::find(&self.modules, lookup);
        let module = module.ok_or(End::NotCovered)?;
        let pc = lookup.wrapping_sub(module.bias);
        let table = module.header.table().ok_or(End::NotCovered)?;
        let row = table.unwind_info_for_address(
            &module.eh_frame,
            &module.bases,
            &mut self.context,
            pc,
            EhFrame::cie_from_offset,
        );
        let row = row.map_err(|_| End::NotCovered)?;
        let value = |register: Register| regs.get(usize::from(register.0)).copied().flatten();
        let load = |addr: u64| stack_word(snapshot, addr).ok_or(End::Failed);
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                value(*register).ok_or(End::Failed)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => {
                evaluate(module, expression, regs, snapshot, None).ok_or(End::Failed)?
            }
        };
        let mut caller = [None; 17];
        for &number in THREE {
            let found = match row.register(Register(number)) {
                None if Register(number) == RSP => Some(cfa),
                // The ABI's: kept by the callee, or lost.
                None if matches!(number, 3 | 6 | 12..=15) => value(Register(number)),
                None => None,
                Some(RegisterRule::Undefined) if Register(number) == RA => {
                    return Err(End::Outermost);
                }
                Some(RegisterRule::Undefined) => None,
                Some(RegisterRule::SameValue) => value(Register(number)),
                Some(RegisterRule::Offset(offset)) => Some(load(cfa.wrapping_add_signed(offset))?),
                Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::Register(register)) => value(register),
                Some(RegisterRule::Expression(expression)) => {
                    let at = evaluate(module, &expression, regs, snapshot, Some(cfa));
                    Some(load(at.ok_or(End::Failed)?)?)
                }
                Some(RegisterRule::ValExpression(expression)) => {
                    evaluate(module, &expression, regs, snapshot, Some(cfa))
                }
                Some(_) => None,
            };
            caller[usize::from(number)] = found;
        }
        Ok(caller)
    }
}

/// The value of an expression, which starts with the CFA on its stack if there
/// is one.
fn evaluate(
    module: &CallFrames,
    expression: &UnwindExpression<usize>,
    regs: &[Option<u64>; 17],
    snapshot: &Snapshot<'_>,
    cfa: Option<u64>,
) -> Option<u64> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut evaluation = expression.get(&module.eh_frame).ok()?.evaluation(encoding);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let mut state = evaluation.evaluate().ok()?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, .. } => {
                let word = stack_word(snapshot, address)?;
                evaluation.resume_with_memory(Value::Generic(word)).ok()?
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = regs.get(usize::from(register.0)).copied().flatten()?;
                evaluation.resume_with_register(Value::Generic(value)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result() {
        [gimli::Piece { location: gimli::Location::Address { address }, .. }] => Some(*address),
        _ => None,
    }
}

impl Unwinder for Gimli {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.frames.clear();
        self.frames.push(snapshot.rip);
        let mut regs = [None; 17];
        for (register, value) in regs.iter_mut().zip(snapshot.gpr) {
            *register = Some(value);
        }
        regs[16] = Some(snapshot.rip);
        let mut lookup = snapshot.rip;
        loop {
            let sp = regs[7];
            match self.step(snapshot, &regs, lookup) {
                Err(end) => {
                    self.end = end;
                    break;
                }
                Ok(caller) => regs = caller,
            }
            let Some(ra) = regs[16].filter(|_| regs[7] > sp) else {
                self.end = End::Failed;
                break;
            };
            if ra == 0 {
                self.end = End::Outermost;
                break;
            }
            if self.frames.len() == MAX_FRAMES {
                self.end = End::Failed;
                break;
            }
            self.frames.push(ra);
            lookup = ra - 1;
        }
        self.frames.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }

    fn is_complete(&self) -> Option<bool> {
        Some(self.end == End::Outermost)
    }
}
