//! The calls that native frames of V8 execute.

use std::ops::Range;
use std::rc::Rc;

use unwind_core::{Memory, VirtAddr, WordSize};
use unwind_x86::ProvenFrames;

use crate::interpreters::bounded_memory::Doubt;
use crate::interpreters::frame::{CallKind, InterpretedFrame};
use crate::interpreters::interpreter::NativeFrame;
use crate::interpreters::runs::{Run, ThreadRuns};
use crate::interpreters::v8::code::{Code, CodeKind};
use crate::interpreters::v8::functions::{Function, Functions};
use crate::interpreters::v8::heap::{Heap, object, small};
use crate::interpreters::v8::places::{Place, Places};
use crate::interpreters::v8::positions::position;
use crate::target::registers::UserRegisters;

/// How far from its start code has set its frame up.
const PROLOGUE: u64 = 64;
/// No kind of frame has this number.
const NO_KIND: u64 = 256;
/// Why there may be another call where a frame does not stand.
const BEGINS: Doubt = Doubt::Strange("a call begins or ends");
/// How long a table of positions may be.
const TABLE: u64 = 4 << 20;

/// Reads the calls of threads of one program.
#[derive(Debug)]
pub(super) struct FrameReader<'r, 'h, 'm, M> {
    pub(super) heap: Heap<'h, 'm, M>,
    pub(super) functions: Functions,
    pub(super) places: &'r Places,
    /// How long each bytecode is.
    pub(super) sizes: &'r [u8],
    /// Optimized code has a position for each instruction, not only for calls.
    pub(super) is_detailed: bool,
}

/// The calls of one native frame, and why there may be others.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) calls: Vec<InterpretedFrame>,
    pub(super) doubt: Option<Doubt>,
    /// Where the code is that V8 has made for it.
    pub(super) code: Option<Range<u64>>,
}

/// What a frame keeps of the bytecode that it executes.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeptBytecode {
    /// In memory, below this frame pointer.
    Below(u64),
    /// The words there: its array, and where it is in that.
    Words(u64, u64),
}

/// Where the execution of a frame stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) place: Place,
    pub(super) pc: u64,
    /// That is the instruction that runs next, and else the one after a call.
    pub(super) is_exact: bool,
    /// It has called what handles a bytecode, which may not have kept the place of that yet.
    pub(super) is_handled: bool,
}

