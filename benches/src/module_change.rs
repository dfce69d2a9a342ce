//! A sample after each change of what is mapped, among many modules.

use std::fmt;

use unwind_core::{
    Module, ModuleMap, PackedFrame, RowCache, RowSource, SliceMemory, Trace, VirtAddr, Walker,
};
use unwind_snapshot::Snapshot;
use unwind_x86::{FramePointers, SframeModule, SframeSource, X86_64, X86_64Regs};

use crate::corpus::{self, Corpus};
use crate::{Framehop, MAX_FRAMES, Unwinder};

/// How many modules are mapped.
pub const MODULES: usize = 1000;

/// From one that goes to the next, so that they are all over the address space.
const STRIDE: usize = 397;

/// Where each of the others is: code that no stack is in, below that of programs.
fn others(corpus: &Corpus) -> Vec<corpus::Module> {
    let first = corpus.covered().next().unwrap();
    let count = (0..).take(MODULES - corpus.covered().count());
    let other = |number: u64| {
        let start = 0x1000_0000 + number * 0x1_0000;
        corpus::Module { text: start..start + 0x8000, bias: start, tables: first.tables }
    };
    count.map(other).collect()
}

/// An unwinder that is told that a module has gone and come again before each sample.
pub trait ModuleChange {
    /// Takes a module out and adds it again, each time another one.
    fn change(&mut self);

    /// Walks the stack of a snapshot; returns how many frames it has.
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize;
}

/// The walk of this workspace, its rows by key.
pub struct UnwindChange {
    map: Box<ModuleMap<SframeModule<'static>, MODULES>>,
    cache: Box<RowCache<512>>,
    trace: Box<Trace<[PackedFrame; MAX_FRAMES]>>,
    others: Vec<corpus::Module>,
    turn: usize,
}

impl fmt::Debug for UnwindChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnwindChange").field("turn", &self.turn).finish_non_exhaustive()
    }
}

/// The table of a module with a number, by which its rows are kept.
fn sframe_module(module: &corpus::Module, number: u64) -> Module<SframeModule<'static>> {
    let tables = module.tables;
    let addr = tables.sframe_addr.wrapping_add(module.bias);
    let table = SframeModule::new(&tables.sframe, addr).unwrap().unwrap().with_id(number);
    let text = VirtAddr::new(module.text.start)..VirtAddr::new(module.text.end);
    Module { text, table }
}

impl UnwindChange {
    /// With the modules of a corpus, and others.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        let others = others(corpus);
        let mut map: Box<ModuleMap<_, MODULES>> = Box::default();
        for (number, module) in (1..).zip(others.iter().chain(corpus.covered())) {
            map.add(sframe_module(module, number)).unwrap();
        }
        assert_eq!(map.len(), MODULES);
        Self { map, cache: Box::default(), trace: Box::default(), others, turn: 0 }
    }
}

impl ModuleChange for UnwindChange {
    fn change(&mut self) {
        let other = &self.others[self.turn % self.others.len()];
        let module = self.map.remove(VirtAddr::new(other.text.start)).unwrap();
        self.map.add(module).unwrap();
        self.turn += STRIDE;
    }

    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let regs = X86_64Regs::from_all(snapshot.rip, snapshot.gpr);
        let mut memory = SliceMemory::new(VirtAddr::new(snapshot.stack_start), snapshot.stack);
        let source = SframeSource::new(&self.map);
        let rows = RowSource::<X86_64>::or(source, FramePointers);
        let walker = Walker::new(X86_64::FOUR_LEVEL, rows).fallback(FramePointers);
        let mut walker = walker.cache_by_key(&mut self.cache, source);
        walker.trace(regs, &mut memory, &mut *self.trace);
        self.trace.len()
    }
}

/// framehop.
#[derive(Debug)]
pub struct FramehopChange {
    framehop: Framehop,
    others: Vec<corpus::Module>,
    turn: usize,
}

impl FramehopChange {
    /// With the modules of a corpus, and others.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        let others = others(corpus);
        let mut framehop = Framehop::new(corpus);
        others.iter().for_each(|module| framehop.add(module));
        Self { framehop, others, turn: 0 }
    }
}

impl ModuleChange for FramehopChange {
    fn change(&mut self) {
        let other = &self.others[self.turn % self.others.len()];
        self.framehop.remove(other);
        self.framehop.add(other);
        self.turn += STRIDE;
    }

    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.framehop.walk(snapshot)
    }
}
