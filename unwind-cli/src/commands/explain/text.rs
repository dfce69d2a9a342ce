//! One stack as text for people, frame by frame.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use unwind_core::{BaseReg, CfaRule, Frame as WalkedFrame, RegRule, Row, StepError};
use unwind_target::loaded::module::{Module, Modules};
use unwind_target::untrusted::escaped;
use unwind_target::{EndReason, Frame, StackEnd, ThreadStack};

use crate::commands::explain::registers::register_name;
use crate::commands::explain::row_place::{RowPlace, Signed, in_call_frames, in_sframe};
use crate::commands::explain::walk::Step;
use crate::commands::explain::watched::{Event, Source};
use crate::commands::stack::text::{write_doubt, write_frame, write_interpreted};

/// What is written about one stack.
pub(super) struct Explanation<'t> {
    pub(super) thread: &'t ThreadStack,
    pub(super) steps: &'t [Step],
    pub(super) failure: Option<StepError>,
    pub(super) modules: &'t Modules,
    /// All words of the code are of 8 bytes, not of 4.
    pub(super) is_64: bool,
}

impl Explanation<'_> {
    /// Writes all frames, and why there are no more.
    ///
    /// # Errors
    ///
    /// As writing to `out`.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, (frame, step)) in self.thread.frames.iter().zip(self.steps).enumerate() {
            let next = self.steps.get(number.saturating_add(1)).map(|next| next.frame);
            writeln!(out)?;
            write_interpreted(out, &frame.interpreted)?;
            write_frame(out, number, self.thread.arch, frame)?;
            self.write_step(out, frame, step, next)?;
        }
        self.write_end(out)
    }

    fn write_step(
        &self,
        out: &mut impl Write,
        report: &Frame,
        step: &Step,
        next: Option<WalkedFrame>,
    ) -> io::Result<()> {
        let module = self.modules.find(report.lookup());
        self.write_registers(out, step)?;
        if let Some(module) = module {
            write_module(out, module, report)?;
        }
        let mut applied = None;
        for event in &step.events {
            match event {
                Event::Lookup { source, addr, found } => {
                    write_lookup(out, *source, *addr, found, self.is_64)?;
                    if let Ok(Some(row)) = found {
                        applied = Some(*row);
                        write_place(out, *source, module, *addr)?;
                    }
                }
                Event::Read { addr, bytes } => {
                    write_read(out, *addr, bytes.as_deref(), step.frame.cfa, applied, self.is_64)?;
                }
                Event::Code { addr, is_code } => {
                    let name = self.modules.find(*addr).map(|module| &module.path);
                    let place = name.map(|path| format!(" of {}", escaped(path)));
                    let is = if *is_code { "is code" } else { "is NOT code" };
                    let place = place.unwrap_or_default();
                    label(
                        out,
                        "checked",
                        format_args!("{addr:#x}, a byte before it, {is}{place}"),
                    )?;
                }
                Event::Trampoline { addr, is_trampoline: true } => {
                    label(out, "checked", format_args!("{addr:#x} is the start of a uretprobe"))?;
                }
                Event::Trampoline { .. } => {}
            }
        }
        write_checks(out, &step.frame, next)
    }

    /// Registers whose values are known, four on a line.
    fn write_registers(&self, out: &mut impl Write, step: &Step) -> io::Result<()> {
        let width = if self.is_64 { 16 } else { 8 };
        let known = step.registers.iter().zip(0_u16..);
        let known = known.filter_map(|(value, number)| Some(((*value)?, number)));
        let shown: Vec<_> = known
            .map(|(value, number)| {
                format!("{} {value:0width$x}", register_name(number, self.is_64))
            })
            .collect();
        for (line, four) in shown.chunks(4).enumerate() {
            let name = if line == 0 { "registers" } else { "" };
            label(out, name, four.join("  "))?;
        }
        Ok(())
    }

    fn write_end(&self, out: &mut impl Write) -> io::Result<()> {
        let StackEnd { complete, text, .. } = &self.thread.end;
        let completeness = if *complete { "complete" } else { "incomplete" };
        writeln!(out)?;
        write_doubt(out, self.thread)?;
        writeln!(out, "{completeness}: {text}")?;
        if let Some(advice) = advice(&self.thread.end, self.failure) {
            writeln!(out, "  {advice}")?;
        }
        writeln!(out, "gdb: {}", gdb_says(&self.thread.end, self.steps, self.failure))
    }
}

pub(super) fn label(out: &mut impl Write, name: &str, what: impl Display) -> io::Result<()> {
    writeln!(out, "       {name:<10} {what}")
}

fn write_module(out: &mut impl Write, module: &Module, report: &Frame) -> io::Result<()> {
    let path = escaped(&module.path);
    match module.image() {
        Ok(image) => {
            let pc = report.pc.wrapping_sub(image.bias);
            let bias = image.bias;
            label(
                out,
                "module",
                format_args!("{path}, {bias:#x} above its own addresses: pc {pc:#x}"),
            )?;
            if !report.exact {
                let lookup = pc.wrapping_sub(1);
                label(
                    out,
                    "",
                    format_args!("a return address: looked up at {lookup:#x}, in the call"),
                )?;
            }
            Ok(())
        }
        Err(error) => label(out, "module", format_args!("{path}: {error}")),
    }
}

