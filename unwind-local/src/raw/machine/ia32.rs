//! 32-bit x86.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

use unwind_cfi::CfiAbi;
use unwind_core::RowSource;
use unwind_x86::{Ia32, Ia32Regs, UnrecordedPushes};

use crate::raw::thread::ThreadWords;

pub(crate) type Machine = Ia32;
pub(crate) type Registers = Ia32Regs;

/// The code of this program.
pub(crate) const MACHINE: Machine = Ia32::FLAT;
pub(crate) const CFI_ABI: CfiAbi = CfiAbi::Ia32;

/// Rows of tables, but where functions that were written by hand push registers without them.
pub(crate) type TableRows<S> = UnrecordedPushes<S>;

/// These rows of a source.
pub(crate) const fn table_rows<S: RowSource<Ia32>>(source: S) -> TableRows<S> {
    UnrecordedPushes::new(source)
}

/// The format has no number for this code.
pub(crate) const SFRAME_ABI: Option<sframe::Abi> = None;

/// What a signal trampoline of the C library or the kernel does: `mov eax, 173; int 0x80`.
pub(crate) const TRAMPOLINE: [u8; 7] = [0xb8, 0xad, 0, 0, 0, 0xcd, 0x80];

/// The registers of a function that has called another one, as they will be when that returns.
/// [`call_with_registers`](crate::call_with_registers) makes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallerRegisters {
    eip: u32,
    esp: u32,
    ebx: u32,
    ebp: u32,
    esi: u32,
    edi: u32,
}

/// The body of a naked function with three arguments: it calls another one with these and, as
/// the fourth, the [`CallerRegisters`](crate::CallerRegisters) of its caller. So a backtrace
/// begins in that without a frame in between.
#[macro_export]
macro_rules! call_with_registers {
    ($function:path) => {
        ::core::arch::naked_asm!(
            ".cfi_startproc",
            "push edi",
            ".cfi_adjust_cfa_offset 4",
            "push esi",
            ".cfi_adjust_cfa_offset 4",
            "push ebp",
            ".cfi_adjust_cfa_offset 4",
            "push ebx",
            ".cfi_adjust_cfa_offset 4",
            // The caller's stack pointer, and its return address.
            "lea ecx, [esp + 20]",
            "push ecx",
            ".cfi_adjust_cfa_offset 4",
            "push dword ptr [ecx - 4]",
            ".cfi_adjust_cfa_offset 4",
            "mov edx, esp",
            // So that the stack is aligned.
            "sub esp, 4",
            ".cfi_adjust_cfa_offset 4",
            "push edx",
            ".cfi_adjust_cfa_offset 4",
            "push dword ptr [ecx + 8]",
            ".cfi_adjust_cfa_offset 4",
            "push dword ptr [ecx + 4]",
            ".cfi_adjust_cfa_offset 4",
            "push dword ptr [ecx]",
            ".cfi_adjust_cfa_offset 4",
            "call {function}",
            "add esp, 44",
            ".cfi_adjust_cfa_offset -44",
            "ret",
            ".cfi_endproc",
            function = sym $function,
        )
    };
}

impl CallerRegisters {
    /// Those of this place in the function that calls this, for walks from there on while it has
    /// not returned.
    #[inline(always)]
    #[must_use]
    pub fn here() -> Self {
        let mut saved = [0_u32; 6];
        // SAFETY: it writes the six words.
        unsafe {
            asm!(
                "mov [{saved} + 4], esp",
                "mov [{saved} + 8], ebx",
                "mov [{saved} + 12], ebp",
                "mov [{saved} + 16], esi",
                "mov [{saved} + 20], edi",
                "call unwind_local_pc",
                "mov [{saved}], eax",
                saved = in(reg) saved.as_mut_ptr(),
                out("eax") _,
                options(preserves_flags),
            );
        }
        let [eip, esp, ebx, ebp, esi, edi] = saved;
        Self { eip, esp, ebx, ebp, esi, edi }
    }

