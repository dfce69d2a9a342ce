//! A walk of one stack, with all that it asked for on the way.

use std::fmt::Display;

use unwind_core::{
    Arch, DwarfReg, End, Frame, ReturnAddresses, RowSource, StepError, TableError, Walker,
};
use unwind_profile::mapped::address_spaces::Space;
use unwind_target::StackEnd;
use unwind_target::rows::call_frame_source::CallFrameSource;
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::program_start::ProgramStart;
use unwind_target::rows::sframe_tables::SframeTables;
use unwind_target::rows::stack_switches::SwitchNames;
use unwind_target::rows::target_switches::TargetSwitches;
use unwind_target::stack::walk::{
    Code, Stack, address_width, ia32_arch, ia32_registers, x86_64_registers,
};
use unwind_target::target::Target;
use unwind_target::target::registers::{CodeMode, UserRegisters};
use unwind_x86::{
    Ia32, InstructionAnalysis, LinkageEntries, ProvenFrames, SignalTrampolines, StackSwitches,
    UnrecordedPushes, WildCalls, X86_64,
};

use crate::commands::explain::recorded_code::{DumpRows, SampledBounds, SampledV8};
use crate::commands::explain::watched::{
    Event, Log, Source, Watched, WatchedAround, WatchedCode, WatchedMemory, WatchedSwitches,
};

/// One frame, and how it was left.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) frame: Frame,
    /// The values of the registers in the frame, by DWARF number, as far as they are known.
    pub(super) registers: Vec<Option<u64>>,
    /// What was asked for to find its caller.
    pub(super) events: Vec<Event>,
}

/// A walked stack.
pub(super) struct Walked {
    pub(super) stack: Stack,
    pub(super) steps: Vec<Step>,
    /// Why the last step led no further, where it was one that failed.
    pub(super) failure: Option<StepError>,
}

/// How many registers rows are about.
const REGISTERS: u8 = 16;

/// Rows where nothing else is known.
const GUESS: FramePointerRows = FramePointerRows { is_trusted: false };

/// Walks the stack of a thread of the target with these registers. Of a sample `space` is what the
/// recording has of its process.
pub(super) fn walk(
    target: &mut Target,
    regs: &UserRegisters,
    switches: &SwitchNames,
    max_frames: u32,
    space: Option<&Space>,
) -> Walked {
    let log = Log::default();
    let mode = regs.code_mode();
    let ranges = Code::ranges(&target.mappings);
    let code = WatchedCode::new(Code::new(&ranges, &target.mappings), &log);
    let mut memory = WatchedMemory::new(&mut target.memory, &log);
    let tables = LinkageEntries::new(SframeTables::new(&target.modules));
    let tables = Watched::new(tables, Source::Sframe, &log);
    let call_frames = LinkageEntries::new(CallFrameSource::new(&target.modules));
    let call_frames = Watched::new(call_frames, Source::CallFrames, &log);
    let start = ProgramStart { files: &target.modules };
    let start = Watched::new(start, Source::ProgramStart, &log);
    let trampolines = Watched::new(SignalTrampolines, Source::SignalTrampolines, &log);
    let proven = ProvenFrames::new(SampledBounds(space));
    let proven = Watched::new(proven, Source::Instructions, &log);
    let instructions = Watched::new(InstructionAnalysis, Source::Instructions, &log);
    // Of a sample it is not known where there is no code.
    let everywhere = std::slice::from_ref(&(0..u64::MAX));
    let known = if space.is_some() { everywhere } else { &ranges };
    let known = Code::new(known, &target.mappings);
    let dump = Watched::new(DumpRows(space), Source::Dump, &log);
    let v8 = Watched::new(SampledV8(space), Source::FramePointer, &log);
    let fallback = Watched::new(GUESS, Source::FramePointer, &log);
    let limit = max_frames.max(1);
    match mode {
        Some(CodeMode::X86_64) => {
            let arch = address_width(&target.mappings);
            let source = RowSource::<X86_64>::or(tables, call_frames);
            let source = RowSource::<X86_64>::or(source, dump);
            let source = RowSource::<X86_64>::or(source, start);
            let source = RowSource::<X86_64>::or(source, trampolines);
            let source = RowSource::<X86_64>::or(source, v8);
            let by_code = RowSource::<X86_64>::or(proven, instructions);
            let by_code = WildCalls::new(arch, known, by_code);
            let by_code = WatchedAround::new(by_code, Source::WildCall, &log);
            let source = RowSource::<X86_64>::or(source, by_code);
            let source = UnrecordedPushes::new(source);
            let source = WatchedAround::new(source, Source::Pushes, &log);
            let switches = TargetSwitches { modules: &target.modules, names: switches };
            let source = StackSwitches::new(switches, source).thread_pointer(regs.fs_base);
            let source = WatchedSwitches::new(source, &log);
            let walker = Walker::new(arch, source);
            let walker = walker.fallback(fallback).return_addresses(code).max_frames(limit);
            steps(walker, x86_64_registers(regs), &mut memory, &log, mode)
        }
        Some(CodeMode::Ia32) => {
            let arch = ia32_arch(regs);
            let source = RowSource::<Ia32>::or(call_frames, start);
            let source = RowSource::<Ia32>::or(source, trampolines);
            let by_code = RowSource::<Ia32>::or(proven, instructions);
            let by_code = WildCalls::new(arch, known, by_code);
            let by_code = WatchedAround::new(by_code, Source::WildCall, &log);
            let source = RowSource::<Ia32>::or(source, by_code);
            let source = UnrecordedPushes::new(source);
            let source = WatchedAround::new(source, Source::Pushes, &log);
            let walker = Walker::new(arch, source);
            let walker = walker.fallback(fallback).return_addresses(code).max_frames(limit);
            steps(walker, ia32_registers(regs), &mut memory, &log, mode)
        }
        None => {
            let text = format!("code segment {:#x} is the program's own", regs.cs);
            let end = StackEnd::not_walkable(text);
            let stack = Stack { mode, frames: Vec::new(), end };
            Walked { stack, steps: Vec::new(), failure: None }
        }
    }
}

fn steps<A, S, F, C, M>(
    mut walker: Walker<A, S, F, C>,
    regs: A::Regs,
    memory: &mut WatchedMemory<'_, M>,
    log: &Log,
    mode: Option<CodeMode>,
) -> Walked
where
    A: Arch,
    S: RowSource<A>,
    S::Error: TableError + Display,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    C: ReturnAddresses,
    M: unwind_core::Memory,
{
    let mut walked = walker.frames(regs, memory);
    let mut steps = Vec::new();
    loop {
        let registers = (0..REGISTERS).map(|number| walked.register(DwarfReg(number))).collect();
        // What was read to tell the registers is no part of the step.
        let _ = log.take();
        let Some(frame) = walked.next() else { break };
        steps.push(Step { frame, registers, events: log.take() });
    }
    let frames: Vec<_> = steps.iter().map(|step| step.frame).collect();
    let end = walked.end();
    let failure = match end {
        Some(End::Step(error)) => Some(error),
        _ => None,
    };
    let end = end.map_or_else(
        || StackEnd::not_walkable("no frames".into()),
        |end| StackEnd::new(&end, &frames),
    );
    Walked { stack: Stack { mode, frames, end }, steps, failure }
}
