//! Rows of 64-bit code from its SFrame tables.

use core::ops::Range;

use sframe::{Abi, Error, IndexedTable, Section, Tables};
use unwind_core::{
    FrameContext, KeyedRange, Memory, Module, ModuleMap, Origin, Row, RowKey, RowKeys, RowSource,
    VirtAddr,
};

use crate::x86_64::{X86_64, X86_64Regs};

/// The SFrame tables of one loaded object, borrowed as bytes.
///
/// Usually there is one; a linker that only joins its inputs leaves several.
#[derive(Clone, Debug)]
pub struct SframeModule<'a> {
    first: IndexedTable<'a, 'a>,
    /// Those after it.
    rest: Tables<'a>,
    origin: Origin,
    /// Code of functions that may return to where an exception is caught.
    eh_returns: &'a [Range<u64>],
    /// Where the section is loaded.
    addr: u64,
    id: Option<u64>,
}

impl<'a> SframeModule<'a> {
    /// The tables in `section`, which is loaded at `addr`; `None` if there are
    /// no bytes, or no table of 64-bit x86 code.
    ///
    /// The header of the first table is checked here, all else when it is
    /// used.
    ///
    /// # Errors
    ///
    /// What is wrong with the first table's header.
    pub fn new(section: &'a [u8], addr: u64) -> Result<Option<Self>, Error> {
        let mut tables = Section::new(section).at(addr).tables();
        let Some(first) = tables.next().transpose()? else { return Ok(None) };
        if first.header().abi != Abi::Amd64Little {
            return Ok(None);
        }
        let first = first.into();
        let origin = Origin::Table;
        Ok(Some(Self { first, rest: tables, origin, eh_returns: &[], addr, id: None }))
    }

    /// How many words of memory [`index`](Self::index) can make use of.
    ///
    /// It takes time for each function.
    #[must_use]
    pub fn index_len(&self) -> usize {
        self.first.table().index_len()
    }

    /// The same tables, with an index of the first one in as much of `memory` as it needs:
    /// a row that no cache has is found in fewer steps.
    ///
    /// It takes time for each function, and for each word.
    #[must_use]
    pub fn index(mut self, memory: &'a mut [u32]) -> Self {
        self.first = self.first.table().index(memory);
        self
    }

    /// The same tables, known to be built from another format.
    #[must_use]
    pub const fn built(mut self) -> Self {
        self.origin = Origin::CallFrames;
        self
    }

    /// The same tables, of an object that has code at these addresses, ascending and apart, whose
    /// functions may [return to where an exception is caught](Row::with_eh_return), which tables
    /// cannot say. What makes a table of call frame information knows them: see
    /// `CfiConverter::eh_returns` of `sframe`.
    #[must_use]
    pub const fn eh_returns(mut self, code: &'a [Range<u64>]) -> Self {
        self.eh_returns = code;
        self
    }

    /// The same tables, which this number names in all address spaces: see [`RowKey::table`].
    #[must_use]
    pub const fn with_id(mut self, id: u64) -> Self {
        self.id = Some(id);
        self
    }

    /// The row for a lookup address.
    #[inline]
    fn row(&self, pc: u64) -> Result<Option<Row>, Error> {
        // Changed and returned where it is, so that it is not copied on the stack.
        let mut found = self.first.find_row(pc);
        match &mut found {
            Ok(Some(row)) => *row = self.marked(*row, pc),
            Ok(None) => return self.row_of_rest(pc),
            Err(_) => {}
        }
        found
    }

    /// The row in the tables after the first one.
    #[inline(never)]
    fn row_of_rest(&self, pc: u64) -> Result<Option<Row>, Error> {
        for table in self.rest.clone() {
            if let Some(row) = table?.find_row(pc)? {
                return Ok(Some(self.marked(row, pc)));
            }
        }
        Ok(None)
    }

    /// A row of the tables, with what they do not say.
    #[inline]
    fn marked(&self, row: Row, pc: u64) -> Row {
        let row = row.with_origin(self.origin);
        let after = self.eh_returns.partition_point(|range| range.start <= pc);
        let range = after.checked_sub(1).and_then(|last| self.eh_returns.get(last));
        if range.is_some_and(|range| range.contains(&pc)) { row.with_eh_return() } else { row }
    }
}

/// A source of the rows in the tables of all modules of an address space.
///
/// Code outside the modules, such as what a JIT compiler made, is not
/// covered.
#[derive(Clone, Copy, Debug)]
pub struct SframeSource<'m, 'a, const N: usize> {
    modules: &'m ModuleMap<SframeModule<'a>, N>,
    /// The module that was found last: callers are often of the same one.
    last: Option<&'m Module<SframeModule<'a>>>,
}

impl<'m, 'a, const N: usize> SframeSource<'m, 'a, N> {
    /// The tables of `modules`.
    #[must_use]
    pub const fn new(modules: &'m ModuleMap<SframeModule<'a>, N>) -> Self {
        Self { modules, last: None }
    }
}

impl<const N: usize> RowSource<X86_64> for SframeSource<'_, '_, N> {
    type Error = Error;
    const IS_BY_ADDR: bool = true;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Error> {
        let addr = frame.lookup_addr();
        if !self.last.is_some_and(|module| module.text.contains(&addr)) {
            self.last = self.modules.find(addr);
        }
        match self.last {
            Some(module) => module.table.row(addr.get()),
            None => Ok(None),
        }
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.modules.generation()
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        let module = &self.modules.find(addr)?.table;
        Some(RowKey { table: module.id?, offset: addr.get().wrapping_sub(module.addr) })
    }
}

/// Of modules whose tables [have a number](SframeModule::with_id).
impl<const N: usize> RowKeys for SframeSource<'_, '_, N> {
    fn find(&mut self, addr: VirtAddr) -> Option<KeyedRange> {
        let module = self.modules.find(addr)?;
        let key = RowSource::<X86_64>::row_key(self, module.text.start)?;
        Some(KeyedRange { text: module.text.clone(), key })
    }
}
