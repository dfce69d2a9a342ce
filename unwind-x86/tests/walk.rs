//! Crafted stacks of 64-bit and 32-bit code.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use core::convert::Infallible;
use core::sync::atomic::{AtomicU64, Ordering};

use test_support::SparseMemory;
use unwind_core::{
    Arch, CfaRule, DwarfReg, Empty, End, FrameContext, FramePc, Memory, Origin, ReadError, RegRule,
    Registers, Row, RowCache, RowSource, StepError, Trace, VirtAddr, Walker, WordSize,
};
use unwind_x86::{
    FramePointers, Ia32, Ia32Regs, InstructionAnalysis, SignalTrampolines, X86_64, X86_64Regs,
};

/// The pcs and the end of a walk by frame pointers, with all the help that
/// code bytes give.
fn walk<A: Arch>(arch: A, regs: A::Regs, target: &SparseMemory) -> (Vec<u64>, End<Infallible>)
where
    InstructionAnalysis: RowSource<A, Error = Infallible>,
    SignalTrampolines: RowSource<A, Error = Infallible>,
{
    let mut target = target.clone();
    let source = RowSource::<A>::or(SignalTrampolines, InstructionAnalysis);
    let mut walker = Walker::new(arch, source).fallback(FramePointers);
    let mut frames = walker.frames(regs, &mut target);
    let pcs = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    (pcs, frames.end().unwrap())
}

/// A chain of frame pointers that ends with a zero. It proves nothing, since a
/// frame pointer may be none.
const fn chain_end(cfa: u64) -> End<Infallible> {
    End::Step(StepError::ZeroReturnAddress { cfa })
}

const PUSH_RBP: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];

#[test]
fn f12_the_caller_of_a_function_stopped_at_its_entry_is_not_lost() {
    // rsp is at the return address, rbp is still the caller's.
    let target = SparseMemory::default()
        .code(0x40_1000, &PUSH_RBP)
        .words(0x7000, &[0x40_2010])
        .words(0x7010, &[0x7020, 0x40_3010])
        .words(0x7020, &[0, 0]);
    let regs = X86_64Regs::new(0x40_1000, 0x7000, 0x7010);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, regs, &target);
    assert_eq!((pcs, end), (vec![0x40_1000, 0x40_2010, 0x40_3010], chain_end(0x7030)));

    let mut naive = Walker::new(X86_64::FOUR_LEVEL, FramePointers);
    let mut mem = target.clone();
    let pcs: Vec<_> = naive.frames(regs, &mut mem).map(|frame| frame.pc.addr().get()).collect();
    assert_eq!(pcs, [0x40_1000, 0x40_3010], "the frame pointer alone loses the caller");
}

#[test]
fn a_return_address_must_be_canonical_for_the_width_in_use() {
    let high = 0x0080_0000_0000_1000;
    let target = SparseMemory::default().words(0x7000, &[0x7010, high, 0, 0]);
    let regs = X86_64Regs::new(0x40_1000, 0x7000, 0x7000);
    let end = End::Step(StepError::NonCanonical { pc: high });
    assert_eq!(walk(X86_64::FOUR_LEVEL, regs, &target), (vec![0x40_1000], end));
    let (pcs, end) = walk(X86_64::FIVE_LEVEL, regs, &target);
    assert_eq!((pcs, end), (vec![0x40_1000, high], chain_end(0x7020)));
}

