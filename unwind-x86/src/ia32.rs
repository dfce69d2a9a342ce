//! 32-bit code, in compatibility mode or on a 32-bit kernel.

use unwind_core::{Arch, DwarfReg, Memory, ReadError, Registers, StepError, VirtAddr, WordSize};

use crate::call::follows_call;
use crate::initial_stack::is_initial_stack;
use crate::sigreturn::{Sigreturn32, find_sigreturn_32};
use crate::x86_64::X86_64Regs;

/// The registers of 32-bit code, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ia32Regs {
    eip: u32,
    /// By DWARF number.
    gpr: [u32; 8],
    /// A bit for each of `gpr` that is known.
    known: u8,
}

impl Ia32Regs {
    /// `eax`.
    pub const EAX: DwarfReg = DwarfReg(0);
    /// `ecx`.
    pub const ECX: DwarfReg = DwarfReg(1);
    /// `edx`.
    pub const EDX: DwarfReg = DwarfReg(2);
    /// `ebx`.
    pub const EBX: DwarfReg = DwarfReg(3);
    /// `esp`, the stack pointer.
    pub const ESP: DwarfReg = DwarfReg(4);
    /// `ebp`, the frame pointer.
    pub const EBP: DwarfReg = DwarfReg(5);
    /// `esi`.
    pub const ESI: DwarfReg = DwarfReg(6);
    /// `edi`.
    pub const EDI: DwarfReg = DwarfReg(7);

    /// Registers of which only these are known, as offsets in their segments.
    #[must_use]
    pub const fn new(eip: u32, esp: u32, ebp: u32) -> Self {
        Self { eip, gpr: [0, 0, 0, 0, esp, ebp, 0, 0], known: 1 << 4 | 1 << 5 }
    }

    const fn of_caller(eip: u32, esp: u32, ebp: Option<u32>) -> Self {
        match ebp {
            Some(ebp) => Self::new(eip, esp, ebp),
            None => Self { known: 1 << 4, ..Self::new(eip, esp, 0) },
        }
    }

    /// The same with one register more; a number above 7 changes nothing.
    #[must_use]
    pub fn with(mut self, reg: DwarfReg, value: u32) -> Self {
        if let Some(slot) = self.gpr.get_mut(usize::from(reg.0)) {
            *slot = value;
            self.known |= 1_u8.wrapping_shl(reg.0.into());
        }
        self
    }

    /// The same with one register less; a number above 7 changes nothing.
    #[must_use]
    pub fn without(mut self, reg: DwarfReg) -> Self {
        if let Some(slot) = self.gpr.get_mut(usize::from(reg.0)) {
            *slot = 0;
            self.known &= !1_u8.wrapping_shl(reg.0.into());
        }
        self
    }

    /// All registers: `gpr` is in the order of the DWARF numbers, that is
    /// eax, ecx, edx, ebx, esp, ebp, esi, edi.
    #[must_use]
    pub const fn from_all(eip: u32, gpr: [u32; 8]) -> Self {
        Self { eip, gpr, known: u8::MAX }
    }

    /// Those of 32-bit code that a 64-bit kernel has saved as these: the lower half of each that is known.
    #[must_use]
    pub fn from_x86_64(regs: &X86_64Regs) -> Self {
        const BY_NUMBER: [DwarfReg; 8] = [
            X86_64Regs::RAX,
            X86_64Regs::RCX,
            X86_64Regs::RDX,
            X86_64Regs::RBX,
            X86_64Regs::RSP,
            X86_64Regs::RBP,
            X86_64Regs::RSI,
            X86_64Regs::RDI,
        ];
        let none = Self { eip: low_half(regs.pc()), gpr: [0; 8], known: 0 };
        (0..).zip(BY_NUMBER).fold(none, |own, (number, wide)| match regs.get(wide) {
            Some(value) => own.with(DwarfReg(number), low_half(value)),
            None => own,
        })
    }
}

/// 32-bit code has no more of a register.
fn low_half(value: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = value.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

impl Registers for Ia32Regs {
    #[inline]
    fn pc(&self) -> u64 {
        self.eip.into()
    }

    #[inline]
    fn sp(&self) -> u64 {
        let [_, _, _, _, esp, ..] = self.gpr;
        esp.into()
    }

    #[inline]
    fn fp(&self) -> Option<u64> {
        self.get(Self::EBP)
    }

    #[inline]
    fn get(&self, reg: DwarfReg) -> Option<u64> {
        let is_known = self.known & 1_u8.wrapping_shl(reg.0.into()) != 0;
        let value = self.gpr.get(usize::from(reg.0)).filter(|_| is_known)?;
        Some(u64::from(*value))
    }
}

/// The CPU in 32-bit mode: stack slots of 4 bytes, addresses of 32 bits that
/// are offsets in a code and a stack segment.
///
/// Registers stay offsets throughout a walk and a base is added only where
/// memory is read or a pc is reported. So a frame pointer that a frame leaves
/// unchanged never gets the base twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ia32 {
    code_base: u32,
    stack_base: u32,
    is_vm86: bool,
}