    /// The same for a walk.
    #[inline]
    pub(crate) fn registers(&self) -> Registers {
        let Self { eip, esp, ebx, ebp, esi, edi } = *self;
        Ia32Regs::new(eip, esp, ebp)
            .with(Ia32Regs::EBX, ebx)
            .with(Ia32Regs::ESI, esi)
            .with(Ia32Regs::EDI, edi)
    }
}

/// The registers of a signal's context.
pub(crate) fn registers_of(context: &libc::ucontext_t) -> Registers {
    const BY_NUMBER: [i32; 8] = [
        libc::REG_EAX,
        libc::REG_ECX,
        libc::REG_EDX,
        libc::REG_EBX,
        libc::REG_ESP,
        libc::REG_EBP,
        libc::REG_ESI,
        libc::REG_EDI,
    ];
    let saved = |register: i32| {
        let at = usize::try_from(register).unwrap_or(usize::MAX);
        context.uc_mcontext.gregs.get(at).map_or(0, |value| value.cast_unsigned())
    };
    Ia32Regs::from_all(saved(libc::REG_EIP), BY_NUMBER.map(saved))
}

/// The stack pointer of this place.
#[inline(always)]
pub(crate) fn stack_pointer() -> u64 {
    let sp: u32;
    // SAFETY: it touches no memory.
    unsafe { asm!("mov {}, esp", out(reg) sp, options(nostack, nomem, preserves_flags)) };
    sp.into()
}

// Code has no addresses relative to itself here: a function returns its own return address, and
// the offset table is found from there.
//
// The words of a thread are in the storage that it has from its start on, which nothing has to
// allocate: the model is that of libraries that are loaded with the program.
//
// Functions that not every C library has are weak, so that programs link where there is none: zero
// is what the linker makes of them there. glibc's `_dl_find_object` takes no lock, allocates nothing
// and may be called at any point.
global_asm!(
    ".macro unwind_local_function name",
    ".pushsection .text.\\name, \"ax\", @progbits",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    ".cfi_startproc",
    ".endm",
    ".macro unwind_local_end name",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    ".popsection",
    ".endm",
    ".pushsection .tbss.unwind_local, \"awT\", @nobits",
    ".globl unwind_local_thread",
    ".hidden unwind_local_thread",
    ".type unwind_local_thread, @object",
    ".balign 8",
    "unwind_local_thread:",
    ".zero 32",
    ".size unwind_local_thread, 32",
    ".popsection",
    "unwind_local_function unwind_local_pc",
    "movl (%esp), %eax",
    "ret",
    "unwind_local_end unwind_local_pc",
    "unwind_local_function unwind_local_thread_words",
    "call unwind_local_pc",
    "addl $_GLOBAL_OFFSET_TABLE_, %eax",
    "movl unwind_local_thread@GOTNTPOFF(%eax), %eax",
    "addl %gs:0, %eax",
    "ret",
    "unwind_local_end unwind_local_thread_words",
    ".weak _dl_find_object",
    "unwind_local_function unwind_local_find_object",
    "call unwind_local_pc",
    "addl $_GLOBAL_OFFSET_TABLE_, %eax",
    "movl _dl_find_object@GOT(%eax), %eax",
    "testl %eax, %eax",
    "je 2f",
    "jmp *%eax",
    "2:",
    "movl $1, %eax",
    "ret",
    "unwind_local_end unwind_local_find_object",
    ".weak gnu_get_libc_version",
    "unwind_local_function unwind_local_is_glibc",
    "call unwind_local_pc",
    "addl $_GLOBAL_OFFSET_TABLE_, %eax",
    "movl _dl_find_object@GOT(%eax), %ecx",
    "orl gnu_get_libc_version@GOT(%eax), %ecx",
    "setne %al",
    "ret",
    "unwind_local_end unwind_local_is_glibc",
    ".weak _dl_load_adds",
    "unwind_local_function unwind_local_loads_of_program",
    "call unwind_local_pc",
    "addl $_GLOBAL_OFFSET_TABLE_, %eax",
    "movl _dl_load_adds@GOT(%eax), %eax",
    "ret",
    "unwind_local_end unwind_local_loads_of_program",
    // Six arguments are in all registers that there are.
    "unwind_local_function unwind_local_call",
    "pushl %ebp",
    ".cfi_adjust_cfa_offset 4",
    ".cfi_rel_offset ebp, 0",
    "pushl %ebx",
    ".cfi_adjust_cfa_offset 4",
    ".cfi_rel_offset ebx, 0",
    "pushl %esi",
    ".cfi_adjust_cfa_offset 4",
    ".cfi_rel_offset esi, 0",
    "pushl %edi",
    ".cfi_adjust_cfa_offset 4",
    ".cfi_rel_offset edi, 0",
    "movl 20(%esp), %eax",
    "movl 24(%esp), %ebp",
    "movl (%ebp), %ebx",
    "movl 4(%ebp), %ecx",
    "movl 8(%ebp), %edx",
    "movl 12(%ebp), %esi",
    "movl 16(%ebp), %edi",
    "movl 20(%ebp), %ebp",
    "call *28(%esp)",
    "popl %edi",
    ".cfi_adjust_cfa_offset -4",
    ".cfi_restore edi",
    "popl %esi",
    ".cfi_adjust_cfa_offset -4",
    ".cfi_restore esi",
    "popl %ebx",
    ".cfi_adjust_cfa_offset -4",
    ".cfi_restore ebx",
    "popl %ebp",
    ".cfi_adjust_cfa_offset -4",
    ".cfi_restore ebp",
    "ret",
    "unwind_local_end unwind_local_call",
    "unwind_local_function unwind_local_interrupt",
    "int $0x80",
    "ret",
    "unwind_local_end unwind_local_interrupt",
    options(att_syntax),
);

