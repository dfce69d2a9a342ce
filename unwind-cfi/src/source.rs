//! A source of the rows of all modules of an address space.

use unwind_core::VirtAddr;
use unwind_core::{Arch, FrameContext, Memory, ModuleMap, RegisterRules, Row, RowSource};

use crate::{error::CfiError, table::CfiTable};

/// A source of the rows in the call frame information of all modules of an address space.
///
/// It is one for code of any CPU; objects whose code has words of another size than that
/// CPU's give no rows.
///
/// # Example
///
/// ```
/// use unwind_cfi::{CfiSource, CfiTable};
/// use unwind_core::{ModuleMap, RowSource, Walker, Arch};
///
/// /// Walks by call frame information alone.
/// fn walker<'m, 'a, A: Arch>(
///     arch: A,
///     modules: &'m ModuleMap<CfiTable<'a>, 64>,
/// ) -> Walker<A, CfiSource<'m, 'a, 64>> {
///     Walker::new(arch, CfiSource::new(modules))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CfiSource<'m, 'a, const N: usize> {
    modules: &'m ModuleMap<CfiTable<'a>, N>,
}

impl<'m, 'a, const N: usize> CfiSource<'m, 'a, N> {
    /// The call frame information of `modules`.
    #[must_use]
    pub const fn new(modules: &'m ModuleMap<CfiTable<'a>, N>) -> Self {
        Self { modules }
    }

    fn table<A: Arch>(self, addr: VirtAddr) -> Option<&'m CfiTable<'a>> {
        let table = self.modules.find(addr).map(|module| &module.table);
        table.filter(|table| A::WORD.bytes() == u64::from(table.abi().address_size()))
    }
}

impl<A: Arch, const N: usize> RowSource<A> for CfiSource<'_, '_, N> {
    type Error = CfiError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, CfiError> {
        let addr = frame.lookup_addr();
        self.table::<A>(addr).map_or(Ok(None), |table| table.find_row(addr.get()))
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, CfiError> {
        let addr = frame.lookup_addr();
        self.table::<A>(addr).map_or(Ok(None), |table| table.find_register_rules(addr.get()))
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.modules.generation()
    }
}
