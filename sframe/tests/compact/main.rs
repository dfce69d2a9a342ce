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

use sframe::{CompactBuilder, CompactOmissions};
use unwind_core::{CfaRule, RegRule, Row};

const SAVED: RegRule = RegRule::Offset(-8);

const fn sp(offset: i32) -> Row {
    Row::new(CfaRule::sp(offset), SAVED, RegRule::SameValue)
}

/// The image of rows that hold in ranges.
fn image(rows: &[(u64, u64, Row)]) -> (Vec<u8>, CompactOmissions) {
    let mut builder = CompactBuilder::new();
    for (start, end, row) in rows {
        builder.add(*start..*end, row).unwrap();
    }
    builder.finish().unwrap()
}
