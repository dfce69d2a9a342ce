//! The registers of a caller, for a row that needs another one than the stack or frame
//! pointer.
//!
//! A walk follows two registers. The few rows that need a third one, as that of the dynamic
//! linker's lazy binding, come out of a second walk: from the last frame of which all
//! registers were known, with rules for all that calls preserve. The next one continues from
//! there, so that all of them together take each step once.

use core::borrow::BorrowMut;

use crate::addr::FramePc;
use crate::arch::Arch;
use crate::memory::Memory;
use crate::origin::Origin;
use crate::register::{BaseReg, Registers as _};
use crate::return_addresses::ReturnAddresses;
use crate::row::Row;
use crate::source::RowSource;
use crate::trace::Provenance;
use crate::walk::cursor::Cursor;
use crate::walk::fast::row_cache::RowStore;
use crate::walk::frames::{Frames, RegistersOf};
use crate::walk::step::{Caller, FramePointer, Step, Stepper};
use crate::walk::walker::{Walker, Whom};

impl<A, S, F, T, C, M, R> Frames<'_, A, S, F, T, C, M, R>
where
    A: Arch,
    R: BorrowMut<A::Regs>,
    S: RowSource<A>,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    T: ReturnAddresses,
    C: RowStore,
    M: Memory,
{
    /// Makes the registers that are kept those of `at`, which a row needs this one of; `false`
    /// if they cannot be told.
    #[inline(never)]
    pub(super) fn recover(&mut self, at: &Cursor, register: BaseReg) -> bool {
        let is_innermost = match (self.registers_of, register) {
            (_, BaseReg::Sp | BaseReg::Fp) | (RegistersOf::Next | RegistersOf::Other, _) => {
                return false;
            }
            (_, BaseReg::Reg(register)) if Some(register) == A::FP => return false,
            (of, _) => of == RegistersOf::Innermost,
        };
        self.registers_of = RegistersOf::Other;
        let found = self.registers_at(at, is_innermost);
        if let Some(registers) = found {
            // The next time starts here, unless the return address was replaced.
            if self.walker.arch.code_addr(registers.pc()) == Some(at.pc.addr()) {
                self.registers_of = RegistersOf::Caller;
            }
            *self.registers.borrow_mut() = registers;
        }
        found.is_some()
    }

    /// The source's row of a frame whose registers are those that are kept.
    #[cold]
    #[inline(never)]
    pub(super) fn row_by_registers(&mut self, at: &Cursor) -> Option<Row> {
        let Self { walker, mem, registers, .. } = self;
        walker.look_up(at, Some((*registers).borrow()), Whom::SourceAlone, *mem).row()
    }

    /// The registers of `at`, from those that are kept.
    #[inline(never)]
    fn registers_at(&mut self, at: &Cursor, is_innermost: bool) -> Option<A::Regs> {
        let mut registers: A::Regs = *self.registers.borrow();
        let pc = self.walker.arch.code_addr(registers.pc())?;
        let mut pc = if is_innermost { FramePc::Exact(pc) } else { FramePc::Return(pc) };
        for _ in 0..self.walker.most_frames() {
            if registers.sp() > at.sp {
                return None;
            }
            if (pc, registers.sp()) == (at.pc, at.sp) {
                return Some(registers);
            }
            (pc, registers) = self.caller_of(pc, &registers)?;
        }
        None
    }

    /// The caller of a frame, as the walk before has found it.
    #[inline(never)]
    fn caller_of(&mut self, pc: FramePc, registers: &A::Regs) -> Option<(FramePc, A::Regs)> {
        let Self { walker, mem, .. } = self;
        let is_innermost = pc.is_exact();
        let (sp, fp) = (registers.sp(), FramePointer::new(registers.fp()));
        let provenance = Provenance::new(Origin::Registers, pc);
        let (is_by_fp, has_called_innermost) = (false, false);
        let at = Cursor { pc, sp, fp, provenance, is_by_fp, has_called_innermost };
        let known = is_innermost.then_some(registers);
        let frame = at.context(known);
        let step = |walker: &Walker<A, S, F, T, C>, mem: &mut M, row: &Row| {
            let Walker { arch, stack_end, .. } = walker;
            let (registers, stack_end) = (Some(registers), *stack_end);
            let mut stepper =
                Stepper { arch, sp, fp: &fp, registers, is_innermost, stack_end, mem };
            match stepper.step(row) {
                Ok(Step::Caller(caller)) if !row.is_signal() => Some(caller),
                _ => None,
            }
        };
        let mut row = walker.look_up(&at, known, Whom::CacheFirst, *mem).row();
        if row.is_some_and(|row| row.needs().is_some()) {
            row = walker.look_up(&at, Some(registers), Whom::SourceAlone, *mem).row();
        }
        let by_source = row.and_then(|row| step(walker, mem, &row));
        let (caller, rules) = match by_source {
            Some(caller) => (caller, walker.source.register_rules(&frame, *mem).ok().flatten()),
            None => {
                let row = walker.fallback.row(&frame, *mem).ok().flatten()?;
                (step(walker, mem, &row)?, None)
            }
        };
        let Caller { cfa, ra, ra_slot, fp: caller_fp } = caller;
        let saved = walker.arch.code_addr(ra)?;
        // Answers that depend on the calls before cannot be had again.
        let is_asked = walker.code.generation().is_some();
        let real = if is_asked { walker.code.resolve(saved, ra_slot) } else { None };
        let Walker { arch, stack_end, .. } = &**walker;
        let (known, stack_end) = (Some(registers), *stack_end);
        let mut stepper =
            Stepper { arch, sp, fp: &fp, registers: known, is_innermost, stack_end, mem: *mem };
        let registers = arch.caller_registers(ra, cfa, caller_fp.value(), |register| {
            stepper.preserved(rules.as_ref()?.get(register), cfa, registers.get(register))
        });
        Some((FramePc::Return(real.unwrap_or(saved)), registers?))
    }
}