fn write_lookup(
    out: &mut impl Write,
    source: Source,
    addr: u64,
    found: &Result<Option<Row>, String>,
    is_64: bool,
) -> io::Result<()> {
    let name = match source {
        Source::Sframe => ".sframe",
        Source::CallFrames => "call frame information",
        Source::Dump => "what the compiler has told",
        Source::ProgramStart => "the start of a program",
        Source::SignalTrampolines => "signal trampolines",
        Source::Instructions => "instructions",
        Source::WildCall => "the call that led to where there is no code",
        Source::FramePointer => "frame pointer",
        Source::StackSwitch => "the instructions that lead to the stack before",
        Source::Pushes => "the instructions up to the return, against that row",
    };
    match found {
        Ok(Some(row)) => label(out, "row", format_args!("{}, by {name}", row_text(row, is_64))),
        Ok(None) => label(out, "no row", format_args!("by {name}")),
        Err(error) => label(out, "bad row", format_args!("by {name} at {addr:#x}: {error}")),
    }
}

/// A row in the words of DWARF.
pub(super) fn row_text(row: &Row, is_64: bool) -> String {
    if row.is_outermost() {
        return "RA is undefined: the outermost frame".into();
    }
    if row.is_context_only() {
        return "the registers that the kernel saved for a signal handler".into();
    }
    let base = |register| match register {
        BaseReg::Sp => if is_64 { "rsp" } else { "esp" }.to_owned(),
        BaseReg::Fp => if is_64 { "rbp" } else { "ebp" }.to_owned(),
        BaseReg::Reg(register) => register_name(register.0.into(), is_64),
    };
    let rule = |rule| match rule {
        RegRule::SameValue => "same value".to_owned(),
        RegRule::Undefined => "undefined".to_owned(),
        RegRule::Offset(offset) => format!("[CFA{}]", Signed(offset.into())),
        RegRule::ValOffset(offset) => format!("CFA{}", Signed(offset.into())),
        RegRule::Register(register, offset) => {
            format!("{}{}", base(register), Signed(offset.into()))
        }
        RegRule::AtRegister(register, offset) => {
            format!("[{}{}]", base(register), Signed(offset.into()))
        }
    };
    let cfa = match (row.other_stack_cfa(), row.cfa()) {
        (Some(cfa), _) => format!("{cfa:#x}, on another stack"),
        (None, CfaRule::Register(register, offset)) => {
            format!("{}{}", base(register), Signed(offset.into()))
        }
        (None, CfaRule::AtRegister(register, offset)) => {
            format!("[{}{}]", base(register), Signed(offset.into()))
        }
        (None, CfaRule::AtRegisterPlus(register, offset, plus)) => {
            let plus = Signed(plus.bytes().into());
            format!("[{}{}]{plus}", base(register), Signed(offset.into()))
        }
    };
    let fp = if is_64 { "rbp" } else { "ebp" };
    let signal = if row.is_signal() { ", of a signal frame" } else { "" };
    let guess = if row.is_guess() { ", a guess" } else { "" };
    format!("CFA = {cfa}, RA = {}, {fp} = {}{signal}{guess}", rule(row.ra()), rule(row.fp()))
}

/// Where the file has the row, if that is known, or what is wrong with it.
pub(super) fn place_of(
    source: Source,
    module: Option<&Module>,
    addr: u64,
) -> Result<Option<RowPlace>, String> {
    let Some(Ok(image)) = module.map(Module::image) else { return Ok(None) };
    match source {
        Source::Sframe => Ok(in_sframe(image, addr)),
        Source::CallFrames => in_call_frames(image, addr),
        _ => Ok(None),
    }
}

/// Where the file has the row.
fn write_place(
    out: &mut impl Write,
    source: Source,
    module: Option<&Module>,
    addr: u64,
) -> io::Result<()> {
    match place_of(source, module, addr) {
        Ok(Some(place)) => write_row_place(out, &place),
        Ok(None) => Ok(()),
        Err(error) => label(out, "from", error),
    }
}

/// Where a row is.
pub(super) fn write_row_place(out: &mut impl Write, place: &RowPlace) -> io::Result<()> {
    let &RowPlace { section, section_at, fde_at, cie_at, code: (start, end), .. } = place;
    let cie = cie_at.map(|at| format!(" and CIE at {at:#x}")).unwrap_or_default();
    let file = section_at
        .map(|at| format!(" (FDE at {:#x} of the file)", at.saturating_add(fde_at)))
        .unwrap_or_default();
    label(out, "from", format_args!("{section}: FDE at {fde_at:#x}{cie}{file}"))?;
    let row = match place.row {
        Some((from, Some(to))) => format!(", row of {from:#x}..{to:#x}"),
        Some((from, None)) => format!(", row from {from:#x} on"),
        None => String::new(),
    };
    let row_at = place.row_at.map(|at| format!(" at {at:#x}")).unwrap_or_default();
    label(out, "", format_args!("FDE of {start:#x}..{end:#x}{row}{row_at}"))?;
    place.rules.as_ref().map_or(Ok(()), |rules| label(out, "", format_args!("all rules: {rules}")))
}

