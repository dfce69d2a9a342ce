//! The walk of this workspace, as a profiler would set it up.

use std::convert::Infallible;
use std::fmt;

use unwind_cfi::{CfiAbi, CfiError, CfiSection, CfiSource, CfiTable};
use unwind_core::{
    End, Memory, Module, ModuleMap, Or, PackedFrame, RowCache, RowSource, SliceMemory, TableError,
    Trace, Unchecked, VirtAddr, Walker,
};
use unwind_snapshot::Snapshot;
use unwind_x86::{FramePointers, SframeModule, SframeSource, X86_64, X86_64Regs};

use crate::corpus::{self, Corpus, Tables};
use crate::{MAX_FRAMES, Unwinder};

/// How often the cache of rows could answer.
pub use unwind_core::CacheStats as Stats;

type Map<M> = ModuleMap<M, 256>;
type Sframe = SframeModule<'static>;
type Rows<'m, M> = Or<<M as Rowed>::Source<'m>, FramePointers>;

/// A walker over SFrame tables with a cache of 512 rows in front.
pub type Unwind = CachedUnwind<Sframe, 512>;

/// The same with a cache of 4,096 rows.
pub type LargeUnwind = CachedUnwind<Sframe, 4096>;

/// The same with a cache that hardly ever has a row.
pub type MissingUnwind = CachedUnwind<Sframe, 4>;

/// A walker over call frame information, in place.
pub type UnwindByCallFrames = CachedUnwind<CfiTable<'static>, 512>;

/// What a module has rows in.
pub trait Rowed: Sized + 'static {
    /// What is wrong with a row.
    type Error: TableError + From<Infallible>;

    /// A source of the rows of all modules.
    type Source<'m>: RowSource<X86_64, Error = Self::Error>;

    /// Its source.
    fn source(modules: &Map<Self>) -> Self::Source<'_>;
}

impl Rowed for Sframe {
    type Error = sframe::Error;
    type Source<'m> = SframeSource<'m, 'static, 256>;

    #[inline]
    fn source(modules: &Map<Self>) -> Self::Source<'_> {
        SframeSource::new(modules)
    }
}

impl Rowed for CfiTable<'static> {
    type Error = CfiError;
    type Source<'m> = CfiSource<'m, 'static, 256>;

    #[inline]
    fn source(modules: &Map<Self>) -> Self::Source<'_> {
        CfiSource::new(modules)
    }
}

/// A walker over what modules have rows in, with a cache of `ROWS` rows.
pub struct CachedUnwind<M, const ROWS: usize> {
    map: Box<Map<M>>,
    cache: Box<RowCache<ROWS>>,
    trace: Box<Trace<[PackedFrame; MAX_FRAMES]>>,
}

impl<M, const ROWS: usize> fmt::Debug for CachedUnwind<M, ROWS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedUnwind").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl<const ROWS: usize> CachedUnwind<Sframe, ROWS> {
    /// A walker over tables of version 3.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        Self::with_sframe(corpus, |tables| &tables.sframe)
    }

    /// A walker over tables of version 2.
    #[must_use]
    pub fn v2(corpus: &Corpus) -> Self {
        Self::with_sframe(corpus, |tables| &tables.sframe_v2)
    }

    /// A walker over tables of version 3, each with an index.
    #[must_use]
    pub fn indexed(corpus: &Corpus) -> Self {
        Self::with_modules(corpus, |module| {
            let module = sframe_module(module, &module.tables.sframe);
            let memory = vec![0; module.index_len()];
            module.index(memory.leak())
        })
    }

    fn with_sframe(corpus: &Corpus, sframe: impl Fn(&'static Tables) -> &'static [u8]) -> Self {
        Self::with_modules(corpus, |module| sframe_module(module, sframe(module.tables)))
    }
}

fn sframe_module(module: &corpus::Module, section: &'static [u8]) -> Sframe {
    let addr = module.tables.sframe_addr.wrapping_add(module.bias);
    SframeModule::new(section, addr).unwrap().unwrap()
}

