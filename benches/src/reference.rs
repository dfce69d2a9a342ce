//! What is right: call frame information applied with all registers.
//!
//! Nothing of this workspace takes part: gimli decodes the rows and evaluates the
//! expressions, the 16 general registers and the return address are carried from
//! frame to frame, and what a row does not need does not fail it. Where code has
//! no call frame information, the walk continues by the frame pointer; the frames
//! from there on are guesses, and are kept apart from those that are certain.

use std::cell::Cell;
use std::fmt;

use gimli::{
    CfaRule, EhFrame, EvaluationResult, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection as _, Value,
};
use unwind_snapshot::Snapshot;

use crate::call_frames::{CallFrames, Reader};
use crate::corpus::Corpus;
use crate::rivals::stack_word;
use crate::{MAX_FRAMES, Unwinder};

const RBX: u16 = 3;
const RBP: u16 = 6;
const RSP: u16 = 7;
const R12: u16 = 12;
const R15: u16 = 15;
const RA: u16 = 16;

/// Bytes below the stack pointer that signal handlers spare.
const RED_ZONE: u64 = 128;

/// The general registers by their DWARF numbers, and at 16 the pc.
type Registers = [Option<u64>; 17];

/// Walks by call frame information, with all registers.
pub struct Reference {
    modules: Vec<CallFrames>,
    context: UnwindContext<usize>,
    frames: Vec<u64>,
    /// How many frames call frame information led to.
    certain: usize,
    /// Why it led no further.
    end: End,
    /// A register was taken as it is, as its slot is below the stack pointer.
    has_popped: Cell<bool>,
    /// The first frame that was left by a register that only this walk carries.
    needs_register: Option<usize>,
}

/// Why call frame information leads no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last frame has no caller.
    Outermost,
    /// No call frame information covers the last frame.
    NotCovered {
        /// The address that was looked up.
        pc: u64,
    },
    /// What the row needs lies above the captured bytes.
    BytesEnd,
    /// What the row needs lies elsewhere, where nothing was captured.
    Unreadable {
        /// Where.
        addr: u64,
    },
    /// The row needs a register that is lost by then.
    UnknownRegister(u16),
    /// The row, or what it leads to, makes no sense.
    BadRow {
        /// The address that was looked up.
        pc: u64,
    },
    /// There are as many frames as are kept.
    Limit,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outermost => write!(f, "the outermost frame"),
            Self::NotCovered { pc } => write!(f, "no call frame information at {pc:#x}"),
            Self::BytesEnd => write!(f, "the captured bytes end"),
            Self::Unreadable { addr } => write!(f, "nothing was captured at {addr:#x}"),
            Self::UnknownRegister(register) => write!(f, "register {register} is lost"),
            Self::BadRow { pc } => write!(f, "the row at {pc:#x} makes no sense"),
            Self::Limit => write!(f, "the limit of {MAX_FRAMES} frames"),
        }
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reference").field("end", &self.end).finish_non_exhaustive()
    }
}

/// One frame on the way out.
struct Frame<'s> {
    snapshot: &'s Snapshot<'s>,
    registers: Registers,
    /// The address to look up: the pc, or the last byte of a call.
    lookup: u64,
    /// All registers are those of the moment, not only the kept ones.
    is_interrupted: bool,
    /// One was asked for that is neither the stack nor the frame pointer.
    has_used_others: Cell<bool>,
}

impl Reference {
    /// A walk over the modules of a corpus.
    #[must_use]
    pub fn new(corpus: &Corpus) -> Self {
        Self {
            modules: CallFrames::of(corpus),
            context: UnwindContext::new(),
            frames: Vec::with_capacity(MAX_FRAMES),
            certain: 0,
            end: End::Limit,
            has_popped: Cell::new(false),
            needs_register: None,
        }
    }

    /// The number of the first frame, none of those where all registers are known,
    /// that was left by another register than the stack and the frame pointer.
    #[must_use]
    pub const fn needs_register(&self) -> Option<usize> {
        self.needs_register
    }

    /// Whether the last walk met an epilogue that had taken a register from the
    /// stack already.
    #[must_use]
    pub fn has_popped(&self) -> bool {
        self.has_popped.get()
    }

    /// How many of the frames are certain, from the innermost one on.
    #[must_use]
    pub const fn certain(&self) -> usize {
        self.certain
    }

    /// Why there are no more frames that are certain.
    #[must_use]
    pub const fn end(&self) -> End {
        self.end
    }

