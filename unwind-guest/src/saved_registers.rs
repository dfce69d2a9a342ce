//! The registers that Linux's kernel saves of the code that it interrupts (`struct pt_regs`).

use unwind_core::{Memory, Registers as _, StepError, VirtAddr};
use unwind_x86::{Ia32Regs, X86_64Regs};

use crate::vcpu::CodeKind;

/// Where the registers of interrupted code are saved, each in 8 bytes:
///
/// ```text
///   0  r15      40  rbx      80  rax     120  (system call)
///   8  r14      48  r11      88  rcx     128  rip  <- what the CPU itself saves begins here
///  16  r13      56  r10      96  rdx     136  cs
///  24  r12      64  r9      104  rsi     144  rflags
///  32  rbp      72  r8      112  rdi     152  rsp
///                                        160  ss
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRegisters {
    /// Where those begin that the CPU saves.
    frame: u64,
    /// The frame pointer, where it is not saved with them.
    partial: Option<Option<u64>>,
}

/// Stacks of tasks have this size and alignment, or a multiple of it.
pub(crate) const STACK: u64 = 16 << 10;

/// How many bytes there are below what the CPU saves.
pub(crate) const BELOW_FRAME: i32 = 128;
/// Offsets from what the CPU saves.
pub(crate) const RIP: i32 = 0;
pub(crate) const CS: i32 = 8;
pub(crate) const RSP: i32 = 24;
const SS: i32 = 32;
pub(crate) const RBP: i32 = 32 - BELOW_FRAME;
/// How many words are saved.
const WORDS: usize = 21;

impl SavedRegisters {
    /// All registers, of which those begin here that the CPU saves.
    pub(crate) const fn all(frame: u64) -> Self {
        Self { frame, partial: None }
    }

    /// All registers, which end there.
    pub(crate) const fn all_before(end: u64) -> Self {
        // Five words are the CPU's own.
        Self::all(end.wrapping_sub(5 * 8))
    }

    /// All registers that end the stack that `sp` is near the end of: some versions leave two words above them.
    pub(crate) fn at_end_of_stack(sp: u64) -> impl Iterator<Item = Self> + Clone {
        /// What a task has below when it begins, at most.
        const BELOW: u64 = 64;
        let end = (sp | (STACK - 1)).wrapping_add(1);
        let all = [0, 16].map(|padding| Self::all_before(end.wrapping_sub(padding)));
        all.into_iter().filter(move |saved| saved.addr().get().wrapping_sub(sp) <= BELOW)
    }

    /// Only what the CPU saves. The frame pointer is still the interrupted code's.
    pub(crate) const fn partial(frame: u64, fp: Option<u64>) -> Self {
        Self { frame, partial: Some(fp) }
    }

    /// Where the first of them is, in the order of addresses.
    #[must_use]
    pub const fn addr(&self) -> VirtAddr {
        VirtAddr::new(match self.partial {
            None => self.frame.wrapping_sub(128),
            Some(_) => self.frame,
        })
    }

    /// Whose registers these are, by the segments of the code: where a table is wrong for a moment, as for functions
    /// that the kernel's entry leaves in another way than by a return, there are others.
    ///
    /// # Errors
    ///
    /// [`StepError::Unreadable`] if they cannot be read.
    pub(crate) fn whose<M: Memory>(&self, mem: &mut M) -> Result<Whose, StepError> {
        // Above the selectors, newer CPUs keep something else.
        let (cs, ss) = (low(self.word(CS, mem)?), low(self.word(SS, mem)?));
        let rip = self.word(RIP, mem)?;
        let is_low = rip >> 63 == 0;
        Ok(match (cs, cs & 3, ss & 3) {
            // Threads that the kernel makes for a process, as for `io_uring`.
            (_, 3, 3) if self.are_empty(mem)? => Whose::Nobodys,
            (_, 3, 3) if is_low || rip & !0xfff == VSYSCALL => Whose::Users,
            (KERNEL, ..) if !is_low => Whose::Kernels,
            _ => Whose::Nobodys,
        })
    }

