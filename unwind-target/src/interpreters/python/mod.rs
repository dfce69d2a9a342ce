//! CPython.

mod code;
mod frames;
pub mod image;
mod lines;
mod offsets;
mod sampled;
mod snapshot;
mod threads;
mod version;

use std::collections::HashMap;

pub use crate::interpreters::python::sampled::{SampledCode, SampledPython};
pub use crate::interpreters::python::snapshot::{Offsets, Snapshot};

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::interpreter::{Interpreter, StoppedThread};
use crate::interpreters::objects::{Objects, file_name};
use crate::interpreters::python::code::{CodeObjects, Types};
use crate::interpreters::python::offsets::Layout;
use crate::interpreters::python::threads::read_threads;
use crate::interpreters::python::version::{Version, version_in_path};
use crate::interpreters::runs::ReadFrames;
use crate::loaded::file_data::path;
use crate::target::maps::Mapping;

/// CPython in a program: where its state is.
#[derive(Debug)]
pub(super) struct CPython {
    /// `_PyRuntime`, since 3.7.
    runtime: Option<u64>,
    /// `Py_Version`, since 3.11.
    version: Option<u64>,
    /// What the names of files say.
    named: Option<Version>,
    types: Types,
    mapping: Mapping,
}

const DATA: [&[u8]; 4] = [b"_PyRuntime", b"Py_Version", b"PyCode_Type", b"PyUnicode_Type"];

impl Interpreter for CPython {
    const NEEDS_FRAMES: bool = false;

    fn find(objects: &mut Objects<'_>) -> Option<Self> {
        let is_python = |name: &[u8]| name.starts_with(b"libpython") || name.starts_with(b"python");
        let mut named = None;
        let (mut is_there, mut has_modules) = (false, false);
        for path in objects.paths() {
            is_there |= is_python(file_name(path));
            let version = version_in_path(path);
            has_modules |= version.is_some();
            named = named.or(version);
        }
        let data = if is_there { objects.data(is_python, &DATA) } else { None };
        // A program of another name that it is linked into loads its modules.
        let data = match data {
            None if has_modules => objects.data(|name| !is_library(name), &DATA),
            found => found,
        };
        let data = data?;
        // Another program may have a version in its name.
        let named = path(&data.mapping).and_then(version_in_path).or(named);
        let [runtime, version, code, text] = data.addrs;
        let types = Types { code, text };
        Some(Self { runtime, version, named, types, mapping: data.mapping })
    }

    fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn read<M: Memory>(
        &self,
        threads: &[StoppedThread],
        _mappings: &[Mapping],
        memory: &mut BoundedMemory<'_, M>,
    ) -> ReadFrames {
        let threads: Vec<_> = threads.iter().map(|thread| thread.registers.fs_base).collect();
        match (self.version(memory), self.runtime) {
            (Ok(version), Some(runtime)) => {
                read_version(version, runtime, self.types, &threads, memory)
            }
            (Ok(version), None) => {
                let none = none_of(format!("CPython {version}"));
                ReadFrames { doubt: Some(Doubt::Version), ..none }
            }
            (Err(doubt), _) => ReadFrames { doubt: Some(doubt), ..none_of("CPython".into()) },
        }
    }
}

/// Reads the frames of threads of a version whose runtime is at an address.
fn read_version<M: Memory>(
    version: Version,
    runtime: u64,
    types: Types,
    threads: &[u64],
    memory: &mut BoundedMemory<'_, M>,
) -> ReadFrames {
    let mut read = none_of(format!("CPython {version}"));
    match Layout::of(version, runtime, memory) {
        Ok(layout) => {
            let mut codes = CodeObjects::new(&layout, types);
            let place = (runtime, &layout);
            read.doubt = read_threads(place, threads, &mut codes, memory, &mut read.threads);
        }
        Err(doubt) => read.doubt = Some(doubt),
    }
    read
}

/// No frames of an interpreter of this name.
fn none_of(interpreter: String) -> ReadFrames {
    let is_at_end = |function: &[u8]| function == b"_Py_CheckFunctionResult";
    ReadFrames { interpreter, is_evaluator, is_at_end, threads: HashMap::new(), doubt: None }
}

impl CPython {
    fn version<M: Memory>(&self, memory: &mut BoundedMemory<'_, M>) -> Result<Version, Doubt> {
        match (self.version, self.named) {
            (Some(addr), _) => Ok(Version::of_number(memory.word(addr, 0)?)),
            (None, Some(named)) => Ok(named),
            (None, None) => Err(Doubt::NoVersion),
        }
    }
}

/// Whether a function is the evaluator, or a part of it that the compiler has put elsewhere.
#[must_use]
pub fn is_evaluator(function: &[u8]) -> bool {
    let rest = function.strip_prefix(b"_PyEval_EvalFrameDefault");
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'.')))
}

fn is_library(name: &[u8]) -> bool {
    name.windows(3).any(|part| part == b".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evaluator_is_known_in_parts_too() {
        assert!(is_evaluator(b"_PyEval_EvalFrameDefault"));
        assert!(is_evaluator(b"_PyEval_EvalFrameDefault.cold"));
        assert!(!is_evaluator(b"_PyEval_EvalFrameDefaultx"));
        assert!(!is_evaluator(b"_PyEval_EvalFrame"));
    }
}
