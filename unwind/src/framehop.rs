//! An unwinder with framehop's interface, for profilers that are written for that: with
//! [`framehop::Unwinder`] as a bound or imported, other types are named, and nothing
//! else changes.
//!
//! | framehop's | here |
//! |---|---|
//! | `UnwinderX86_64` | [`FramehopUnwinder`] |
//! | `CacheX86_64` | [`FramehopCache`] |
//! | `Module` | [`FramehopModule`], made of the same sections |
//!
//! What it finds more by: the `.sframe` of an object, which is asked first, all registers that calls
//! preserve where a frame needs one, and signal frames. What it does not read: Mach-O's and PE's
//! own tables.
//!
//! # The end
//!
//! Stacks end with `Ok(None)` only if all frames were found: a table says that the last one has no
//! caller, or leads to a return address of zero, and no frame pointer was guessed before. framehop calls a stack whole where a frame
//! pointer led to a zero, too. What else ends a walk here is one of framehop's errors, the one that is
//! nearest: `DidNotAdvance` where nothing tells of the code, or callers may be missing.
//!
//! # Example
//!
//! ```
//! use framehop::{ExplicitModuleSectionInfo, FrameAddress, Unwinder};
//! use framehop::x86_64::UnwindRegsX86_64;
//! use unwind::framehop::{FramehopCache, FramehopModule, FramehopUnwinder};
//!
//! // Any profiler's function that walks by framehop.
//! fn frames<U: Unwinder>(
//!     unwinder: &U, cache: &mut U::Cache, pc: u64, regs: U::UnwindRegs, stack: &[u64], start: u64,
//! ) -> Vec<u64> {
//!     let mut read = |addr: u64| {
//!         let word = usize::try_from((addr - start) / 8).map_err(|_| ())?;
//!         stack.get(word).copied().ok_or(())
//!     };
//!     let mut frames = unwinder.iter_frames(pc, regs, cache, &mut read);
//!     let mut addresses = Vec::new();
//!     while let Ok(Some(frame)) = frames.next() {
//!         addresses.push(frame.address());
//!     }
//!     addresses
//! }
//!
//! let sections = ExplicitModuleSectionInfo { text_svma: Some(0x1000..0x3000), ..Default::default() };
//! let mut unwinder = FramehopUnwinder::<Vec<u8>>::new();
//! unwinder.add_module(FramehopModule::new("program".into(), 0x1000..0x3000, 0, sections));
//! // A frame pointer leads to a return address.
//! let regs = UnwindRegsX86_64::new(0x1010, 0x7000, 0x7000);
//! let stack = [0x7010, 0x2010, 0, 0];
//! let found = frames(&unwinder, &mut FramehopCache::new(), 0x1010, regs, &stack, 0x7000);
//! assert_eq!(found, [0x1010, 0x2010]);
//! ```

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, Range};
use core::sync::atomic::{AtomicU64, Ordering};

use ::framehop::x86_64::{Reg, UnwindRegsX86_64};
use ::framehop::{Error, FrameAddress, ModuleSectionInfo, Unwinder};
use unwind_cfi::{CfiAbi, CfiError, CfiSection, CfiTable, Entries, IndexEntry, index};
use unwind_core::{
    CacheStats, End, FrameContext, Memory, Origin, Position, ReadError, RegisterRules, Row,
    RowCache, RowSource, StepError, VirtAddr, Walker,
};
use unwind_x86::{FramePointers, InstructionAnalysis, SignalTrampolines, X86_64, X86_64Regs};

use crate::tables::RowError;

/// How many rows a cache keeps, as framehop's does.
const ROWS: usize = 512;

/// A section, and its address as it is linked.
struct Part<D> {
    data: D,
    addr: u64,
}

/// The sections of an object.
struct Sections<D> {
    sframe: Option<Part<D>>,
    eh_frame: Option<Part<D>>,
    eh_frame_hdr: Option<Part<D>>,
    debug_frame: Option<Part<D>>,
    text: Option<Part<D>>,
    /// Of `.eh_frame`, or else of `.debug_frame`, where there is no search table.
    index: Vec<IndexEntry>,
}

/// A loaded object: as framehop's `Module`, made of the same.
pub struct FramehopModule<D> {
    name: String,
    code: Range<u64>,
    /// How far above its linked addresses it is loaded.
    bias: u64,
    sections: Arc<Sections<D>>,
}