impl Ia32 {
    /// Flat segments, as all usual programs have.
    pub const FLAT: Self = Self::with_bases(0, 0);

    /// VM86 mode, whose stacks are not walked: a walk has no frames.
    pub const VM86: Self = Self { code_base: 0, stack_base: 0, is_vm86: true };

    /// Segments with these linear bases; see
    /// [`DescriptorTables`](crate::DescriptorTables) for finding them.
    #[must_use]
    pub const fn with_bases(code_base: u32, stack_base: u32) -> Self {
        Self { code_base, stack_base, is_vm86: false }
    }

    /// The linear address of a stack pointer or CFA of this mode.
    #[inline]
    #[must_use]
    pub const fn stack_linear(&self, offset: u32) -> u32 {
        self.stack_base.wrapping_add(offset)
    }
}

impl Default for Ia32 {
    fn default() -> Self {
        Self::FLAT
    }
}

impl Arch for Ia32 {
    type Regs = Ia32Regs;
    const WORD: WordSize = WordSize::Four;
    const SP: Option<DwarfReg> = Some(Ia32Regs::ESP);
    const FP: Option<DwarfReg> = Some(Ia32Regs::EBP);

    #[inline]
    fn is_walkable(&self) -> bool {
        !self.is_vm86
    }

    #[inline]
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        // The sum wraps at 32 bits, as the CPU's does.
        let offset = u32::try_from(pc).ok()?;
        Some(VirtAddr::new(self.code_base.wrapping_add(offset).into()))
    }

    #[inline]
    fn stack_addr(&self, sp: u64) -> VirtAddr {
        // Steps never leave 32 bits; whatever else comes is not readable.
        match u32::try_from(sp) {
            Ok(offset) => VirtAddr::new(self.stack_linear(offset).into()),
            Err(_) => VirtAddr::new(u64::MAX),
        }
    }

    /// Calls preserve ebx, esi and edi.
    fn caller_registers(
        &self,
        ra: u64,
        sp: u64,
        fp: Option<u64>,
        mut preserved: impl FnMut(DwarfReg) -> Option<u64>,
    ) -> Option<Ia32Regs> {
        let [ra, sp] = [u32::try_from(ra).ok()?, u32::try_from(sp).ok()?];
        let mut regs = Ia32Regs::of_caller(ra, sp, fp.and_then(|fp| u32::try_from(fp).ok()));
        for reg in [Ia32Regs::EBX, Ia32Regs::ESI, Ia32Regs::EDI] {
            if let Some(value) = preserved(reg).and_then(|value| u32::try_from(value).ok()) {
                regs = regs.with(reg, value);
            }
        }
        Some(regs)
    }

    fn follows_call<M: Memory>(&self, pc: VirtAddr, mem: &mut M) -> Option<bool> {
        follows_call(pc, mem)
    }

    fn is_initial_stack<M: Memory>(&self, slot: VirtAddr, mem: &mut M) -> bool {
        is_initial_stack(slot, Self::WORD, mem)
    }

    fn signal_context<M: Memory>(
        &self,
        pc: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Ia32Regs>, StepError> {
        let found = find_sigreturn_32(pc, mem).map_err(|e| unreadable(pc, e))?;
        let context_at = match found {
            None => return Ok(None),
            // After the signal number, which is popped.
            Some(Sigreturn32::Plain(to_call)) => to_call.get(),
            // After the signal number, two pointers, 128 bytes of `siginfo`,
            // and in the `ucontext` after its flags, link and signal stack.
            Some(Sigreturn32::Rt(to_call)) => to_call.get().saturating_add(4 + 4 + 4 + 128 + 20),
        };
        let at = Self::WORD.offset(sp, context_at).ok_or(StepError::Overflow)?;
        let addr = self.stack_addr(at);
        let mut bytes = [0; CONTEXT_LEN];
        mem.read(addr, &mut bytes).map_err(|e| unreadable(addr, e))?;
        Ok(Some(saved_registers(&bytes)))
    }
}

