//! V8, as in node.

mod code;
mod constants;
mod frames;
mod functions;
mod heap;
pub mod image;
mod places;
mod positions;
mod sampled;
mod scripts;

use std::collections::HashMap;
use std::ops::Range;

pub use crate::interpreters::v8::sampled::{
    Offsets, SampledFrames, SampledV8, V8Frame, asks_for_details,
};

use unwind_core::Memory;

use crate::interpreters::bounded_memory::{BoundedMemory, Doubt};
use crate::interpreters::interpreter::{Interpreter, StoppedThread};
use crate::interpreters::objects::Objects;
use crate::interpreters::runs::{ReadFrames, ThreadRuns};
use crate::interpreters::v8::constants::{Constants, Layout, Version};
use crate::interpreters::v8::frames::FrameReader;
use crate::interpreters::v8::functions::Functions;
use crate::interpreters::v8::heap::Heap;
use crate::interpreters::v8::places::Places;
use crate::target::maps::Mapping;

/// V8 in a program: where what it tells of itself is.
#[derive(Debug)]
pub(super) struct V8 {
    constants: Constants,
    version: [u64; 2],
    /// Where it has the address of its builtin functions, and their length.
    builtins: Option<[u64; 2]>,
    /// How long each bytecode is.
    sizes: Option<u64>,
    mapping: Mapping,
}

const VERSION: [&[u8]; 2] =
    [b"_ZN2v88internal7Version6major_E", b"_ZN2v88internal7Version6minor_E"];
const BUILTINS: [&[u8]; 2] = [
    b"_ZN2v88internal12_GLOBAL__N_127current_embedded_blob_code_E",
    b"_ZN2v88internal12_GLOBAL__N_132current_embedded_blob_code_size_E",
];
const SIZES: [&[u8]; 1] = [b"_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE"];
/// What constants for debuggers are called.
const PREFIX: &[u8] = b"v8dbg_";

fn is_node(name: &[u8]) -> bool {
    name.starts_with(b"node") || name.starts_with(b"libnode.so")
}

impl Interpreter for V8 {
    const NEEDS_FRAMES: bool = true;

    fn find(objects: &mut Objects<'_>) -> Option<Self> {
        let version = objects.data(is_node, &VERSION)?;
        let [Some(major), Some(minor)] = version.addrs else { return None };
        let builtins = objects.data(is_node, &BUILTINS).map(|found| found.addrs);
        let sizes = objects.data(is_node, &SIZES).map(|found| found.addrs);
        Some(Self {
            constants: objects.all_data(is_node, PREFIX),
            version: [major, minor],
            builtins: match builtins {
                Some([Some(start), Some(len)]) => Some([start, len]),
                _ => None,
            },
            sizes: sizes.and_then(|[sizes]| sizes),
            mapping: version.mapping,
        })
    }

    fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn read<M: Memory>(
        &self,
        threads: &[StoppedThread],
        mappings: &[Mapping],
        memory: &mut BoundedMemory<'_, M>,
    ) -> ReadFrames {
        let mut read = none_of("V8".into());
        let builtins = self.builtins(memory);
        // Without them, what is compiled is V8's all the same.
        let places = Places::new(&builtins.clone().unwrap_or_default(), mappings);
        let all = builtins.and_then(|_| self.read_threads(threads, &places, memory, &mut read));
        if let Err(doubt) = all {
            if doubt.is_unknown() {
                read.doubt = Some(doubt);
                return read;
            }
            for thread in threads {
                let frame = thread.frames.iter().find(|frame| places.of(frame).is_some());
                let runs = frame.map(|frame| ThreadRuns::doubtful(frame.sp, doubt));
                read.threads.extend(runs.map(|runs| (thread.registers.fs_base, runs)));
            }
        }
        read
    }
}

/// No frames of an interpreter of this name. Its native frames are not known by their names.
fn none_of(interpreter: String) -> ReadFrames {
    let (is_evaluator, is_at_end) = (|_: &[u8]| false, |_: &[u8]| false);
    ReadFrames { interpreter, is_evaluator, is_at_end, threads: HashMap::new(), doubt: None }
}

impl V8 {
    /// Where the builtin functions are.
    fn builtins<M: Memory>(&self, memory: &mut BoundedMemory<'_, M>) -> Result<Range<u64>, Doubt> {
        let [builtins, len] = self.builtins.ok_or(Doubt::Stripped)?;
        let start = memory.word(builtins, 0)?;
        Ok(start..start.saturating_add(u64::from(memory.half(len, 0)?)))
    }

    fn read_threads<M: Memory>(
        &self,
        threads: &[StoppedThread],
        places: &Places,
        memory: &mut BoundedMemory<'_, M>,
        read: &mut ReadFrames,
    ) -> Result<(), Doubt> {
        let [major, minor] = self.version;
        let version = Version { major: memory.half(major, 0)?, minor: memory.half(minor, 0)? };
        read.interpreter = format!("V8 {}.{}", version.major, version.minor);
        let layout = Layout::of(version, &self.constants, memory)?;
        let sizes = bytecode_sizes(&layout, self.sizes.ok_or(Doubt::Stripped)?, memory)?;
        let mut reader = reader(&layout, memory, places, &sizes);
        for thread in threads {
            let runs = reader.thread(&thread.registers, &thread.frames);
            read.threads.insert(thread.registers.fs_base, runs);
        }
        Ok(())
    }
}

/// How long each bytecode is, without a prefix and after either.
fn bytecode_sizes<M: Memory>(
    layout: &Layout,
    addr: u64,
    memory: &mut BoundedMemory<'_, M>,
) -> Result<Vec<u8>, Doubt> {
    let count = usize::try_from(layout.bytecode.count.saturating_mul(3)).unwrap_or(0);
    memory.bytes(addr, count)
}

fn reader<'r, 'm, M>(
    layout: &'r Layout,
    memory: &'r mut BoundedMemory<'m, M>,
    places: &'r Places,
    sizes: &'r [u8],
) -> FrameReader<'r, 'r, 'm, M> {
    let (heap, functions) = (Heap { layout, memory }, Functions::default());
    FrameReader { heap, functions, places, sizes, is_detailed: false }
}
