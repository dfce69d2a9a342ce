//! Rows of signal frames, for both kinds of code.

use core::convert::Infallible;

use unwind_core::{FrameContext, Memory, ReadError, Row, RowSource, WordSize};

use crate::context_start::context_start;
use crate::ia32::{Ia32, Ia32Regs};
use crate::sigreturn::{find_rt_sigreturn_64, find_sigreturn_32};
use crate::x86_64::{X86_64, X86_64Regs};

/// A source of the rows of signal frames, for code whose tables do not say
/// where the trampolines are, and of the code in which a context of `makecontext` starts, of which no
/// table tells: such a frame is the outermost one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignalTrampolines;

impl RowSource<X86_64> for SignalTrampolines {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let found = find_rt_sigreturn_64(frame.pc().addr(), mem);
        let row = row_of(frame, found.map(|found| found.is_some()));
        Ok(row.or_else(|| context_start(WordSize::Eight, frame, mem)))
    }
}

impl RowSource<Ia32> for SignalTrampolines {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let found = find_sigreturn_32(frame.pc().addr(), mem);
        let row = row_of(frame, found.map(|found| found.is_some()));
        Ok(row.or_else(|| context_start(WordSize::Four, frame, mem)))
    }
}

/// Absent code reads like other code: the walk has to continue by what it has, and a walk by
/// frame pointers needs no code at all. The next walk looks again.
fn row_of<R>(frame: &FrameContext<'_, R>, is_signal: Result<bool, ReadError>) -> Option<Row> {
    if is_signal.is_err() {
        frame.may_change();
    }
    is_signal.unwrap_or(false).then_some(Row::signal_context())
}
