//! Whether a function keeps a frame pointer, by its first instructions.
//!
//! A frame pointer that is none may point at zeroes, which then look like the
//! return address of an outermost frame. It is none unless the function of the
//! frame has set it up.

use unwind_core::{Memory, VirtAddr};

use crate::target::registers::CodeMode;

/// `endbr64` and `endbr32`, which may come first.
const ENDBR: [[u8; 4]; 2] = [[0xf3, 0x0f, 0x1e, 0xfa], [0xf3, 0x0f, 0x1e, 0xfb]];

/// `push rbp; mov rbp, rsp`, in both encodings.
const SETUP_64: [&[u8]; 2] = [&[0x55, 0x48, 0x89, 0xe5], &[0x55, 0x48, 0x8b, 0xec]];

/// `push ebp; mov ebp, esp`, in both encodings.
const SETUP_32: [&[u8]; 2] = [&[0x55, 0x89, 0xe5], &[0x55, 0x8b, 0xec]];

/// Whether the function that starts at `start` sets up a frame pointer before
/// it comes to `pc`.
pub(crate) fn is_done(mode: CodeMode, start: u64, pc: u64, mem: &mut impl Memory) -> bool {
    let mut bytes = [0; 8];
    if mem.read(VirtAddr::new(start), &mut bytes).is_err() {
        return false;
    }
    let endbr = ENDBR.iter().find_map(|endbr| bytes.strip_prefix(endbr));
    let code = endbr.unwrap_or(&bytes);
    let setups = match mode {
        CodeMode::X86_64 => SETUP_64,
        CodeMode::Ia32 => SETUP_32,
    };
    setups.iter().any(|setup| {
        let skipped = bytes.len().saturating_sub(code.len());
        let end = u64::try_from(skipped.saturating_add(setup.len())).unwrap_or(u64::MAX);
        code.starts_with(setup) && pc.checked_sub(start).is_some_and(|offset| offset >= end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwind_core::SliceMemory;

    const START: u64 = 0x1000;

    fn is_done_at(mode: CodeMode, code: &[u8], offset: u64) -> bool {
        let mut mem = SliceMemory::new(VirtAddr::new(START), code);
        is_done(mode, START, START.wrapping_add(offset), &mut mem)
    }

    #[test]
    fn it_is_done_behind_the_move_and_not_before() {
        let plain = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x90, 0x90, 0xc3];
        let with_endbr = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x8b, 0xec];
        let code_32 = [0x55, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90, 0xc3];
        for (mode, code, len) in [
            (CodeMode::X86_64, plain, 4),
            (CodeMode::X86_64, with_endbr, 8),
            (CodeMode::Ia32, code_32, 3),
        ] {
            for offset in 0..12 {
                assert_eq!(is_done_at(mode, &code, offset), offset >= len, "{code:x?} {offset}");
            }
        }
    }

    #[test]
    fn other_code_does_not_set_up_a_frame_pointer() {
        for code in [
            // mov eax, 229; syscall
            [0xb8, 0xe5, 0, 0, 0, 0x0f, 0x05, 0xc3],
            // push rbp; push rbx: rbp is free for data then
            [0x55, 0x53, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3],
            // of the other mode
            [0x55, 0x89, 0xe5, 0x90, 0x90, 0x90, 0x90, 0xc3],
        ] {
            assert!(!is_done_at(CodeMode::X86_64, &code, 8), "{code:x?}");
        }
        assert!(!is_done_at(CodeMode::X86_64, &[0x55, 0x48], 8), "unreadable code");
    }
}
