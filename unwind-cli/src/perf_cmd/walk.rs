//! Walking the stack of a sample that has registers and a copy of the stack.

use std::fmt;

use unwind_core::{
    Arch, End, Frame, FrameContext, Memory, Origin, ReadError, Row, RowSource, StepError,
    TableError, TargetCode, VirtAddr, Walker,
};
use unwind_perf::record::{UserAbi, UserState};
use unwind_x86::{Ia32, Ia32Regs, Prologue, SignalTrampolines, X86_64, X86_64Regs};

use crate::counted::counted;
use crate::elf::Part;
use crate::perf_cmd::spaces::{Range, Space};
use crate::stack::{FramePointerRows, low_half};

/// The most frames of a stack: more than a copied stack of 64 KiB can have are of no use.
const MAX_FRAMES: u32 = 8192;

/// A walked stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WalkedStack {
    /// Innermost first.
    pub(crate) frames: Vec<WalkedFrame>,
    /// Why there are no more frames, if the last one is not known to be the outermost. To be
    /// shown as it is: the names in it are escaped.
    pub(crate) cut: Option<String>,
}

/// A frame of a walked stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WalkedFrame {
    /// The pc: of the first frame the sampled one, of others where they go on.
    pub(crate) pc: u64,
    /// The last byte of the call, or the pc itself where that was not a call.
    pub(crate) call: u64,
    /// Callers may be missing before this one.
    pub(crate) after_gap: bool,
}

impl WalkedStack {
    /// Whether no frame is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.cut.is_none() && !self.frames.iter().any(|frame| frame.after_gap)
    }
}

/// Walks the stack in `state` in a process with these mappings.
pub(crate) fn walk(
    state: &UserState<'_>,
    space: &Space,
    frame_pointers: FramePointerRows,
) -> WalkedStack {
    match state.abi {
        UserAbi::Bits64 => walk_x86_64(state, space, frame_pointers),
        UserAbi::Bits32 => walk_ia32(state, space, frame_pointers),
    }
}

/// The registers in perf's numbers.
mod register {
    pub(super) const SP: u32 = 7;
    pub(super) const IP: u32 = 8;
    /// In the order of the DWARF numbers of x86-64: ax, dx, cx, bx, si, di, bp, sp, r8 on.
    pub(super) const X86_64: [u32; 16] = [0, 3, 2, 1, 4, 5, 6, SP, 16, 17, 18, 19, 20, 21, 22, 23];
    /// In the order of the DWARF numbers of i386: ax, cx, dx, bx, sp, bp, si, di.
    pub(super) const IA32: [u32; 8] = [0, 2, 3, 1, SP, 6, 4, 5];
}

/// Why a stack cannot be walked at all.
fn not_walked(reason: &str) -> WalkedStack {
    WalkedStack { frames: Vec::new(), cut: Some(reason.into()) }
}

fn walk_x86_64(
    state: &UserState<'_>,
    space: &Space,
    frame_pointers: FramePointerRows,
) -> WalkedStack {
    let value = |number| state.register(number);
    let (Some(ip), Some(sp)) = (value(register::IP), value(register::SP)) else {
        return not_walked("the sample has no pc or no stack pointer");
    };
    let regs = X86_64Regs::from_all(ip, register::X86_64.map(|number| value(number).unwrap_or(0)));
    let arch = if is_wide(ip) || is_wide(sp) { X86_64::FIVE_LEVEL } else { X86_64::FOUR_LEVEL };
    let source = RecordedTables { space }.or(SignalTrampolines).or(Prologue);
    collect(Walker::new(arch, source).fallback(frame_pointers), regs, sp, state, space)
}

/// No table format covers 32-bit code.
fn walk_ia32(
    state: &UserState<'_>,
    space: &Space,
    frame_pointers: FramePointerRows,
) -> WalkedStack {
    let value = |number| state.register(number).map(low_half);
    let (Some(ip), Some(sp)) = (value(register::IP), value(register::SP)) else {
        return not_walked("the sample has no pc or no stack pointer");
    };
    let regs = Ia32Regs::from_all(ip, register::IA32.map(|number| value(number).unwrap_or(0)));
    let source = RowSource::<Ia32>::or(SignalTrampolines, Prologue);
    collect(Walker::new(Ia32::FLAT, source).fallback(frame_pointers), regs, sp.into(), state, space)
}

/// A program gets addresses above 47 bits only on a CPU with 57, and only if it asks for
/// them.
fn is_wide(addr: u64) -> bool {
    (1 << 47..1 << 56).contains(&addr)
}

