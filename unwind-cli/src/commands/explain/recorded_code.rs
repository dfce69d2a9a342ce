//! Rows that a recording has beside those of files: of code that a program has made.

use std::convert::Infallible;
use std::ops::Range;

use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, RowSource, VirtAddr};
use unwind_profile::mapped::address_spaces::Space;
use unwind_profile::mapped::generated_code::{ToldBounds, V8Returns};
use unwind_profile::mapped::recorded_tables::RecordedTables;
use unwind_x86::{FunctionBounds, X86_64, X86_64Regs};

/// Rows that a compiler has told of its code in a dump, if the stack is that of a sample.
#[derive(Clone, Copy)]
pub(super) struct DumpRows<'s>(pub(super) Option<&'s Space>);

impl<'s> DumpRows<'s> {
    fn tables(self, frame: &FrameContext<'_, X86_64Regs>) -> Option<RecordedTables<'s>> {
        let space = self.0?;
        let range = space.find(frame.lookup_addr().get())?;
        range.file.is_jit().then_some(RecordedTables { space })
    }
}

impl RowSource<X86_64> for DumpRows<'_> {
    type Error = sframe::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, sframe::Error> {
        let Some(mut tables) = self.tables(frame) else { return Ok(None) };
        RowSource::<X86_64>::row(&mut tables, frame, mem)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, sframe::Error> {
        let Some(mut tables) = self.tables(frame) else { return Ok(None) };
        RowSource::<X86_64>::register_rules(&mut tables, frame, mem)
    }
}

/// Rows of return addresses in code of V8, if the stack is that of a sample.
#[derive(Clone, Copy)]
pub(super) struct SampledV8<'s>(pub(super) Option<&'s Space>);

impl<A: Arch> RowSource<A> for SampledV8<'_> {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        let Some(space) = self.0 else { return Ok(None) };
        RowSource::<A>::row(&mut V8Returns { space }, frame, mem)
    }
}

/// Where functions begin and end that compilers have told of in a dump, if the stack is that of a
/// sample.
#[derive(Clone, Copy)]
pub(super) struct SampledBounds<'s>(pub(super) Option<&'s Space>);

impl FunctionBounds for SampledBounds<'_> {
    fn find(&self, addr: VirtAddr) -> Option<Range<VirtAddr>> {
        ToldBounds { space: self.0? }.find(addr)
    }
}
