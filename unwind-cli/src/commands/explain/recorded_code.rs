//! Rows that a recording has beside those of files: of code that a program has made.

use unwind_core::{Arch, FrameContext, Memory, RegisterRules, Row, RowSource};
use unwind_x86::{X86_64, X86_64Regs};

use crate::commands::perf::address_spaces::Space;
use crate::commands::perf::generated_code::GeneratedCode;
use crate::commands::perf::recorded::RecordedTables;
use crate::commands::stack::frame_pointers::FramePointerRows;

const GUESS: FramePointerRows = FramePointerRows { is_trusted: false };

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

/// Rows of code without a table: of a sample as reports have them, else a guess.
#[derive(Clone, Copy)]
pub(super) struct TablelessRows<'s>(pub(super) Option<&'s Space>);

impl<A: Arch> RowSource<A> for TablelessRows<'_> {
    type Error = std::convert::Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        match self.0 {
            Some(space) => {
                RowSource::<A>::row(&mut GeneratedCode { space, frame_pointers: GUESS }, frame, mem)
            }
            None => RowSource::<A>::row(&mut { GUESS }, frame, mem),
        }
    }
}
