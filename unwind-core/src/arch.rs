//! What differs between CPUs.

use crate::addr::VirtAddr;
use crate::memory::Memory;
use crate::register::{DwarfReg, Registers, WordSize};
use crate::step_error::StepError;

/// A CPU and its mode, as far as a walk has to know it.
///
/// The defaults are those of a flat address space in which every value is an
/// address.
pub trait Arch {
    /// The registers that a walk starts from.
    type Regs: Registers;

    /// The size of a stack slot.
    const WORD: WordSize;

    /// The stack pointer's DWARF number, if it has one.
    const SP: Option<DwarfReg> = None;

    /// The frame pointer's DWARF number, if it has one.
    const FP: Option<DwarfReg> = None;

    /// The register that a call leaves the return address in; none where the
    /// call pushes it.
    const RA: Option<DwarfReg> = None;

    /// Whether this mode's stacks can be walked. VM86, where they cannot, says
    /// no, and a walk has then no frames.
    #[inline]
    fn is_walkable(&self) -> bool {
        true
    }

    /// The linear address of the instruction at `pc`, or `None` if this CPU
    /// can have no instruction there.
    #[inline]
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        Some(VirtAddr::new(pc))
    }

    /// Whether `pc` is not zero and its instruction is at the linear address of
    /// the same value. No for others, and where more than a glance is needed to
    /// tell: [`code_addr`](Self::code_addr) is asked then.
    #[inline]
    fn is_plain_code_addr(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }

    /// The linear address of the stack slot at `sp`.
    #[inline]
    fn stack_addr(&self, sp: u64) -> VirtAddr {
        VirtAddr::new(sp)
    }

    /// How many bytes below the stack pointer code may keep its own data, which
    /// nothing that interrupts it overwrites: the ABI's red zone, 128 for the user code
    /// of x86-64. None by default, as for code that interrupts share a stack with.
    ///
    /// A row of the sampled frame may say that a register was saved there; a walk
    /// believes the slot only if it lies in this zone.
    #[inline]
    fn red_zone(&self) -> u64 {
        0
    }

    /// Whether the instruction before `pc` is a call, so that `pc` may be a return address. `None`,
    /// the default, if that cannot be told, as where the code is absent.
    #[inline]
    fn follows_call<M: Memory>(&self, pc: VirtAddr, mem: &mut M) -> Option<bool> {
        let _ = (pc, mem);
        None
    }

    /// Whether the stack of a process begins at `slot`, with the number of its arguments, so that
    /// what is in its place as a return address is none, and a frame whose stack pointer it is has no caller.
    /// Asked where a walk has read a number there that is too small for an address, and of a frame
    /// without a row at which a walk would end. By default `false`, as for stacks that no program was started with.
    #[inline]
    fn is_initial_stack<M: Memory>(&self, slot: VirtAddr, mem: &mut M) -> bool {
        let _ = (slot, mem);
        false
    }

    /// The registers of a caller: the saved return address, its stack pointer, its frame
    /// pointer if that is known, and of the others that calls preserve those of which
    /// `preserved` has the value.
    ///
    /// `None`, the default, if they cannot be told: rows of callers that need
    /// another register than the stack or frame pointer then end a walk.
    #[inline]
    fn caller_registers(
        &self,
        ra: u64,
        sp: u64,
        fp: Option<u64>,
        preserved: impl FnMut(DwarfReg) -> Option<u64>,
    ) -> Option<Self::Regs> {
        let _ = (ra, sp, fp, preserved);
        None
    }

    /// The registers that a signal interrupted, read from the context that the
    /// kernel left for the trampoline at `pc` with this `sp`; `None` if there
    /// is no such trampoline.
    ///
    /// # Errors
    ///
    /// [`StepError::Unreadable`] if the context could not be read.
    #[inline]
    fn signal_context<M: Memory>(
        &self,
        pc: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Self::Regs>, StepError> {
        let _ = (pc, sp, mem);
        Ok(None)
    }
}