impl<D> Clone for FramehopModule<D> {
    fn clone(&self) -> Self {
        let (name, sections) = (self.name.clone(), Arc::clone(&self.sections));
        Self { name, code: self.code.clone(), bias: self.bias, sections }
    }
}

impl<D> fmt::Debug for FramehopModule<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, code, .. } = self;
        write!(f, "FramehopModule {{ name: {name:?}, code: {:#x}..{:#x} }}", code.start, code.end)
    }
}

impl<D: Deref<Target = [u8]>> FramehopModule<D> {
    /// The object whose code is loaded in `code`, and whose first linked address, zero for ELF, is
    /// loaded at `base`. Of its sections `.sframe`, `.eh_frame`, `.eh_frame_hdr`, `.debug_frame` and
    /// `.text` are asked for.
    pub fn new(
        name: String,
        code: Range<u64>,
        base: u64,
        mut info: impl ModuleSectionInfo<D>,
    ) -> Self {
        let bias = base.wrapping_sub(info.base_svma());
        let mut part = |name: &[u8]| {
            let addr = info.section_svma_range(name)?.start;
            Some(Part { data: info.section_data(name)?, addr })
        };
        let mut sections = Sections {
            sframe: part(b".sframe"),
            eh_frame: part(b".eh_frame"),
            eh_frame_hdr: part(b".eh_frame_hdr"),
            text: part(b".text"),
            debug_frame: None,
            index: Vec::new(),
        };
        // It is loaded nowhere.
        let debug_frame = info.section_data(b".debug_frame");
        sections.debug_frame = debug_frame.map(|data| Part { data, addr: 0 });
        if !matches!(sections.searched(), Ok(Some(_))) {
            sections.index = sections.frames().map(index_of).unwrap_or_default();
        }
        Self { name, code, bias, sections: Arc::new(sections) }
    }

    /// Its name, which nothing here depends on.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The row of a frame in its code.
    fn row<M: Memory>(
        &self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, RowError> {
        let linked = frame.lookup_addr().get().wrapping_sub(self.bias);
        if let Some(sframe) = &self.sections.sframe {
            for table in sframe::Section::new(&sframe.data).at(sframe.addr).tables() {
                let table = table.map_err(RowError::Sframe)?;
                let is_right = table.header().abi == sframe::Abi::Amd64Little;
                let row = if is_right { table.find_row(linked) } else { Ok(None) };
                if let Some(row) = row.map_err(RowError::Sframe)? {
                    return Ok(Some(row.with_origin(Origin::Table)));
                }
            }
        }
        let Some(table) = self.sections.call_frames().map_err(RowError::Cfi)? else {
            return Ok(None);
        };
        table.bias(self.bias).find_row_in(frame, mem).map_err(RowError::Cfi)
    }
}

impl<D: Deref<Target = [u8]>> Sections<D> {
    /// `.eh_frame`, or else `.debug_frame`.
    fn frames(&self) -> Option<CfiSection<'_>> {
        let eh_frame =
            self.eh_frame.as_ref().map(|part| CfiSection::eh_frame(&part.data, part.addr));
        let debug_frame =
            || self.debug_frame.as_ref().map(|part| CfiSection::debug_frame(&part.data));
        eh_frame.or_else(debug_frame)
    }

    /// `.eh_frame` by its search table.
    fn searched(&self) -> Result<Option<CfiTable<'_>>, CfiError> {
        let (Some(frames), Some(table)) = (&self.eh_frame, &self.eh_frame_hdr) else {
            return Ok(None);
        };
        let section = CfiSection::eh_frame(&frames.data, frames.addr);
        CfiTable::with_search_table(section, CfiAbi::X86_64, &table.data, table.addr)
    }

    fn call_frames(&self) -> Result<Option<CfiTable<'_>>, CfiError> {
        if self.index.is_empty() {
            return self.searched();
        }
        let frames = self.frames();
        Ok(frames.map(|frames| CfiTable::with_index(frames, CfiAbi::X86_64, &self.index)))
    }
}

fn index_of(section: CfiSection<'_>) -> Vec<IndexEntry> {
    let entries = Entries::new(section, CfiAbi::X86_64);
    let Err(few) = index(entries, &mut []) else { return Vec::new() };
    let mut slots = vec![IndexEntry::default(); few.needed];
    let filled = index(entries, &mut slots).map_or(0, <[_]>::len);
    slots.truncate(filled);
    slots
}