    /// Whether nothing was saved there: a thread of the kernel has no user code.
    ///
    /// # Errors
    ///
    /// [`StepError::Unreadable`] if they cannot be read.
    pub(crate) fn are_empty<M: Memory>(&self, mem: &mut M) -> Result<bool, StepError> {
        Ok(self.word(RIP, mem)? == 0 && self.word(RSP, mem)? == 0)
    }

    /// One of the registers, by its offset from what the CPU saves.
    pub(crate) fn word<M: Memory>(&self, offset: i32, mem: &mut M) -> Result<u64, StepError> {
        let addr = VirtAddr::new(self.frame.wrapping_add_signed(offset.into()));
        mem.read_u64(addr).map_err(|error| StepError::Unreadable { addr, error })
    }

    /// The registers.
    ///
    /// # Errors
    ///
    /// [`StepError::Unreadable`] if they cannot be read.
    pub fn read<M: Memory>(&self, mem: &mut M) -> Result<Interrupted, StepError> {
        let addr = self.addr();
        let mut bytes = [[0; 8]; WORDS];
        let unread = if self.partial.is_some() { WORDS - FRAME_WORDS } else { 0 };
        let (_, words) = bytes.split_at_mut(unread);
        let read = mem.read(addr, words.as_flattened_mut());
        read.map_err(|error| StepError::Unreadable { addr, error })?;
        let [
            r15,
            r14,
            r13,
            r12,
            rbp,
            rbx,
            r11,
            r10,
            r9,
            r8,
            rax,
            rcx,
            rdx,
            rsi,
            rdi,
            _,
            rip,
            cs,
            rflags,
            rsp,
            ss,
        ] = bytes.map(u64::from_le_bytes);
        let general =
            [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15];
        let x86_64 = match self.partial {
            None => X86_64Regs::from_all(rip, general),
            Some(Some(rbp)) => X86_64Regs::new(rip, rsp, rbp),
            Some(None) => X86_64Regs::new(rip, rsp, 0).without(X86_64Regs::RBP),
        };
        let ia32 = Ia32Regs::from_x86_64(&x86_64);
        Ok(Interrupted { x86_64, ia32, cs: low(cs), ss: low(ss), rflags })
    }
}

/// How many words the CPU saves.
const FRAME_WORDS: usize = 5;

/// What interrupted code had in its registers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Interrupted {
    /// The registers, as those of 64-bit code.
    pub x86_64: X86_64Regs,
    /// The same, as those of 32-bit code.
    pub ia32: Ia32Regs,
    /// The selector of its code segment.
    pub cs: u16,
    /// The selector of its stack segment.
    pub ss: u16,
    /// Its flags.
    pub rflags: u64,
}

/// What saved registers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Users,
    Kernels,
    /// Of no code: these are no registers.
    Nobodys,
}

/// The page above all of the kernel whose code is user code: old programs call it, and the kernel does what it would.
const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// Linux's segments of code, the kernel's and the users'.
const KERNEL: u16 = 0x10;
const USER_32: u16 = 0x23;
const USER_64: u16 = 0x33;
const USER_DATA: u16 = 0x2b;

impl Interrupted {
    /// Whether user code of Linux's segments may have had these. Threads that the kernel makes for a process, as for
    /// `io_uring`, have such segments too, and no stack.
    pub(crate) fn is_user(&self) -> bool {
        /// Always set.
        const FLAGS: u64 = 2;
        self.code().is_some()
            && self.ss == USER_DATA
            && self.rflags & FLAGS != 0
            && self.x86_64.sp() != 0
    }

    /// The kind of user code that this is, by Linux's own segments; `None` if it is in a segment that the program
    /// has made itself, whose kind and base the registers do not tell.
    #[must_use]
    pub const fn code(&self) -> Option<CodeKind> {
        match self.cs {
            USER_64 => Some(CodeKind::X86_64),
            USER_32 => Some(CodeKind::Ia32 { code_base: 0, stack_base: 0 }),
            _ => None,
        }
    }
}

/// A selector, which is saved as a word.
const fn low(word: u64) -> u16 {
    let [a, b, ..] = word.to_le_bytes();
    u16::from_le_bytes([a, b])
}
