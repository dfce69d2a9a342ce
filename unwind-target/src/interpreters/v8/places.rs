//! Where V8's code is.

use std::ops::Range;

use crate::interpreters::interpreter::NativeFrame;
use crate::target::maps::{Backing, Mapping};

/// Where V8 may have code.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Where the builtin functions are, the interpreter among them.
    pub(super) builtins: Vec<Range<u64>>,
    /// Where code is that no file has, ascending.
    pub(super) compiled: Vec<Range<u64>>,
}

/// What code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Builtin,
    Compiled,
}

impl Places {
    /// The places in a program with these mappings, where it has its builtin functions there.
    pub(super) fn new(builtins: &Range<u64>, mappings: &[Mapping]) -> Self {
        let is_compiled =
            |mapping: &&Mapping| mapping.executable && mapping.backing == Backing::Anonymous;
        let compiled = mappings.iter().filter(is_compiled).map(|mapping| mapping.range.clone());
        Self { builtins: mapped_again(builtins, mappings), compiled: compiled.collect() }
    }

    /// What the code of a frame is, if it is V8's.
    pub(super) fn of(&self, frame: &NativeFrame) -> Option<Place> {
        let at = match frame.is_exact {
            true => frame.pc,
            false => frame.pc.wrapping_sub(1),
        };
        if self.builtins.iter().any(|range| range.contains(&at)) {
            return Some(Place::Builtin);
        }
        let next = self.compiled.partition_point(|range| range.end <= at);
        self.compiled.get(next).filter(|range| range.contains(&at)).map(|_| Place::Compiled)
    }
}

/// Where code of a file is, which the program may have mapped once more to be near the code that it makes.
fn mapped_again(code: &Range<u64>, mappings: &[Mapping]) -> Vec<Range<u64>> {
    let first = mappings.iter().find(|mapping| mapping.range.contains(&code.start));
    let Some(first) = first else { return vec![code.clone()] };
    let in_file = |mapping: &Mapping| mapping.range.start.wrapping_sub(mapping.offset);
    let is_same = |mapping: &&Mapping| {
        mapping.executable && mapping.is_file() && mapping.backing == first.backing
    };
    let again = mappings.iter().filter(is_same).map(|mapping| {
        let by = in_file(mapping).wrapping_sub(in_file(first));
        let (start, end) = (code.start.wrapping_add(by), code.end.wrapping_add(by));
        start.max(mapping.range.start)..end.min(mapping.range.end)
    });
    again.chain([code.clone()]).filter(|range| !range.is_empty()).collect()
}
