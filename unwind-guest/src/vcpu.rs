//! What a vCPU executes, by its registers.

use unwind_x86::paging::{Access, AddressSpace, ControlRegisters, PagingMode};
use unwind_x86::{Ia32Regs, X86_64, X86_64Regs};

/// The registers of a vCPU that runs x86 code, as far as a walk needs them.
///
/// They are those of `KVM_GET_REGS` and `KVM_GET_SREGS` by the same names; with the feature `kvm` they are
/// made of these (`from_kvm`). Every value is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuRegisters {
    /// The general registers in the order of their DWARF numbers: rax, rdx, rcx, rbx, rsi, rdi, rbp,
    /// rsp, r8 to r15.
    pub general: [u64; 16],
    /// The instruction pointer, an offset in the code segment.
    pub rip: u64,
    /// The flags.
    pub rflags: u64,
    /// The code segment.
    pub cs: Segment,
    /// The stack segment. Its [privilege](Segment::dpl) is that of the code which runs.
    pub ss: Segment,
    /// Control register 0: whether paging and protection are on.
    pub cr0: u64,
    /// Control register 3: the root of the page tables, and a PCID.
    pub cr3: u64,
    /// Control register 4: which features are on.
    pub cr4: u64,
    /// The extended feature enable register: long mode.
    pub efer: u64,
}

/// A segment register, with what the CPU keeps of its descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Where the segment begins.
    pub base: u64,
    /// The selector.
    pub selector: u16,
    /// The descriptor's privilege level, from 0 to 3.
    pub dpl: u8,
    /// The descriptor's bit L: 64-bit code.
    pub l: bool,
    /// The descriptor's bit D or B: 32-bit code or stack.
    pub db: bool,
}

/// The bit of a root's address that tells the second one of two tables, which user code has under KPTI.
pub(crate) const USER_TABLE: u64 = 1 << 12;

/// The kind of code that a stack is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeKind {
    /// 64-bit code.
    X86_64,
    /// 32-bit code with these segment bases, under a kernel of any width.
    Ia32 {
        /// Of the code segment.
        code_base: u32,
        /// Of the stack segment.
        stack_base: u32,
    },
    /// 16-bit code: real mode, virtual-8086 mode, a 16-bit segment. A walk has its first frame alone.
    Sixteen,
}

const CR0_PE: u64 = 1;
const EFER_LMA: u64 = 1 << 10;
const RFLAGS_VM: u64 = 1 << 17;

impl VcpuRegisters {
    /// The privilege level, from 0, the kernel's, to 3, user code's.
    #[must_use]
    pub const fn cpl(&self) -> u8 {
        if self.cr0 & CR0_PE == 0 {
            0
        } else if self.is_virtual_8086() {
            3
        } else {
            self.ss.dpl & 3
        }
    }

    /// Whether user code runs.
    #[must_use]
    pub const fn is_user(&self) -> bool {
        self.cpl() == 3
    }

    /// The kind of code that runs.
    #[must_use]
    pub const fn code(&self) -> CodeKind {
        if self.cr0 & CR0_PE == 0 || self.is_virtual_8086() {
            CodeKind::Sixteen
        } else if self.efer & EFER_LMA != 0 && self.cs.l {
            CodeKind::X86_64
        } else if self.cs.db {
            let (code_base, stack_base) = (low_half(self.cs.base), low_half(self.ss.base));
            CodeKind::Ia32 { code_base, stack_base }
        } else {
            CodeKind::Sixteen
        }
    }

    /// The address space, read on behalf of the code that runs: what user code may not read is
    /// refused to it, and the reason says so.
    #[must_use]
    pub const fn address_space(&self) -> AddressSpace {
        let (cr0, cr3, cr4, efer) = (self.cr0, self.cr3, self.cr4, self.efer);
        AddressSpace::from_registers(&ControlRegisters { cr0, cr3, cr4, efer, cpl: self.cpl() })
    }

    /// The address spaces that a 64-bit Linux kernel may have, whatever runs: by the root table that is in use, and
    /// by the one before it.
    ///
    /// Under KPTI user code has a table of its own, with little of the kernel: the second page of two, of which the
    /// first has all. The registers do not say whether that is so: what is not found by one may be by the other.
    #[must_use]
    pub const fn kernel_address_spaces(&self) -> (AddressSpace, Option<AddressSpace>) {
        let own = self.address_space().access(Access::Supervisor);
        if self.cr3 & USER_TABLE == 0 {
            return (own, None);
        }
        let other = Self { cr3: self.cr3 & !USER_TABLE, ..*self };
        (own, Some(other.address_space().access(Access::Supervisor)))
    }

    /// The CPU as 64-bit code of a user sees it.
    #[must_use]
    pub const fn x86_64(&self) -> X86_64 {
        match self.address_space().mode() {
            PagingMode::FiveLevel => X86_64::FIVE_LEVEL,
            _ => X86_64::FOUR_LEVEL,
        }
    }

    /// The registers of 64-bit code.
    #[must_use]
    pub const fn x86_64_registers(&self) -> X86_64Regs {
        X86_64Regs::from_all(self.rip, self.general)
    }

    /// The registers of 32-bit code.
    #[must_use]
    pub fn ia32_registers(&self) -> Ia32Regs {
        Ia32Regs::from_x86_64(&self.x86_64_registers())
    }

    const fn is_virtual_8086(&self) -> bool {
        // Long mode has none.
        self.rflags & RFLAGS_VM != 0 && self.efer & EFER_LMA == 0
    }
}

/// The lower half of a register.
pub(crate) const fn low_half(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(feature = "kvm")]
mod kvm {
    use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

    use super::{Segment, VcpuRegisters};

    impl VcpuRegisters {
        /// The registers as `KVM_GET_REGS` and `KVM_GET_SREGS` give them.
        #[must_use]
        pub const fn from_kvm(regs: &kvm_regs, sregs: &kvm_sregs) -> Self {
            Self {
                general: [
                    regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp,
                    regs.r8, regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
                ],
                rip: regs.rip,
                rflags: regs.rflags,
                cs: segment(&sregs.cs),
                ss: segment(&sregs.ss),
                cr0: sregs.cr0,
                cr3: sregs.cr3,
                cr4: sregs.cr4,
                efer: sregs.efer,
            }
        }
    }

    const fn segment(segment: &kvm_segment) -> Segment {
        Segment {
            base: segment.base,
            selector: segment.selector,
            dpl: segment.dpl,
            l: segment.l != 0,
            db: segment.db != 0,
        }
    }
}
