//! Rules that are expressions, which have a row in one frame alone.

use unwind_core::{FrameContext, Memory, Registers, Row};

use crate::{
    abi::CfiAbi,
    error::CfiError,
    evaluation::PcRules,
    rules::{NoRule, Reg},
    rules_in_frame::{InFrame, LONGEST, RulesInFrame},
};

/// The rules for one address, some of which are expressions that no row can say: with a
/// frame, its registers and memory, they come to a row of this frame.
///
/// Found by [`CfiTable::find_frame_rules`](crate::CfiTable::find_frame_rules) and
/// [`RemoteCfi::find_frame_rules`](crate::RemoteCfi::find_frame_rules), for who looks rules up in one
/// place and has the frame in another. It is about 400 bytes long.
#[derive(Clone, Debug)]
pub struct FrameRules {
    at_pc: PcRules,
    abi: CfiAbi,
    /// The address of the section.
    section: u64,
    /// How far the code was loaded above the addresses of its file.
    bias: u64,
    /// Of the CFA, the return address and the frame pointer.
    expressions: [Option<Copied>; 3],
}

/// An expression, copied from where the table is.
#[derive(Clone, Copy, Debug)]
struct Copied {
    at: u64,
    bytes: [u8; LONGEST],
}

impl FrameRules {
    /// Whether a lookup that has found this may have met such rules. If not there is no need to
    /// ask again.
    #[must_use]
    pub const fn may_say_more(found: &Result<Option<Row>, CfiError>) -> bool {
        match found {
            Ok(Some(row)) => RulesInFrame::may_say_more(Ok(row)),
            Ok(None) => false,
            Err(error) => RulesInFrame::may_say_more(Err(error)),
        }
    }

    /// The rules, where some are such expressions. `section` is the address of the section, and
    /// `copy` fills bytes from an address in it.
    pub(crate) fn new<E>(
        at_pc: &PcRules,
        abi: CfiAbi,
        section: u64,
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        if !RulesInFrame::are_needed(at_pc) {
            return Ok(None);
        }
        let of_register = |rule| match rule {
            Reg::None(none) => Some(none),
            _ => None,
        };
        let rules = &at_pc.rules;
        let all = [rules.cfa.none(), of_register(rules.ra), of_register(rules.kept)];
        let mut expressions = [None; 3];
        for (copied, none) in expressions.iter_mut().zip(all) {
            let Some(NoRule::Expression(len, at) | NoRule::ValueExpression(len, at)) = none else {
                continue;
            };
            let mut bytes = [0; LONGEST];
            if let Some(part) = bytes.get_mut(..usize::from(len)) {
                copy(at, part)?;
                *copied = Some(Copied { at, bytes });
            }
        }
        Ok(Some(Self { at_pc: *at_pc, abi, section, bias: 0, expressions }))
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
    pub fn row<R: Registers, M: Memory>(
        &self,
        frame: &FrameContext<'_, R>,
        mem: &mut M,
    ) -> Result<Row, CfiError> {
        let Self { at_pc, abi, section, bias, expressions } = self;
        let copy = |_: &mut M, at: u64, bytes: &mut [u8]| {
            let copied = expressions.iter().flatten().find(|copied| copied.at == at);
            let copied = copied.and_then(|copied| copied.bytes.get(..bytes.len()));
            copied.map(|copied| bytes.copy_from_slice(copied)).is_some()
        };
        let rules = RulesInFrame { at_pc, abi: *abi, section: *section, bias: *bias };
        rules.row(frame.sp(), &mut InFrame { frame, mem, copy })
    }
}
