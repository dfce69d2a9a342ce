//! Walks the stacks of a target by the method that the user chose.

use std::fmt;
use std::ops::Range;

use serde::Serialize;
use unwind_core::{
    Arch, CacheStats, End, Frame, ReturnAddresses, RowCache, RowSource, RowStore, StepError,
    TableError, VirtAddr, Walker,
};
use unwind_x86::{
    Ia32, Ia32Regs, InstructionAnalysis, LinkageEntries, ProvenFrames, SignalTrampolines,
    StackSwitches, UnrecordedPushes, WildCalls, X86_64, X86_64Regs,
};

use crate::loaded::module::Modules;
use crate::rows::build_progress::BuildProgress;
use crate::rows::built_tables::BuiltTables;
use crate::rows::call_frame_source::CallFrameSource;
use crate::rows::frame_pointers::FramePointerRows;
use crate::rows::program_start::ProgramStart;
use crate::rows::sframe_tables::{SframeTables, TableWarnings};
use crate::rows::stack_switches::{SwitchNames, is_lost};
use crate::rows::target_switches::TargetSwitches;
use crate::target::held_process::general_registers;
use crate::target::maps::Mapping;
use crate::target::registers::{CodeMode, UserRegisters};
use crate::target::return_probes::ReturnProbes;
use crate::target::sleeping::Awake;
use crate::target::target_memory::TargetMemory;

/// How frames are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Method {
    /// By SFrame tables where there are some, else as `Cfi` does, else as `Fp` does.
    #[default]
    Auto,
    /// By SFrame tables alone.
    Sframe,
    /// By call frame information (`.eh_frame`, `.debug_frame`) alone.
    Cfi,
    /// By SFrame tables that are made of the call frame information alone.
    CfiSframe,
    /// By frame pointers, by the instructions at a function's entry and exit,
    /// and by signal frames.
    Fp,
}

impl Method {
    /// The word for it in text and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sframe => "sframe",
            Self::Cfi => "cfi",
            Self::CfiSframe => "cfi-sframe",
            Self::Fp => "fp",
        }
    }
}

/// One walked stack.
#[derive(Clone, Debug)]
pub struct Stack {
    pub mode: Option<CodeMode>,
    pub frames: Vec<Frame>,
    pub end: StackEnd,
}

/// Why a stack has no more frames. Shown, it is a line that says whether the stack is complete, too: `complete:
/// outermost frame`, or `incomplete: no source covers this pc; libx.so has neither .sframe nor .eh_frame or
/// .debug_frame`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StackEnd {
    /// The last frame is known to be the outermost one, and no callers are missing
    /// before it.
    pub complete: bool,
    /// For programs.
    pub reason: EndReason,
    /// The part of the line after the colon.
    pub text: String,
}

/// The kinds of reasons for which a stack has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EndReason {
    /// The row of the last frame says that it is the outermost one.
    Outermost,
    /// The last frame's return address is zero.
    ZeroReturnAddress,
    /// There are more frames than [`WalkOptions::max_frames`](crate::WalkOptions::max_frames) allows.
    MaxFrames,
    /// No method covers the last frame.
    NoRow,
    /// The row of the last frame could not be applied.
    Step,
    /// The table of the last frame is malformed.
    Table,
    /// The last frame is on another stack than its caller, which cannot be told.
    OtherStack,
    /// A chain of frame pointers ends with a zero, as it should, but zeroes are
    /// also where a frame pointer leads that is none.
    FramePointerZero,
    /// The return address does not lead to code.
    NoCode,
    /// The return address is that of a uretprobe, which keeps the real one.
    ReturnProbe,
    /// The thread runs in a mode whose stacks are not walked.
    NotWalkable,
    /// What the walk needed was not copied when the registers were read.
    NotCaptured,
    /// Without a stop: the thread did not sleep.
    Running,
    /// Without a stop: the thread ran while its stack was copied, or other code was mapped.
    Changed,
}

/// What is said of a stack that was not copied as far as it was walked.
const NOT_CAPTURED: &str =
    "; not all that the walk needed was captured at that time: --live walks in place";

impl EndReason {
    /// Whether the last frame is where start-up code ends a stack, or seems to be.
    #[must_use]
    pub const fn is_outermost(self) -> bool {
        matches!(self, Self::Outermost | Self::ZeroReturnAddress | Self::FramePointerZero)
    }
}

