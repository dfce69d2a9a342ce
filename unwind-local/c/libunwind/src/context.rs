//! `unw_context_t`, which is the C library's `ucontext_t`.

use core::arch::naked_asm;
use core::ffi::c_int;
use core::mem::offset_of;

/// Where a register is in it, in bytes.
const fn at(register: c_int) -> usize {
    offset_of!(libc::ucontext_t, uc_mcontext) + 8 * register as usize
}

/// Code that names the registers' places in a context.
macro_rules! with_registers {
    ($($line:literal,)*) => {
        naked_asm!(
            $($line,)*
            r8 = const at(libc::REG_R8),
            r9 = const at(libc::REG_R9),
            r10 = const at(libc::REG_R10),
            r11 = const at(libc::REG_R11),
            r12 = const at(libc::REG_R12),
            r13 = const at(libc::REG_R13),
            r14 = const at(libc::REG_R14),
            r15 = const at(libc::REG_R15),
            rdi = const at(libc::REG_RDI),
            rsi = const at(libc::REG_RSI),
            rbp = const at(libc::REG_RBP),
            rbx = const at(libc::REG_RBX),
            rdx = const at(libc::REG_RDX),
            rax = const at(libc::REG_RAX),
            rcx = const at(libc::REG_RCX),
            rsp = const at(libc::REG_RSP),
            rip = const at(libc::REG_RIP),
        )
    };
}

/// Keeps the registers of the caller, as they are when this returns 0.
///
/// Those that calls do not preserve, too: they are as the caller has them now.
#[unsafe(naked)]
#[unsafe(export_name = "_Ux86_64_getcontext")]
unsafe extern "C" fn getcontext(context: *mut libc::ucontext_t) -> c_int {
    with_registers!(
        ".cfi_startproc",
        "mov [rdi + {r8}], r8",
        "mov [rdi + {r9}], r9",
        "mov [rdi + {r10}], r10",
        "mov [rdi + {r11}], r11",
        "mov [rdi + {r12}], r12",
        "mov [rdi + {r13}], r13",
        "mov [rdi + {r14}], r14",
        "mov [rdi + {r15}], r15",
        "mov [rdi + {rdi}], rdi",
        "mov [rdi + {rsi}], rsi",
        "mov [rdi + {rbp}], rbp",
        "mov [rdi + {rbx}], rbx",
        "mov [rdi + {rdx}], rdx",
        "mov [rdi + {rax}], rax",
        "mov [rdi + {rcx}], rcx",
        "lea rax, [rsp + 8]",
        "mov [rdi + {rsp}], rax",
        "mov rax, [rsp]",
        "mov [rdi + {rip}], rax",
        "xor eax, eax",
        "ret",
        ".cfi_endproc",
    )
}

/// Continues where a context was kept. Nothing here needs it: `libunwind-x86_64.so.8`, for
/// other processes, imports it from this library.
#[unsafe(naked)]
#[unsafe(export_name = "_Ux86_64_setcontext")]
unsafe extern "C" fn setcontext(context: *const libc::ucontext_t) -> c_int {
    with_registers!(
        "mov r8, [rdi + {r8}]",
        "mov r9, [rdi + {r9}]",
        "mov r10, [rdi + {r10}]",
        "mov r11, [rdi + {r11}]",
        "mov r12, [rdi + {r12}]",
        "mov r13, [rdi + {r13}]",
        "mov r14, [rdi + {r14}]",
        "mov r15, [rdi + {r15}]",
        "mov rsi, [rdi + {rsi}]",
        "mov rbp, [rdi + {rbp}]",
        "mov rbx, [rdi + {rbx}]",
        "mov rdx, [rdi + {rdx}]",
        "mov rcx, [rdi + {rcx}]",
        "mov rsp, [rdi + {rsp}]",
        "push [rdi + {rip}]",
        "mov rax, [rdi + {rax}]",
        "mov rdi, [rdi + {rdi}]",
        "ret",
    )
}