#[test]
fn stacks_at_both_ends_of_the_address_space_end_with_a_reason() {
    let regs = |sp, fp| X86_64Regs::new(0x40_1000, sp, fp);
    let overflow = End::Step(StepError::Overflow);
    let none = SparseMemory::default();
    for fp in [u64::MAX - 15, u64::MAX - 7, u64::MAX] {
        assert_eq!(walk(X86_64::FOUR_LEVEL, regs(0x7000, fp), &none).1, overflow, "{fp:#x}");
    }
    // The topmost frame that fits: CFA 2^64 - 8, its slots below.
    let top = u64::MAX - 23;
    let target = none.clone().words(top, &[0, 0]);
    assert_eq!(walk(X86_64::FOUR_LEVEL, regs(top, top), &target).1, chain_end(u64::MAX - 7));
    // And the lowest.
    let target = none.words(0, &[0, 0]);
    assert_eq!(
        walk(X86_64::FOUR_LEVEL, regs(0, 0), &target).1,
        chain_end(16),
        "a frame pointer of zero is one where the stack pointer is zero too"
    );

    let regs = |sp, fp| Ia32Regs::new(0x804_9000, sp, fp);
    for fp in [u32::MAX - 7, u32::MAX - 3, u32::MAX] {
        assert_eq!(
            walk(Ia32::FLAT, regs(0x7000, fp), &SparseMemory::default()).1,
            overflow,
            "{fp:#x}"
        );
    }
    let top = u32::MAX - 11;
    let target = SparseMemory::default().words_32(top.into(), &[0, 0]);
    assert_eq!(walk(Ia32::FLAT, regs(top, top), &target).1, chain_end(0xffff_fffc));
}

#[test]
fn crossing_frame_pointers_end_a_walk() {
    // The frame at 0x7000 says its caller's is at 0x7040, that one goes back
    // between the two.
    let target = SparseMemory::default()
        .words(0x7000, &[0x7040, 0x40_2010])
        .words(0x7020, &[0x7060, 0x40_4010])
        .words(0x7040, &[0x7020, 0x40_3010]);
    let regs = X86_64Regs::new(0x40_1000, 0x7000, 0x7000);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, regs, &target);
    assert_eq!(pcs, [0x40_1000, 0x40_2010, 0x40_3010]);
    let crossed = StepError::FramePointerBelowStack { fp: 0x7020, sp: 0x7050 };
    assert_eq!(end, End::Step(crossed));
}

#[test]
fn f11_slots_have_the_size_of_the_code_and_offsets_are_bytes() {
    let wide = SparseMemory::default().words(0x7000, &[0x7010, 0x40_2010, 0, 0]);
    let regs = X86_64Regs::new(0x40_1000, 0x7000, 0x7000);
    assert_eq!(walk(X86_64::FOUR_LEVEL, regs, &wide).0, [0x40_1000, 0x40_2010]);
    let narrow = SparseMemory::default().words_32(0x7000, &[0x7008, 0x804_2010, 0, 0]);
    let regs = Ia32Regs::new(0x804_1000, 0x7000, 0x7000);
    assert_eq!(walk(Ia32::FLAT, regs, &narrow).0, [0x804_1000, 0x804_2010]);
    // High halves of registers and slots do not exist in 32-bit code.
    let regs = Ia32Regs::new(0x804_1000, 0x7000, 0x7002);
    let (_, end) = walk(Ia32::FLAT, regs, &narrow);
    assert_eq!(end, End::Step(StepError::Misaligned { cfa: 0x700a }));
}

#[test]
fn r3_10_segment_bases_are_added_once_also_where_a_frame_keeps_its_frame_pointer() {
    // Code at 0x1_0000 and a stack at 0x20_0000, by linear address; the
    // registers are offsets. At the entry of a function ebp is the caller's,
    // so the frame keeps it: the base must not be added to it twice.
    let arch = Ia32::with_bases(0x1_0000, 0x20_0000);
    let target = SparseMemory::default()
        .code(0x1_1000, &[0x55, 0x89, 0xe5])
        .words_32(0x20_7000, &[0x2010])
        .words_32(0x20_7010, &[0x7018, 0x3010])
        .words_32(0x20_7018, &[0, 0]);
    let (pcs, end) = walk(arch, Ia32Regs::new(0x1000, 0x7000, 0x7010), &target);
    assert_eq!((pcs, end), (vec![0x1_1000, 0x1_2010, 0x1_3010], chain_end(0x7020)));
    // Bases wrap at 32 bits.
    let arch = Ia32::with_bases(0, 0xffff_f000);
    let target = SparseMemory::default().words_32(0x6000, &[0, 0]);
    let (_, end) = walk(arch, Ia32Regs::new(0x804_9000, 0x7000, 0x7000), &target);
    assert_eq!(end, chain_end(0x7008));
}