impl fmt::Display for StackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let completeness = if self.complete { "complete" } else { "incomplete" };
        write!(f, "{completeness}: {}", self.text)
    }
}

impl StackEnd {
    /// Of a walk with these frames.
    #[doc(hidden)]
    pub fn new<E: TableError + fmt::Display>(end: &End<E>, frames: &[Frame]) -> Self {
        let reason = match end {
            End::Outermost => EndReason::Outermost,
            End::ZeroReturnAddress => EndReason::ZeroReturnAddress,
            End::FrameLimit => EndReason::MaxFrames,
            End::NoRow => EndReason::NoRow,
            End::Table(_) if is_lost(end) => EndReason::OtherStack,
            End::Table(_) => EndReason::Table,
            End::NotWalkable => EndReason::NotWalkable,
            End::Step(StepError::NotCode { .. }) => EndReason::NoCode,
            End::Step(StepError::ReturnProbe { .. }) => EndReason::ReturnProbe,
            End::Step(StepError::ZeroFramePointer | StepError::ZeroReturnAddress { .. }) => {
                EndReason::FramePointerZero
            }
            // Whatever else there is, the last row led no further.
            _ => EndReason::Step,
        };
        let gaps = frames.iter().filter(|frame| frame.provenance.is_after_gap()).count();
        let mut text = match end {
            End::FrameLimit => "there are more frames than --max-frames".into(),
            End::Table(error) if reason == EndReason::OtherStack => error.to_string(),
            _ => end.to_string(),
        };
        if end.is_outermost() && gaps != 0 {
            let places = if gaps == 1 { "place" } else { "places" };
            text.push_str(&format!(", but callers may be missing at {gaps} {places}"));
        }
        Self { complete: end.is_outermost() && gaps == 0, reason, text }
    }

    /// The same of a thread that was not stopped.
    fn without_stop(mut self) -> Self {
        if self.complete {
            self.complete = false;
            self.text.push_str("; taken without a stop");
        }
        self
    }

    #[must_use]
    #[doc(hidden)]
    pub fn not_walkable(text: String) -> Self {
        Self { complete: false, reason: EndReason::NotWalkable, text }
    }
}

impl Stack {
    /// Of a thread that did not sleep, and was not stopped.
    pub(crate) fn of_awake(awake: Awake) -> Self {
        let (reason, text) = match awake {
            Awake::Running => (EndReason::Running, "the thread did not sleep"),
            Awake::Ran => (EndReason::Changed, "the thread ran while its stack was copied"),
            Awake::Remapped => {
                (EndReason::Changed, "other code was mapped while the stack was copied")
            }
        };
        let text = format!("{text}; without --no-stop it is stopped");
        Self { mode: None, frames: Vec::new(), end: StackEnd { complete: false, reason, text } }
    }

    /// The same of a thread that was not stopped: never complete.
    pub(crate) fn without_stop(self) -> Self {
        Self { end: self.end.without_stop(), ..self }
    }
}

/// What is needed to walk any stack of one target.
#[derive(Debug)]
pub struct StackWalker<'t> {
    ways: Ways<'t>,
    modules: &'t Modules,
    /// Where the target has code, ascending.
    code: Vec<Range<u64>>,
    return_probes: ReturnProbes,
    x86_64: X86_64,
    /// What was looked up.
    rows: Box<RowCache<ROWS>>,
    progress: &'t dyn BuildProgress,
}

/// How the stacks of a target are walked.
#[derive(Clone, Copy, Debug)]
pub struct Ways<'t> {
    pub method: Method,
    pub frame_pointers: FramePointerRows,
    pub switches: &'t SwitchNames,
    pub max_frames: u32,
}

/// How many rows are kept: those of some thousand functions, in 128 KiB.
pub const ROWS: usize = 8192;

impl<'t> StackWalker<'t> {
    #[must_use]
    pub fn new(modules: &'t Modules, mappings: &[Mapping], ways: Ways<'t>) -> Self {
        let code = Code::ranges(mappings);
        let return_probes = ReturnProbes::new(mappings);
        let x86_64 = address_width(mappings);
        let rows = Box::default();
        Self { ways, modules, code, return_probes, x86_64, rows, progress: &() }
    }

    /// Tells this how far the making of a table is.
    pub(crate) fn progress(self, progress: &'t dyn BuildProgress) -> Self {
        Self { progress, ..self }
    }

    /// Shows that many frames of the stacks that are walked from now on, at most.
    pub(crate) fn max_frames(&mut self, max_frames: u32) {
        self.ways.max_frames = max_frames;
    }