/// What was read: the words of the stack by themselves.
fn write_read(
    out: &mut impl Write,
    addr: u64,
    bytes: Result<&[u8], &unwind_core::ReadError>,
    cfa: Option<u64>,
    row: Option<Row>,
    is_64: bool,
) -> io::Result<()> {
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => return label(out, "read", format_args!("{addr:#x}: {error}")),
    };
    let size: usize = if is_64 { 8 } else { 4 };
    let is_words = [size, size.saturating_mul(2)].contains(&bytes.len());
    let (Some(row), true) = (row, is_words) else {
        let count = bytes.len();
        return label(out, "read", format_args!("{count} bytes at {addr:#x}"));
    };
    let mut at = addr;
    for word in bytes.chunks(size) {
        let value = word.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        let is_of = |rule: RegRule| match (rule, cfa) {
            (RegRule::Offset(offset), Some(cfa)) => cfa.wrapping_add_signed(offset.into()) == at,
            _ => false,
        };
        let what = if is_of(row.ra()) {
            ", the return address"
        } else if is_of(row.fp()) {
            ", the caller's frame pointer"
        } else {
            ""
        };
        label(out, "read", format_args!("{at:#x} -> {value:#x}{what}"))?;
        at = at.wrapping_add(u64::try_from(size).unwrap_or(0));
    }
    Ok(())
}

/// What a step has to keep, where it did.
fn write_checks(
    out: &mut impl Write,
    frame: &WalkedFrame,
    next: Option<WalkedFrame>,
) -> io::Result<()> {
    let (Some(cfa), Some(next)) = (frame.cfa, next) else { return Ok(()) };
    let pc = next.pc.addr();
    if let Some(grown) = cfa.checked_sub(frame.sp) {
        label(
            out,
            "checked",
            format_args!("CFA {cfa:#x} is {grown} bytes above the stack pointer"),
        )?;
    } else {
        label(out, "checked", format_args!("CFA {cfa:#x}, on another stack"))?;
    }
    if next.provenance.is_after_gap() {
        label(out, "", "the step was a guess: callers may be missing")?;
    }
    label(out, "caller", format_args!("pc {pc}, sp {:#x}", next.sp))
}

/// What someone can look at whose unwind is broken.
pub(super) fn advice(end: &StackEnd, failure: Option<StepError>) -> Option<&'static str> {
    Some(match (end.reason, failure) {
        (_, Some(StepError::NoProgress { .. })) => {
            "The row's rule of the CFA is wrong for this pc, or the register that it counts from \
             was overwritten: a caller's frame cannot be below its callee's."
        }
        (_, Some(StepError::NotCode { .. } | StepError::NonCanonical { .. })) => {
            "The word where the row says that the return address is holds something else: the row \
             is wrong for this pc, or the stack was overwritten there."
        }
        (_, Some(StepError::Unreadable { .. })) => {
            "The row leads to memory that is not there: the register that it counts from has no \
             address, or a core file lacks that part of the stack."
        }
        (_, Some(StepError::Misaligned { .. } | StepError::BeyondStack { .. })) => {
            "The row's rule of the CFA does not lead to a frame: it is wrong for this pc, or the \
             register that it counts from was overwritten."
        }
        (_, Some(StepError::UnknownRegister(_))) => {
            "The row counts from a register that no frame before has saved."
        }
        (EndReason::NoRow, _) => {
            "No section of the file, no known trampoline and no frame pointer says where the caller is."
        }
        (EndReason::Table, _) => "The section that has the row is damaged there.",
        _ => return None,
    })
}

/// What gdb says of a stack that ends so, as far as that was held against it: by the rows that it has,
/// too. It checks less.
pub(super) fn gdb_says(
    end: &StackEnd,
    steps: &[Step],
    failure: Option<StepError>,
) -> Cow<'static, str> {
    let has_row = steps.last().is_some_and(|step| {
        step.events.iter().any(|event| {
            matches!(event, Event::Lookup { source: Source::CallFrames, found: Ok(Some(_)), .. })
        })
    });
    match (end.reason, failure.filter(|_| has_row)) {
        (EndReason::Outermost, _) => "ends at main or here, without a word".into(),
        (EndReason::ZeroReturnAddress, _) => {
            "ends at main, or shows one more frame, 0x0000000000000000 in ?? ()".into()
        }
        (_, Some(StepError::Unreadable { addr, .. })) => {
            format!("Backtrace stopped: Cannot access memory at address {addr}").into()
        }
        (_, Some(StepError::NotCode { pc })) => {
            let pc = pc.get();
            format!("shows one more frame, 0x{pc:016x} in ?? (), and guesses on from there").into()
        }
        (EndReason::MaxFrames, _) => "(More stack frames follow...)".into(),
        _ => "not compared: it has other ways where no table says where the caller is".into(),
    }
}
