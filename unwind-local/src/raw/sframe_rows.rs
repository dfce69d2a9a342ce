//! Rows of `.sframe` sections.

use sframe::Section;
use unwind_core::{Origin, Row};

use super::machine::SFRAME_ABI;

/// The row of an `.sframe`. Where that is malformed, `.eh_frame` is asked.
// One of these is on the stack at a time.
#[inline(never)]
pub(super) fn sframe_row(bytes: &[u8], at: u64, addr: u64) -> Option<Row> {
    Section::new(bytes).at(at).tables().find_map(|table| {
        let table = table.ok().filter(|table| Some(table.header().abi) == SFRAME_ABI);
        table?.find_row(addr).ok().flatten().map(|row| row.with_origin(Origin::Table))
    })
}
