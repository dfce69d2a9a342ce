//! Modules, their tables and cached rows, in one value that walks.

use core::fmt;
use core::ops::Range;

use sframe::Error as TableError;
#[cfg(feature = "cfi")]
use unwind_cfi::{CfiAbi, CfiTable};
use unwind_core::{CacheStats, MapError, Memory, Module, RowCache, RowSource, Trace};
use unwind_core::{VirtAddr, Walker};
use unwind_x86::{FramePointers, InstructionAnalysis, LinkageEntries, SframeModule};
use unwind_x86::{SignalTrampolines, X86_64, X86_64Regs};

use crate::tables::Tables;

/// Walks stacks of 64-bit x86 code in one address space.
///
/// It knows the code of at most `MODULES` loaded objects, the program and its
/// libraries, by the SFrame tables (or, with the feature `cfi`, the call frame
/// information) that the host lends, and keeps `ROWS` rows of
/// them (a power of two, at least 4; 16 bytes each) for later walks.
///
/// # How many rows
///
/// As many as the code has places that stacks return to, or more: a place takes some 50
/// instructions if its row is kept, and 600 (SFrame) to 1,500 (call frame information) if not.
/// Places without a table are kept, too.
///
/// | job | rows | bytes |
/// |---|--:|--:|
/// | one small program; a kernel with little room | 512 | 8 KiB |
/// | one program, also a compiler or an interpreter: the default | 4,096 | 64 KiB |
/// | a profiler of a machine, with a cache for each CPU | 32,768 | 512 KiB |
///
/// A value with the default is large for the stack of a thread or a kernel: put it into a `Box`
/// or a static there, or take fewer rows.
///
/// # Sources
///
/// A step takes the first of these that knows the code at the pc:
///
/// | source | knows | a stack with a frame found so |
/// |---|---|---|
/// | the instructions of a linkage table, in place of a wrong row | the sampled frame | can be complete |
/// | the module's SFrame table | every function that has an entry in it | can be complete |
/// | with the feature `cfi`: its call frame information | the same | can be complete |
/// | a signal trampoline's instructions | signal frames of Linux | can be complete |
/// | the instructions at the pc of the sampled frame | functions that have no frame yet or no longer, linkage tables | can be complete where the instructions prove the row |
/// | the frame pointer | code that keeps one; in other code callers are missed | is never complete |
///
/// It is a [`walk::Walker`](crate::walk::Walker) of these parts, in this order. Make a `Walker`
/// of your own for other sources, other CPUs, 32-bit code, an end of the stack, or
/// return addresses that a tracer has replaced:
///
/// ```text
/// Walker::new(X86_64::FOUR_LEVEL,
///         LinkageEntries::new(SframeSource::new(&modules))
///             .or(SignalTrampolines).or(InstructionAnalysis))
///     .cache(&mut rows)
///     .fallback(FramePointers)
/// ```
///
/// # Contexts
///
/// A walk reads memory only by the [`Memory`] that it is given: stacks, and the
/// instructions at the pc, for which a host whose memory has no code (a core file, a copy
/// of a stack) reads the mapped files. It neither allocates
/// nor locks, and it ends after as many frames as the trace has room for. Walks take
/// the unwinder exclusively: each CPU or thread has its own.
///
/// # Example
///
/// See [the crate's](crate#example).
#[derive(Clone, Debug)]
pub struct Unwinder<'a, const MODULES: usize, const ROWS: usize = 4096> {
    arch: X86_64,
    tables: Tables<'a, MODULES>,
    rows: RowCache<ROWS>,
}

impl<const MODULES: usize, const ROWS: usize> Unwinder<'_, MODULES, ROWS> {
    /// An unwinder without modules, for addresses of 48 bits: it walks by
    /// instructions and frame pointers alone.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_arch(X86_64::FOUR_LEVEL)
    }

    /// An unwinder without modules, for another width of addresses, or code without a red zone.
    #[must_use]
    pub const fn with_arch(arch: X86_64) -> Self {
        Self { arch, tables: Tables::new(), rows: RowCache::new() }
    }
}

impl<'a, const MODULES: usize, const ROWS: usize> Unwinder<'a, MODULES, ROWS> {
    /// Adds a loaded object: the addresses of its code, the bytes of its `.sframe`
    /// and the address that this section is loaded at. All addresses are the target's,
    /// in bytes.
    ///
    /// `code` is where pcs of the object can be: its executable segments, with the linkage
    /// table. Objects may not overlap.
    ///
    /// The header is checked here. Each function is checked when a walk first meets
    /// it, so that a damaged one leaves its neighbours in use.
    ///
    /// # Errors
    ///
    /// [`ModuleError`]; the unwinder is as it was.
    pub fn add_module(
        &mut self,
        code: Range<u64>,
        sframe: &'a [u8],
        sframe_addr: u64,
    ) -> Result<(), ModuleError> {
        self.add(code, sframe, sframe_addr, |table| table)
    }

