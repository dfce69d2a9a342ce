//! 64-bit code.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use unwind_core::{Arch, DwarfReg, Memory, ReadError, Registers, StepError, VirtAddr, WordSize};

use crate::call::follows_call;
use crate::initial_stack::is_initial_stack;
use crate::sigreturn::find_rt_sigreturn_64;

/// The registers of 64-bit code, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86_64Regs {
    rip: u64,
    /// By DWARF number.
    gpr: [u64; 16],
    /// A bit for each of `gpr` that is known.
    known: u16,
}

impl X86_64Regs {
    /// `rax`.
    pub const RAX: DwarfReg = DwarfReg(0);
    /// `rdx`.
    pub const RDX: DwarfReg = DwarfReg(1);
    /// `rcx`.
    pub const RCX: DwarfReg = DwarfReg(2);
    /// `rbx`.
    pub const RBX: DwarfReg = DwarfReg(3);
    /// `rsi`.
    pub const RSI: DwarfReg = DwarfReg(4);
    /// `rdi`.
    pub const RDI: DwarfReg = DwarfReg(5);
    /// `rbp`, the frame pointer.
    pub const RBP: DwarfReg = DwarfReg(6);
    /// `rsp`, the stack pointer.
    pub const RSP: DwarfReg = DwarfReg(7);

    /// Registers of which only these are known.
    #[must_use]
    pub const fn new(rip: u64, rsp: u64, rbp: u64) -> Self {
        let gpr = [0, 0, 0, 0, 0, 0, rbp, rsp, 0, 0, 0, 0, 0, 0, 0, 0];
        Self { rip, gpr, known: 1 << 6 | 1 << 7 }
    }

    const fn of_caller(rip: u64, rsp: u64, rbp: Option<u64>) -> Self {
        match rbp {
            Some(rbp) => Self::new(rip, rsp, rbp),
            None => Self { known: 1 << 7, ..Self::new(rip, rsp, 0) },
        }
    }

    /// All registers: `gpr` is in the order of the DWARF numbers, that is
    /// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 to r15.
    #[must_use]
    pub const fn from_all(rip: u64, gpr: [u64; 16]) -> Self {
        Self { rip, gpr, known: u16::MAX }
    }

    /// The same with one register more; a number above 15 changes nothing.
    #[must_use]
    pub fn with(mut self, reg: DwarfReg, value: u64) -> Self {
        if let Some(slot) = self.gpr.get_mut(usize::from(reg.0)) {
            *slot = value;
            self.known |= 1_u16.wrapping_shl(reg.0.into());
        }
        self
    }

    /// The same with one register less; a number above 15 changes nothing.
    #[must_use]
    pub fn without(mut self, reg: DwarfReg) -> Self {
        if let Some(slot) = self.gpr.get_mut(usize::from(reg.0)) {
            *slot = 0;
            self.known &= !1_u16.wrapping_shl(reg.0.into());
        }
        self
    }
}

impl Registers for X86_64Regs {
    #[inline]
    fn pc(&self) -> u64 {
        self.rip
    }

    #[inline]
    fn sp(&self) -> u64 {
        let [_, _, _, _, _, _, _, rsp, ..] = self.gpr;
        rsp
    }

    #[inline]
    fn fp(&self) -> Option<u64> {
        self.get(Self::RBP)
    }

    #[inline]
    fn get(&self, reg: DwarfReg) -> Option<u64> {
        let is_known = self.known & 1_u16.wrapping_shl(reg.0.into()) != 0;
        self.gpr.get(usize::from(reg.0)).copied().filter(|_| is_known)
    }
}

/// The CPU in 64-bit mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86_64 {
    /// How far to shift an address left so that only its significant bits
    /// stay.
    unused_bits: u32,
    /// In bytes.
    red_zone: u8,
}

impl X86_64 {
    /// 48-bit addresses: four levels of page tables.
    pub const FOUR_LEVEL: Self = Self { unused_bits: 16, red_zone: 128 };

    /// 57-bit addresses: five levels of page tables.
    pub const FIVE_LEVEL: Self = Self { unused_bits: 7, red_zone: 128 };

    /// The same for code without a red zone, as a kernel's, whose stack interrupts
    /// write to just below the stack pointer. User code has the ABI's of 128 bytes.
    #[must_use]
    pub const fn without_red_zone(self) -> Self {
        Self { red_zone: 0, ..self }
    }

    /// Whether an address is one: its unused high bits repeat the highest used
    /// one.
    #[inline]
    #[must_use]
    pub const fn is_canonical(self, addr: u64) -> bool {
        // All of a user's are, whatever the width.
        if addr >> 47 == 0 {
            return true;
        }
        // Arithmetic shift right: copies of the highest used bit come in.
        let extended = i64::from_ne_bytes(addr.wrapping_shl(self.unused_bits).to_ne_bytes());
        u64::from_ne_bytes(extended.wrapping_shr(self.unused_bits).to_ne_bytes()) == addr
    }
}

impl Default for X86_64 {
    fn default() -> Self {
        Self::FOUR_LEVEL
    }
}

impl Arch for X86_64 {
    type Regs = X86_64Regs;
    const WORD: WordSize = WordSize::Eight;
    const SP: Option<DwarfReg> = Some(X86_64Regs::RSP);
    const FP: Option<DwarfReg> = Some(X86_64Regs::RBP);

