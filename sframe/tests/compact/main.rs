//! Compact tables: what they find, held against the tables that they are made of; what they cannot
//! say; and damaged ones.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod call_frames;
mod damaged;
mod files;
mod format;
mod loads;
mod omissions;
mod overlaps;
mod program;
mod rbx;
mod sections;

use sframe::{CfiAbi, CompactBuilder, CompactOmissions};
use testdata::Cie;
use unwind_core::{CfaRule, RegRule, Row};

const SAVED: RegRule = RegRule::Offset(-8);

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), SAVED, RegRule::SameValue)
}

/// A CIE as compilers make it for an ABI.
fn cie(abi: CfiAbi) -> Cie {
    match abi {
        CfiAbi::Ia32 => {
            Cie { data_align: -4, ra: 8, instructions: vec![0x0c, 4, 4, 0x88, 1], ..Cie::amd64() }
        }
        _ => Cie::amd64(),
    }
}

/// The image of rows that hold in ranges.
fn image(rows: &[(u64, u64, Row)]) -> (Vec<u8>, CompactOmissions) {
    let mut builder = CompactBuilder::new();
    for (start, end, row) in rows {
        builder.add(*start..*end, row).unwrap();
    }
    builder.finish().unwrap()
}