    /// Adds a loaded object as [`add_module`](Self::add_module) does, with a table that was made
    /// of call frame information: frames have
    /// [`Origin::CallFrames`](unwind_core::Origin::CallFrames).
    ///
    /// Such a table is often part of no file. Make it for an address within 2 GiB of the code as
    /// linked, such as that of `.eh_frame`. `sframe_addr` is then that address plus the bias: how
    /// far above its linked addresses the object is loaded.
    ///
    /// # Errors
    ///
    /// [`ModuleError`]; the unwinder is as it was.
    pub fn add_converted_module(
        &mut self,
        code: Range<u64>,
        sframe: &'a [u8],
        sframe_addr: u64,
    ) -> Result<(), ModuleError> {
        self.add(code, sframe, sframe_addr, SframeModule::built)
    }

    fn add(
        &mut self,
        code: Range<u64>,
        sframe: &'a [u8],
        sframe_addr: u64,
        kind: impl FnOnce(SframeModule<'a>) -> SframeModule<'a>,
    ) -> Result<(), ModuleError> {
        let table = SframeModule::new(sframe, sframe_addr).map_err(ModuleError::Table)?;
        let table = kind(table.ok_or(ModuleError::NoTable)?);
        let text = VirtAddr::new(code.start)..VirtAddr::new(code.end);
        self.tables.sframe.add(Module { text, table }).map_err(ModuleError::Map)
    }

    /// Adds the call frame information of a loaded object. No table is made of it: a walk looks up
    /// the row of each new pc in it. The object may have an SFrame table, too, which is asked first.
    ///
    /// The [`bias`](CfiTable::bias) of the information says how far above its linked
    /// addresses the object is loaded, where the sections were not loaded with it.
    ///
    /// # Errors
    ///
    /// [`ModuleError`]; the unwinder is as it was.
    #[cfg(feature = "cfi")]
    pub fn add_call_frames(
        &mut self,
        code: Range<u64>,
        table: CfiTable<'a>,
    ) -> Result<(), ModuleError> {
        if table.abi() != CfiAbi::X86_64 {
            return Err(ModuleError::NoTable);
        }
        let text = VirtAddr::new(code.start)..VirtAddr::new(code.end);
        self.tables.call_frames.add(Module { text, table }).map_err(ModuleError::Map)
    }

    /// Removes the object whose code starts at an address; false if there is none.
    pub fn remove_module(&mut self, code_start: u64) -> bool {
        let start = VirtAddr::new(code_start);
        let removed = self.tables.sframe.remove(start).is_some();
        #[cfg(feature = "cfi")]
        let removed = self.tables.call_frames.remove(start).is_some() || removed;
        removed
    }

    /// Removes all objects, as an `exec` does.
    pub fn clear(&mut self) {
        self.tables.sframe.clear();
        #[cfg(feature = "cfi")]
        self.tables.call_frames.clear();
    }

    /// Walks a stack from the registers of its innermost frame into `trace`, in place of an
    /// earlier walk's frames.
    ///
    /// [`Trace::end`] says why the walk has ended, and [`Trace::is_complete`] whether the
    /// trace has every frame of the stack.
    pub fn walk(&mut self, regs: X86_64Regs, memory: &mut impl Memory, trace: &mut Trace) {
        let tables = LinkageEntries::new(&self.tables);
        let rows = tables.or(SignalTrampolines).or(InstructionAnalysis);
        let walker = Walker::new(self.arch, rows).cache(&mut self.rows).fallback(FramePointers);
        let room = u32::try_from(trace.capacity()).unwrap_or(u32::MAX);
        walker.max_frames(room).trace(regs, memory, trace);
    }

    /// How often a row was found in the cache.
    #[must_use]
    pub const fn cache_stats(&self) -> CacheStats {
        self.rows.stats()
    }
}

impl<const MODULES: usize, const ROWS: usize> Default for Unwinder<'_, MODULES, ROWS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Why an object could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModuleError {
    /// The header of its table is wrong.
    Table(TableError),
    /// The section is not about 64-bit x86 code.
    NoTable,
    /// Its code is empty or overlaps that of another object, or there is no room.
    Map(MapError),
}

impl fmt::Display for ModuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(error) => write!(f, "the SFrame table: {error}"),
            Self::NoTable => f.write_str("the section is not about 64-bit x86 code"),
            Self::Map(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ModuleError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Table(error) => Some(error),
            Self::NoTable => None,
            Self::Map(error) => Some(error),
        }
    }
}
