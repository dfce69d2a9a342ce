//! A source of the rows of all modules of an address space.

use unwind_core::{
    Arch, FrameContext, KeyedRange, Memory, ModuleMap, RegisterRules, Row, RowKey, RowKeys,
    RowSource, VirtAddr,
};

use crate::{
    abi::CfiAbi,
    error::CfiError,
    remote::{CfiScratch, RemoteCfi, RemoteCfiError},
    table::CfiTable,
};

/// A source of the rows in the call frame information of all modules of an address space.
///
/// It is one for code of any CPU. Code whose words have another size than that CPU's ends
/// a walk with [`CfiError::AddressSize`].
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

    /// The module with an address, unless it is of code with other words.
    fn table<A: Arch>(self, addr: VirtAddr) -> Result<Option<&'m CfiTable<'a>>, CfiError> {
        let Some(module) = self.modules.find(addr) else { return Ok(None) };
        check_words::<A>(module.table.abi())?;
        Ok(Some(&module.table))
    }
}

fn check_words<A: Arch>(abi: CfiAbi) -> Result<(), CfiError> {
    match abi.address_size() {
        size if u64::from(size) == A::WORD.bytes() => Ok(()),
        size => Err(CfiError::AddressSize(size)),
    }
}

impl<A: Arch, const N: usize> RowSource<A> for CfiSource<'_, '_, N> {
    type Error = CfiError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, CfiError> {
        let addr = frame.lookup_addr();
        let Some(table) = self.table::<A>(addr)? else { return Ok(None) };
        table.find_row_in(frame, mem)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, CfiError> {
        let addr = frame.lookup_addr();
        self.table::<A>(addr)?.map_or(Ok(None), |table| table.find_register_rules(addr.get()))
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.modules.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        self.table::<A>(addr).ok()??.row_key(addr.get())
    }
}

/// A source like [`CfiSource`], of objects whose call frame information is read where it is: in the memory that
/// is walked, whose pages may be absent, or change.
#[derive(Debug)]
pub struct RemoteCfiSource<'m, const N: usize> {
    modules: &'m ModuleMap<RemoteCfi, N>,
    scratch: &'m mut CfiScratch,
}

impl<'m, const N: usize> RemoteCfiSource<'m, N> {
    /// The call frame information of `modules`, read to `scratch`.
    #[must_use]
    pub const fn new(modules: &'m ModuleMap<RemoteCfi, N>, scratch: &'m mut CfiScratch) -> Self {
        Self { modules, scratch }
    }

    fn object<A: Arch>(&self, addr: VirtAddr) -> Result<Option<&'m RemoteCfi>, CfiError> {
        let Some(module) = self.modules.find(addr) else { return Ok(None) };
        check_words::<A>(module.table.abi())?;
        Ok(Some(&module.table))
    }
}

impl<A: Arch, const N: usize> RowSource<A> for RemoteCfiSource<'_, N> {
    type Error = RemoteCfiError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, RemoteCfiError> {
        let addr = frame.lookup_addr();
        let Some(object) = self.object::<A>(addr)? else { return Ok(None) };
        object.find_row_in(frame, mem, self.scratch)
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, RemoteCfiError> {
        let addr = frame.lookup_addr();
        let Some(object) = self.object::<A>(addr)? else { return Ok(None) };
        object.find_register_rules(mem, addr.get(), self.scratch)
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.modules.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        self.object::<A>(addr).ok()??.row_key(addr.get())
    }
}

/// Of modules whose tables have a number.
impl<const N: usize> RowKeys for CfiSource<'_, '_, N> {
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let module = self.modules.find(addr)?;
        let key = module.table.row_key(module.text.start.get())?;
        Some(KeyedRange { text: module.text.clone(), key })
    }
}

/// Of modules whose call frame information has a number.
impl<const N: usize> RowKeys for RemoteCfiSource<'_, N> {
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let module = self.modules.find(addr)?;
        let key = module.table.row_key(module.text.start.get())?;
        Some(KeyedRange { text: module.text.clone(), key })
    }
}
