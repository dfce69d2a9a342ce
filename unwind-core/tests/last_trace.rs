//! What a walk takes over from the one before, and what it does not.
#![cfg(not(loom))]
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "tests"
)]

use core::convert::Infallible;

use unwind_core::{
    AnyCode, Arch, Base, Cached, CfaRule, DwarfReg, End, FrameContext, LastTrace, Memory, Origin,
    ReadError, RegRule, Registers, Row, RowCache, RowSource, StepError, TargetCode, UnwindCache,
    VirtAddr, Walker, WordSize,
};

#[derive(Clone, Copy, Debug)]
struct Regs {
    pc: u64,
    sp: u64,
    fp: u64,
}

impl Registers for Regs {
    fn pc(&self) -> u64 {
        self.pc
    }
    fn sp(&self) -> u64 {
        self.sp
    }
    fn fp(&self) -> Option<u64> {
        Some(self.fp)
    }
    fn get(&self, reg: DwarfReg) -> Option<u64> {
        (reg == DRAP).then_some(self.sp + 16)
    }
}

const DRAP: DwarfReg = DwarfReg(10);

/// A signal's context is three words at the stack pointer.
struct Toy;

impl Arch for Toy {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    fn signal_context<M: Memory>(
        &self,
        _: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Regs>, StepError> {
        let mut word = |offset| {
            let addr = VirtAddr::new(sp + offset);
            mem.read_u64(addr).map_err(|error| StepError::Unreadable { addr, error })
        };
        Ok(Some(Regs { pc: word(0)?, sp: word(8)?, fp: word(16)? }))
    }
}

// What a function is tells its address.
const PLAIN: u64 = 0x1000;
const SAVES_FP: u64 = 0x2000;
const BY_FP: u64 = 0x3000;
const SIGNAL: u64 = 0x4000;
const ALIGNS: u64 = 0x5000;
const START: u64 = 0x6000;
const FORGETS_FP: u64 = 0x7000;
const UNKNOWN: u64 = 0x8000;

/// Rows of these functions, all of four words. From the second generation on,
/// plain ones are of eight.
#[derive(Clone, Copy, Default)]
struct Functions {
    generation: u64,
}

impl RowSource<Toy> for Functions {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let ra = RegRule::AtCfa(-8);
        let plain = if self.generation == 0 { 32 } else { 64 };
        Ok(Some(match frame.pc.lookup_addr().get() & 0xf000 {
            PLAIN => Row::new(CfaRule::sp(plain), ra, RegRule::Same),
            SAVES_FP => Row::new(CfaRule::sp(32), ra, RegRule::AtCfa(-24)),
            BY_FP => {
                Row::new(CfaRule::fp(16), ra, RegRule::AtCfa(-16)).with_origin(Origin::FramePointer)
            }
            SIGNAL => Row::signal_context(),
            ALIGNS => Row::new(CfaRule::Deref(Base::Sp, 0), ra, RegRule::Same),
            START => Row::outermost(),
            FORGETS_FP => Row::new(CfaRule::sp(32), ra, RegRule::Undefined),
            _ => return Ok(None),
        }))
    }
    fn generation(&self) -> u64 {
        self.generation
    }
}

const STACK: u64 = 0x1_0000;
const FRAME: u64 = 32;

/// A stack, and what was read of it.
#[derive(Clone, Default)]
struct Stack {
    words: Vec<[u8; 8]>,
    is_lent: bool,
    absent: Option<u64>,
    /// The number of the read that fails.
    fails: Option<usize>,
    reads: Vec<u64>,
}

impl Stack {
    /// With return addresses to these functions at the ends of frames of four words.
    fn of(functions: &[u64]) -> Self {
        let mut stack = Self::default();
        for (number, function) in (0..).zip(functions) {
            let sp = STACK + FRAME * number;
            // Wherever a frame pointer is saved, it leads to the frame that follows.
            let fp = sp + FRAME + 16;
            for word in [sp + FRAME, fp, fp, function + 5] {
                stack.words.push(word.to_le_bytes());
            }
        }
        stack.words.extend([[0; 8]; 32]);
        stack
    }

