//! Made-up programs: their tables and stacks.

use sframe::{Abi, Builder, Format, Function};
use unwind_core::{CfaRule, RegRule, Row};

pub(crate) const FUNCTION: u32 = 64;
pub(crate) const TEXT: u64 = 0x10_0000;

/// How far the stack pointer is from the CFA after the prologue of a function:
/// as a function of its number, so that a row says which function it is of.
pub(crate) fn frame_size(function: u64) -> i32 {
    i32::try_from(16 + 8 * (function % 13)).unwrap()
}

/// A table of `functions` functions of 64 bytes with three rows each.
pub(crate) fn table(functions: u64) -> Vec<u8> {
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let row = |offset| Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue);
    for number in 0..functions {
        let start = TEXT + number * u64::from(FUNCTION);
        let rows = [(0, row(8)), (4, row(frame_size(number))), (60, row(8))];
        builder.add(&Function::new(start, FUNCTION, &rows), |lost| panic!("{lost}")).unwrap();
    }
    builder.finish(TEXT, |lost| panic!("{lost}")).unwrap()
}

/// The pc and the words of a stack of n frames of [`table_with_end`], whose functions
/// begin with this one; the last one has no caller.
pub(crate) fn stack_with_end(depth: usize, first: u64) -> (u64, Vec<u8>) {
    const FUNCTIONS: u64 = 64;
    let function = |frame: usize| match frame + 1 == depth {
        true => FUNCTIONS,
        false => (first + frame as u64) % FUNCTIONS,
    };
    let pc = |frame| TEXT + function(frame) * u64::from(FUNCTION) + 20;
    let mut words = Vec::new();
    for frame in 0..depth {
        let size = usize::try_from(frame_size(function(frame)) / 8).unwrap();
        words.resize(words.len() + size - 1, 0);
        words.push(if frame + 1 == depth { 0 } else { pc(frame + 1) });
    }
    (pc(0), words.into_iter().flat_map(u64::to_le_bytes).collect())
}

/// As [`table`] of 64 functions, with one more that has no caller.
pub(crate) fn table_with_end() -> Vec<u8> {
    const FUNCTIONS: u64 = 64;
    let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
    let row = |offset| Row::new(CfaRule::sp(offset), RegRule::Offset(-8), RegRule::SameValue);
    for number in 0..=FUNCTIONS {
        let start = TEXT + number * u64::from(FUNCTION);
        let rows = match number {
            FUNCTIONS => [(0, Row::outermost())],
            _ => [(0, row(frame_size(number)))],
        };
        builder.add(&Function::new(start, FUNCTION, &rows), |lost| panic!("{lost}")).unwrap();
    }
    builder.finish(TEXT, |lost| panic!("{lost}")).unwrap()
}