#[test]
fn r3_10_vm86_has_no_frames() {
    let (pcs, end) =
        walk(Ia32::VM86, Ia32Regs::new(0x1000, 0x7000, 0x7000), &SparseMemory::default());
    assert_eq!((pcs, end), (vec![], End::NotWalkable));
}

const RT_SIGRETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// A handler that runs on a signal stack at 0x9000 and whose signal
/// interrupted code that runs on a lower stack.
fn signal_64() -> (X86_64Regs, SparseMemory) {
    // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip.
    let gregs = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 0x7010, 3, 1, 0, 2, 0x7000, 0x40_5000];
    let target = SparseMemory::default()
        .put(0x6000, &RT_SIGRETURN)
        .words(0x9000, &[0x9010, 0x6000])
        .words(0x9010 + 40, &gregs)
        .words(0x7010, &[0, 0x40_6010]);
    (X86_64Regs::new(0x40_1000, 0x9000, 0x9000), target)
}

#[test]
fn a_signal_frame_in_the_middle_is_known_by_its_bytes() {
    let (regs, target) = signal_64();
    let mut mem = target.clone();
    let source = RowSource::<X86_64>::or(SignalTrampolines, Empty);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).fallback(FramePointers);
    let frames: Vec<_> = walker.frames(regs, &mut mem).collect();
    let pcs: Vec<_> = frames.iter().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!(pcs, [0x40_1000, 0x6000, 0x40_5000, 0x40_6010]);
    assert_eq!(frames[2].pc, FramePc::Exact(VirtAddr::new(0x40_5000)), "the next pc is exact");
    assert_eq!((frames[2].sp, frames[2].provenance.origin()), (0x7000, Origin::SignalContext));
    // Stopped in the trampoline itself, before its system call.
    for pc in [0x6000, 0x6007] {
        let regs = X86_64Regs::new(pc, 0x9010, 0);
        assert_eq!(walk(X86_64::FOUR_LEVEL, regs, &target).0, [pc, 0x40_5000, 0x40_6010]);
    }
    // Other code is no trampoline.
    let (pcs, _) = walk(X86_64::FOUR_LEVEL, regs, &target.put(0x6003, &[0x0e]));
    assert_eq!(pcs, [0x40_1000, 0x6000]);
}

#[test]
fn all_registers_are_known_right_below_a_signal_frame() {
    let (_, mut target) = signal_64();
    let arch = X86_64::FOUR_LEVEL;
    let saved = arch.signal_context(VirtAddr::new(0x6000), 0x9010, &mut target).unwrap().unwrap();
    let expected = [0, 1, 2, 3, 4, 5, 0x7010, 0x7000, 8, 9, 10, 11, 12, 13, 14, 15];
    assert_eq!(saved, X86_64Regs::from_all(0x40_5000, expected));
    let absent = arch.signal_context(VirtAddr::new(0x6000), 0xa000, &mut target);
    let addr = VirtAddr::new(0xa000 + 40);
    assert_eq!(absent, Err(StepError::Unreadable { addr, error: ReadError::Invalid }));
    let overflow = arch.signal_context(VirtAddr::new(0x6000), u64::MAX - 8, &mut target);
    assert_eq!(overflow, Err(StepError::Overflow));
}

/// A stack that is lent in words, and a trampoline; of the rest nothing is read.
struct Lent<'a> {
    start: u64,
    words: &'a [AtomicU64],
    others: SparseMemory,
}

impl Memory for Lent<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.others.read(addr, buf)
    }

    fn shared_words(&mut self, _: VirtAddr) -> Option<(VirtAddr, &[AtomicU64])> {
        Some((VirtAddr::new(self.start), self.words))
    }
}

