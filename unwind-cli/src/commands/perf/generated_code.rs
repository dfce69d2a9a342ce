//! Code that V8 makes: the compiled JavaScript of node and others, and the built-in functions
//! that it brings along. Neither has tables, and all of it keeps frame pointers where it calls.
//!
//! So a return address in such code is that of a function whose frame pointer is its own. Where
//! a function was interrupted it may not have set it yet, or no longer: that stays a guess.

use std::convert::Infallible;

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource};

use crate::commands::perf::address_spaces::Space;
use crate::commands::perf::ranges::Range;
use crate::commands::stack::frame_pointers::FramePointerRows;

/// Rows of code without a table, of a recording: along frame pointers.
#[derive(Clone, Copy)]
pub(crate) struct GeneratedCode<'s> {
    pub(crate) space: &'s Space,
    /// Whether all code is declared to keep frame pointers.
    pub(crate) frame_pointers: FramePointerRows,
}

impl<A: Arch> RowSource<A> for GeneratedCode<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        if !frame.pc().is_exact() && self.is_of_v8(frame.lookup_addr().get()) {
            return Ok(Some(Row::frame_pointer(A::WORD)));
        }
        RowSource::<A>::row(&mut self.frame_pointers, frame, mem)
    }
}

impl GeneratedCode<'_> {
    /// Whether code without a table is V8's.
    fn is_of_v8(&self, addr: u64) -> bool {
        let Some(range) = self.space.find(addr).filter(|range| range.executable) else {
            return false;
        };
        if range.file.has_code() && !range.file.is_jit() {
            // What V8 has in C++ has tables.
            return range.file.has_v8();
        }
        let has_v8 = |range: &Range| range.executable && range.file.has_v8();
        self.space.find_range(&has_v8).is_some()
    }
}