fn collect<A, S, F>(
    walker: Walker<A, S, F>,
    regs: A::Regs,
    sp: u64,
    state: &UserState<'_>,
    space: &Space,
) -> WalkedStack
where
    A: Arch,
    S: RowSource<A>,
    S::Error: TableError + fmt::Display,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
{
    let mut memory = SampleMemory { sp, stack: state.stack, space };
    let mut walker = walker.max_frames(MAX_FRAMES).code(Code(space));
    let mut walked = walker.frames(regs, &mut memory);
    let frames: Vec<Frame> = walked.by_ref().collect();
    let end = walked.end();
    let frames: Vec<WalkedFrame> = frames.iter().map(WalkedFrame::from).collect();
    let cut = match (end, frames.last()) {
        (Some(end), _) if end.is_outermost() => None,
        (Some(end), Some(last)) => Some(why_cut(&end, last.call, sp, state, space)),
        _ => Some("there is no stack".into()),
    };
    WalkedStack { frames, cut }
}

impl From<&Frame> for WalkedFrame {
    fn from(frame: &Frame) -> Self {
        Self {
            pc: frame.pc.addr().get(),
            call: frame.pc.lookup_addr().get(),
            after_gap: frame.provenance.is_after_gap(),
        }
    }
}

/// Why a walk ended at the frame that executes `call`.
fn why_cut<E: fmt::Display>(
    end: &End<E>,
    call: u64,
    sp: u64,
    state: &UserState<'_>,
    space: &Space,
) -> String {
    let copied = u64::try_from(state.stack.len()).unwrap_or(u64::MAX);
    if let End::Step(StepError::Unreadable { addr, .. }) = end
        && addr.get().wrapping_sub(sp) >= copied
        && space.find(addr.get()).is_none()
    {
        let copied = counted(copied, "byte", "bytes");
        return format!("{end}; the sample has {copied} of the stack from {sp:#x} on");
    }
    match space.find(call) {
        None => format!("{end}; no file is mapped at {call:#x}"),
        Some(range) => match (range.file.elf(), state.abi) {
            (Err(error), _) => format!("{end}; {}: {error}", range.file.name),
            (Ok(_), UserAbi::Bits32) => end.to_string(),
            (Ok(_), UserAbi::Bits64) => match range.file.built() {
                Err(error) => format!("{end}; {}: {error}", range.file.name),
                Ok(None) if range.file.sframe().is_none() => {
                    format!("{end}; {} has neither .sframe nor .eh_frame", range.file.name)
                }
                Ok(Some(table)) => {
                    let reason = range.link_time(call).and_then(|addr| table.why_missing(addr));
                    let name = &range.file.name;
                    match (reason, table.unread) {
                        (Some((section, reason)), _) => {
                            format!(
                                "{end}; no table can say what the {section} of {name} does: {reason}"
                            )
                        }
                        (None, Some(error)) => format!("{end}; {name}: {error}"),
                        (None, None) => end.to_string(),
                    }
                }
                Ok(None) => end.to_string(),
            },
        },
    }
}

/// The tables of the mapped files: their `.sframe`, or what their `.eh_frame` comes to.
struct RecordedTables<'s> {
    space: &'s Space,
}

impl RowSource<X86_64> for RecordedTables<'_> {
    type Error = sframe::Error;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, sframe::Error> {
        let addr = frame.lookup_addr().get();
        let Some(range) = self.space.find(addr) else { return Ok(None) };
        let Some(bias) = range.bias() else { return Ok(None) };
        if let Some(row) = row_of_section(range, bias, addr)? {
            return Ok(Some(row));
        }
        // Why there is none is told at the end of the walk.
        let Ok(Some(table)) = range.file.built() else { return Ok(None) };
        table.row(addr, bias)
    }
}

/// The row of the `.sframe` of a file.
fn row_of_section(range: &Range, bias: u64, addr: u64) -> Result<Option<Row>, sframe::Error> {
    let Some(section) = range.file.sframe() else { return Ok(None) };
    let addr = addr.wrapping_sub(bias);
    for table in section.tables().tables() {
        let table = table?;
        if table.header().abi == sframe::Abi::Amd64Little
            && let Some(row) = table.find_row(addr)?
        {
            return Ok(Some(row.with_origin(Origin::Table)));
        }
    }
    Ok(None)
}

/// The copied stack, and the files, whose code does not change.
struct SampleMemory<'s> {
    sp: u64,
    stack: &'s [u8],
    space: &'s Space,
}

impl Memory for SampleMemory<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let at = usize::try_from(addr.get().wrapping_sub(self.sp)).ok();
        let copied = at
            .and_then(|at| Some(at..at.checked_add(buf.len())?))
            .and_then(|range| self.stack.get(range));
        if let Some(copied) = copied {
            buf.copy_from_slice(copied);
            return Ok(());
        }
        let len = u64::try_from(buf.len()).unwrap_or(u64::MAX);
        let range = self.space.find(addr.get()).ok_or(ReadError::Invalid)?;
        if addr.get().checked_add(len).is_none_or(|end| end > range.end) {
            return Err(ReadError::Invalid);
        }
        let file = range.file.elf().map_err(|_| ReadError::Invalid)?;
        let at = range.file_offset(addr.get());
        file.read_into(Part::Memory, at, buf).map_err(|_| ReadError::Invalid)
    }
}

/// Where the process has code.
struct Code<'s>(&'s Space);

impl TargetCode for Code<'_> {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        self.0.find(call.get()).is_some_and(|range| range.executable)
    }
}
