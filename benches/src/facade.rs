//! The library as its README sets it up: `Unwinder`, with what modules have rows in.

use std::fmt;

use unwind::cfi::{CfiAbi, CfiSection, CfiTable};
use unwind::walk::PackedFrame;
use unwind::{SliceMemory, Trace, Unwinder as Library, VirtAddr, X86_64Regs};
use unwind_snapshot::Snapshot;

use crate::corpus::{Corpus, Tables};
use crate::{MAX_FRAMES, Unwinder};

/// What the rows of modules are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// SFrame tables of version 3.
    Sframe,
    /// `.eh_frame` and its search table.
    CallFrames,
}

/// The library's unwinder with a cache of `ROWS` rows.
pub struct Facade<const ROWS: usize> {
    unwinder: Box<Library<'static, 256, ROWS>>,
    trace: Box<Trace<[PackedFrame; MAX_FRAMES]>>,
    corpus: Vec<Added>,
}

/// A module as it was added.
#[derive(Clone, Copy)]
struct Added {
    start: u64,
    end: u64,
    bias: u64,
    tables: &'static Tables,
    rows: Rows,
}

impl<const ROWS: usize> fmt::Debug for Facade<ROWS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facade")
            .field("stats", &self.unwinder.cache_stats())
            .finish_non_exhaustive()
    }
}

impl<const ROWS: usize> Facade<ROWS> {
    /// An unwinder of the modules of a corpus.
    #[must_use]
    pub fn new(corpus: &Corpus, rows: Rows) -> Self {
        let added = corpus.covered().map(|module| Added {
            start: module.text.start,
            end: module.text.end,
            bias: module.bias,
            tables: module.tables,
            rows,
        });
        let mut facade =
            Self { unwinder: Box::default(), trace: Box::default(), corpus: added.collect() };
        facade.add_modules();
        facade
    }

    fn add_modules(&mut self) {
        for &Added { start, end, bias, tables, rows } in &self.corpus {
            let Tables {
                sframe, sframe_addr, eh_frame, eh_frame_addr, header, header_addr, ..
            } = tables;
            match rows {
                Rows::Sframe => {
                    let at = sframe_addr.wrapping_add(bias);
                    self.unwinder.add_module(start..end, sframe, at).unwrap();
                }
                Rows::CallFrames => {
                    let section = CfiSection::eh_frame(eh_frame, *eh_frame_addr);
                    let abi = CfiAbi::X86_64;
                    let table = CfiTable::with_search_table(section, abi, header, *header_addr);
                    let table = table.unwrap().unwrap().bias(bias);
                    self.unwinder.add_call_frames(start..end, table).unwrap();
                }
            }
        }
    }

    /// How often the cache could answer.
    #[must_use]
    pub fn stats(&self) -> crate::Stats {
        self.unwinder.cache_stats()
    }
}

impl<const ROWS: usize> Unwinder for Facade<ROWS> {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        let regs = X86_64Regs::from_all(snapshot.rip, snapshot.gpr);
        let start = VirtAddr::new(snapshot.stack_start);
        let mut memory = SliceMemory::new(start, snapshot.stack);
        self.unwinder.walk(regs, &mut memory, &mut *self.trace);
        self.trace.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.trace.pcs().map(VirtAddr::get).collect()
    }

    fn is_complete(&self) -> Option<bool> {
        Some(self.trace.is_complete())
    }

    fn forget(&mut self) {
        self.unwinder.clear();
        self.add_modules();
    }
}
