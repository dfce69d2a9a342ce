//! The system call by which C libraries make a thread. It returns twice, in the caller and in the new thread,
//! whose stack is another one, so no call frame information is of the code after it.

use core::convert::Infallible;

use unwind_core::{
    CfaRule, FrameContext, FramePc, Memory, Origin, RegRule, Registers as _, Row, RowSource,
};

use crate::code::Window;
use crate::x86_64::{X86_64, X86_64Regs};

/// A source of the rows of interrupted frames that stand in this code, of `clone` and `clone3` in the 64-bit C library
/// of GNU, up to the `ret`:
///
/// ```text
/// syscall; test rax, rax; jl failed; je thread; ret
/// thread: xor ebp, ebp
/// ```
///
/// A new thread has zero from the call, and nothing is above it. Its maker has another number, and the `ret`
/// takes the stack as it is here.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadStarts;

impl RowSource<X86_64> for ThreadStarts {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(thread_start(frame, mem))
    }
}

#[inline(never)]
fn thread_start<M: Memory>(frame: &FrameContext<'_, X86_64Regs>, mem: &mut M) -> Option<Row> {
    let FramePc::Exact(pc) = frame.pc() else { return None };
    let passed = match Window::<32>::after(pc, mem).bytes().first() {
        Some(0x0f) => 0,
        Some(0x48) => 2,
        Some(0x7c) => 5,
        Some(0x74) => 7,
        _ => return None,
    };
    let code = Window::<32>::after(pc.checked_sub(passed)?, mem);
    let (to_distance, rest) = code.bytes().split_first_chunk()?;
    let is_whole = *to_distance == [0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c]
        && rest.get(1..6) == Some(&[0x74, 0x01, 0xc3, 0x31, 0xed]);
    if !is_whole {
        return None;
    }
    let is_new = passed != 0 && frame.registers()?.get(X86_64Regs::RAX)? == 0;
    let maker = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
    let row = if is_new { Row::outermost() } else { maker };
    Some(row.with_origin(Origin::Instructions))
}

#[cfg(test)]
mod tests {
    use unwind_core::{SliceMemory, VirtAddr};

    use super::*;

    /// Of Debian's libc6 2.36, after the number of the call.
    const CLONE3: [u8; 12] =
        [0x0f, 0x05, 0x48, 0x85, 0xc0, 0x7c, 0x18, 0x74, 0x01, 0xc3, 0x31, 0xed];

    /// Whether a frame `at` bytes into the code is the outermost one, if it is known.
    fn is_outermost(code: &[u8], at: u64, rax: Option<u64>) -> Option<bool> {
        let start = VirtAddr::new(0x1000);
        let pc = start.checked_add(at)?;
        let gpr = rax.map(|rax| [rax, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        let regs = gpr.map(|gpr| X86_64Regs::from_all(pc.get(), gpr));
        let frame = FrameContext::new(FramePc::Exact(pc), 0x7000, None, regs.as_ref());
        let mut page = [0; 64];
        page.iter_mut().zip(code).for_each(|(to, from)| *to = *from);
        let row = thread_start(&frame, &mut SliceMemory::new(start, &page))?;
        let caller = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
        assert!(row.is_outermost() || row == caller.with_origin(Origin::Instructions));
        Some(row.is_outermost())
    }

    #[test]
    fn u12_a_thread_that_starts_in_clone_is_the_outermost_frame_and_its_maker_is_not() {
        for at in [2, 5, 7] {
            assert_eq!(is_outermost(&CLONE3, at, Some(0)), Some(true), "{at}");
            for number in [1, 4711, u64::MAX] {
                assert_eq!(is_outermost(&CLONE3, at, Some(number)), Some(false), "{at}");
            }
            assert_eq!(is_outermost(&CLONE3, at, None), None, "which of them returns is not known");
        }
        // Before the call there is one thread.
        for rax in [None, Some(0), Some(435)] {
            assert_eq!(is_outermost(&CLONE3, 0, rax), Some(false));
        }
        // Inside an instruction, and where others know the frame.
        for at in [1, 3, 4, 6, 8, 9, 10, 11] {
            assert_eq!(is_outermost(&CLONE3, at, Some(0)), None, "{at}");
        }
    }

    #[test]
    fn u12_the_code_in_which_a_thread_starts_is_known_as_a_whole() {
        for place in [0, 2, 5, 7] {
            for len in 0..CLONE3.len() {
                let code = CLONE3.get(..len).unwrap_or_default();
                assert_eq!(is_outermost(code, place, Some(0)), None, "{len}");
            }
            for at in 0..CLONE3.len() {
                let mut changed = CLONE3;
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 0x81;
                }
                // How far away a failure is handled may be anything.
                assert_eq!(is_outermost(&changed, place, Some(0)).is_some(), at == 6, "{at}");
            }
        }
    }

    #[test]
    fn u12_a_return_address_is_in_no_such_code() {
        let start = VirtAddr::new(0x1000);
        let regs = X86_64Regs::from_all(0, [0; 16]);
        let (frame, mut page) =
            (FrameContext::new(FramePc::Return(start), 0x7000, None, Some(&regs)), [0; 64]);
        page.iter_mut().zip(CLONE3).for_each(|(to, from)| *to = from);
        assert_eq!(thread_start(&frame, &mut SliceMemory::new(start, &page)), None);
    }
}