    /// How often a row was kept, and how often it was looked up.
    pub(crate) fn rows(&self) -> CacheStats {
        self.rows.stats()
    }

    /// Which tables could not be used, a line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = TableWarnings::default();
        warnings.add(self.modules);
        warnings.lines().to_vec()
    }

    /// Walks the stack of the thread with these registers.
    pub fn walk(&mut self, regs: &UserRegisters, memory: &mut TargetMemory) -> Stack {
        let mode = regs.code_mode();
        let refusals = memory.refusals();
        let (frames, mut end) = match mode {
            Some(CodeMode::X86_64) => self.walk_x86_64(regs, memory),
            Some(CodeMode::Ia32) => self.walk_ia32(regs, memory),
            None => {
                let text = format!("code segment {:#x} is the program's own", regs.cs);
                (Vec::new(), StackEnd::not_walkable(text))
            }
        };
        // What was not copied is not read later: the stack has changed since.
        if memory.refusals() != refusals && !end.complete {
            end.reason = EndReason::NotCaptured;
            end.text.push_str(NOT_CAPTURED);
        }
        Stack { mode, frames, end }
    }

    fn walk_x86_64(
        &mut self,
        regs: &UserRegisters,
        memory: &mut TargetMemory,
    ) -> (Vec<Frame>, StackEnd) {
        let Ways { method, frame_pointers, switches, max_frames } = self.ways;
        let switches = TargetSwitches { modules: self.modules, names: switches };
        let (fs_base, regs) = (regs.fs_base, x86_64_registers(regs));
        let tables = SframeTables::new(self.modules);
        let call_frames = CallFrameSource::new(self.modules);
        let (arch, code, rows) =
            (self.x86_64, Code { ranges: &self.code, probes: self.return_probes }, &mut *self.rows);
        match method {
            Method::Auto => {
                let source = LinkageEntries::new(tables).or(call_frames);
                let source = source.or(ProgramStart { files: self.modules });
                let by_code = RowSource::<X86_64>::or(ProvenFrames::new(()), InstructionAnalysis);
                let source = source.or(SignalTrampolines).or(WildCalls::new(arch, code, by_code));
                let source = UnrecordedPushes::new(source);
                let source = StackSwitches::new(switches, source).thread_pointer(fs_base);
                let walker = Walker::new(arch, source).cache(rows).fallback(frame_pointers);
                collect(walker.return_addresses(code).max_frames(max_frames), regs, memory)
            }
            Method::Sframe => {
                let walker = Walker::new(arch, tables).cache(rows).return_addresses(code);
                collect(walker.max_frames(max_frames), regs, memory)
            }
            Method::Cfi => {
                let walker = Walker::new(arch, call_frames).cache(rows).return_addresses(code);
                collect(walker.max_frames(max_frames), regs, memory)
            }
            Method::CfiSframe => {
                let built = BuiltTables::new(self.modules, self.progress);
                let walker = Walker::new(arch, built).cache(rows).return_addresses(code);
                collect(walker.max_frames(max_frames), regs, memory)
            }
            Method::Fp => {
                let source = RowSource::<X86_64>::or(SignalTrampolines, InstructionAnalysis);
                let walker = Walker::new(arch, source).fallback(frame_pointers);
                collect(walker.return_addresses(code).max_frames(max_frames), regs, memory)
            }
        }
    }

    /// No SFrame tables are of 32-bit code.
    fn walk_ia32(
        &mut self,
        regs: &UserRegisters,
        memory: &mut TargetMemory,
    ) -> (Vec<Frame>, StackEnd) {
        let Ways { method, frame_pointers, max_frames, .. } = self.ways;
        let arch = ia32_arch(regs);
        let regs = ia32_registers(regs);
        let call_frames = CallFrameSource::new(self.modules);
        // The code at an address is of one kind, so both kinds share the cache.
        let (code, rows) =
            (Code { ranges: &self.code, probes: self.return_probes }, &mut *self.rows);
        match method {
            Method::Auto => {
                let start = ProgramStart { files: self.modules };
                let source = RowSource::<Ia32>::or(LinkageEntries::new(call_frames), start);
                let source = RowSource::<Ia32>::or(source, SignalTrampolines);
                let by_code = RowSource::<Ia32>::or(ProvenFrames::new(()), InstructionAnalysis);
                let source = RowSource::<Ia32>::or(source, WildCalls::new(arch, code, by_code));
                let source = UnrecordedPushes::new(source);
                let walker = Walker::new(arch, source).cache(rows).fallback(frame_pointers);
                collect(walker.return_addresses(code).max_frames(max_frames), regs, memory)
            }
            Method::Cfi => {
                let walker = Walker::new(arch, call_frames).cache(rows).return_addresses(code);
                collect(walker.max_frames(max_frames), regs, memory)
            }
            Method::Sframe | Method::CfiSframe => {
                let walker = Walker::new(arch, unwind_core::Empty).return_addresses(code);
                collect(walker.max_frames(max_frames), regs, memory)
            }
            Method::Fp => {
                let source = RowSource::<Ia32>::or(SignalTrampolines, InstructionAnalysis);
                let walker = Walker::new(arch, source).fallback(frame_pointers);
                collect(walker.return_addresses(code).max_frames(max_frames), regs, memory)
            }
        }
    }
}

