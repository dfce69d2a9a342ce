//! What every walk of a crafted stack keeps to, whatever the rows and the
//! memory say.

use core::fmt::Debug;
use unwind_core::{Arch, End, Frame, FramePc, RowSource, TableError, Trace, VirtAddr, Walker};

use crate::target_memory::TargetMemory;

/// Room for all frames that the stacks here can have.
pub(crate) const FRAMES: usize = 64;

/// How many words are looked at beside a return address of zero.
const WORDS_BESIDE_ZERO: usize = 65;

/// Walks the stack and checks each frame. Returns the frames and the end.
///
/// `code_base` is what was added to each return address.
pub(crate) fn check<A, S, F>(
    walker: &mut Walker<A, S, F>,
    regs: A::Regs,
    memory: &TargetMemory,
    max_frames: u32,
    code_base: u32,
) -> (Vec<Frame>, End<S::Error>)
where
    A: Arch,
    S: RowSource<A>,
    S::Error: TableError + PartialEq + Debug + Copy,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
{
    let mut memory = memory.clone();
    let mut fresh = memory.clone();
    let (frames, end) = {
        let mut walk = walker.frames(regs, &mut memory);
        let frames: Vec<Frame> = walk.by_ref().collect();
        assert!(walk.next().is_none(), "fused");
        (frames, walk.end().expect("a walk without a next frame has a reason"))
    };
    assert!(frames.len() <= max_frames as usize);
    // A row, a context, code at both sides of the pc, and a fallback; and at a return address of
    // zero the words beside it, each of which may be one of a call.
    let allowed = 64 * (frames.len() + 1) + WORDS_BESIDE_ZERO * 16;
    assert!(memory.reads <= allowed, "{} reads, {} frames", memory.reads, frames.len());
    for (index, frame) in frames.iter().enumerate() {
        let Some(callee) = index.checked_sub(1).and_then(|index| frames.get(index)) else {
            assert!(matches!(frame.pc, FramePc::Exact(_)));
            continue;
        };
        assert_eq!(callee.cfa, Some(frame.sp));
        // What a signal interrupted may be on another stack.
        if matches!(frame.pc, FramePc::Return(_)) {
            assert!(frame.sp >= callee.sp, "{frame:?} after {callee:?}");
            // Once in a row, where all registers are known.
            let stands = frame.sp == callee.sp;
            assert!(!stands || matches!(callee.pc, FramePc::Exact(_)), "{frame:?}");
        }
        let pc = match code_base {
            0 => frame.pc.addr().get(),
            base => (frame.pc.addr().get() as u32).wrapping_sub(base).into(),
        };
        // A return address may be in a register of the innermost frame.
        let is_read = memory.seen.contains(&pc) || matches!(callee.pc, FramePc::Exact(_));
        assert!(is_read, "nothing said {pc:#x}: {frame:?}");
    }
    if end.is_retryable() {
        assert!(memory.missed, "{end:?}");
    }

    // The same into a trace.
    let mut trace = Trace::<[_; FRAMES]>::new();
    walker.trace(regs, &mut fresh, &mut trace);
    let traced: Vec<_> = trace.frames().map(|frame| (frame.pc, frame.provenance)).collect();
    let walked: Vec<_> = frames.iter().map(|frame| (frame.pc, frame.provenance)).collect();
    assert_eq!(traced, walked[..walked.len().min(FRAMES)]);
    if walked.len() < FRAMES {
        let last = frames.last().map_or(VirtAddr::new(0), |frame| frame.pc.lookup_addr());
        assert_eq!(trace.end(), Some(end.with_fault(last)));
    }
    (frames, end)
}
