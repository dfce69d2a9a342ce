//! Rows of signal frames, for both kinds of code.

use core::convert::Infallible;

use unwind_core::{FrameContext, Memory, Row, RowSource};

use crate::ia32::{Ia32, Ia32Regs};
use crate::sigreturn::{find_sigreturn_32, is_rt_sigreturn_64};
use crate::x86_64::{X86_64, X86_64Regs};

/// A source of the rows of signal frames, for code whose tables do not say
/// where the trampolines are.
#[derive(Clone, Copy, Debug, Default)]
pub struct SignalTrampolines;

impl RowSource<X86_64> for SignalTrampolines {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        // Absent code reads like other code: the walk has to continue by what it
        // has, and a walk by frame pointers needs no code at all.
        let is_signal = is_rt_sigreturn_64(frame.pc().addr(), mem).unwrap_or(false);
        Ok(is_signal.then_some(Row::signal_context()))
    }
}

impl RowSource<Ia32> for SignalTrampolines {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let is_signal = matches!(find_sigreturn_32(frame.pc().addr(), mem), Ok(Some(_)));
        Ok(is_signal.then_some(Row::signal_context()))
    }
}
