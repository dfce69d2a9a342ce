//! Programs whose stacks are known, in every combination of functions: whatever a walk
//! leaves out, it does not call the stack complete.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod kind;
mod program;
use unwind_core::{Memory, RowCache, RowSource, Trace, VirtAddr, Walker};
use unwind_x86::{
    FramePointers, InstructionAnalysis, SignalTrampolines, TrustedFramePointers, X86_64,
};

use kind::{CALLERS, Kind, STOPPED};
use program::{Captured, Program, Tables};

/// What a walk found.
#[derive(Debug, PartialEq)]
struct Walked {
    pcs: Vec<u64>,
    is_complete: bool,
    has_marks: bool,
    /// A frame pointer was taken as unchanged.
    says_assumed: bool,
}

/// Walks the stack of `program` frame by frame.
fn walk_plainly<F>(program: &Program, what: Captured, fallback: F) -> Walked
where
    F: RowSource<X86_64, Error = core::convert::Infallible> + Copy,
{
    walk_by(program, Tables::new(program), what, fallback)
}

/// The same by these tables.
fn walk_by<F>(program: &Program, tables: Tables<'_>, what: Captured, fallback: F) -> Walked
where
    F: RowSource<X86_64, Error = core::convert::Infallible> + Copy,
{
    let memory = &mut program.memory(what);
    let regs = program.registers();
    let rows = RowSource::<X86_64>::or(tables, SignalTrampolines);
    let rows = RowSource::<X86_64>::or(rows, InstructionAnalysis);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, rows).fallback(fallback);
    let mut frames = walker.frames(regs, &mut *memory);
    let found: Vec<_> = frames.by_ref().collect();
    Walked {
        pcs: found.iter().map(|frame| frame.pc.addr().get()).collect(),
        is_complete: frames.is_complete(),
        has_marks: found.iter().any(|frame| frame.provenance.is_after_gap()),
        says_assumed: found.iter().any(|frame| frame.provenance.is_fp_assumed()),
    }
}

/// Walks it by each way of walking, which all find the same.
fn walk<F>(program: &Program, what: Captured, fallback: F) -> Walked
where
    F: RowSource<X86_64, Error = core::convert::Infallible> + Copy,
{
    let plain = walk_plainly(program, what, fallback);
    let memory = &mut program.memory(what);
    let (tables, regs) = (Tables::new(program), program.registers());
    let mut cache = RowCache::<64>::new();
    let rows = tables.or(SignalTrampolines).or(InstructionAnalysis);
    let walker = Walker::new(X86_64::FOUR_LEVEL, rows).cache(&mut cache);
    let mut walker = walker.fallback(fallback);
    let mut trace = Trace::<[_; 32]>::new();
    for _ in 0..2 {
        walker.trace(regs, memory, &mut trace);
        assert!(trace.pcs().map(VirtAddr::get).eq(plain.pcs.iter().copied()), "{program:?}");
        assert_eq!(trace.is_complete(), plain.is_complete, "{program:?}");
    }
    plain
}

/// Whether the walk cannot know the frame pointer and takes the wrong one: of a leaf that
/// saves it below the stack pointer and changes it, where that memory was not captured.
fn is_lost(chain: &[Kind], what: Captured) -> bool {
    chain.first() == Some(&Kind::Leaf) && what != Captured::All
}

/// Calls `look` with each chain of up to `depth` functions, innermost first. The
/// innermost one, and each that a signal interrupted, was stopped at any instruction.
fn each_chain(depth: usize, look: &mut impl FnMut(&[Kind])) {
    fn extend(chain: &mut Vec<Kind>, depth: usize, look: &mut impl FnMut(&[Kind])) {
        if chain.last() != Some(&Kind::Signal) {
            look(chain);
        }
        if chain.len() == depth {
            return;
        }
        let is_stopped = matches!(chain.last(), None | Some(Kind::Signal));
        let kinds = if is_stopped { STOPPED } else { CALLERS };
        for &kind in kinds {
            chain.push(kind);
            extend(chain, depth, look);
            chain.pop();
        }
    }
    extend(&mut Vec::new(), depth, look);
}

