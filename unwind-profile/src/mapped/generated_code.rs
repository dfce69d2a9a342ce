//! Code that V8 makes: the compiled JavaScript of node and others, and the built-in functions
//! that it brings along. Neither has tables, and all of it keeps frame pointers where it calls.
//!
//! So a return address in such code is that of a function whose frame pointer is its own. Where
//! a function was interrupted it may not have set it yet, or no longer.

use std::convert::Infallible;
use std::ops;

use unwind_core::{Arch, FrameContext, Memory, Row, RowSource, VirtAddr};
use unwind_x86::FunctionBounds;

use crate::mapped::address_spaces::Space;
use crate::mapped::ranges::Range;

/// Rows of return addresses in code of V8, in a recording.
#[derive(Clone, Copy, Debug)]
pub struct V8Returns<'s> {
    pub space: &'s Space,
}

impl<A: Arch> RowSource<A> for V8Returns<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let is_return = !frame.pc().is_exact() && self.is_of_v8(frame.lookup_addr().get());
        Ok(is_return.then(|| Row::frame_pointer(A::WORD)))
    }
}

impl V8Returns<'_> {
    /// Whether code without a table is V8's.
    fn is_of_v8(self, addr: u64) -> bool {
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

/// Where functions that compilers have told of begin and end.
#[derive(Clone, Copy, Debug)]
pub struct ToldBounds<'s> {
    pub space: &'s Space,
}

impl FunctionBounds for ToldBounds<'_> {
    fn find(&self, addr: VirtAddr) -> Option<ops::Range<VirtAddr>> {
        let range = self.space.find(addr.get()).filter(|range| range.file.is_function())?;
        Some(VirtAddr::new(range.start)..VirtAddr::new(range.end))
    }
}
