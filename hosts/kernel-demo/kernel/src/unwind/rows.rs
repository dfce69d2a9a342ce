//! The rows of an address space, and what a walk by them needs.

use unwind_core::RowCache;
use unwind_x86::{SframeScratch, X86_64Regs};

/// What walks of one address space need beside the stack.
pub(crate) struct Rows {
    /// The rows that they used.
    pub(crate) cache: RowCache<128>,
    pub(super) scratch: Scratch,
}

impl Rows {
    pub(crate) const fn new() -> Self {
        Self { cache: RowCache::new(), scratch: Scratch::new() }
    }
}

/// What one walk needs beside the stack. Nothing in it outlives the walk.
pub(super) struct Scratch {
    pub(super) tables: SframeScratch,
    pub(super) registers: Option<X86_64Regs>,
}

impl Scratch {
    pub(super) const fn new() -> Self {
        Self { tables: SframeScratch::new(), registers: None }
    }
}