    /// Walks a stack from registers that need not all be known; the captured
    /// bytes are the snapshot's.
    pub fn walk_from(&mut self, snapshot: &Snapshot<'_>, registers: [Option<u64>; 16]) {
        let mut all = [None; 17];
        for (to, from) in all.iter_mut().zip(registers) {
            *to = from;
        }
        all[usize::from(RA)] = Some(snapshot.rip);
        let (lookup, is_interrupted) = (snapshot.rip, true);
        let mut frame = Frame { registers: all, lookup, is_interrupted, ..Frame::of(snapshot) };
        self.frames.clear();
        self.frames.push(snapshot.rip);
        self.certain = 0;
        self.has_popped.set(false);
        self.needs_register = None;
        loop {
            let caller = match self.step(&frame) {
                Ok(caller) => caller,
                Err(end) => {
                    self.has_ended(end);
                    let End::NotCovered { .. } = end else { break };
                    let Some(caller) = frame.by_frame_pointer() else { break };
                    caller
                }
            };
            if self.frames.len() == MAX_FRAMES {
                self.has_ended(End::Limit);
                break;
            }
            self.frames.extend(caller.value(RA));
            frame = caller;
        }
    }

    /// Notes the first end: what comes after is a guess.
    fn has_ended(&mut self, end: End) {
        if self.certain == 0 {
            (self.certain, self.end) = (self.frames.len(), end);
        }
    }

    fn step<'s>(&mut self, frame: &Frame<'s>) -> Result<Frame<'s>, End> {
        let lookup = frame.lookup;
        let not_covered = End::NotCovered { pc: lookup };
        let bad = End::BadRow { pc: lookup };
        let module = CallFrames::find(&self.modules, lookup);
        let module = module.ok_or(not_covered)?;
        let pc = lookup.wrapping_sub(module.bias);
        let table = module.header.table().ok_or(not_covered)?;
        let (section, bases) = (&module.eh_frame, &module.bases);
        let fde = match table.fde_for_address(section, bases, pc, EhFrame::cie_from_offset) {
            Ok(fde) => fde,
            Err(gimli::Error::NoUnwindInfoForAddress) => return Err(not_covered),
            Err(_) => return Err(bad),
        };
        let row = fde.unwind_info_for_address(section, bases, &mut self.context, pc);
        let row = row.map_err(|_| bad)?;
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                frame.known(register.0)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => frame.evaluate(section, expression, None)?,
        };
        if frame.has_used_others.get() && !frame.is_interrupted {
            self.needs_register.get_or_insert(self.frames.len() - 1);
        }
        let mut registers = [None; 17];
        for (number, register) in (0..).zip(&mut registers) {
            let rule = row.register(Register(number));
            *register = match frame.apply(section, number, rule, cfa, &self.has_popped) {
                // What the caller has there is not known; that may never matter.
                Err(_) if number != RA && number != RSP => None,
                found => found?,
            };
        }
        let ra = registers[usize::from(RA)].ok_or(bad)?;
        if ra == 0 {
            return Err(End::Outermost);
        }
        let is_signal = fde.is_signal_trampoline();
        let progresses = registers[usize::from(RSP)] > frame.value(RSP) || is_signal;
        if !progresses {
            return Err(bad);
        }
        let lookup = ra.wrapping_sub(u64::from(!is_signal));
        Ok(Frame { registers, lookup, is_interrupted: is_signal, ..Frame::of(frame.snapshot) })
    }
}

impl<'s> Frame<'s> {
    /// A frame of which nothing is known.
    const fn of(snapshot: &'s Snapshot<'s>) -> Self {
        let has_used_others = Cell::new(false);
        let (registers, lookup, is_interrupted) = ([None; 17], 0, false);
        Self { snapshot, registers, lookup, is_interrupted, has_used_others }
    }

    fn value(&self, register: u16) -> Option<u64> {
        self.registers.get(usize::from(register)).copied().flatten()
    }

    fn known(&self, register: u16) -> Result<u64, End> {
        if register != RSP && register != RBP && register != RA {
            self.has_used_others.set(true);
        }
        self.value(register).ok_or(End::UnknownRegister(register))
    }

    fn load(&self, addr: u64) -> Result<u64, End> {
        stack_word(self.snapshot, addr).ok_or_else(|| {
            let start = self.snapshot.stack_start;
            let end = start.saturating_add(self.snapshot.stack.len().try_into().unwrap());
            // Within a stack of the usual size.
            if (end.saturating_sub(7)..start.saturating_add(8 << 20)).contains(&addr) {
                End::BytesEnd
            } else {
                End::Unreadable { addr }
            }
        })
    }

