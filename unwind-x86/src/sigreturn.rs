//! Signal trampolines, known by their instructions.
//!
//! A signal handler returns to a few instructions that make one system call.
//! They are part of the kernel's interface: debuggers and unwinders look for
//! exactly these bytes, so C libraries keep them.

use unwind_core::{Memory, ReadError, VirtAddr};

/// `mov rax, 15; syscall`.
const RT_SIGRETURN_64: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Where the `syscall` is in it.
const SYSCALL_AT: u64 = 7;

/// `pop eax; mov eax, 119; int 0x80`.
const SIGRETURN_32: [u8; 8] = [0x58, 0xb8, 0x77, 0, 0, 0, 0xcd, 0x80];

/// `mov eax, 173; int 0x80`.
const RT_SIGRETURN_32: [u8; 7] = [0xb8, 0xad, 0, 0, 0, 0xcd, 0x80];

/// Where the `int` is in both, less the `pop`.
const INT_AT: u64 = 5;

/// Which of the trampolines of 32-bit code a pc is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sigreturn32 {
    /// Of a handler without `SA_SIGINFO`.
    Plain {
        /// Whether the `pop` is done.
        popped: bool,
    },
    /// Of a handler with `SA_SIGINFO`.
    Rt,
}

/// Whether `pc` is at an instruction of the 64-bit trampoline.
#[inline(never)]
pub(crate) fn is_rt_sigreturn_64<M: Memory>(pc: VirtAddr, mem: &mut M) -> Result<bool, ReadError> {
    Ok(is_code(pc, 0, &RT_SIGRETURN_64, mem)? || is_code(pc, SYSCALL_AT, &RT_SIGRETURN_64, mem)?)
}

/// Which 32-bit trampoline `pc` is at an instruction of.
pub(crate) fn find_sigreturn_32<M: Memory>(
    pc: VirtAddr,
    mem: &mut M,
) -> Result<Option<Sigreturn32>, ReadError> {
    for offset in [0, INT_AT] {
        if is_code(pc, offset, &RT_SIGRETURN_32, mem)? {
            return Ok(Some(Sigreturn32::Rt));
        }
    }
    for (offset, popped) in [(0, false), (1, true), (INT_AT.wrapping_add(1), true)] {
        if is_code(pc, offset, &SIGRETURN_32, mem)? {
            return Ok(Some(Sigreturn32::Plain { popped }));
        }
    }
    Ok(None)
}

/// Whether `code` starts `offset` bytes before `pc`. Code at the edge of a
/// mapping is not a trampoline; absent code may be one.
fn is_code<M: Memory, const N: usize>(
    pc: VirtAddr,
    offset: u64,
    code: &[u8; N],
    mem: &mut M,
) -> Result<bool, ReadError> {
    let Some(start) = pc.checked_sub(offset) else { return Ok(false) };
    let mut bytes = [0; N];
    match mem.read(start, &mut bytes) {
        Ok(()) => Ok(bytes == *code),
        Err(ReadError::Invalid) => Ok(false),
        Err(error) => Err(error),
    }
}
