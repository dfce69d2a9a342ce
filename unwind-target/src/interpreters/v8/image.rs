//! The calls that memory of a fuzz target's making has.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use unwind_core::{Memory, ReadError, VirtAddr};

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::frame::InterpretedFrame;
use crate::interpreters::interpreter::NativeFrame;
use crate::interpreters::runs::ThreadRuns;
use crate::interpreters::sampled::{CheckOf, Others, Piece};
use crate::interpreters::v8::constants::{Layout, Version};
use crate::interpreters::v8::heap::{Heap, object};
use crate::interpreters::v8::places::Places;
use crate::interpreters::v8::sampled::{SampledFrames, SampledV8, V8Frame};
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

    /// The same by pieces of these frames, as who samples the program takes them, and the memory after that: `between`
    /// is called before it is read again. `check_of` makes a check of words.
    pub fn sampled_calls(
        &self,
        frames: &[[u64; 3]],
        check_of: CheckOf,
        between: impl FnOnce(),
        read: impl FnMut(u64, &mut [u8]) -> bool,
    ) -> (Vec<InterpretedFrame>, bool) {
        let memory = RefCell::new(Image(read));
        let taken = self.taken(frames, check_of, &mut BoundedMemory::new(&mut Shared(&memory)));
        let Ok((v8, pieces)) = taken else { return (Vec::new(), true) };
        between();
        let mut sampled = SampledFrames::new(Arc::new(v8), false);
        let found = sampled.calls(&pieces, true, || Some(Shared(&memory)), check_of);
        let has_others = found.runs.iter().any(|run| run.others != Others::None);
        let is_doubtful = !found.is_complete || has_others;
        (found.runs.into_iter().flat_map(|run| run.calls).collect(), is_doubtful)
    }

    /// The pieces of frames in V8's code.
    fn taken<M: Memory>(
        &self,
        frames: &[[u64; 3]],
        check_of: CheckOf,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<(SampledV8, Vec<Piece>), Doubt> {
        let (layout, sizes) = self.layout(memory)?;
        let v8 = SampledV8::new(layout, sizes, self.builtins.clone()).ok_or(Doubt::Version)?;
        let mut pieces = Vec::new();
        for (place, &[pc, sp, cfa]) in frames.iter().enumerate() {
            let (fp, is_exact) = (cfa.wrapping_sub(16), place == 0);
            let of = pc.wrapping_sub(u64::from(!is_exact));
            let is_builtin = self.builtins.contains(&of);
            if !is_builtin && !self.compiled.contains(&of) {
                continue;
            }
            let mut frame = V8Frame {
                place,
                pc,
                is_builtin,
                is_exact,
                is_handled: false,
                is_frameless: is_exact && sp > fp.wrapping_sub(layout.frame.function),
                shared: 0,
                bytecode: [0; 2],
            };
            if !frame.is_frameless {
                (frame.shared, frame.bytecode) = slots(&layout, fp, memory)?;
            }
            let check = v8.identity(frame, memory)?.map_or(0, |words| check_of(&words));
            pieces.push(frame.piece(fp, check));
        }
        Ok((v8, pieces))
    }

    fn layout<M: Memory>(
        &self,
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<(Layout, Vec<u8>), Doubt> {
        let [major, minor] = self.version;
        let layout = Layout::of(Version { major, minor }, &self.constants, memory)?;
        let sizes = bytecode_sizes(&layout, self.sizes, memory)?;
        Ok((layout, sizes))
    }

    fn runs<M: Memory>(
        &self,
        frames: &[[u64; 3]],
        memory: &mut BoundedMemory<'_, M>,
    ) -> Result<ThreadRuns, Doubt> {
        let (layout, sizes) = self.layout(memory)?;
        let places =
            Places { builtins: vec![self.builtins.clone()], compiled: vec![self.compiled.clone()] };
        let frames = frames.iter().enumerate().map(|(at, &[pc, sp, cfa])| {
            let is_exact = at == 0;
            NativeFrame { pc, is_exact, sp, cfa: Some(cfa) }
        });
        let frames: Vec<_> = frames.collect();
        Ok(reader(&layout, memory, &places, &sizes).thread(&UserRegisters::default(), &frames))
    }
}

/// The function or the kind of a frame, and its bytecode.
fn slots<M: Memory>(
    layout: &Layout,
    fp: u64,
    memory: &mut BoundedMemory<'_, M>,
) -> Result<(u64, [u64; 2]), Doubt> {
    let mut slot = |below: u64| memory.word(fp.wrapping_sub(below), 0);
    let marker = slot(layout.frame.marker)?;
    let closure = slot(layout.frame.function)?;
    let bytecode = [slot(layout.frame.bytecode)?, slot(layout.frame.bytecode_offset)?];
    let shared = match (marker & 1, object(closure)) {
        (0, _) => marker,
        (_, Some(closure)) => memory.word(closure, layout.function.shared)?,
        (_, None) => return Err(Doubt::Strange("a frame without a function")),
    };
    let mut heap = Heap { layout, memory };
    let array = object(bytecode[0]).map(|array| heap.kind(array));
    let has_bytecode = array.is_some_and(|kind| kind == Ok(layout.types.bytecode));
    Ok((shared, if has_bytecode { bytecode } else { [0; 2] }))
}

struct Image<F>(F);

/// The same, for more than one who reads it.
struct Shared<'i, F>(&'i RefCell<Image<F>>);

impl<F: FnMut(u64, &mut [u8]) -> bool> Memory for Shared<'_, F> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.0.borrow_mut().read(addr, buf)
    }
}

impl<F: FnMut(u64, &mut [u8]) -> bool> Memory for Image<F> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        (self.0)(addr.get(), buf).then_some(()).ok_or(ReadError::Invalid)
    }
}
