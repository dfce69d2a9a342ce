//! Unwinders of the stack of the running process.

use std::fs;

use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use unwind_core::{PackedFrame, Trace, Walker};
use unwind_snapshot::Snapshot;
use unwind_x86::{FramePointers, X86_64, X86_64Regs};

use crate::corpus::{Corpus, Module, Tables};
use crate::own_maps::{Map, own_maps};
use crate::own_stack::Top;
use crate::{Framehop, MAX_FRAMES, Reference, Unwind, Unwinder as _};

/// The code of this process, with tables that are made of its `.eh_frame`; no
/// snapshots.
///
/// # Panics
///
/// If a file that is mapped cannot be read.
#[must_use]
pub fn own_code() -> Corpus {
    let maps = own_maps();
    let of_files = maps.into_iter().filter(|map| map.is_code && map.path.is_absolute());
    let modules = of_files.map(|map| {
        let (bias, tables) = tables_of(&map);
        Module { text: map.range, bias, tables: Box::leak(Box::new(tables)) }
    });
    Corpus { name: "own".into(), snapshots: Vec::new(), modules: modules.collect() }
}

/// How far a mapped file is loaded above its link-time addresses, and its
/// tables.
fn tables_of(map: &Map) -> (u64, Tables) {
    let bytes = fs::read(&map.path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    // The loader maps whole pages.
    let page_of = |value: u64| value & !0xfff;
    let mut segments = file.segments();
    let segment = segments.find(|segment| page_of(segment.file_range().0) == map.offset).unwrap();
    let bias = map.range.start.wrapping_sub(page_of(segment.address()));
    let tables = file.section_by_name(".eh_frame").map(|section| {
        Tables::new(&map.path.display().to_string(), section.address(), section.data().unwrap())
    });
    (bias, tables.unwrap_or_default())
}

/// Walks frame pointers alone, by the walk of this workspace.
#[derive(Debug, Default)]
pub struct FramePointerWalk {
    trace: Box<Trace<[PackedFrame; MAX_FRAMES]>>,
}

impl FramePointerWalk {
    /// Walks; returns how many frames there are.
    pub fn walk(&mut self, top: &Top<'_>) -> usize {
        let mut memory = top.stack;
        Walker::new(X86_64::FOUR_LEVEL, FramePointers).trace(
            regs(top),
            &mut memory,
            &mut *self.trace,
        );
        self.trace.len()
    }

    /// The addresses of the frames, innermost first.
    #[must_use]
    pub fn frames(&self) -> Vec<u64> {
        self.trace.pcs().map(unwind_core::VirtAddr::get).collect()
    }
}

fn regs(top: &Top<'_>) -> X86_64Regs {
    X86_64Regs::new(top.start.pc, top.start.sp, top.start.fp)
}

/// Walks by this workspace's tables; returns how many frames there are.
pub fn walk(unwind: &mut Unwind, top: &Top<'_>) -> usize {
    let mut memory = top.stack;
    unwind.walk_from(regs(top), &mut memory)
}

/// The same by framehop.
pub fn walk_by_framehop(framehop: &mut Framehop, top: &Top<'_>) -> usize {
    let crate::own_stack::Start { pc, sp, fp } = top.start;
    framehop.walk_from([pc, sp, fp], |addr| top.stack.word(addr).ok_or(()))
}

/// The frames of a copy of the stack by the reference.
#[must_use]
pub fn reference(code: &Corpus, top: &Top<'_>) -> Vec<u64> {
    let (stack_start, stack) = top.stack.copy();
    let gpr = [0; 16];
    let (rip, stack) = (top.start.pc, &*stack);
    let (space, process, thread, time, is_whole) = (0, 0, 0, 0, true);
    let snapshot =
        Snapshot { space, process, thread, time, rip, gpr, is_whole, stack_start, stack };
    let mut registers = [None; 16];
    (registers[6], registers[7]) = (Some(top.start.fp), Some(top.start.sp));
    let mut reference = Reference::new(code);
    reference.walk_from(&snapshot, registers);
    reference.frames()
}
