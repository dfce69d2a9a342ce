//! The calls that native frames of V8 execute.

use std::rc::Rc;

use unwind_core::Memory;

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
}

/// The calls of one native frame, and why there may be others.
#[derive(Debug, Default)]
struct Calls {
    calls: Vec<InterpretedFrame>,
    doubt: Option<Doubt>,
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
        for frame in frames {
            let registers = innermost.take();
            let Some(place) = self.places.of(frame) else { continue };
            let found = match frame.cfa {
                Some(cfa) => self.frame(place, frame, cfa.wrapping_sub(16), registers),
                None => Err(Doubt::Strange("a frame whose caller is not known")),
            };
            let Calls { calls, doubt } =
                found.unwrap_or_else(|doubt| Calls { calls: Vec::new(), doubt: Some(doubt) });
            thread.doubt = thread.doubt.or(doubt);
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
        place: Place,
        frame: &NativeFrame,
        fp: u64,
        registers: Option<&UserRegisters>,
    ) -> Result<Calls, Doubt> {
        let layout = self.heap.layout.frame;
        let stands = registers.is_none_or(|registers| registers.rbp == fp)
            && frame.sp <= fp.wrapping_sub(layout.function);
        if !stands {
            return match place {
                // A function is called, or has returned.
                Place::Builtin => Ok(Calls::default()),
                Place::Compiled => self.beginning(frame.pc, registers),
            };
        }
        let marker = self.heap.memory.word(fp.wrapping_sub(layout.marker), 0)?;
        if marker & 1 == 0 {
            return match marker >> 1 {
                kind if kind == layout.wasm && place == Place::Compiled => Ok(Calls::wasm()),
                kind if kind < NO_KIND => Ok(Calls::default()),
                _ => Err(Doubt::Strange("a frame of no kind")),
            };
        }
        let closure = object(self.heap.memory.word(fp.wrapping_sub(layout.function), 0)?);
        let function = self.function(closure)?;
        let code = match place {
            Place::Builtin => None,
            Place::Compiled => {
                let code = Code::at(frame.pc, &mut self.heap)?;
                Some(code.ok_or(Doubt::Strange("code that it has not"))?)
            }
        };
        match code.filter(|code| code.kind != CodeKind::Other) {
            Some(code) if code.kind == CodeKind::Baseline => {
                self.baseline(code, frame, fp, &function)
            }
            Some(code) => self.optimized(code, frame, &function),
            // A function of WebAssembly is entered by a builtin one.
            None if function.is_wasm() => Ok(Calls::default()),
            None if function.has_script() => self.interpreted(frame, fp, &function),
            None if function.has_name() => {
                Ok(Calls::one(function.call(None, CallKind::Builtin, &mut self.heap)?))
            }
            None => Ok(Calls::default()),
        }
    }

    /// The call of code whose frame does not stand yet, or no more.
    fn beginning(&mut self, pc: u64, registers: Option<&UserRegisters>) -> Result<Calls, Doubt> {
        const BEGINS: Doubt = Doubt::Strange("a call begins or ends");
        let (Some(code), Some(registers)) = (Code::at(pc, &mut self.heap)?, registers) else {
            return Err(BEGINS);
        };
        let kind = match code.kind {
            CodeKind::Baseline => CallKind::Baseline,
            CodeKind::Maglev => CallKind::Maglev,
            CodeKind::Optimized => CallKind::Optimized,
            CodeKind::Other => return Ok(Calls::default()),
        };
        if pc.saturating_sub(code.start) >= PROLOGUE {
            return Err(BEGINS);
        }
        let function = self.function(object(registers.rdi))?;
        Ok(Calls::one(function.call(None, kind, &mut self.heap)?))
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
        frame: &NativeFrame,
        fp: u64,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let layout = self.heap.layout.frame;
        let bytecode = self.bytecode(fp)?;
        // What is interrupted has its place in registers, and here that of its last call.
        let is_saved = !frame.is_exact;
        let offset = match bytecode.filter(|_| is_saved) {
            Some(bytecode) => {
                let raw = self.heap.memory.word(fp.wrapping_sub(layout.bytecode_offset), 0)?;
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
        frame: &NativeFrame,
        fp: u64,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let pc = frame.pc;
        let at = if frame.is_exact { pc.saturating_add(1) } else { pc };
        let bytecode = self.bytecode(fp)?.ok_or(Doubt::Strange("a frame without bytecode"))?;
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
        frame: &NativeFrame,
        function: &Function,
    ) -> Result<Calls, Doubt> {
        let kind =
            if code.kind == CodeKind::Maglev { CallKind::Maglev } else { CallKind::Optimized };
        let at = frame.pc.saturating_sub(1);
        // Calls have their places; what is between two is of either.
        let found = match frame.is_exact {
            true => None,
            false => code.origin(at, &mut self.heap)?,
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
        Ok(Calls { calls, doubt })
    }

    /// The bytecode of an interpreted or baseline frame.
    fn bytecode(&mut self, fp: u64) -> Result<Option<u64>, Doubt> {
        let at = fp.wrapping_sub(self.heap.layout.frame.bytecode);
        self.heap.of_kind(at, 0, self.heap.layout.types.bytecode)
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
        Self { calls: vec![call], doubt: None }
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
