//! The registers of a thread as the kernel hands them out.

use object::elf::{self, Machine};
use unwind_perf::record::{UserAbi, UserState};

/// The user registers of one thread at the point where it was stopped.
///
/// A 32-bit thread under a 64-bit kernel has its values zero-extended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserRegisters {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub eflags: u64,
    pub cs: u64,
    pub ss: u64,
    /// Where what is the thread's own is found by 64-bit code; 0 if that is not known.
    pub fs_base: u64,
    /// Of the registers that code computes with, `rsp` and `rip` alone are known.
    pub only_pc_and_sp: bool,
}

/// What kind of code a thread executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeMode {
    /// 64-bit code.
    X86_64,
    /// 32-bit code, in flat segments.
    Ia32,
}

/// The code segments that Linux gives to user code: 64-bit, 32-bit under a
/// 64-bit kernel, the same two of a paravirtual Xen guest, and that of a 32-bit
/// kernel.
const CS_64: u64 = 0x33;
const CS_32: u64 = 0x23;
const CS_64_XEN: u64 = 0xe033;
const CS_32_XEN: u64 = 0xe023;
const CS_NATIVE_32: u64 = 0x73;

impl UserRegisters {
    /// The mode that the code segment stands for; `None` for a segment that the
    /// program made itself, whose base is not known here.
    #[must_use]
    pub const fn code_mode(&self) -> Option<CodeMode> {
        match self.cs {
            CS_64 | CS_64_XEN => Some(CodeMode::X86_64),
            CS_32 | CS_32_XEN | CS_NATIVE_32 => Some(CodeMode::Ia32),
            _ => None,
        }
    }

    /// What `/proc` tells of a thread that sleeps.
    pub(crate) fn asleep(mode: CodeMode, pc: u64, sp: u64) -> Self {
        let cs = match mode {
            CodeMode::X86_64 => CS_64,
            CodeMode::Ia32 => CS_32,
        };
        Self { rip: pc, rsp: sp, cs, only_pc_and_sp: true, ..Self::default() }
    }

    /// The user registers of a sample, by perf's numbers; `None` without the pc or the stack pointer.
    /// Others that the recording does not keep are zero, as walks take them.
    #[must_use]
    pub fn of_sample(state: &UserState<'_>) -> Option<Self> {
        let value = |number| state.register(number).unwrap_or(0);
        Some(Self {
            rax: value(0),
            rbx: value(1),
            rcx: value(2),
            rdx: value(3),
            rsi: value(4),
            rdi: value(5),
            rbp: value(6),
            rsp: state.register(7)?,
            rip: state.register(8)?,
            eflags: value(9),
            r8: value(16),
            r9: value(17),
            r10: value(18),
            r11: value(19),
            r12: value(20),
            r13: value(21),
            r14: value(22),
            r15: value(23),
            cs: if state.abi == UserAbi::Bits32 { CS_32 } else { CS_64 },
            ..Self::default()
        })
    }

    /// The `user_regs_struct` of x86-64 as `PTRACE_GETREGS` fills it for
    /// threads of either width.
    pub(crate) const fn from_ptrace(regs: &libc::user_regs_struct) -> Self {
        Self {
            rax: regs.rax,
            rbx: regs.rbx,
            rcx: regs.rcx,
            rdx: regs.rdx,
            rsi: regs.rsi,
            rdi: regs.rdi,
            rbp: regs.rbp,
            rsp: regs.rsp,
            r8: regs.r8,
            r9: regs.r9,
            r10: regs.r10,
            r11: regs.r11,
            r12: regs.r12,
            r13: regs.r13,
            r14: regs.r14,
            r15: regs.r15,
            rip: regs.rip,
            eflags: regs.eflags,
            cs: regs.cs,
            ss: regs.ss,
            fs_base: regs.fs_base,
            only_pc_and_sp: false,
        }
    }

