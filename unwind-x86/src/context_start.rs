//! The code in which a context of `makecontext`, or of Boost's `make_fcontext`, starts: its function
//! returns there, and nothing is above.

use unwind_core::{FrameContext, FramePc, Memory, Origin, Row, WordSize};

use crate::code::Window;

/// How much of the code is looked at, in bytes.
const CODE: usize = 40;

/// The row of a frame that stands at the first instruction of such code, as the return address of
/// the context's function. No call comes before it, so no other return address leads there.
///
/// The C library of GNU has, for 64-bit and for 32-bit code:
///
/// ```text
/// mov rsp, rbx; pop rdi (or mov rdi, [rsp]); test rdi, rdi; je last
/// lea esp, [esp + 4 * ebx]; cmp dword [esp], 0; je last
/// (a call of setcontext)
/// last: (the exit code as an argument) call exit; hlt
/// ```
///
/// Boost has, for 64-bit code, of which the first two instructions enter the context:
///
/// ```text
/// push rbp; jmp rbx
/// xor rdi, rdi; call _exit; hlt
/// ```
pub(crate) fn context_start<R, M: Memory>(
    word: WordSize,
    frame: &FrameContext<'_, R>,
    mem: &mut M,
) -> Option<Row> {
    let FramePc::Return(pc) = frame.pc() else { return None };
    let code = Window::<CODE>::after(pc, mem);
    let is_start = starts_context(word, code.bytes())
        || word == WordSize::Eight
            && ends_context(code.bytes())
            && Window::<ENTRY>::before(pc, mem).bytes() == ENTERS;
    is_start.then(|| Row::outermost().with_origin(Origin::Instructions))
}

/// How long that is by which Boost enters a context, in bytes.
const ENTRY: usize = 3;

/// `push rbp; jmp rbx`.
const ENTERS: [u8; ENTRY] = [0x55, 0xff, 0xe3];

fn ends_context(code: &[u8]) -> bool {
    matches!(code, [0x48, 0x31, 0xff, 0xe8, _, _, _, _, 0xf4, ..])
}

fn starts_context(word: WordSize, code: &[u8]) -> bool {
    let after_test = match (word, code) {
        (WordSize::Eight, [0x48, 0x89, 0xdc, 0x5f, 0x48, 0x85, 0xff, rest @ ..])
        | (
            WordSize::Eight,
            [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, rest @ ..],
        )
        | (WordSize::Four, [0x8d, 0x24, 0x9c, 0x83, 0x3c, 0x24, 0, rest @ ..]) => rest,
        _ => return false,
    };
    let [0x74, distance @ 0..0x20, rest @ ..] = after_test else { return false };
    let Some(last) = rest.get(usize::from(*distance)..) else { return false };
    let call = match (word, last) {
        (WordSize::Eight, call) => call,
        // xor eax, eax; and esp, -16; sub esp, 12; push eax
        (WordSize::Four, [0x31, 0xc0, 0x83, 0xe4, 0xf0, 0x83, 0xec, 0x0c, 0x50, call @ ..]) => call,
        (WordSize::Four, _) => return false,
    };
    matches!(call, [0xe8, _, _, _, _, 0xf4, ..])
}

#[cfg(test)]
mod tests {
    use unwind_core::{SliceMemory, VirtAddr};

    use super::*;

    /// Of Debian's libc6 2.36, and of libc6-i386.
    const START_64: [u8; 26] = [
        0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, 0x74, 0x08, 0xe8, 0x0f, 0xf6,
        0xfe, 0xff, 0x48, 0x89, 0xc7, 0xe8, 0xa7, 0xcc, 0xfe, 0xff, 0xf4,
    ];
    const START_32: [u8; 31] = [
        0x8d, 0x24, 0x9c, 0x83, 0x3c, 0x24, 0x00, 0x74, 0x07, 0xe8, 0xd7, 0x19, 0x00, 0x00, 0xeb,
        0x02, 0x31, 0xc0, 0x83, 0xe4, 0xf0, 0x83, 0xec, 0x0c, 0x50, 0xe8, 0x47, 0xef, 0xff, 0xff,
        0xf4,
    ];

    /// Of Debian's libboost-context 1.74, from what enters the context on.
    const BOOSTS: [u8; 12] =
        [0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8, 0x49, 0xfe, 0xff, 0xff, 0xf4];

    /// Whether the function of a context returns to code after those that enter it.
    fn is_outermost(code: &[u8]) -> bool {
        let start = VirtAddr::new(0x1000);
        let Some(pc) = start.checked_add(3) else { return false };
        let frame = FrameContext::new(FramePc::Return(pc), 0, None, None::<&()>);
        let mut page = [0; 64];
        for (to, from) in page.iter_mut().zip(code) {
            *to = *from;
        }
        let mut mem = SliceMemory::new(start, &page);
        context_start(WordSize::Eight, &frame, &mut mem).is_some_and(|row| row.is_outermost())
    }

    #[test]
    fn u10_a_context_of_boost_ends_where_its_function_returns_to() {
        assert!(is_outermost(&BOOSTS));
        for len in 0..BOOSTS.len() {
            assert!(!is_outermost(BOOSTS.get(..len).unwrap_or_default()), "{len}");
        }
        for at in 0..BOOSTS.len() {
            let mut changed = BOOSTS;
            if let Some(byte) = changed.get_mut(at) {
                *byte ^= 0x81;
            }
            // What is called may be anything.
            assert_eq!(is_outermost(&changed), matches!(at, 7..11), "{at}");
        }
    }

    #[test]
    fn u10_the_code_that_a_context_starts_in_is_known_as_a_whole() {
        for (word, other, code) in [
            (WordSize::Eight, WordSize::Four, &START_64[..]),
            (WordSize::Four, WordSize::Eight, &START_32[..]),
        ] {
            assert!(starts_context(word, code));
            assert!(!starts_context(other, code));
            for len in 0..code.len() {
                assert!(!starts_context(word, code.get(..len).unwrap_or_default()), "{len}");
            }
            for at in 0..code.len() {
                // What is called, and how far it is, may be anything.
                let is_code = |at: usize| match word {
                    WordSize::Eight => at == 20 || !matches!(at, 12..25),
                    WordSize::Four => !matches!(at, 9..16 | 26..30),
                };
                let mut changed = [0; CODE];
                for (to, from) in changed.iter_mut().zip(code) {
                    *to = *from;
                }
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 0x81;
                }
                let found = starts_context(word, changed.get(..code.len()).unwrap_or_default());
                assert_eq!(found, !is_code(at), "{at}");
            }
        }
    }
}
