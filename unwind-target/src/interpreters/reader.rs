//! The interpreters of a program, and how their frames are read.

use std::rc::Rc;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::BoundedMemory;
use crate::interpreters::interpreter::Interpreter;
use crate::interpreters::objects::Objects;
use crate::interpreters::python::CPython;
use crate::interpreters::runs::ReadFrames;
use crate::loaded::loaded_file::LoadedFile;
use crate::target::maps::Mapping;
use crate::target::memory::{PageCache, ProcessMemory};
use crate::target::registers::{CodeMode, UserRegisters};

/// The interpreters that a program was found to have.
#[derive(Debug, Default)]
pub(crate) struct Interpreters {
    python: Option<CPython>,
}

impl Interpreters {
    /// Those whose files are mapped; `open` opens the file of a mapping. Where no file has the name of an
    /// interpreter none is opened.
    pub(crate) fn find(
        mappings: &[Mapping],
        mut open: impl FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
    ) -> Self {
        Self { python: CPython::find(&mut Objects { mappings, open: &mut open }) }
    }

    /// Reads the frames of these threads of a process that is held; some thread leads to its memory.
    pub(crate) fn read_process(
        &self,
        thread: i32,
        threads: &[UserRegisters],
        mappings: &[Mapping],
    ) -> Vec<ReadFrames> {
        if self.python.is_none() {
            return Vec::new();
        }
        let Ok(memory) = ProcessMemory::open(thread) else { return Vec::new() };
        self.read(threads, mappings, &mut PageCache::new(memory))
    }

    /// Reads the frames of threads with these registers. `mappings` are those of the same moment.
    pub(crate) fn read<M: Memory>(
        &self,
        threads: &[UserRegisters],
        mappings: &[Mapping],
        memory: &mut M,
    ) -> Vec<ReadFrames> {
        let wide = threads.iter().filter(|thread| thread.code_mode() == Some(CodeMode::X86_64));
        let threads: Vec<_> = wide.map(|thread| thread.fs_base).filter(|&base| base != 0).collect();
        let python = self.python.iter().filter(|found| mappings.contains(found.mapping()));
        python.map(|found| found.read(&threads, &mut BoundedMemory::new(memory))).collect()
    }
}