unsafe extern "C" {
    safe fn unwind_local_thread_words() -> &'static ThreadWords;
    fn unwind_local_call(number: libc::c_long, arguments: &[usize; 6], entry: usize) -> isize;
    fn unwind_local_interrupt();
}

/// The function by which the kernel is called, once it is known.
static ENTRY: AtomicUsize = AtomicUsize::new(0);

/// The kernel's own function in the vDSO, which takes a seventieth of the time of `int 0x80` on
/// some machines.
#[cold]
fn find_entry() -> usize {
    const AT_SYSINFO: libc::c_ulong = 32;
    // SAFETY: the thread's own word.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: likewise.
    let saved = unsafe { errno.read() };
    // SAFETY: it looks in a list that the kernel left, and sets `errno` if there is no such entry.
    let entry = unsafe { libc::getauxval(AT_SYSINFO) };
    // SAFETY: as above.
    unsafe { errno.write(saved) };
    let interrupt: unsafe extern "C" fn() = unwind_local_interrupt;
    #[expect(clippy::as_conversions, reason = "a function's address")]
    let interrupt = (interrupt as *const ()).addr();
    let entry = usize::try_from(entry).ok().filter(|entry| *entry != 0).unwrap_or(interrupt);
    ENTRY.store(entry, Ordering::Relaxed);
    entry
}

/// The words of this thread: zero or what was stored, for as long as it runs. The reference does
/// not leave it.
#[inline]
pub(crate) fn thread_words() -> &'static ThreadWords {
    unwind_local_thread_words()
}

/// The address of the thread's control block, which no other running thread has.
#[inline]
pub(crate) fn control_block() -> u64 {
    let block: u32;
    // SAFETY: its first word is its address.
    unsafe {
        asm!("mov {}, dword ptr gs:[0]", out(reg) block, options(nostack, pure, readonly));
    }
    block.into()
}

/// Calls the kernel, and returns what it returns.
///
/// # Safety
///
/// The call may read and write what the arguments say.
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let entry = match ENTRY.load(Ordering::Relaxed) {
        0 => find_entry(),
        entry => entry,
    };
    // SAFETY: as the caller promises.
    unsafe { unwind_local_call(number, &arguments, entry) }
}