    /// The register block of a core file's thread note: 27 words of eight bytes
    /// in the order of x86-64's `user_regs_struct`, or 17 of four bytes in that
    /// of i386.
    #[must_use]
    pub fn from_core(machine: Machine, block: &[u8]) -> Option<Self> {
        match machine {
            elf::EM_X86_64 => words::<27, 8>(block).map(Self::from_x86_64_words),
            elf::EM_386 => words::<17, 4>(block).map(Self::from_i386_words),
            _ => None,
        }
    }

    #[rustfmt::skip]
    const fn from_x86_64_words(words: [u64; 27]) -> Self {
        let [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, _orig_rax,
            rip, cs, eflags, rsp, ss, fs_base, _gs_base, _ds, _es, _fs, _gs] = words;
        Self { rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, rip,
            eflags, cs, ss, fs_base, only_pc_and_sp: false }
    }

    #[rustfmt::skip]
    fn from_i386_words(words: [u64; 17]) -> Self {
        let [rbx, rcx, rdx, rsi, rdi, rbp, rax, _ds, _es, _fs, _gs, _orig_eax, rip, cs, eflags,
            rsp, ss] = words;
        // The upper half of a segment register's word is whatever was there.
        Self { rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, rip, eflags, cs: cs & 0xffff,
            ss: ss & 0xffff, ..Self::default() }
    }
}

/// The first `N` little-endian words of `SIZE` bytes, zero-extended.
fn words<const N: usize, const SIZE: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, _) = bytes.as_chunks::<SIZE>();
    let chunks: &[[u8; SIZE]; N] = chunks.first_chunk()?;
    Some(chunks.map(|chunk| chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_segment_tells_the_mode() {
        let mode = |cs| UserRegisters { cs, ..Default::default() }.code_mode();
        assert_eq!(mode(0x33), Some(CodeMode::X86_64));
        assert_eq!(mode(0x23), Some(CodeMode::Ia32));
        assert_eq!(mode(0x73), Some(CodeMode::Ia32));
        // The first entry of the local descriptor table.
        assert_eq!(mode(0x07), None);
    }

    #[test]
    fn the_register_block_of_a_64_bit_core_has_the_order_of_ptrace() {
        let block: Vec<u8> = (1..=27_u64).flat_map(u64::to_le_bytes).collect();
        let regs = UserRegisters::from_core(elf::EM_X86_64, &block).unwrap();
        let named = [
            regs.r15, regs.r14, regs.r13, regs.r12, regs.rbp, regs.rbx, regs.r11, regs.r10,
            regs.r9, regs.r8, regs.rax, regs.rcx, regs.rdx, regs.rsi, regs.rdi,
        ];
        assert_eq!(named.to_vec(), (1..=15).collect::<Vec<u64>>());
        assert_eq!([regs.rip, regs.cs, regs.eflags, regs.rsp, regs.ss], [17, 18, 19, 20, 21]);
        assert_eq!(regs.fs_base, 22);
        assert_eq!(UserRegisters::from_core(elf::EM_X86_64, &block[..27 * 8 - 1]), None);
    }

    #[test]
    fn the_register_block_of_a_32_bit_core_has_the_order_of_i386() {
        let block: Vec<u8> =
            (1..=17_u32).flat_map(|word| (word | 0xffff_0000).to_le_bytes()).collect();
        let regs = UserRegisters::from_core(elf::EM_386, &block).unwrap();
        let wide = |word: u64| 0xffff_0000 | word;
        assert_eq!([regs.rbx, regs.rcx, regs.rdx, regs.rsi], [1, 2, 3, 4].map(wide));
        assert_eq!([regs.rdi, regs.rbp, regs.rax], [5, 6, 7].map(wide));
        assert_eq!([regs.rip, regs.eflags, regs.rsp], [13, 15, 16].map(wide));
        assert_eq!((regs.cs, regs.ss), (14, 17));
        assert_eq!(UserRegisters::from_core(elf::EM_AARCH64, &block), None);
    }
}