#[test]
fn a_context_on_a_stack_that_is_lent_in_words_is_taken_from_them() {
    let (_, mut plain) = signal_64();
    let arch = X86_64::FOUR_LEVEL;
    let trampoline = VirtAddr::new(0x6000);
    let saved = arch.signal_context(trampoline, 0x9010, &mut plain).unwrap();
    // From the frame on, and 16 bytes before it.
    let words: Vec<AtomicU64> = (0..32)
        .map(|at| plain.read_u64(VirtAddr::new(0x9000 + 8 * at)).unwrap_or(0).into())
        .collect();
    let (_, others) = signal_64();
    // Where the words do not have all of it, or lie elsewhere, it is read.
    for (start, count) in [(0x9000, 32), (0x9000, 9), (0x9004, 32), (0x9100, 32), (0x9000, 0)] {
        let mut lent = Lent { start, words: &words[..count], others: others.clone() };
        assert_eq!(arch.signal_context(trampoline, 0x9010, &mut lent), Ok(saved), "{start:#x}");
    }
    // What the words say counts, where they have it.
    words[(0x10 + 40) / 8].store(0x1234, Ordering::Relaxed);
    let mut lent = Lent { start: 0x9000, words: &words, others };
    let changed = arch.signal_context(trampoline, 0x9010, &mut lent).unwrap().unwrap();
    assert_eq!(Registers::get(&changed, DwarfReg(8)), Some(0x1234));
}

#[test]
fn a_register_that_is_taken_out_is_not_known_and_the_others_are() {
    let all_64 =
        X86_64Regs::from_all(0x40_5000, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    let all_32 = Ia32Regs::from_all(0x804_5000, [1, 2, 3, 4, 5, 6, 7, 8]);
    // 16 and 8 are no general registers: nothing is taken out.
    for number in (0..=16).filter(|number| *number != 7) {
        let regs = all_64.without(DwarfReg(number));
        for other in 0..16 {
            let known = (other != number).then_some(u64::from(other) + 1);
            assert_eq!(Registers::get(&regs, DwarfReg(other)), known, "{number} {other}");
        }
    }
    for number in (0..=8).filter(|number| *number != 4) {
        let regs = all_32.without(DwarfReg(number));
        for other in 0..8 {
            let known = (other != number).then_some(u64::from(other) + 1);
            assert_eq!(Registers::get(&regs, DwarfReg(other)), known, "{number} {other}");
        }
    }
}

#[test]
fn both_trampolines_of_32_bit_code_are_known_by_their_bytes() {
    let plain = [0x58, 0xb8, 0x77, 0, 0, 0, 0xcd, 0x80];
    let rt = [0xb8, 0xad, 0, 0, 0, 0xcd, 0x80];
    // gs fs es ds, edi esi ebp esp ebx edx ecx eax, trapno err, eip.
    let context = [0, 0, 0, 0, 7, 6, 0x7010, 0x7000, 3, 2, 1, 0, 14, 4, 0x804_5000];
    let expected = Ia32Regs::from_all(0x804_5000, [0, 1, 2, 3, 0x7000, 0x7010, 6, 7]);
    let cases: [(&[u8], u64, u64, u64); 6] = [
        // Code, pc in it, stack pointer, where the context is.
        (&plain, 0, 0x9000, 0x9004),
        (&plain, 1, 0x9004, 0x9004),
        (&plain, 6, 0x9004, 0x9004),
        (&rt, 0, 0x9000, 0x9000 + 140 + 20),
        (&rt, 5, 0x9000, 0x9000 + 140 + 20),
        (&rt, 1, 0x9000, u64::MAX),
    ];
    for (code, at, sp, context_at) in cases {
        let base = Ia32::with_bases(0, 0x10_0000);
        let mut target = SparseMemory::default().put(0x6000, code);
        if context_at != u64::MAX {
            target = target.words_32(0x10_0000 + context_at, &context);
        }
        let found = base.signal_context(VirtAddr::new(0x6000 + at), sp, &mut target).unwrap();
        assert_eq!(found, (context_at != u64::MAX).then_some(expected), "{code:x?} +{at}");
        let pc = FramePc::Exact(VirtAddr::new(0x6000 + at));
        let frame = FrameContext::new(pc, sp, None, None);
        let row = RowSource::<Ia32>::row(&mut SignalTrampolines, &frame, &mut target).unwrap();
        assert_eq!(row, found.map(|_| Row::signal_context()), "{code:x?} +{at}");
    }
}

#[test]
fn a_signal_context_that_is_not_there_is_a_typed_end() {
    let target =
        SparseMemory::default().put(0x6000, &RT_SIGRETURN).words(0x9000, &[0x9010, 0x6000]);
    let regs = X86_64Regs::new(0x40_1000, 0x9000, 0x9000);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, regs, &target);
    assert_eq!(pcs, [0x40_1000, 0x6000]);
    assert!(matches!(end, End::Step(StepError::Unreadable { .. })), "{end:?}");
}

