//! Walks of both kinds of code, by every source of rows.

use core::fmt::Write as _;

use unwind_core::{
    Arch, DwarfReg, FramePc, MapError, Module, ModuleMap, Registers as _,
    ReturnAddresses, RowCache, RowSource, SharedModuleMap, SliceMemory, TableLocation, Trace,
    VirtAddr, Walker,
};
use unwind_x86::{
    DescriptorTable, DescriptorTables, FramePointers, Ia32, Ia32Regs, InstructionAnalysis,
    ProvenFrames, RemoteSframe, Selector, SframeModule, SframeScratch, SframeSource, SignalTrampolines,
    StackSwitches, SwitchingFunction, WayBack, X86_64, X86_64Regs,
};

use crate::{Target, Text, seen};

static SHARED: SharedModuleMap<16> = SharedModuleMap::new();

struct Known(u64);

impl ReturnAddresses for Known {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        (ra.get() == self.0).then_some(slot?)
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() & 1 == self.0
    }
}

fn tell(trace: &Trace) {
    for frame in trace.frames() {
        seen((frame.pc.lookup_addr(), frame.provenance.origin(), frame.provenance.is_exact()));
    }
    seen((trace.len(), trace.is_complete(), trace.pcs().next_back()));
    if let Some(end) = trace.end() {
        let _ = write!(Text(0), "{end}");
    }
}

/// A walk of 64-bit code by tables in memory, with a cache.
#[unsafe(no_mangle)]
pub fn walk_64(
    modules: &ModuleMap<SframeModule<'static>, 16>,
    cache: &mut RowCache<64>,
    trace: &mut Trace,
    gpr: &[u64; 16],
    rip: u64,
    stack_end: u64,
) {
    let regs = X86_64Regs::from_all(rip, *gpr);
    let rows = SframeSource::new(modules).or(SignalTrampolines);
    let rows = rows.or(ProvenFrames::new(())).or(InstructionAnalysis);
    let mut walker = Walker::new(X86_64::FIVE_LEVEL, rows)
        .cache(cache)
        .fallback(FramePointers)
        .return_addresses(Known(stack_end))
        .stack_end(stack_end)
        .max_frames(60);
    walker.trace(regs, &mut Target, trace);
    tell(trace);
    let mut target = Target;
    let mut frames = walker.frames(regs, &mut target);
    while let Some(frame) = frames.next() {
        seen((frame.cfa, frame.sp, frames.table_errors()));
    }
    if let Some(end) = frames.end() {
        seen((end.is_outermost(), end.is_retryable()));
    }
}

/// A walk of 64-bit code by tables in the target's memory, from a copied stack.
#[unsafe(no_mangle)]
pub fn walk_64_remote(trace: &mut Trace, stack: &[u8; 4096], sp: u64, pc: u64) {
    let mut scratch = SframeScratch::new();
    let tables = RemoteSframe::new(&SHARED, &mut scratch);
    let rows = RowSource::<X86_64>::or(tables, SignalTrampolines);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, rows).fallback(FramePointers);
    let regs = X86_64Regs::new(pc, sp, sp).with(DwarfReg(stack[0]), pc);
    walker.trace(regs, &mut Target, trace);
    walker.trace(regs, &mut SliceMemory::new(VirtAddr::new(sp), stack), trace);
    seen((regs.get(DwarfReg(stack[1])), X86_64::FOUR_LEVEL.code_addr(pc)));
}

/// A walk of 32-bit code.
#[unsafe(no_mangle)]
pub fn walk_32(
    trace: &mut Trace,
    gpr: &[u32; 8],
    tables: (&[u8; 256], &[u8; 256]),
    cs: u16,
    ss: u16,
    eip: u32,
    eflags: u32,
) {
    let tables =
        DescriptorTables { gdt: DescriptorTable(tables.0), ldt: DescriptorTable(tables.1) };
    let (cs, ss) = (Selector(cs), Selector(ss));
    let arch = tables.ia32(cs, ss, eflags);
    seen((cs.privilege(), tables.get(ss).and_then(|descriptor| descriptor.code_mode())));
    let mut scratch = SframeScratch::new();
    let tables = RemoteSframe::new(&SHARED, &mut scratch);
    let rows = RowSource::<Ia32>::or(tables, SignalTrampolines);
    let rows = RowSource::<Ia32>::or(rows, InstructionAnalysis);
    let mut walker = Walker::new(arch, rows).fallback(FramePointers);
    walker.trace(Ia32Regs::from_all(eip, *gpr), &mut Target, trace);
    tell(trace);
}

