//! The frames that memory of a fuzz target's making has.

use std::collections::BTreeMap;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::interpreters::bounded_memory::BoundedMemory;
use crate::interpreters::frame::InterpretedFrame;
use crate::interpreters::python::code::Types;
use crate::interpreters::python::read_version;
use crate::interpreters::python::version::Version;

/// What was found of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundThread {
    /// The frames of each call of the evaluator, innermost first.
    pub runs: Vec<Vec<InterpretedFrame>>,
    /// There may be others.
    pub is_doubtful: bool,
}

/// Reads the frames of threads of CPython 3.`minor`, whose runtime is at an address, by `read`, which says
/// whether there was memory. The second value says that something is wrong with the list of threads.
pub fn frames_in(
    minor: u8,
    runtime: u64,
    threads: &[u64],
    read: impl FnMut(u64, &mut [u8]) -> bool,
) -> (BTreeMap<u64, FoundThread>, bool) {
    const NO_TYPES: Types = Types { code: None, text: None };
    let (version, mut memory) = (Version { major: 3, minor }, Image(read));
    let mut memory = BoundedMemory::new(&mut memory);
    let read = read_version(version, runtime, NO_TYPES, threads, &mut memory);
    let found = read.threads.into_iter().map(|(id, thread)| {
        let runs = thread.runs.into_iter().map(|run| run.frames).collect();
        (id, FoundThread { runs, is_doubtful: thread.doubt.is_some() })
    });
    (found.collect(), read.doubt.is_some())
}

struct Image<F>(F);

impl<F: FnMut(u64, &mut [u8]) -> bool> Memory for Image<F> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        (self.0)(addr.get(), buf).then_some(()).ok_or(ReadError::Invalid)
    }
}
