//! The memory of any kind of target.

use std::collections::BTreeSet;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::target::captured_memory::CapturedMemory;
use crate::target::memory::{CoreMemory, PageCache, ProcessMemory};

/// The memory of any kind of target.
#[derive(Debug)]
pub enum TargetMemory {
    /// Of a process that stands still.
    Process(PageCache<ProcessMemory>),
    /// Of a process that stood still.
    Captured(CapturedMemory),
    /// Of a core file.
    Core(PageCache<CoreMemory>),
}

impl Memory for TargetMemory {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        match self {
            Self::Process(memory) => memory.read(addr, buf),
            Self::Captured(memory) => memory.read(addr, buf),
            Self::Core(memory) => memory.read(addr, buf),
        }
    }
}

impl TargetMemory {
    /// The pages that were asked for so far and not copied in time; `None` where nothing is
    /// copied.
    pub(crate) fn lacked(&self) -> Option<&BTreeSet<u64>> {
        match self {
            Self::Captured(memory) => Some(memory.lacked()),
            Self::Process(_) | Self::Core(_) => None,
        }
    }

    /// How often something was asked for so far that was not copied in time.
    pub(crate) fn refusals(&self) -> u64 {
        match self {
            Self::Captured(memory) => memory.refusals(),
            Self::Process(_) | Self::Core(_) => 0,
        }
    }
}