/// A walk through functions that switch stacks.
#[unsafe(no_mangle)]
pub fn walk_64_over_switches(trace: &mut Trace, code: &[u64; 4], gpr: &[u64; 16], rip: u64) {
    let [start, end, system, fs_base] = *code;
    let functions = [
        SwitchingFunction { code: start..end, way_back: WayBack::Instructions },
        SwitchingFunction { code: end..rip, way_back: WayBack::Never },
        SwitchingFunction {
            code: rip..system,
            way_back: WayBack::Continued(VirtAddr::new(system)),
        },
    ];
    let rows = StackSwitches::new(functions.as_slice(), FramePointers).thread_pointer(fs_base);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, rows).fallback(FramePointers);
    walker.trace(X86_64Regs::from_all(rip, *gpr), &mut Target, trace);
    tell(trace);
}

/// A walk with rows that other address spaces share.
#[unsafe(no_mangle)]
pub fn walk_64_by_key(
    modules: &ModuleMap<SframeModule<'static>, 16>,
    cache: &mut RowCache<64>,
    trace: &mut Trace,
    gpr: &[u64; 16],
    rip: u64,
) {
    let rows = SframeSource::new(modules);
    let walker = Walker::new(X86_64::FOUR_LEVEL, rows).fallback(FramePointers);
    let mut walker = walker.cache_by_key(cache, rows);
    walker.trace(X86_64Regs::from_all(rip, *gpr), &mut Target, trace);
    tell(trace);
}

/// Modules that come and go.
#[unsafe(no_mangle)]
pub fn modules(
    map: &mut ModuleMap<SframeModule<'static>, 16>,
    bytes: &'static [u8; 4096],
    start: u64,
    end: u64,
) {
    let text = VirtAddr::new(start)..VirtAddr::new(end);
    match SframeModule::new(bytes, start) {
        Ok(Some(table)) => {
            let module = Module { text: text.clone(), table: table.built() };
            if let Err(error) = map.add(module) {
                tell_map(error);
            }
        }
        Ok(None) => {}
        Err(error) => {
            let _ = write!(Text(0), "{error}");
        }
    }
    seen((map.find(VirtAddr::new(end)), map.len(), map.is_empty(), map.generation()));
    map.retain(|module| module.text.end.get() != end);
    map.remove(VirtAddr::new(start));
    map.clear();
    let table = TableLocation { addr: VirtAddr::new(start), len: end, id: None };
    let errors = [
        SHARED.add(&Module { text, table }).err(),
        SHARED.retain(|module| module.text.end.get() != end).err(),
        SHARED.remove_table(VirtAddr::new(end)).err(),
        SHARED.copy_from(&SHARED).err(),
        SHARED.clear().err(),
    ];
    errors.into_iter().flatten().for_each(tell_map);
    seen((SHARED.find(VirtAddr::new(start)), SHARED.generation()));
}

fn tell_map(error: MapError) {
    let _ = write!(Text(0), "{error}");
}

/// Addresses.
#[unsafe(no_mangle)]
pub fn addresses(addr: u64, other: u64) -> usize {
    let (addr, base) = (VirtAddr::new(addr), VirtAddr::new(other));
    let _ = write!(Text(0), "{addr} {base:?}");
    seen((addr.checked_add(other), addr.checked_sub(other), addr.wrapping_add(other)))
        | seen((addr.checked_offset_from(base), FramePc::Return(addr).lookup_addr()))
}
