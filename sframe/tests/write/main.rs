//! What a table builder writes, byte by byte, and what is lost.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod addresses;
mod bytes;
mod loss;
mod merge;

use core::num::NonZeroU8;

use sframe::{Abi, Builder, Format, Function, Omission, OmissionReason};
use unwind_core::{BaseReg, CfaRule, DwarfReg, RegRule, Row};

const SAVED: RegRule = RegRule::Offset(-8);

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), SAVED, RegRule::SameValue)
}

const fn reg(number: u8) -> BaseReg {
    BaseReg::Reg(DwarfReg(number))
}

fn none(lost: Omission) {
    panic!("{lost}");
}

fn built(format: Format, abi: Abi, addr: u64, functions: &[Function<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(format, abi).unwrap();
    for function in functions {
        builder.add(function, none).unwrap();
    }
    builder.finish(addr, none).unwrap()
}

/// The ranges and reasons that adding `function` loses.
fn losses(format: Format, abi: Abi, function: &Function<'_>) -> Vec<(u64, u64, OmissionReason)> {
    let mut lost = Vec::new();
    let mut builder = Builder::new(format, abi).unwrap();
    builder.add(function, |range| lost.push((range.start, range.size, range.reason))).unwrap();
    lost
}
