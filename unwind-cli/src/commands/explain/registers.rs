//! The names of registers, by their DWARF numbers.

/// The general registers of x86-64.
const X86_64: [&str; 16] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", //
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
];

/// The general registers of ia32.
const IA32: [&str; 8] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];

/// The name of a register.
pub(super) fn register_name(number: u16, is_64: bool) -> String {
    let names: &[&str] = if is_64 { &X86_64 } else { &IA32 };
    let name = names.get(usize::from(number));
    name.map_or_else(|| format!("r{number}"), |name| (*name).to_owned())
}
