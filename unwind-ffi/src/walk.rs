//! Walks of 64-bit and 32-bit code.

use unwind_core::{Memory, ReadError, RowCache, RowSource, Trace, VirtAddr, Walker};
use unwind_x86::{
    FramePointers, Ia32, Ia32Regs, InstructionAnalysis, SignalTrampolines, ThreadStarts, X86_64,
    X86_64Regs,
};

use crate::numbers::{UNWIND_FIVE_LEVEL, UNWIND_MAY_FAULT, UNWIND_NO_RED_ZONE, unwind_mode};
use crate::raw::Context;
use crate::space::AnySpace;
use crate::tables::{TableScratch, Tables};
use crate::types::unwind_registers;

/// How many rows are kept.
pub(crate) const ROWS: usize = 128;

/// Rows, and what they are of: the number of a space, and the lowest bit for 32-bit code.
#[derive(Debug)]
pub(crate) struct Rows<'w> {
    pub(crate) of: &'w mut u64,
    pub(crate) cache: &'w mut RowCache<ROWS>,
}

impl<'w> Rows<'w> {
    /// The cache, without rows of another space, or of the other kind of code.
    fn cache_of(self, space: Option<AnySpace<'_>>, is_32: bool) -> &'w mut RowCache<ROWS> {
        let of = space.map_or(0, AnySpace::serial) << 1 | u64::from(is_32);
        if *self.of != of {
            self.cache.clear();
            *self.of = of;
        }
        self.cache
    }
}

/// What a walk works in.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) tables: TableScratch,
    pub(crate) registers: X86_64Regs,
}

impl Scratch {
    /// The tables of a walk, and the registers that it begins with.
    fn begin<'w>(
        &'w mut self,
        regs: &unwind_registers,
        space: Option<AnySpace<'w>>,
        mem: &TargetMemory,
    ) -> (Tables<'w>, &'w mut X86_64Regs) {
        let Self { tables, registers } = self;
        *registers = registers_64(regs);
        (Tables::new(space, tables, mem.may_fault.then_some(mem.context)), registers)
    }
}

/// One walk.
#[derive(Debug)]
pub(crate) struct Walk<'w> {
    pub(crate) regs: &'w unwind_registers,
    pub(crate) mode: unwind_mode,
    pub(crate) space: Option<AnySpace<'w>>,
    pub(crate) rows: Option<Rows<'w>>,
    pub(crate) scratch: &'w mut Scratch,
    pub(crate) context: Context,
    pub(crate) stack_end: u64,
    pub(crate) flags: u32,
}

impl Walk<'_> {
    pub(crate) fn trace(self, trace: &mut Trace) {
        match self.mode {
            unwind_mode::Long => self.trace_64(trace),
            unwind_mode::Compat | unwind_mode::Vm86 => self.trace_32(trace),
        }
    }

    const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    const fn memory(&self) -> TargetMemory {
        TargetMemory { context: self.context, may_fault: self.has(UNWIND_MAY_FAULT) }
    }

    // Each kind of code takes the stack that it needs, and not that of both.
    #[inline(never)]
    fn trace_64(self, trace: &mut Trace) {
        let arch =
            if self.has(UNWIND_FIVE_LEVEL) { X86_64::FIVE_LEVEL } else { X86_64::FOUR_LEVEL };
        let arch = if self.has(UNWIND_NO_RED_ZONE) { arch.without_red_zone() } else { arch };
        let mut mem = self.memory();
        let Self { regs, space, rows, scratch, stack_end, .. } = self;
        let (tables, registers) = scratch.begin(regs, space, &mem);
        let rows_of = RowSource::<X86_64>::or(tables, SignalTrampolines);
        let rows_of = RowSource::<X86_64>::or(rows_of, ThreadStarts);
        let rows_of = RowSource::<X86_64>::or(rows_of, InstructionAnalysis);
        let mut walker = Walker::new(arch, rows_of)
            .cache_if_any(rows.map(|rows| rows.cache_of(space, false)))
            .fallback(FramePointers)
            .max_frames(u32::try_from(trace.capacity()).unwrap_or(u32::MAX));
        if stack_end != 0 {
            walker = walker.stack_end(stack_end);
        }
        walker.trace(registers, &mut mem, trace);
    }

    #[inline(never)]
    fn trace_32(self, trace: &mut Trace) {
        let mut mem = self.memory();
        let Self { regs, mode, space, rows, scratch, stack_end, .. } = self;
        let arch = match mode {
            unwind_mode::Vm86 => Ia32::VM86,
            _ => Ia32::with_bases(regs.code_base, regs.stack_base),
        };
        let (tables, registers) = scratch.begin(regs, space, &mem);
        let rows_of = RowSource::<Ia32>::or(tables, SignalTrampolines);
        let rows_of = RowSource::<Ia32>::or(rows_of, InstructionAnalysis);
        let mut walker = Walker::new(arch, rows_of)
            .cache_if_any(rows.map(|rows| rows.cache_of(space, true)))
            .fallback(FramePointers)
            .max_frames(u32::try_from(trace.capacity()).unwrap_or(u32::MAX));
        if stack_end != 0 {
            walker = walker.stack_end(stack_end);
        }
        walker.trace(Ia32Regs::from_x86_64(registers), &mut mem, trace);
    }
}

/// By the order of DWARF's numbers.
fn registers_64(regs: &unwind_registers) -> X86_64Regs {
    let unwind_registers { rip, rsp, rbp, rax, rbx, rcx, rdx, rsi, rdi, .. } = *regs;
    let unwind_registers { r8, r9, r10, r11, r12, r13, r14, r15, .. } = *regs;
    if regs.all == 0 {
        return X86_64Regs::new(rip, rsp, rbp);
    }
    let gpr = [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15];
    X86_64Regs::from_all(rip, gpr)
}

/// The target's memory, by the hooks.
struct TargetMemory {
    context: Context,
    may_fault: bool,
}

impl Memory for TargetMemory {
    #[inline]
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.context.read(addr, buf, self.may_fault)
    }
}
