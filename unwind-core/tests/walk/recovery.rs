//! Rows that need a third register, which a second walk finds from the frame whose registers are
//! all known.

use std::cell::Cell;
use std::convert::Infallible;

use unwind_core::{
    Arch, BaseReg, CfaRule, DwarfReg, FrameContext, Memory, RegRule, RegisterRules, Row, RowSource,
    StepError, Walker, WordSize,
};

use crate::toy::{R3, Regs, Stack, locals};

/// A CPU whose calls preserve the third register.
struct Preserving;

impl Arch for Preserving {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;

    fn caller_registers(
        &self,
        ra: u64,
        sp: u64,
        fp: Option<u64>,
        mut preserved: impl FnMut(DwarfReg) -> Option<u64>,
    ) -> Option<Regs> {
        Some(Regs { pc: ra, sp, fp, r3: preserved(R3) })
    }
}

/// A row for each 0x1000 of code, which may be another when it is asked for again; no function
/// changes the third register.
struct Asked(Vec<(Row, Row, Cell<bool>)>);

impl Asked {
    fn new(rows: impl IntoIterator<Item = (Row, Row)>) -> Self {
        Self(rows.into_iter().map(|(first, then)| (first, then, Cell::new(false))).collect())
    }
}

impl RowSource<Preserving> for Asked {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let number = usize::try_from(frame.lookup_addr().get() >> 12).unwrap();
        let found = self.0.get(number.wrapping_sub(1));
        Ok(found.map(|(first, then, asked)| if asked.replace(true) { *then } else { *first }))
    }

    fn register_rules<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, Infallible> {
        let mut rules = RegisterRules::new();
        assert!(rules.add(R3, RegRule::SameValue));
        Ok(Some(rules))
    }
}

const ABOVE_R3: Row =
    Row::new(CfaRule::Register(BaseReg::Reg(R3), 16), RegRule::Offset(-8), RegRule::SameValue);

/// How many frames a walk finds, and why it ends.
fn walk(source: Asked) -> (usize, Option<StepError>) {
    // 0x1000 called by 0x2000, by 0x3000, and by 0x4000, whose CFA the third register tells.
    let words =
        [(0x700, 0x2010), (0x708, 0x3010), (0x710, 0x4010), (0x718, 0x4010), (0x808, 0x5010)];
    let mut stack = Stack::new(words);
    let mut walker = Walker::new(Preserving, source);
    let regs = Regs { pc: 0x1004, sp: 0x700, fp: None, r3: Some(0x800) };
    let mut frames = walker.frames(regs, &mut stack);
    let count = frames.by_ref().count();
    let end = frames.end().unwrap();
    let error = match end {
        unwind_core::End::Step(error) => Some(error),
        _ => None,
    };
    (count, error)
}

const UNKNOWN: Option<StepError> = Some(StepError::UnknownRegister(BaseReg::Reg(R3)));

#[test]
fn s3_the_third_register_is_told_by_calls_that_preserve_it() {
    let same = |row| (row, row);
    let rows = [locals(0), locals(0), locals(0), ABOVE_R3, Row::outermost()].map(same);
    assert_eq!(walk(Asked::new(rows)), (5, None));
}

#[test]
fn s3_a_recovery_does_not_lead_over_a_signal_frame() {
    // Whom a signal interrupted has any value in it.
    let same = |row| (row, row);
    let rows =
        [locals(0), locals(0).with_signal(), locals(0), ABOVE_R3, Row::outermost()].map(same);
    assert_eq!(walk(Asked::new(rows)), (4, UNKNOWN));
}

#[test]
fn s3_registers_of_a_frame_above_the_one_that_asks_are_not_its_own() {
    // The second walk finds a larger frame where the first has found a small one, and comes out
    // above the frame whose registers are wanted.
    let rows = [
        (locals(0), locals(0)),
        (locals(0), locals(0)),
        (locals(0), locals(8)),
        (ABOVE_R3, ABOVE_R3),
        (Row::outermost(), Row::outermost()),
    ];
    assert_eq!(walk(Asked::new(rows)), (4, UNKNOWN));
}

#[test]
fn a3_no_register_is_recovered_through_a_frame_that_may_be_written_over() {
    // The function may be about to return to a handler while it runs, or what it has called.
    let same = |row| (row, row);
    for at in 0..2 {
        let mut rows = [locals(0), locals(0), locals(0), ABOVE_R3, Row::outermost()];
        rows[at] = rows[at].with_eh_return();
        assert_eq!(walk(Asked::new(rows.map(same))), (4, UNKNOWN));
    }
    let rows = [locals(0), locals(0), locals(0).with_eh_return(), ABOVE_R3, Row::outermost()];
    assert_eq!(walk(Asked::new(rows.map(same))), (5, None));
}