fn collect<A, S, F, C>(
    mut walker: Walker<A, S, F, Code<'_>, C>,
    regs: A::Regs,
    memory: &mut TargetMemory,
) -> (Vec<Frame>, StackEnd)
where
    A: Arch,
    S: RowSource<A>,
    S::Error: fmt::Display,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    C: RowStore,
{
    let mut walked = walker.frames(regs, memory);
    let frames: Vec<_> = walked.by_ref().collect();
    // The walk has ended, so it has an end.
    let end = walked.end().map_or_else(
        || StackEnd::not_walkable("no frames".into()),
        |end| StackEnd::new(&end, &frames),
    );
    (frames, end)
}

/// Where the target has code. A frame pointer that is none leads anywhere, mostly not
/// there.
#[derive(Clone, Copy, Debug)]
pub struct Code<'c> {
    /// Ascending.
    ranges: &'c [Range<u64>],
    probes: ReturnProbes,
}

impl<'c> Code<'c> {
    /// Of these ranges of a target with these mappings.
    #[must_use]
    pub fn new(ranges: &'c [Range<u64>], mappings: &[Mapping]) -> Self {
        Self { ranges, probes: ReturnProbes::new(mappings) }
    }

    /// The ranges of code among mappings.
    #[must_use]
    pub fn ranges(mappings: &[Mapping]) -> Vec<Range<u64>> {
        let code = mappings.iter().filter(|mapping| mapping.executable);
        let mut code: Vec<_> = code.map(|mapping| mapping.range.clone()).collect();
        code.sort_unstable_by_key(|range| range.start);
        code
    }
}

impl ReturnAddresses for Code<'_> {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        let call = call.get();
        let after = self.ranges.partition_point(|range| range.start <= call);
        let range = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        // What ends where the trampoline starts is no call of it.
        range.is_some_and(|range| range.contains(&call))
            && !self.probes.start_at(call.wrapping_add(1))
    }

    fn is_trampoline(&mut self, ra: VirtAddr) -> bool {
        self.probes.start_at(ra.get())
    }
}

/// The flag of VM86 mode.
const EFLAGS_VM: u64 = 1 << 17;

/// A program gets addresses above 47 bits only on a CPU with 57, and only if it
/// asks for them.
#[must_use]
pub fn address_width(mappings: &[Mapping]) -> X86_64 {
    const USER_END_48: u64 = 1 << 47;
    const USER_END_57: u64 = 1 << 56;
    let is_wide = |mapping: &Mapping| (USER_END_48..USER_END_57).contains(&mapping.range.start);
    if mappings.iter().any(is_wide) { X86_64::FIVE_LEVEL } else { X86_64::FOUR_LEVEL }
}

/// In the order of the DWARF numbers.
#[must_use]
pub fn x86_64_registers(regs: &UserRegisters) -> X86_64Regs {
    if regs.only_pc_and_sp {
        return X86_64Regs::new(regs.rip, regs.rsp, 0).without(X86_64Regs::RBP);
    }
    X86_64Regs::from_all(regs.rip, general_registers(regs))
}

/// How 32-bit code with these registers addresses its stack.
#[must_use]
pub const fn ia32_arch(regs: &UserRegisters) -> Ia32 {
    if regs.eflags & EFLAGS_VM == 0 { Ia32::FLAT } else { Ia32::VM86 }
}

/// The same of 32-bit code.
#[must_use]
pub fn ia32_registers(regs: &UserRegisters) -> Ia32Regs {
    Ia32Regs::from_x86_64(&x86_64_registers(regs))
}