/// Walks as framehop's `UnwinderX86_64` does: by its trait, [`framehop::Unwinder`].
#[derive(Debug)]
pub struct FramehopUnwinder<D> {
    arch: X86_64,
    /// Sorted by their code.
    modules: Vec<FramehopModule<D>>,
    generation: u64,
}

/// Each change of any unwinder has a number of its own, so that unwinders can share a cache.
static CHANGES: AtomicU64 = AtomicU64::new(1);

fn next_generation() -> u64 {
    CHANGES.fetch_add(1, Ordering::Relaxed)
}

impl<D> Clone for FramehopUnwinder<D> {
    fn clone(&self) -> Self {
        Self { modules: self.modules.clone(), ..*self }
    }
}

impl<D> FramehopUnwinder<D> {
    /// Without modules, for addresses of 48 bits.
    #[must_use]
    pub fn new() -> Self {
        Self { arch: X86_64::FOUR_LEVEL, modules: Vec::new(), generation: next_generation() }
    }

    fn module(&self, addr: u64) -> Option<&FramehopModule<D>> {
        let after = self.modules.partition_point(|module| module.code.start <= addr);
        self.modules.get(after.checked_sub(1)?).filter(|module| addr < module.code.end)
    }
}

impl<D> Default for FramehopUnwinder<D> {
    fn default() -> Self {
        Self::new()
    }
}

/// Rows of earlier walks, and where the last one stands.
///
/// A walk that asks for one frame after the other continues there: it needs more than the three
/// registers that framehop's interface hands on.
#[derive(Debug)]
pub struct FramehopCache {
    rows: Box<RowCache<ROWS>>,
    last: Option<Last>,
}

/// Where a walk stands, and by which modules.
type Last = (u64, Position<X86_64Regs>);

impl FramehopCache {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { rows: Box::new(RowCache::new()), last: None }
    }

    /// How often the kept rows have answered.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.rows.stats()
    }
}

impl Default for FramehopCache {
    fn default() -> Self {
        Self::new()
    }
}

/// The rows of an unwinder's modules.
struct Rows<'u, D>(&'u FramehopUnwinder<D>);

impl<D: Deref<Target = [u8]>> RowSource<X86_64> for Rows<'_, D> {
    type Error = RowError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, RowError> {
        let module = self.0.module(frame.lookup_addr().get());
        module.map_or(Ok(None), |module| module.row(frame, mem))
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, RowError> {
        let addr = frame.lookup_addr().get();
        let Some(module) = self.0.module(addr) else { return Ok(None) };
        let table = module.sections.call_frames().map_err(RowError::Cfi)?;
        let linked = addr.wrapping_sub(module.bias);
        table.map_or(Ok(None), |table| table.find_register_rules(linked).map_err(RowError::Cfi))
    }

    fn generation(&self) -> u64 {
        self.0.generation
    }
}

/// The rows that instructions tell of: those of modules that have brought their code.
struct ByInstructions<'u, D>(&'u FramehopUnwinder<D>);

impl<D: Deref<Target = [u8]>> RowSource<X86_64> for ByInstructions<'_, D> {
    type Error = RowError;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, RowError> {
        let mut code = Code(self.0);
        let row = RowSource::<X86_64>::row(&mut SignalTrampolines, frame, &mut code)?;
        if row.is_some() {
            return Ok(row);
        }
        Ok(RowSource::<X86_64>::row(&mut InstructionAnalysis, frame, &mut code)?)
    }
}

struct Code<'u, D>(&'u FramehopUnwinder<D>);

impl<D: Deref<Target = [u8]>> Memory for Code<'_, D> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let bytes = || {
            let module = self.0.module(addr.get())?;
            let text = module.sections.text.as_ref()?;
            let at = addr.get().wrapping_sub(module.bias).checked_sub(text.addr)?;
            text.data.get(usize::try_from(at).ok()?..)?.get(..buf.len())
        };
        buf.copy_from_slice(bytes().ok_or(ReadError::Invalid)?);
        Ok(())
    }
}

/// What the profiler reads: words of the stack, and nothing else.
struct Stack<'r, F>(&'r mut F);