impl<M: Memory> FrameReader<'_, '_, '_, M> {
    /// The calls of a thread that has these frames.
    pub(super) fn thread(
        &mut self,
        registers: &UserRegisters,
        frames: &[NativeFrame],
    ) -> ThreadRuns {
        let mut thread = ThreadRuns::default();
        let mut innermost = Some(registers);
        let mut is_handled = false;
        for frame in frames {
            let registers = innermost.take();
            let place = self.places.of(frame);
            let was_handled = std::mem::take(&mut is_handled);
            let Some(place) = place else { continue };
            let NativeFrame { pc, is_exact, .. } = *frame;
            let standing = Standing { place, pc, is_exact, is_handled: was_handled };
            let found = match frame.cfa {
                Some(cfa) => self.frame(standing, frame.sp, cfa.wrapping_sub(16), registers),
                None => Err(Doubt::Strange("a frame whose caller is not known")),
            };
            let Calls { calls, doubt, .. } =
                found.unwrap_or_else(|doubt| Calls { doubt: Some(doubt), ..Calls::default() });
            thread.doubt = thread.doubt.or(doubt);
            is_handled = is_exact && place == Place::Builtin && calls.is_empty();
            // One whose calls are not known has none.
            if !calls.is_empty() || doubt.is_some() {
                let anchor = frame.cfa.map_or(frame.sp, |cfa| cfa.wrapping_sub(8).max(frame.sp));
                thread.runs.push(Run { anchor: Some(anchor), frames: calls });
            }
            if doubt == Some(Doubt::TooMuch) {
                break;
            }
        }
        thread
    }

    /// The calls of a native frame with this frame pointer; `registers` are those of the innermost one.
    fn frame(
        &mut self,
        frame: Standing,
        sp: u64,
        fp: u64,
        registers: Option<&UserRegisters>,
    ) -> Result<Calls, Doubt> {
        let layout = self.heap.layout.frame;
        let stands = registers.is_none_or(|registers| registers.rbp == fp)
            && sp <= fp.wrapping_sub(layout.function);
        if !stands {
            return match frame.place {
                // A function is called, or has returned.
                Place::Builtin => Ok(Calls::default()),
                Place::Compiled => match registers.map(|registers| registers.rdi) {
                    Some(closure) => self
                        .frameless(frame.pc, |reader| reader.function(object(closure)).map(Some)),
                    None => Err(BEGINS),
                },
            };
        }
        let marker = self.heap.memory.word(fp.wrapping_sub(layout.marker), 0)?;
        if marker & 1 == 0 {
            return self.of_kind(marker >> 1, frame.place);
        }
        let closure = object(self.heap.memory.word(fp.wrapping_sub(layout.function), 0)?);
        let function = self.function(closure)?;
        self.of_function(frame, KeptBytecode::Below(fp), &function)
    }

    /// The calls of a frame that has the mark of a kind in place of a function.
    pub(super) fn of_kind(&self, kind: u64, place: Place) -> Result<Calls, Doubt> {
        match kind {
            kind if kind == self.heap.layout.frame.wasm && place == Place::Compiled => {
                Ok(Calls::wasm())
            }
            kind if kind < NO_KIND => Ok(Calls::default()),
            _ => Err(Doubt::Strange("a frame of no kind")),
        }
    }

    /// The calls of a frame of a function.
    pub(super) fn of_function(
        &mut self,
        frame: Standing,
        bytecode: KeptBytecode,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let code = match frame.place {
            Place::Builtin => None,
            Place::Compiled => {
                let code = Code::at(frame.pc, &mut self.heap)?;
                Some(code.ok_or(Doubt::Strange("code that it has not"))?)
            }
        };
        let calls = match code.filter(|code| code.kind != CodeKind::Other) {
            Some(code) if code.kind == CodeKind::Baseline => {
                self.baseline(code, frame, bytecode, function)?
            }
            Some(code) => self.optimized(code, frame, function)?,
            // A function of WebAssembly is entered by a builtin one.
            None if function.is_wasm() => Calls::default(),
            None if function.has_script() => self.interpreted(frame, bytecode, function)?,
            None if function.has_name() => {
                Calls::one(function.call(None, CallKind::Builtin, &mut self.heap)?)
            }
            None => Calls::default(),
        };
        Ok(Calls { code: code.map(|code| code.start..code.end), ..calls })
    }

    /// The call of code whose frame does not stand yet, or no more. `callee` is the function that has been called
    /// if the code begins, where it is known.
    pub(super) fn frameless(
        &mut self,
        pc: u64,
        callee: impl FnOnce(&mut Self) -> Result<Option<Rc<Function>>, Doubt>,
    ) -> Result<Calls, Doubt> {
        if self.is_wasm(pc)? {
            return Ok(Calls::wasm());
        }
        let code = Code::at(pc, &mut self.heap)?.ok_or(BEGINS)?;
        let Some(kind) = code.kind.call() else { return Ok(Calls::default()) };
        let function = match code.kind {
            CodeKind::Maglev | CodeKind::Optimized => code.shared(&mut self.heap)?,
            CodeKind::Baseline | CodeKind::Other => None,
        };
        let function = match function {
            Some(shared) => Some(self.functions.at(shared, &mut self.heap)?),
            None if pc.saturating_sub(code.start) < PROLOGUE => callee(self)?,
            None => None,
        };
        let calls = match function {
            Some(function) => Calls::one(function.call(None, kind, &mut self.heap)?),
            None => Calls { doubt: Some(BEGINS), ..Calls::default() },
        };
        Ok(Calls { code: Some(code.start..code.end), ..calls })
    }

    /// Whether an instruction is of a function of WebAssembly: after its frame pointer that pushes the mark of such a frame,
    /// where functions of JavaScript push their context.
    fn is_wasm(&mut self, pc: u64) -> Result<bool, Doubt> {
        let memory = &mut *self.heap.memory;
        let instruction: [u8; 5] = memory.array(pc, 0)?;
        let start = match instruction {
            // A call comes by a table of such jumps.
            [0xe9, distance @ ..] => {
                let distance = i32::from_le_bytes(distance).into();
                pc.wrapping_add(5).wrapping_add_signed(distance)
            }
            _ => match ProvenFrames::start(WordSize::Eight, VirtAddr::new(pc), memory) {
                Some(start) => start.get(),
                None => return Ok(false),
            },
        };
        let bytes: [u8; 6] = memory.array(start, 0)?;
        // push rbp; mov rbp, rsp; push
        let [0x55, 0x48, 0x89, 0xe5, 0x6a, mark] = bytes else { return Ok(false) };
        Ok(u64::from(mark) == self.heap.layout.frame.wasm << 1)
    }

    /// The function of a closure.
    fn function(&mut self, closure: Option<u64>) -> Result<Rc<Function>, Doubt> {
        let closure = closure.ok_or(Doubt::Strange("a frame without a function"))?;
        let shared = self.heap.at(closure, self.heap.layout.function.shared)?;
        let shared = shared.ok_or(Doubt::Strange("a frame without a function"))?;
        self.functions.at(shared, &mut self.heap)
    }

    fn interpreted(
        &mut self,
        frame: Standing,
        kept: KeptBytecode,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let bytecode = self.bytecode(kept)?;
        // What is interrupted has its place in registers, and here that of its last call.
        let is_saved = !frame.is_exact && !frame.is_handled;
        let offset = match bytecode.filter(|_| is_saved) {
            Some(bytecode) => {
                let raw = match kept {
                    KeptBytecode::Words(_, offset) => offset,
                    KeptBytecode::Below(fp) => {
                        let below = self.heap.layout.frame.bytecode_offset;
                        self.heap.memory.word(fp.wrapping_sub(below), 0)?
                    }
                };
                let raw = small(raw).ok_or(Doubt::Strange("a frame without a place"))?;
                // As an address of the array, whose lowest bit is set.
                let at = raw.saturating_add(1).checked_sub(self.heap.layout.bytecode.data);
                self.offset(bytecode, at.ok_or(Doubt::Strange("a frame without a place"))?)?
            }
            None => None,
        };
        Ok(Calls::one(function.call(offset, CallKind::Interpreted, &mut self.heap)?))
    }

    fn baseline(
        &mut self,
        code: Code,
        frame: Standing,
        kept: KeptBytecode,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let pc = frame.pc;
        let at = if frame.is_exact { pc.saturating_add(1) } else { pc };
        let bytecode = self.bytecode(kept)?.ok_or(Doubt::Strange("a frame without bytecode"))?;
        let at = code.bytecode_offset(at, bytecode, self.sizes, &mut self.heap)?;
        let offset = match at {
            Some(at) => self.offset(bytecode, at)?,
            None => None,
        };
        Ok(Calls::one(function.call(offset, CallKind::Baseline, &mut self.heap)?))
    }

    fn optimized(
        &mut self,
        code: Code,
        frame: Standing,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let kind =
            if code.kind == CodeKind::Maglev { CallKind::Maglev } else { CallKind::Optimized };
        // Calls have their places; what is between two is of either.
        let found = match (frame.is_exact, self.is_detailed) {
            (true, false) => None,
            (true, true) => code.origin(frame.pc, &mut self.heap)?,
            (false, _) => code.origin(frame.pc.saturating_sub(1), &mut self.heap)?,
        };
        let is_open = found.is_none() && code.inlined_count(&mut self.heap)? != 0;
        let doubt = is_open.then_some(Doubt::Inlined);
        let (inlined, own) = found.map_or((Vec::new(), None), |found| (found.inlined, found.own));
        let mut calls = Vec::new();
        for call in inlined {
            let inner = self.functions.at(call.shared, &mut self.heap)?;
            let offset = call.offset.filter(|&offset| !inner.starts_at(offset));
            calls.push(inner.call(offset, CallKind::Inlined, &mut self.heap)?);
        }
        let own = own.filter(|&offset| !function.starts_at(offset));
        calls.push(function.call(own, kind, &mut self.heap)?);
        Ok(Calls { calls, doubt, code: None })
    }

    /// The bytecode of an interpreted or baseline frame.
    fn bytecode(&mut self, kept: KeptBytecode) -> Result<Option<u64>, Doubt> {
        let word = match kept {
            KeptBytecode::Words(array, _) => array,
            KeptBytecode::Below(fp) => {
                self.heap.memory.word(fp.wrapping_sub(self.heap.layout.frame.bytecode), 0)?
            }
        };
        self.heap.as_kind(word, self.heap.layout.types.bytecode)
    }

    /// Where in its script an instruction of bytecode is, if the bytecode has that.
    fn offset(&mut self, bytecode: u64, at: u64) -> Result<Option<u64>, Doubt> {
        let (layout, bytes) = (self.heap.layout.bytecode, self.heap.layout.types.bytes);
        let Some(table) = self.heap.of_kind(bytecode, layout.positions, bytes)? else {
            return Ok(None);
        };
        let table = self.heap.bytes(table, TABLE)?;
        Ok(position(&table, at).and_then(|position| position.offset))
    }
}

impl Calls {
    fn one(call: InterpretedFrame) -> Self {
        Self { calls: vec![call], ..Self::default() }
    }

    fn wasm() -> Self {
        Self::one(InterpretedFrame {
            language: "wasm",
            kind: CallKind::Wasm,
            function: None,
            file: None,
            line: None,
            start: None,
            text: None,
        })
    }
}