    fn lent(self) -> Self {
        Self { is_lent: true, ..self }
    }

    fn set(&mut self, addr: u64, value: u64) {
        self.words[usize::try_from((addr - STACK) / 8).unwrap()] = value.to_le_bytes();
    }
}

impl Memory for Stack {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads.push(addr.get());
        if self.absent == Some(addr.get()) || self.fails == Some(self.reads.len() - 1) {
            return Err(ReadError::NotResident);
        }
        let at = addr.get().checked_sub(STACK).ok_or(ReadError::Invalid)?;
        let word = self.words.get(usize::try_from(at / 8).unwrap()).ok_or(ReadError::Invalid)?;
        buf.copy_from_slice(word);
        Ok(())
    }

    fn words(&mut self, _: VirtAddr) -> Option<(VirtAddr, &[[u8; 8]])> {
        self.is_lent.then_some((VirtAddr::new(STACK), &self.words))
    }
}

/// A task that is walked again and again.
struct Task {
    functions: Functions,
    code: Tracer,
    max_frames: u32,
    stack_end: u64,
    cache: RowCache<64>,
    last: LastTrace<ROOM, Infallible>,
}

const ROOM: usize = 16;

/// Replaces the return addresses to one function.
#[derive(Clone, Copy, Default)]
struct Tracer {
    function: u64,
    generation: Option<u64>,
    asked: usize,
}

impl TargetCode for Tracer {
    fn real_return(&mut self, ra: VirtAddr, _: Option<VirtAddr>) -> Option<VirtAddr> {
        self.asked += 1;
        (ra.get() & 0xf000 == self.function).then_some(VirtAddr::new(PLAIN + 0x55))
    }
    fn generation(&self) -> Option<u64> {
        self.generation
    }
}

impl Task {
    fn new() -> Self {
        Self {
            functions: Functions::default(),
            code: Tracer { generation: Some(0), ..Tracer::default() },
            max_frames: 100,
            stack_end: u64::MAX / 2,
            cache: RowCache::new(),
            last: LastTrace::new(),
        }
    }

    /// Walks and holds the result against a walk from the beginning; returns how
    /// many frames were taken over.
    fn walk(&mut self, regs: Regs, stack: &mut Stack) -> usize {
        let Self { functions, code, max_frames, stack_end, cache, last } = self;
        let mut whole = UnwindCache::<ROOM, Infallible>::new();
        let mut copy = stack.clone();
        Walker::new(Toy, Cached::new(*functions, &mut RowCache::<4>::new()))
            .code(*code)
            .max_frames(*max_frames)
            .stack_end(*stack_end)
            .trace(regs, &mut copy, &mut whole);
        stack.reads.clear();
        Walker::new(Toy, Cached::new(*functions, cache))
            .code(*code)
            .max_frames(*max_frames)
            .stack_end(*stack_end)
            .retrace(regs, stack, last);
        assert!(last.frames().eq(whole.frames()), "{last:?}\n{whole:?}");
        assert!(last.frames().rev().eq(whole.frames().rev()), "{last:?}\n{whole:?}");
        assert!(last.pcs().eq(whole.pcs()), "{last:?}\n{whole:?}");
        let mut frames = last.frames();
        for left in (0..last.len()).rev() {
            let frame = if left % 2 == 0 { frames.next() } else { frames.next_back() };
            assert!(frame.is_some());
            assert_eq!((frames.len(), frames.size_hint()), (left, (left, Some(left))));
        }
        assert_eq!(last.end(), whole.end());
        last.taken_over()
    }
}

const fn leaf(pc: u64) -> Regs {
    Regs { pc, sp: STACK, fp: STACK + 16 }
}

const MIXED: [u64; 9] = [PLAIN, SAVES_FP, BY_FP, BY_FP, SAVES_FP, PLAIN, SAVES_FP, PLAIN, START];

#[test]
fn an_unchanged_stack_is_taken_over_but_for_the_sampled_frame() {
    for mut stack in [Stack::of(&MIXED), Stack::of(&MIXED).lent()] {
        let mut task = Task::new();
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), MIXED.len());
        assert_eq!(task.last.end(), Some(End::Outermost));
    }
}