    #[inline]
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        self.is_canonical(pc).then_some(VirtAddr::new(pc))
    }

    /// All below the highest bit that is used are.
    #[inline]
    fn is_plain_code_addr(&self, pc: u64) -> bool {
        // Not a constant: a loop that has no register left for it would make it anew each time.
        pc.wrapping_sub(1) < (u64::MAX >> 1).wrapping_shr(self.unused_bits)
    }

    #[inline]
    fn red_zone(&self) -> u64 {
        self.red_zone.into()
    }

    /// Calls preserve rbx and r12 to r15.
    fn caller_registers(
        &self,
        ra: u64,
        sp: u64,
        fp: Option<u64>,
        mut preserved: impl FnMut(DwarfReg) -> Option<u64>,
    ) -> Option<X86_64Regs> {
        let mut regs = X86_64Regs::of_caller(ra, sp, fp);
        for reg in [3, 12, 13, 14, 15].map(DwarfReg) {
            if let Some(value) = preserved(reg) {
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

    // Made where the walk keeps it.
    #[inline(always)]
    fn signal_context<M: Memory>(
        &self,
        pc: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<X86_64Regs>, StepError> {
        let Some(to_call) = find_rt_sigreturn_64(pc, mem).map_err(|e| unreadable(pc, e))? else {
            return Ok(None);
        };
        // The handler's return has popped the trampoline's address: at the system call the stack
        // pointer is at the `ucontext`. See `saved_registers` for the order.
        let at_call = sp.checked_add_signed(to_call.get().into());
        let addr = at_call.and_then(|sp| sp.checked_add(GREGS_AT)).ok_or(StepError::Overflow)?;
        let addr = VirtAddr::new(addr);
        if let Some(words) = stack_words(addr, mem) {
            return Ok(Some(saved_registers(words.map(|word| u64::from_le(word.load(Relaxed))))));
        }
        let mut bytes = [[0; 8]; GREGS];
        mem.read(addr, bytes.as_flattened_mut()).map_err(|e| unreadable(addr, e))?;
        Ok(Some(saved_registers(bytes.map(u64::from_le_bytes))))
    }
}

/// The words of a context on the stack that a walk runs on.
#[inline]
fn stack_words<M: Memory>(addr: VirtAddr, mem: &mut M) -> Option<[&AtomicU64; GREGS]> {
    let (start, words) = mem.shared_words(addr)?;
    let at = addr.checked_offset_from(start).filter(|at| at & 7 == 0)?;
    let words: &[_; GREGS] = words.get(usize::try_from(at / 8).ok()?..)?.first_chunk()?;
    Some(words.each_ref())
}

/// Where the registers are in a `ucontext`, in bytes: after the flags, a link
/// and the description of the signal stack.
const GREGS_AT: u64 = 40;

/// How many registers are read: r8 to rip.
const GREGS: usize = 17;

/// Those of Linux's `struct sigcontext` for 64-bit tasks, 8 bytes each.
#[inline(always)]
fn saved_registers(words: [u64; GREGS]) -> X86_64Regs {
    let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip] = words;
    let gpr = [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15];
    X86_64Regs::from_all(rip, gpr)
}

const fn unreadable(addr: VirtAddr, error: ReadError) -> StepError {
    StepError::Unreadable { addr, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_that_is_taken_out_is_unknown_and_the_others_stay() {
        let regs = X86_64Regs::from_all(1, [7; 16]).without(X86_64Regs::RBP).without(DwarfReg(16));
        for number in 0..18 {
            let known = (number < 16 && number != 6).then_some(7);
            assert_eq!(regs.get(DwarfReg(number)), known, "{number}");
        }
        assert_eq!(X86_64Regs::new(1, 2, 3).without(X86_64Regs::RBP).fp(), None);
    }

    #[test]
    fn the_canonical_width_is_a_parameter() {
        let cases = [
            (0, true, true),
            (0x7fff_ffff_ffff, true, true),
            (0x8000_0000_0000, false, true),
            (0x00ff_ffff_ffff_ffff, false, true),
            (0x0100_0000_0000_0000, false, false),
            (0xff00_0000_0000_0000, false, true),
            (0xfeff_ffff_ffff_ffff, false, false),
            (0xffff_7fff_ffff_ffff, false, true),
            (0xffff_8000_0000_0000, true, true),
            (u64::MAX, true, true),
        ];
        for (addr, four, five) in cases {
            assert_eq!(X86_64::FOUR_LEVEL.is_canonical(addr), four, "{addr:#x}");
            assert_eq!(X86_64::FIVE_LEVEL.is_canonical(addr), five, "{addr:#x}");
            for (arch, bits) in [(X86_64::FOUR_LEVEL, 47), (X86_64::FIVE_LEVEL, 56)] {
                let is_plain = arch.is_plain_code_addr(addr);
                assert!(!is_plain || arch.code_addr(addr) == Some(VirtAddr::new(addr)));
                assert_eq!(is_plain, addr != 0 && addr < 1 << bits, "{addr:#x}");
            }
        }
    }

    #[test]
    fn only_what_was_given_is_known() {
        let regs = X86_64Regs::new(1, 2, 3).with(DwarfReg(10), 4).with(DwarfReg(16), 5);
        assert_eq!((regs.pc(), regs.sp(), regs.fp()), (1, 2, Some(3)));
        assert_eq!(regs.get(DwarfReg(10)), Some(4));
        for unknown in [0, 5, 9, 11, 15, 16, 17, 255] {
            assert_eq!(regs.get(DwarfReg(unknown)), None, "r{unknown}");
        }
        assert_eq!(X86_64Regs::from_all(0, [7; 16]).get(DwarfReg(15)), Some(7));
    }
}