/// A row for the whole of memory.
struct Only(Row);

impl RowSource<X86_64> for Only {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        _: &unwind_core::FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(self.0))
    }
}

#[test]
fn flexible_rows_use_any_general_register_in_the_first_frame_only() {
    use unwind_core::{BaseReg, DwarfReg};
    let target = SparseMemory::default().words(0x8000 - 8, &[0x40_2010, 0]);
    for number in 0..16 {
        let reg = DwarfReg(number);
        let row = Row::new(
            CfaRule::Register(BaseReg::Reg(reg), 0),
            RegRule::Offset(-8),
            RegRule::SameValue,
        );
        let regs = X86_64Regs::from_all(0x40_1000, [0x7000; 16]).with(reg, 0x8000);
        let mut target = target.clone();
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, Only(row));
        let mut frames = walker.frames(regs, &mut target);
        assert_eq!(frames.next().unwrap().cfa, Some(0x8000), "r{number}");
        let second = frames.next().unwrap();
        assert_eq!(second.pc.addr().get(), 0x40_2010);
        // The stack pointer is known in every frame, and so is the frame
        // pointer that the first frame kept.
        let expected = match number {
            7 => End::Step(StepError::NoProgress { cfa: 0x8000, sp: 0x8000 }),
            6 => End::Step(StepError::NoProgress { cfa: 0x8000, sp: 0x8000 }),
            _ => End::Step(StepError::UnknownRegister(BaseReg::Reg(reg))),
        };
        assert_eq!(frames.end(), Some(expected), "r{number}");
    }
}

#[test]
fn word_sizes_are_those_of_the_code() {
    assert_eq!((X86_64::WORD, Ia32::WORD), (WordSize::Eight, WordSize::Four));
    assert_eq!(X86_64Regs::new(1, 2, 3).pc(), 1);
}

/// One row for all code but the outermost function at the given page.
struct OneRow(Row, u64);

impl<A: Arch> RowSource<A> for OneRow {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let is_outermost = frame.lookup_addr().get() & !0xfff == self.1;
        Ok(Some(if is_outermost { Row::outermost() } else { self.0 }))
    }
}

/// Whether a walk from the `ret` after `pop rbp`, whose row is `row`, took the register
/// as unchanged.
fn takes_register<A: Arch>(arch: A, regs: A::Regs, row: Row, target: &SparseMemory) -> bool {
    let mut target = target.clone();
    let mut walker = Walker::new(arch, OneRow(row, 0x40_1000));
    let mut frames = walker.frames(regs, &mut target);
    let found: Vec<_> = frames.by_ref().collect();
    assert_eq!((found.len(), frames.end()), (2, Some(End::Outermost)));
    found[1].provenance.is_fp_assumed()
}

#[test]
fn a1_memory_below_the_stack_pointer_is_believed_in_64_bit_user_code_alone() {
    let wide = SparseMemory::default().words(0x7ff8, &[0xdead, 0x40_1010]);
    let row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::Offset(-16));
    let regs = X86_64Regs::new(0x40_0000, 0x8000, 0x9000);
    for arch in [X86_64::FOUR_LEVEL, X86_64::FIVE_LEVEL] {
        assert!(!takes_register(arch, regs, row, &wide));
        assert!(takes_register(arch.without_red_zone(), regs, row, &wide), "a kernel's");
    }
    // 128 bytes, and no more.
    for (slot, is_kept) in [(-0x88, false), (-0x90, true)] {
        let row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::Offset(slot));
        let at = 0x8008_u64.checked_add_signed(slot.into()).unwrap();
        let wide = wide.clone().words(at, &[0x9000]);
        assert_eq!(takes_register(X86_64::FOUR_LEVEL, regs, row, &wide), is_kept, "{slot}");
    }
    let narrow = SparseMemory::default().words_32(0x7ffc, &[0xdead, 0x40_1010]);
    let row = Row::new(CfaRule::sp(4), RegRule::Offset(-4), RegRule::Offset(-8));
    let regs = Ia32Regs::new(0x40_0000, 0x8000, 0x9000);
    assert!(takes_register(Ia32::FLAT, regs, row, &narrow), "i386 has no red zone");
}

