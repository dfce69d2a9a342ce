//! The calls that memory of a fuzz target's making has.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::frame::InterpretedFrame;
use crate::interpreters::interpreter::NativeFrame;
use crate::interpreters::runs::ThreadRuns;
use crate::interpreters::v8::constants::{Layout, Version};
use crate::interpreters::v8::places::Places;
use crate::interpreters::v8::{bytecode_sizes, reader};
use crate::target::registers::UserRegisters;

/// Where a program has what is known of its V8.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Program {
    /// The first two numbers of the version.
    pub version: [u32; 2],
    /// The addresses of constants, by their names without `v8dbg_`.
    pub constants: BTreeMap<Vec<u8>, u64>,
    /// The address of the table of the lengths of bytecodes.
    pub sizes: u64,
    /// Where builtin functions are.
    pub builtins: Range<u64>,
    /// Where code is that V8 has made.
    pub compiled: Range<u64>,
}

impl Program {
    /// One of this version that has nothing yet.
    #[must_use]
    pub const fn new(version: [u32; 2]) -> Self {
        let constants = BTreeMap::new();
        Self { version, constants, sizes: 0, builtins: 0..0, compiled: 0..0 }
    }

    /// The calls of a stack, innermost first, and whether there may be others. `frames` have the return address
    /// or the pc, the stack pointer, and the CFA of each native frame, innermost first; `read` says whether there
    /// was memory.
    pub fn calls(
        &self,
        frames: &[[u64; 3]],
        read: impl FnMut(u64, &mut [u8]) -> bool,
    ) -> (Vec<InterpretedFrame>, bool) {
        let mut memory = Image(read);
        let found = self.runs(frames, &mut BoundedMemory::new(&mut memory));
        found.map_or((Vec::new(), true), |ThreadRuns { runs, doubt }| {
            (runs.into_iter().flat_map(|run| run.frames).collect(), doubt.is_some())
        })
    }

    fn runs<M: Memory>(
        &self,
        frames: &[[u64; 3]],
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<ThreadRuns, Doubt> {
        let [major, minor] = self.version;
        let layout = Layout::of(Version { major, minor }, &self.constants, memory)?;
        let places =
            Places { builtins: vec![self.builtins.clone()], compiled: vec![self.compiled.clone()] };
        let sizes = bytecode_sizes(&layout, self.sizes, memory)?;
        let frames = frames.iter().enumerate().map(|(at, &[pc, sp, cfa])| {
            let is_exact = at == 0;
            NativeFrame { pc, is_exact, sp, cfa: Some(cfa) }
        });
        let frames: Vec<_> = frames.collect();
        Ok(reader(&layout, memory, &places, &sizes).thread(&UserRegisters::default(), &frames))
    }
}

struct Image<F>(F);

impl<F: FnMut(u64, &mut [u8]) -> bool> Memory for Image<F> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        (self.0)(addr.get(), buf).then_some(()).ok_or(ReadError::Invalid)
    }
}