    /// The caller's value of a register.
    fn apply(
        &self,
        section: &EhFrame<Reader>,
        number: u16,
        rule: Option<RegisterRule<usize>>,
        cfa: u64,
        has_popped: &Cell<bool>,
    ) -> Result<Option<u64>, End> {
        Ok(match rule {
            None if number == RSP => Some(cfa),
            // The ABI's: kept by the callee, or lost.
            None if is_kept(number) => self.value(number),
            None => None,
            Some(RegisterRule::Undefined) if number == RA => return Err(End::Outermost),
            Some(RegisterRule::Undefined) => None,
            Some(RegisterRule::SameValue) => self.value(number),
            Some(RegisterRule::Offset(offset)) => {
                self.saved(number, cfa.wrapping_add_signed(offset), has_popped)?
            }
            Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Register(register)) => self.value(register.0),
            Some(RegisterRule::Expression(expression)) => {
                let at = self.evaluate(section, &expression, Some(cfa))?;
                self.saved(number, at, has_popped)?
            }
            Some(RegisterRule::ValExpression(expression)) => {
                Some(self.evaluate(section, &expression, Some(cfa))?)
            }
            Some(_) => None,
        })
    }

    /// What was saved at `addr`. Compilers do not write down that an epilogue has
    /// taken a register from the stack: then its slot is below the stack pointer,
    /// and the register has the caller's value again. So does the slot, as long
    /// as nothing was written there.
    fn saved(&self, number: u16, addr: u64, has_popped: &Cell<bool>) -> Result<Option<u64>, End> {
        let sp = self.known(RSP)?;
        let is_below = self.is_interrupted && is_kept(number) && addr < sp;
        match self.load(addr) {
            Ok(word) if !is_below || sp - addr <= RED_ZONE => Ok(Some(word)),
            Err(end) if !is_below => Err(end),
            _ => {
                has_popped.set(true);
                Ok(self.value(number))
            }
        }
    }

    /// The value of an expression, which starts with the CFA on its stack if there
    /// is one.
    fn evaluate(
        &self,
        section: &EhFrame<Reader>,
        expression: &UnwindExpression<usize>,
        cfa: Option<u64>,
    ) -> Result<u64, End> {
        let bad = End::BadRow { pc: self.lookup };
        let encoding =
            gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
        let mut evaluation = expression.get(section).map_err(|_| bad)?.evaluation(encoding);
        evaluation.set_max_iterations(10_000);
        if let Some(cfa) = cfa {
            evaluation.set_initial_value(cfa);
        }
        let mut state = evaluation.evaluate().map_err(|_| bad)?;
        loop {
            let resumed = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, .. } => {
                    evaluation.resume_with_memory(Value::Generic(self.load(address)?))
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = self.known(register.0)?;
                    evaluation.resume_with_register(Value::Generic(value))
                }
                _ => return Err(bad),
            };
            state = resumed.map_err(|_| bad)?;
        }
        match evaluation.as_result() {
            [gimli::Piece { location: gimli::Location::Address { address }, .. }] => Ok(*address),
            _ => Err(bad),
        }
    }

    /// The caller, if the code keeps a frame pointer: a guess.
    fn by_frame_pointer(&self) -> Option<Self> {
        let (sp, fp) = (self.value(RSP)?, self.value(RBP)?);
        if fp < sp || fp % 8 != 0 {
            return None;
        }
        let ra = self.load(fp.checked_add(8)?).ok().filter(|&ra| ra != 0)?;
        let mut registers = [None; 17];
        registers[usize::from(RBP)] = self.load(fp).ok();
        registers[usize::from(RSP)] = fp.checked_add(16);
        registers[usize::from(RA)] = Some(ra);
        Some(Self { registers, lookup: ra - 1, ..Self::of(self.snapshot) })
    }
}

/// Whether a function gives the register back as it found it.
const fn is_kept(register: u16) -> bool {
    matches!(register, RBX | RBP | R12..=R15)
}

impl Unwinder for Reference {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.walk_from(snapshot, snapshot.gpr.map(Some));
        self.frames.len()
    }

    /// Those that are certain, and after them the guesses.
    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }

    /// Whether the outermost frame is certain.
    fn is_complete(&self) -> Option<bool> {
        Some(self.end == End::Outermost)
    }
}