#[test]
fn each_word_is_read_once_and_none_that_is_lent() {
    let mut stack = Stack::of(&MIXED);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    let mut first = stack.reads.clone();
    task.walk(leaf(PLAIN), &mut stack);
    first.sort_unstable();
    stack.reads.sort_unstable();
    assert_eq!(stack.reads, first);
    let mut stack = stack.lent();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(stack.reads, []);
}

#[test]
fn a_word_that_differs_ends_what_is_taken_over_just_there() {
    for is_lent in [false, true] {
        for (number, _) in (0..).zip(MIXED) {
            let top = STACK + FRAME * (number + 1);
            for (addr, value) in [
                (top - 8, PLAIN + 0x123),
                (top - 8, 0),
                (top - 8, u64::MAX),
                (top - 16, STACK + 0x88),
                (top - 24, 0x78),
                (top - 32, 0),
            ] {
                let mut stack = Stack { is_lent, ..Stack::of(&MIXED) };
                let mut task = Task::new();
                task.walk(leaf(PLAIN), &mut stack);
                stack.set(addr, value);
                let taken_over = task.walk(leaf(PLAIN), &mut stack);
                let before = usize::try_from(number).unwrap();
                assert!(taken_over >= before, "{number} {addr:#x}: {taken_over}");
                task.walk(leaf(PLAIN), &mut Stack { is_lent, ..Stack::of(&MIXED) });
            }
        }
    }
}

#[test]
fn two_words_that_change_alike_are_changed_all_the_same() {
    // Of all pairs of return addresses and of saved frame pointers.
    for function in [PLAIN, SAVES_FP] {
        let functions: [u64; 15] =
            core::array::from_fn(|at| if at == 14 { START } else { function });
        let word = |number: usize, slot: usize| 4 * number + slot;
        let read = if function == PLAIN { [3, 3] } else { [1, 3] };
        let places = (0..14).flat_map(|number| read.map(|slot| word(number, slot)));
        for first in places.clone() {
            for second in places.clone().filter(|second| *second > first) {
                let mut stack = Stack::of(&functions).lent();
                let mut task = Task::new();
                task.walk(leaf(function), &mut stack);
                for place in [first, second] {
                    stack.words[place][0] ^= 0x40;
                }
                let taken_over = task.walk(leaf(function), &mut stack);
                assert!(taken_over >= first / 4, "{first} {second}: {taken_over}");
            }
        }
    }
}

#[test]
fn frames_behind_a_changed_one_are_taken_over_again() {
    let mut stack = Stack::of(&[PLAIN; 12]).lent();
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    stack.set(STACK + 5 * FRAME - 8, PLAIN + 0x99);
    // That frame and the next one, which the sources are asked for.
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 10);
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 12);
}

#[test]
fn a_stack_that_grows_and_shrinks_keeps_its_outer_part() {
    for is_lent in [false, true] {
        let mut stack = Stack { is_lent, ..Stack::of(&[SAVES_FP; 9]) };
        let mut task = Task::new();
        task.walk(Regs { sp: STACK + 4 * FRAME, ..leaf(SAVES_FP + 1) }, &mut stack);
        // From the first frame that both have on.
        assert_eq!(task.walk(leaf(SAVES_FP + 2), &mut stack), 4);
        let inner = Regs { sp: STACK + 3 * FRAME, ..leaf(SAVES_FP + 3) };
        assert_eq!(task.walk(inner, &mut stack), 5);
        assert_eq!(task.walk(leaf(SAVES_FP + 3), &mut stack), 5);
    }
}

#[test]
fn a_return_address_and_an_interrupted_pc_are_not_the_same() {
    let mut stack = Stack::of(&MIXED);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    // As a return address, this one was looked up one byte before.
    let interrupted = Regs { pc: PLAIN + 5, sp: STACK + FRAME, fp: STACK + 16 };
    task.walk(interrupted, &mut stack);
    assert_eq!(task.last.frames().next().map(|frame| frame.pc.is_exact()), Some(true));
    stack.set(STACK + FRAME - 8, SAVES_FP);
    task.walk(leaf(PLAIN), &mut stack);
    let interrupted = Regs { pc: SAVES_FP, sp: STACK + FRAME, fp: STACK + 16 };
    assert!(task.walk(interrupted, &mut stack) < 8, "from the next frame on at the earliest");
}

