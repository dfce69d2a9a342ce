//! The tables of the modules of an address space, of each format that is built in.

use core::fmt;

use sframe::Error;
use unwind_core::{FrameContext, Memory, ModuleMap, Row, RowKey, RowSource, TableError, VirtAddr};
use unwind_x86::{SframeModule, SframeSource, X86_64, X86_64Regs};

#[cfg(feature = "cfi")]
use unwind_cfi::{CfiError, CfiSource, CfiTable};
#[cfg(feature = "cfi")]
use unwind_core::RegisterRules;

/// What is wrong with a table of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowError {
    /// With its SFrame table.
    Sframe(Error),
    /// With its call frame information.
    #[cfg(feature = "cfi")]
    Cfi(CfiError),
}

impl From<core::convert::Infallible> for RowError {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sframe(error) => error.fmt(f),
            #[cfg(feature = "cfi")]
            Self::Cfi(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RowError {}

/// Codes are those of [`sframe::Error`], and from 1024 on those of `CfiError`.
impl TableError for RowError {
    fn code(&self) -> u16 {
        match self {
            Self::Sframe(error) => error.code(),
            #[cfg(feature = "cfi")]
            Self::Cfi(error) => (*error).code().saturating_add(1024),
        }
    }
}

/// The tables. A module may have more than one; SFrame's is asked first.
#[derive(Clone, Debug)]
pub(crate) struct Tables<'a, const N: usize> {
    pub(crate) sframe: ModuleMap<SframeModule<'a>, N>,
    #[cfg(feature = "cfi")]
    pub(crate) call_frames: ModuleMap<CfiTable<'a>, N>,
}

impl<const N: usize> Tables<'_, N> {
    pub(crate) const fn new() -> Self {
        Self {
            sframe: ModuleMap::new(),
            #[cfg(feature = "cfi")]
            call_frames: ModuleMap::new(),
        }
    }
}

impl<const N: usize> RowSource<X86_64> for &Tables<'_, N> {
    type Error = RowError;

    #[inline]
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, RowError> {
        if !self.sframe.is_empty() {
            let row = SframeSource::new(&self.sframe).row(frame, mem);
            if !matches!(row, Ok(None)) {
                return row.map_err(RowError::Sframe);
            }
        }
        #[cfg(feature = "cfi")]
        {
            let mut source = CfiSource::new(&self.call_frames);
            RowSource::<X86_64>::row(&mut source, frame, mem).map_err(RowError::Cfi)
        }
        #[cfg(not(feature = "cfi"))]
        Ok(None)
    }

    #[cfg(feature = "cfi")]
    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<RegisterRules>, RowError> {
        let mut source = CfiSource::new(&self.call_frames);
        RowSource::<X86_64>::register_rules(&mut source, frame, mem).map_err(RowError::Cfi)
    }

    #[inline]
    fn generation(&self) -> u64 {
        let generation = self.sframe.generation();
        // Each counts upwards, so the sum changes when either does.
        #[cfg(feature = "cfi")]
        let generation = generation.wrapping_add(self.call_frames.generation());
        generation
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        #[cfg(feature = "cfi")]
        if self.call_frames.find(addr).is_some() {
            return None;
        }
        SframeSource::new(&self.sframe).row_key(addr)
    }
}