#[test]
fn a3_no_stack_of_any_five_functions_is_complete_and_lacks_a_caller() {
    let (mut chains, mut complete, mut marked) = (0, 0, 0);
    each_chain(5, &mut |chain| {
        let program = Program::new(chain);
        for what in [Captured::All, Captured::FromSp, Captured::StackOnly] {
            // The longest are nearly all of the chains.
            let walk = if chain.len() < 5 { walk::<FramePointers> } else { walk_plainly };
            let found = walk(&program, what, FramePointers);
            let truth = program.truth();
            if is_lost(chain, what) {
                assert!(found.says_assumed, "{chain:?}, {what:?}");
                continue;
            }
            assert!(
                !found.is_complete || found.pcs == truth,
                "{chain:?}, {what:?}: {:x?} is said to be complete, and is {truth:x?}",
                found.pcs
            );
            assert!(!(found.is_complete && found.has_marks), "{chain:?}");
            chains += 1;
            complete += u32::from(found.is_complete);
            marked += u32::from(found.has_marks);
        }
    });
    // What it sees: more than a few stacks of each sort.
    assert!(chains > 100_000, "{chains}");
    assert!(complete * 20 > chains && marked * 2 > chains, "{complete}, {marked} of {chains}");
}

#[test]
fn a1_every_stack_of_code_with_tables_is_complete_and_lacks_nothing() {
    let mut chains = 0;
    each_chain(4, &mut |chain| {
        if chain.iter().any(|kind| !kind.has_table()) {
            return;
        }
        let program = Program::new(chain);
        for what in [Captured::All, Captured::FromSp, Captured::StackOnly] {
            // Without code, nothing tells that the kernel's trampoline is one.
            let is_unknown = what == Captured::StackOnly && chain.contains(&Kind::Signal);
            if is_unknown || is_lost(chain, what) {
                continue;
            }
            let found = walk(&program, what, FramePointers);
            assert_eq!(found.pcs, program.truth(), "{chain:?}, {what:?}");
            assert!(found.is_complete && !found.has_marks, "{chain:?}, {what:?}");
            chains += 1;
        }
    });
    assert!(chains > 2_000, "{chains}");
}

#[test]
fn u1_no_stack_is_complete_by_a_row_that_is_wrong_by_a_word_and_a_zero() {
    let (mut chains, mut cut) = (0, 0);
    each_chain(4, &mut |chain| {
        if chain.is_empty() || chain.iter().any(|kind| !kind.has_table()) {
            return;
        }
        let program = Program::with_zeroes(chain);
        let truth = program.truth();
        for (wrong, by) in (1..=chain.len()).flat_map(|wrong| [(wrong, 8), (wrong, -8)]) {
            for what in [Captured::All, Captured::FromSp, Captured::StackOnly] {
                // Without code, nothing tells that the kernel's trampoline is one.
                let is_unknown = what == Captured::StackOnly && chain.contains(&Kind::Signal);
                if is_unknown || is_lost(chain, what) {
                    continue;
                }
                let tables = Tables::new(&program).wrong(wrong, by);
                let found = walk_by(&program, tables, what, FramePointers);
                let is_whole = found.pcs == truth;
                assert!(
                    !found.is_complete || is_whole,
                    "{chain:?}, {what:?}, {wrong} by {by}: {:x?} is said to be complete, and is {truth:x?}",
                    found.pcs
                );
                chains += 1;
                cut += u32::from(!is_whole);
            }
        }
    });
    assert!(chains > 10_000 && cut * 2 > chains, "{cut} of {chains}");
}

#[test]
fn a3_frame_pointers_that_the_host_vouches_for_leave_no_mark() {
    let mut chains = 0;
    each_chain(4, &mut |chain| {
        let keeps = |kind: &Kind| kind.has_table() || *kind == Kind::JitFrame;
        if !chain.iter().all(keeps) || !chain.contains(&Kind::JitFrame) {
            return;
        }
        let program = Program::new(chain);
        let found = walk(&program, Captured::All, TrustedFramePointers);
        assert_eq!(found.pcs, program.truth(), "{chain:?}");
        assert!(found.is_complete, "{chain:?}");
        let guessed = walk(&program, Captured::All, FramePointers);
        assert_eq!(guessed.pcs, program.truth(), "{chain:?}");
        assert!(guessed.has_marks && !guessed.is_complete, "{chain:?}");
        chains += 1;
    });
    assert!(chains > 500, "{chains}");
}

#[test]
fn the_made_up_memory_is_what_was_captured() {
    let program = Program::new(&[Kind::Leaf, Kind::Frame]);
    let below = VirtAddr::new(program.sp() - 8);
    let at = VirtAddr::new(program.sp());
    for (what, reads) in [(Captured::All, true), (Captured::FromSp, false)] {
        let mut memory = program.memory(what);
        assert_eq!(memory.read_u64(below).is_ok(), reads);
        assert!(memory.read_u64(at).is_ok());
    }
}