#[test]
fn nothing_is_taken_over_when_modules_the_code_or_the_stack_changed() {
    let mut stack = Stack::of(&[PLAIN; 6]);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    task.functions.generation = 1;
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
    assert_ne!(task.walk(leaf(PLAIN), &mut stack), 0);

    task.code = Tracer { function: PLAIN, generation: Some(1), asked: 0 };
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
    task.code = Tracer { function: 0, generation: Some(2), asked: 0 };
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);

    task.stack_end = STACK + 4 * FRAME;
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
    assert!(matches!(task.last.end(), Some(End::Step(StepError::BeyondStack { .. }))));
    assert!(!task.last.is_complete() && !task.last.is_empty());
    task.stack_end = u64::MAX / 2;
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);

    task.last.clear();
    assert_eq!((task.last.len(), task.last.end(), task.last.is_empty()), (0, None, true));
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
}

#[test]
fn code_without_a_generation_is_asked_about_each_frame() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, PLAIN, START]);
    let mut task = Task::new();
    task.code.generation = None;
    for _ in 0..3 {
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), 0);
    }
}

#[test]
fn code_of_which_nothing_is_known_never_changes_and_other_code_may() {
    struct Tracee;
    impl TargetCode for Tracee {}
    assert_eq!(Tracee.generation(), None);
    assert!(AnyCode.generation().is_some());
}

#[test]
fn a_frame_behind_a_trampoline_is_asked_for_again() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, BY_FP, PLAIN, PLAIN, START]);
    let mut task = Task::new();
    task.code.function = BY_FP;
    for expected in [0, 5, 5] {
        assert_eq!(task.walk(leaf(PLAIN), &mut stack), expected);
        let third = task.last.frames().nth(3).unwrap();
        assert!(third.provenance.is_behind_trampoline());
    }
}

#[test]
fn signal_frames_and_rules_on_other_registers_are_stepped_from_again() {
    let mut stack = Stack::of(&[PLAIN, SIGNAL, PLAIN, PLAIN, PLAIN, START]);
    let at = STACK + 2 * FRAME;
    let interrupted = [PLAIN + 0x77, at + FRAME, 0x1234];
    for (addr, value) in (at..).step_by(8).zip(interrupted) {
        stack.set(addr, value);
    }
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.last.len(), 7);
    // All but the sampled frame and the interrupted one.
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 5);
    // What was interrupted is another function's.
    stack.set(at, SAVES_FP + 0x77);
    task.walk(leaf(PLAIN), &mut stack);
    stack.set(at + 16, 0x4321);
    task.walk(leaf(PLAIN), &mut stack);

    let mut stack = Stack::of(&[PLAIN, ALIGNS, PLAIN, PLAIN, START]);
    let at = STACK + 2 * FRAME;
    stack.set(at, at + FRAME);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 4);
    // The frame is larger.
    stack.set(at, at + 2 * FRAME);
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.last.len(), 5);
}

#[test]
fn a_frame_pointer_that_is_not_known_is_none() {
    let mut stack = Stack::of(&[PLAIN, FORGETS_FP, PLAIN, BY_FP, START]);
    let mut task = Task::new();
    for _ in 0..3 {
        task.walk(leaf(PLAIN), &mut stack);
        assert_eq!(task.last.end(), Some(End::Step(StepError::UnknownRegister(Base::Fp))));
    }
    // The same frame, with a frame pointer of zero.
    let inner = Regs { pc: PLAIN + 5, sp: STACK + 3 * FRAME, fp: 0 };
    task.walk(inner, &mut stack);
    let mut stack = Stack::of(&[PLAIN, SAVES_FP, PLAIN, BY_FP, START]);
    stack.set(STACK + 3 * FRAME - 24, 0);
    task.walk(leaf(PLAIN), &mut stack);
}