#[test]
fn a_32_bit_task_has_eight_registers() {
    let regs = Ia32Regs::new(0x1000, 0x2000, 0x3000);
    assert_eq!(regs.with(DwarfReg(8), 7), regs, "a number above 7 changes nothing");
    let with = regs.with(Ia32Regs::EBX, 7);
    assert_eq!((regs.get(Ia32Regs::EBX), with.get(Ia32Regs::EBX)), (None, Some(7)));
}

/// A function in the page at `0x40_2000` has pushed nothing; other code has no row.
struct OneFunction;

impl RowSource<X86_64> for OneFunction {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let row = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::SameValue);
        Ok((frame.lookup_addr().get() & !0xfff == 0x40_2000).then_some(row))
    }
}

/// How many frames there are, the end, and whether the stack is complete: of a walk that keeps no rows, of one that
/// keeps them, and of one by what that has kept.
fn walk_all_ways(regs: X86_64Regs, target: &SparseMemory) -> (usize, Option<End>, bool) {
    let (mut cache, mut trace) = (RowCache::<64>::new(), Trace::<[_; 8]>::new());
    let [without, first, second] = [false, true, true].map(|keeps| {
        let walker = Walker::new(X86_64::FOUR_LEVEL, OneFunction);
        let mut walker = walker.cache_if_any(keeps.then_some(&mut cache)).fallback(FramePointers);
        walker.trace(regs, &mut target.clone(), &mut trace);
        (trace.len(), trace.end(), trace.is_complete())
    });
    assert_eq!((without, first), (first, second));
    first
}

#[test]
fn u11_code_without_a_row_is_the_outermost_frame_where_the_stack_of_its_process_begins() {
    // One argument, one variable, and the vector.
    let words = [1, 0x7800, 0, 0x7800, 0, 3, 64, 9, 0x40_1000, 0, 0];
    let start = SparseMemory::default().words(0x6ff0, &[0, 0x40_1010]);
    let target = start.clone().words(0x7000, &words);
    let outermost = |frames, is_complete| (frames, Some(End::Outermost), is_complete);
    for fp in [0, 1, 0x9000] {
        let in_start = X86_64Regs::new(0x40_1000, 0x7000, fp);
        assert_eq!(walk_all_ways(in_start, &target), outermost(1, true), "{fp:#x}");
        let called = X86_64Regs::new(0x40_2000, 0x6ff8, fp);
        assert_eq!(walk_all_ways(called, &target), outermost(2, true), "{fp:#x}");
        let mut alone = Walker::new(X86_64::FOUR_LEVEL, OneFunction);
        let mut target = target.clone();
        let mut frames = alone.frames(called, &mut target);
        assert_eq!((frames.by_ref().count(), frames.end()), (2, Some(End::Outermost)));
    }
    // A guess has led there.
    let guessed = X86_64Regs::new(0x40_3000, 0x6f00, 0x6ff0);
    assert_eq!(walk_all_ways(guessed, &target), outermost(2, false));
    // Something lies above the return address, so the code may have a caller.
    let zero = Some(End::Step(StepError::ZeroFramePointer));
    let pushed = start.clone().words(0x6fe8, &[0x40_1010]).words(0x7000, &words);
    let called = X86_64Regs::new(0x40_2000, 0x6fe8, 0);
    assert_eq!(walk_all_ways(called, &pushed), (2, zero, false));
    // It is no such stack.
    for (at, other) in [(0, 2), (5, 4), (7, 10), (4, 0x10)] {
        let mut words = words;
        words[at] = other;
        let called = X86_64Regs::new(0x40_2000, 0x6ff8, 0);
        assert_eq!(
            walk_all_ways(called, &start.clone().words(0x7000, &words)),
            (2, zero, false),
            "{at}"
        );
    }
}