impl<F: FnMut(u64) -> Result<u64, ()>> Memory for Stack<'_, F> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        for (at, part) in (0_u64..).step_by(8).zip(buf.chunks_mut(8)) {
            let word = self.read_u64(addr.wrapping_add(at))?.to_le_bytes();
            for (to, byte) in part.iter_mut().zip(word) {
                *to = byte;
            }
        }
        Ok(())
    }

    fn read_u64(&mut self, addr: VirtAddr) -> Result<u64, ReadError> {
        (self.0)(addr.get()).map_err(|()| ReadError::Invalid)
    }
}

/// framehop's registers, in the order of their DWARF numbers.
const REGISTERS: [Reg; 16] = [
    Reg::RAX,
    Reg::RDX,
    Reg::RCX,
    Reg::RBX,
    Reg::RSI,
    Reg::RDI,
    Reg::RBP,
    Reg::RSP,
    Reg::R8,
    Reg::R9,
    Reg::R10,
    Reg::R11,
    Reg::R12,
    Reg::R13,
    Reg::R14,
    Reg::R15,
];

impl<D: Deref<Target = [u8]>> Unwinder for FramehopUnwinder<D> {
    type UnwindRegs = UnwindRegsX86_64;
    type Cache = FramehopCache;
    type Module = FramehopModule<D>;

    fn add_module(&mut self, module: FramehopModule<D>) {
        let at = self.modules.partition_point(|other| other.code.start < module.code.start);
        self.modules.insert(at, module);
        self.generation = next_generation();
    }

    fn remove_module(&mut self, module_avma_range_start: u64) {
        self.modules.retain(|module| module.code.start != module_avma_range_start);
        self.generation = next_generation();
    }

    fn max_known_code_address(&self) -> u64 {
        self.modules.last().map_or(0, |module| module.code.end)
    }

    fn unwind_frame<F>(
        &self,
        address: FrameAddress,
        regs: &mut UnwindRegsX86_64,
        cache: &mut FramehopCache,
        read_stack: &mut F,
    ) -> Result<Option<u64>, Error>
    where
        F: FnMut(u64) -> Result<u64, ()>,
    {
        let FramehopCache { rows, last } = cache;
        let mut memory = Stack(read_stack);
        let sources = Rows(self).or(ByInstructions(self));
        let mut walker = Walker::new(self.arch, sources).cache(rows).fallback(FramePointers);
        let last = last.take().filter(|(by, _)| *by == self.generation).map(|(_, last)| last);
        let last = last.filter(|last| is_at(last, address, regs));
        let (pc, sp, fp) = (address.address(), regs.sp(), regs.bp());
        let mut frames = match (last, address.is_return_address()) {
            (Some(last), _) => walker.resume(last, &mut memory),
            (None, false) => {
                let all = REGISTERS.map(|register| regs.get(register));
                walker.frames(X86_64Regs::from_all(pc, all), &mut memory)
            }
            // Of the others those of another frame may be left.
            (None, true) => walker.frames(X86_64Regs::new(pc, sp, fp), &mut memory),
        };
        if last.is_none() && address.is_return_address() {
            frames.begin_in_caller();
        }
        frames.next();
        let Some(caller) = frames.position() else {
            let is_complete = frames.is_complete();
            return if is_complete { Ok(None) } else { Err(error_of(frames.end())) };
        };
        regs.set_ip(caller.pc().addr().get());
        regs.set_sp(caller.sp());
        regs.set_bp(caller.fp().unwrap_or(0));
        cache.last = Some((self.generation, caller));
        Ok(Some(caller.pc().addr().get()))
    }
}

/// Whether this is the frame that a walk stands at.
fn is_at(last: &Position<X86_64Regs>, address: FrameAddress, regs: &UnwindRegsX86_64) -> bool {
    last.pc().addr().get() == address.address()
        && address.is_return_address()
        && last.sp() == regs.sp()
        && last.fp().unwrap_or(0) == regs.bp()
}

/// What framehop calls such an end.
fn error_of<E>(end: Option<End<E>>) -> Error {
    match end {
        Some(End::Step(StepError::Unreadable { addr, .. })) => Error::CouldNotReadStack(addr.get()),
        Some(End::Step(StepError::NoProgress { .. })) => Error::FramepointerUnwindingMovedBackwards,
        Some(
            End::ZeroReturnAddress
            | End::Step(StepError::ZeroReturnAddress { .. } | StepError::ZeroFramePointer),
        ) => Error::ReturnAddressIsNull,
        _ => Error::DidNotAdvance,
    }
}