impl<const ROWS: usize> CachedUnwind<CfiTable<'static>, ROWS> {
    /// A walker that finds entries by the search tables.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        Self::with_modules(corpus, |module| {
            let Tables { eh_frame, eh_frame_addr, header, header_addr, .. } = module.tables;
            let section = CfiSection::eh_frame(eh_frame, *eh_frame_addr);
            let abi = CfiAbi::X86_64;
            let table = CfiTable::with_search_table(section, abi, header, *header_addr);
            table.unwrap().unwrap().bias(module.bias)
        })
    }
}

impl<M: Rowed, const ROWS: usize> CachedUnwind<M, ROWS> {
    fn with_modules(corpus: &Corpus, open: impl Fn(&corpus::Module) -> M) -> Self {
        let mut map: Box<Map<M>> = Box::default();
        for module in corpus.covered() {
            let text = VirtAddr::new(module.text.start)..VirtAddr::new(module.text.end);
            map.add(Module { text, table: open(module) }).unwrap();
        }
        Self { map, cache: Box::default(), trace: Box::default() }
    }

    /// Walks the stack at `regs`; returns how many frames there are.
    #[inline]
    pub fn walk_from(&mut self, regs: X86_64Regs, memory: &mut impl Memory) -> usize {
        walker(&self.map, &mut self.cache).trace(regs, memory, &mut *self.trace);
        self.trace.len()
    }

    /// The frames by the plain walk, frame by frame and without the cache, and
    /// whether the last one is the outermost.
    #[must_use]
    pub fn walk_plainly(&self, snapshot: &Snapshot<'_>) -> (Vec<u64>, bool) {
        let (regs, mut memory) = sample(snapshot);
        let source = RowSource::<X86_64>::or(M::source(&self.map), FramePointers);
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
        let mut walk = walker.frames(regs, &mut memory);
        let frames = walk.by_ref().map(|frame| frame.pc.addr().get()).collect();
        (frames, walk.is_complete())
    }

    /// The pc, the stack pointer and the frame pointer of the frame of this number, by the plain
    /// walk, where all are known.
    #[must_use]
    pub fn place(&self, snapshot: &Snapshot<'_>, number: usize) -> Option<[u64; 3]> {
        let (regs, mut memory) = sample(snapshot);
        let source = RowSource::<X86_64>::or(M::source(&self.map), FramePointers);
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
        let mut walk = walker.frames(regs, &mut memory);
        if let Some(before) = number.checked_sub(1) {
            walk.nth(before)?;
        }
        let place = walk.position()?;
        Some([place.pc().addr().get(), place.sp(), place.fp()?])
    }

    /// Why the last walk has no more frames.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.trace.end()
    }

    /// How often the cache could answer.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }
}

impl<M: Rowed, const ROWS: usize> Unwinder for CachedUnwind<M, ROWS> {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let (regs, mut memory) = sample(snapshot);
        self.walk_from(regs, &mut memory)
    }

    fn frames(&self) -> Vec<u64> {
        self.trace.pcs().map(VirtAddr::get).collect()
    }

    fn is_complete(&self) -> Option<bool> {
        Some(self.trace.is_complete())
    }

    fn forget(&mut self) {
        self.cache.clear();
    }
}

fn walker<'a, M: Rowed, const ROWS: usize>(
    map: &'a Map<M>,
    cache: &'a mut RowCache<ROWS>,
) -> Walker<X86_64, Rows<'a, M>, FramePointers, Unchecked, &'a mut RowCache<ROWS>> {
    // Code without a table is found by the cache, too.
    let source = RowSource::<X86_64>::or(M::source(map), FramePointers);
    Walker::new(X86_64::FOUR_LEVEL, source).cache(cache).fallback(FramePointers)
}

fn sample<'a>(snapshot: &Snapshot<'a>) -> (X86_64Regs, SliceMemory<'a>) {
    let regs = X86_64Regs::from_all(snapshot.rip, snapshot.gpr);
    (regs, SliceMemory::new(VirtAddr::new(snapshot.stack_start), snapshot.stack))
}
