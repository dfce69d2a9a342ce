//! Walks of user stacks: 64-bit code by SFrame tables or by frame pointers,
//! 32-bit code by frame pointers.

use core::borrow::BorrowMut;

use unwind_core::{Arch, End, Memory, RowSource, Trace, Walker};
use unwind_x86::paging::PagedMemory;
use unwind_x86::{
    Ia32, Ia32Regs, InstructionAnalysis, RemoteSframe, RemoteSframeError, Selector,
    SignalTrampolines, TrustedFramePointers, X86_64,
};

use super::kernel_stack::registers;
use super::rows::{Rows, Scratch};
use crate::cpu::CPUS;
use crate::descriptors;
use crate::each_cpu::EachCpu;
use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::memory::{DirectMap, user_space_of};
use crate::task::program::stack_end;
use crate::task::state::Task;

/// The end of a walk.
pub(crate) type UserEnd = End<RemoteSframeError>;

/// For walks in NMIs, which do not nest: one for each CPU.
static NMI_SCRATCH: EachCpu<Exclusive<Scratch>> =
    EachCpu([const { Exclusive::new(Scratch::new()) }; CPUS]);

/// Walks the stack at `frame` into `trace`. Where `mem` may sleep, so may this.
#[inline(never)]
pub(crate) fn walk<M: Memory>(task: &Task, frame: &Frame, mem: &mut M, trace: &mut Trace) {
    let walked = task.rows.try_with(|rows| walk_with(task, frame, mem, rows, trace));
    // Only deliveries come here, one at a time for each task.
    assert!(walked.is_some(), "two walks of one task");
}

/// The same with other memory for rows.
pub(crate) fn walk_with<M: Memory>(
    task: &Task,
    frame: &Frame,
    mem: &mut M,
    rows: &mut Rows,
    trace: &mut Trace,
) {
    if frame.is_compat() {
        walk_compat(task, frame, mem, rows, trace);
    } else {
        walk_64(task, frame, mem, rows, trace);
    }
}

// The two are functions of their own, so that each takes the stack that it
// needs and not that of both.
#[inline(never)]
fn walk_64<M: Memory>(task: &Task, frame: &Frame, mem: &mut M, rows: &mut Rows, trace: &mut Trace) {
    let Rows { cache, scratch } = rows;
    let tables = RemoteSframe::new(&task.modules, &mut scratch.tables);
    let regs = scratch.registers.insert(registers(frame));
    let walker = Walker::new(X86_64::FOUR_LEVEL, source(tables)).cache(cache);
    let walker = walker.fallback(TrustedFramePointers);
    walker.stack_end(stack_end(false)).trace(regs, mem, trace);
}

#[inline(never)]
fn walk_compat<M: Memory>(
    task: &Task,
    frame: &Frame,
    mem: &mut M,
    rows: &mut Rows,
    trace: &mut Trace,
) {
    let tables = RemoteSframe::new(&task.modules, &mut rows.scratch.tables);
    let walker = Walker::new(compat_mode(frame), compat_source(tables));
    let walker = walker.fallback(TrustedFramePointers);
    walker.stack_end(stack_end(true)).trace(compat_registers(frame), mem, trace);
}

/// Walks the stack at `frame` as far as it is present. In NMIs: nothing is
/// faulted in, nothing is waited for, and no row is remembered.
#[inline(never)]
pub(crate) fn walk_present(
    task: &Task,
    frame: &Frame,
    found: &mut dyn FnMut(u64),
) -> Option<UserEnd> {
    let mut mem = PagedMemory::<_, 4>::with_tlb(DirectMap, user_space_of(task.root()));
    let walked = NMI_SCRATCH.own().try_with(|Scratch { tables, registers: place }| {
        let tables = RemoteSframe::new(&task.modules, tables);
        if frame.is_compat() {
            let walker = Walker::new(compat_mode(frame), compat_source(tables));
            each(walker, compat_registers(frame), &mut mem, found)
        } else {
            let walker = Walker::new(X86_64::FOUR_LEVEL, source(tables));
            each(walker, place.insert(registers(frame)), &mut mem, found)
        }
    });
    walked.flatten()
}

// As above: each kind of code takes the stack that it needs.
#[inline(never)]
fn each<A: Arch, S: RowSource<A, Error = RemoteSframeError>, M: Memory>(
    walker: Walker<A, S>,
    regs: impl BorrowMut<A::Regs>,
    mem: &mut M,
    found: &mut dyn FnMut(u64),
) -> Option<UserEnd> {
    let mut walker = walker.fallback(TrustedFramePointers);
    let mut frames = walker.frames(regs, mem);
    for frame in frames.by_ref() {
        found(frame.pc.addr().get());
    }
    frames.end()
}

/// Where the rows of 64-bit code come from, in order.
fn source(
    tables: impl RowSource<X86_64, Error = RemoteSframeError>,
) -> impl RowSource<X86_64, Error = RemoteSframeError> {
    tables.or(SignalTrampolines).or(InstructionAnalysis)
}

/// Where the rows of 32-bit code come from, in order.
fn compat_source(
    tables: impl RowSource<Ia32, Error = RemoteSframeError>,
) -> impl RowSource<Ia32, Error = RemoteSframeError> {
    tables.or(SignalTrampolines).or(InstructionAnalysis)
}

fn compat_registers(frame: &Frame) -> Ia32Regs {
    let Frame { rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, .. } = *frame;
    let low = |register: u64| register as u32;
    Ia32Regs::from_all(low(frame.rip), [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi].map(low))
}

fn compat_mode(frame: &Frame) -> Ia32 {
    let selector = |word: u64| Selector(word as u16);
    descriptors::with_tables(|tables| {
        tables.ia32(selector(frame.cs), selector(frame.ss), frame.rflags as u32)
    })
}