#[test]
fn a_frame_with_another_frame_pointer_is_another() {
    let mut stack = Stack::of(&[PLAIN, PLAIN, BY_FP, PLAIN, START]);
    let mut task = Task::new();
    for fp in [STACK + 3 * FRAME + 16, 0, STACK + 3 * FRAME + 16, STACK + 4 * FRAME + 16] {
        task.walk(Regs { fp, ..leaf(PLAIN) }, &mut stack);
    }
}

#[test]
fn an_end_is_found_again() {
    // At code that no source covers, and at a word that comes and goes.
    let mut stack = Stack::of(&[PLAIN, PLAIN, PLAIN, PLAIN, UNKNOWN]);
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    assert_eq!(task.last.end(), Some(End::NoRow));
    stack.set(STACK + 5 * FRAME - 8, PLAIN + 5);
    stack.absent = Some(STACK + 4 * FRAME - 8);
    for is_lent in [false, false, true, false] {
        stack.is_lent = is_lent;
        task.walk(leaf(PLAIN), &mut stack);
    }
    assert!(task.last.end().unwrap().is_retryable());
    stack.absent = None;
    assert_eq!(task.walk(leaf(PLAIN), &mut stack), 3);
    assert_eq!(task.last.end(), Some(End::ZeroReturnAddress));
}

#[test]
fn a_zero_behind_a_frame_pointer_is_no_end_of_the_stack() {
    let mut stack = Stack::of(&[SAVES_FP, BY_FP, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN]);
    stack.set(STACK + 7 * FRAME - 8, 0);
    let mut task = Task::new();
    for _ in 0..3 {
        task.walk(leaf(PLAIN), &mut stack);
        assert!(matches!(task.last.end(), Some(End::Step(StepError::ZeroReturnAddress { .. }))));
    }
    let inner = Regs { sp: STACK + 3 * FRAME, ..leaf(PLAIN + 1) };
    task.walk(inner, &mut stack);
    assert_eq!(task.last.end(), Some(End::ZeroReturnAddress));
    task.walk(leaf(PLAIN), &mut stack);
}

#[test]
fn limits_hold_whatever_was_there_before() {
    let mut stack = Stack::of(&[PLAIN; 14]).lent();
    let mut task = Task::new();
    for max_frames in [100, 5, 100, 1, 2, 0, 9, 10, 11, 100] {
        task.max_frames = max_frames;
        task.walk(leaf(PLAIN), &mut stack);
    }
    // More frames than there is room for.
    let mut stack = Stack::of(&[PLAIN; 40]).lent();
    let mut task = Task::new();
    for depth in [0, 0, 1, 0, 5, 3, 20, 24, 25, 26, 23, 0, 30] {
        let sp = STACK + depth * FRAME;
        task.walk(Regs { pc: PLAIN + 0x300 + depth, sp, fp: 0 }, &mut stack);
    }
}

#[test]
fn a_walk_that_begins_elsewhere_has_room_for_as_many_frames() {
    for function in [PLAIN, SAVES_FP, BY_FP, ALIGNS, FORGETS_FP] {
        let mut stack = Stack::of(&[function; 24]);
        for first in [8, 7, 5, 9, 0, 1, 20, 3] {
            for is_lent in [false, true] {
                stack.is_lent = is_lent;
                let mut task = Task::new();
                for start in [first, first + 1, first, 0, 4] {
                    let sp = STACK + FRAME * start;
                    let regs = Regs { pc: function + start, sp, fp: sp + 16 };
                    task.walk(regs, &mut stack);
                }
            }
        }
    }
}