/// How many bytes of a signal context are read: gs to eip.
const CONTEXT_LEN: usize = 15 * 4;

/// ```text
///     gs fs es ds  edi esi ebp esp ebx edx ecx eax  trapno err  eip
/// ```
///
/// Linux's `struct sigcontext_32`, 4 bytes each.
fn saved_registers(bytes: &[u8; CONTEXT_LEN]) -> Ia32Regs {
    let words = bytes.chunks_exact(4).filter_map(<[u8]>::first_chunk);
    let mut saved = words.map(|word| u32::from_le_bytes(*word)).skip(4);
    let mut gpr = [0; 8];
    // The DWARF numbers in the order of the context.
    for reg in [7, 6, 5, 4, 3, 2, 1, 0_usize] {
        if let (Some(slot), Some(value)) = (gpr.get_mut(reg), saved.next()) {
            *slot = value;
        }
    }
    Ia32Regs::from_all(saved.nth(2).unwrap_or(0), gpr)
}

const fn unreadable(addr: VirtAddr, error: ReadError) -> StepError {
    StepError::Unreadable { addr, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_that_a_64_bit_kernel_has_saved_have_their_lower_halves_and_stay_unknown() {
        let wide: [u64; 16] =
            core::array::from_fn(|at| 0xffff_0000_0000_0000 | u64::try_from(at).unwrap());
        let regs = X86_64Regs::from_all(0x1_0804_9000, wide);
        let all = Ia32Regs::from_all(0x0804_9000, [0, 2, 1, 3, 7, 6, 4, 5]);
        assert_eq!(Ia32Regs::from_x86_64(&regs), all);
        let few = X86_64Regs::new(9, 8, 7);
        assert_eq!(Ia32Regs::from_x86_64(&few), Ia32Regs::new(9, 8, 7));
        let fewer = Ia32Regs::new(9, 8, 7).without(Ia32Regs::EBP);
        assert_eq!(Ia32Regs::from_x86_64(&few.without(X86_64Regs::RBP)), fewer);
    }

    #[test]
    fn linear_addresses_wrap_at_32_bits() {
        let arch = Ia32::with_bases(0xffff_f000, 0xffff_ff00);
        assert_eq!(arch.code_addr(0x2000), Some(VirtAddr::new(0x1000)));
        assert_eq!(arch.code_addr(0x1_0000_0000), None);
        assert_eq!(arch.stack_addr(0x200), VirtAddr::new(0x100));
        assert_eq!(Ia32::FLAT.code_addr(0xffff_ffff), Some(VirtAddr::new(0xffff_ffff)));
    }

    #[test]
    fn what_needs_more_than_32_bits_is_in_no_register_and_nowhere_on_the_stack() {
        const TOO_MUCH: u64 = 1 << 32;
        assert_eq!(Ia32::FLAT.stack_addr(TOO_MUCH), VirtAddr::new(u64::MAX));
        let caller = |ra, sp, fp, ebx| {
            let preserved = |reg| if reg == Ia32Regs::EBX { Some(ebx) } else { None };
            Ia32::FLAT.caller_registers(ra, sp, fp, preserved)
        };
        let all = caller(9, 4, Some(5), 3).unwrap();
        assert_eq!(
            (all.pc(), all.sp(), all.fp(), all.get(Ia32Regs::EBX)),
            (9, 4, Some(5), Some(3))
        );
        assert!(caller(TOO_MUCH, 4, None, 3).is_none() && caller(9, TOO_MUCH, None, 3).is_none());
        for fp in [None, Some(TOO_MUCH)] {
            let few = caller(9, 4, fp, TOO_MUCH).unwrap();
            assert_eq!((few.pc(), few.sp(), few.fp()), (9, 4, None));
            assert_eq!((few.get(Ia32Regs::EBX), few.get(Ia32Regs::ESI)), (None, None));
        }
    }

    #[test]
    fn registers_go_by_their_dwarf_numbers() {
        let regs = Ia32Regs::from_all(9, [0, 1, 2, 3, 4, 5, 6, 7]);
        for number in 0..8 {
            assert_eq!(regs.get(DwarfReg(number)), Some(number.into()));
        }
        assert_eq!((regs.pc(), regs.sp(), regs.fp(), regs.get(DwarfReg(8))), (9, 4, Some(5), None));
        assert_eq!(Ia32Regs::new(9, 4, 5).get(Ia32Regs::EAX), None);
    }
}
