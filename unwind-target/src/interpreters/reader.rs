//! The interpreters of a program, and how their frames are read.

use std::rc::Rc;

use unwind_core::Memory;

use crate::interpreters::bounded_memory::BoundedMemory;
use crate::interpreters::interpreter::{Interpreter, StoppedThread};
use crate::interpreters::objects::Objects;
use crate::interpreters::python::CPython;
use crate::interpreters::runs::ReadFrames;
use crate::interpreters::v8::V8;
use crate::loaded::loaded_file::LoadedFile;
use crate::target::maps::Mapping;
use crate::target::memory::{PageCache, ProcessMemory};
use crate::target::registers::{CodeMode, UserRegisters};

/// The interpreters that a program was found to have.
#[derive(Debug, Default)]
pub(crate) struct Interpreters {
    python: Option<CPython>,
    v8: Option<V8>,
}

impl Interpreters {
    /// Those whose files are mapped; `open` opens the file of a mapping. Where no file has the name of an
    /// interpreter none is opened.
    pub(crate) fn find(
        mappings: &[Mapping],
        mut open: impl FnMut(&Mapping) -> Option<Rc<LoadedFile>>,
    ) -> Self {
        let mut objects = Objects { mappings, open: &mut open };
        Self { python: CPython::find(&mut objects), v8: V8::find(&mut objects) }
    }

    /// Reads the frames of these threads of a process that is held; some thread leads to its memory.
    pub(crate) fn read_process(
        &self,
        thread: i32,
        threads: &[UserRegisters],
        mappings: &[Mapping],
    ) -> Vec<ReadFrames> {
        if self.is_empty() {
            return Vec::new();
        }
        let Ok(memory) = ProcessMemory::open(thread) else { return Vec::new() };
        let threads =
            threads.iter().map(|&registers| StoppedThread { registers, frames: Vec::new() });
        let threads: Vec<_> = threads.collect();
        self.read(&threads, mappings, &mut PageCache::new(memory))
    }

    /// Whether there is none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.python.is_none() && self.v8.is_none()
    }

    /// Whether one needs the native frames to read its own.
    pub(crate) const fn need_frames(&self) -> bool {
        (self.python.is_some() && CPython::NEEDS_FRAMES) || (self.v8.is_some() && V8::NEEDS_FRAMES)
    }

    /// Reads the frames of threads. `mappings` are those of the same moment.
    pub(crate) fn read<M: Memory>(
        &self,
        threads: &[StoppedThread],
        mappings: &[Mapping],
        memory: &mut M,
    ) -> Vec<ReadFrames> {
        let is_wide = |thread: &&StoppedThread| {
            let registers = thread.registers;
            registers.code_mode() == Some(CodeMode::X86_64) && registers.fs_base != 0
        };
        let threads: Vec<_> = threads.iter().filter(is_wide).cloned().collect();
        let mut found = Vec::new();
        found.extend(read(self.python.as_ref(), &threads, mappings, memory));
        found.extend(read(self.v8.as_ref(), &threads, mappings, memory));
        found
    }
}

/// Reads the frames of an interpreter, if it is still there.
fn read<M: Memory>(
    interpreter: Option<&impl Interpreter>,
    threads: &[StoppedThread],
    mappings: &[Mapping],
    memory: &mut M,
) -> Option<ReadFrames> {
    let found = interpreter.filter(|found| mappings.contains(found.mapping()))?;
    Some(found.read(threads, mappings, &mut BoundedMemory::new(memory)))
}