#[test]
fn a_read_that_fails_loses_the_frames_behind_it_and_no_more() {
    for functions in [&MIXED[..], &[PLAIN, SIGNAL, PLAIN, PLAIN, START]] {
        for is_lent in [false, true] {
            let mut stack = Stack { is_lent, ..Stack::of(functions) };
            let at = STACK + 2 * FRAME;
            if functions[1] == SIGNAL {
                stack.set(at, PLAIN + 7);
                stack.set(at + 8, at + FRAME);
            }
            let mut whole = Task::new();
            whole.walk(leaf(PLAIN), &mut stack);
            let words = stack.words.len();
            for word in 0..words {
                let mut task = Task::new();
                task.walk(leaf(PLAIN), &mut stack);
                // A word that is not there: all as in a walk from the beginning.
                stack.is_lent = false;
                stack.absent = Some(STACK + 8 * u64::try_from(word).unwrap());
                task.walk(leaf(PLAIN), &mut stack);
                (stack.absent, stack.is_lent) = (None, is_lent);
                task.walk(leaf(PLAIN), &mut stack);

                // A read that fails once may be tried again.
                stack.is_lent = false;
                stack.fails = Some(word);
                stack.reads.clear();
                let Task { functions, cache, last, .. } = &mut task;
                Walker::new(Toy, Cached::new(*functions, cache)).retrace(
                    leaf(PLAIN),
                    &mut stack,
                    last,
                );
                (stack.fails, stack.is_lent) = (None, is_lent);
                assert!(whole.last.frames().zip(last.frames()).all(|(a, b)| a == b), "{last:?}");
                assert!(
                    last.end().unwrap().is_retryable() || last.len() == whole.last.len(),
                    "{last:?}"
                );
                task.walk(leaf(PLAIN), &mut stack);
            }
        }
    }
}

#[test]
fn a_copy_is_the_walk_as_far_as_there_is_room() {
    let mut stack = Stack::of(&MIXED);
    let mut task = Task::new();
    let mut copy = UnwindCache::<4, Infallible>::new();
    task.last.copy_to(&mut copy);
    assert_eq!((copy.len(), copy.end()), (0, None));
    task.walk(leaf(PLAIN), &mut stack);
    task.last.copy_to(&mut copy);
    assert!(copy.frames().eq(task.last.frames().take(4)));
    assert_eq!(copy.end(), Some(End::Full));
    assert!(task.last.is_complete());
}

#[test]
fn many_short_runs_of_old_frames_are_as_good_as_one() {
    // Every other frame is another function's: the walk meets the old one again
    // and again.
    let mut stack = Stack::of(&[PLAIN; 15]).lent();
    let mut task = Task::new();
    task.walk(leaf(PLAIN), &mut stack);
    for number in (1..14).step_by(2) {
        stack.set(STACK + FRAME * number - 8, PLAIN + 0x300 + number);
    }
    task.walk(leaf(PLAIN), &mut stack);
    // And another time with frames between the old ones.
    for number in (2..14).step_by(3) {
        stack.set(STACK + FRAME * number - 8, SAVES_FP + 0x300 + number);
    }
    task.walk(leaf(PLAIN), &mut stack);
}

/// The same functions, and whether registers were given for each lookup.
struct Watched<'a>(&'a mut Vec<bool>);

impl RowSource<Toy> for Watched<'_> {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        self.0.push(frame.registers.is_some());
        Functions::default().row(frame, mem)
    }
}

#[test]
fn registers_are_given_for_the_lookup_of_the_sampled_frame_alone() {
    let stack = Stack::of(&[SAVES_FP, PLAIN + 0x100, PLAIN + 0x200, START]);
    for mut stack in [stack.clone(), stack.lent()] {
        let (mut traced, mut retraced) = (Vec::new(), Vec::new());
        let (mut cache, mut other_cache) = (RowCache::<16>::new(), RowCache::<16>::new());
        let mut trace = UnwindCache::<ROOM, Infallible>::new();
        let mut last = LastTrace::<ROOM, Infallible>::new();
        Walker::new(Toy, Cached::new(Watched(&mut traced), &mut cache)).trace(
            leaf(PLAIN),
            &mut stack,
            &mut trace,
        );
        Walker::new(Toy, Cached::new(Watched(&mut retraced), &mut other_cache)).retrace(
            leaf(PLAIN),
            &mut stack,
            &mut last,
        );
        assert_eq!((trace.len(), last.len()), (5, 5));
        for given in [traced, retraced] {
            assert_eq!(given, [true, false, false, false, false]);
        }
    }
}

#[test]
fn a_trace_that_has_never_been_walked_says_nothing() {
    let last = LastTrace::<ROOM, Infallible>::default();
    assert_eq!(format!("{last:?}"), "LastTrace { frames: [], end: None, taken_over: 0 }");
}
