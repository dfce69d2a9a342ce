//! A task that is walked again and again, and its stack.

use core::convert::Infallible;
use unwind_core::{
    Arch, BaseReg, CfaRule, FrameContext, IncrementalTrace, Memory, Origin, ReadError, RegRule,
    ReturnAddresses, Row, RowCache, RowSource, StepError, Trace, VirtAddr, Walker, WordSize,
};

pub(crate) use test_support::cpu::Regs;

/// A signal's context is three words at the stack pointer.
pub(crate) struct Toy;

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
        Ok(Some(Regs::new(word(0)?, word(8)?, Some(word(16)?))))
    }
}

// What a function is tells its address.
pub(crate) const PLAIN: u64 = 0x1000;
pub(crate) const SAVES_FP: u64 = 0x2000;
pub(crate) const BY_FP: u64 = 0x3000;
pub(crate) const SIGNAL: u64 = 0x4000;
pub(crate) const ALIGNS: u64 = 0x5000;
pub(crate) const START: u64 = 0x6000;
pub(crate) const FORGETS_FP: u64 = 0x7000;
pub(crate) const UNKNOWN: u64 = 0x8000;

/// Rows of these functions, all of four words. From the second generation on,
/// plain ones are of eight.
#[derive(Clone, Copy, Default)]
pub(crate) struct Functions {
    pub(crate) generation: u64,
}

impl RowSource<Toy> for Functions {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let ra = RegRule::Offset(-8);
        let plain = if self.generation == 0 { 32 } else { 64 };
        Ok(Some(match frame.lookup_addr().get() & 0xf000 {
            PLAIN => Row::new(CfaRule::sp(plain), ra, RegRule::SameValue),
            SAVES_FP => Row::new(CfaRule::sp(32), ra, RegRule::Offset(-24)),
            BY_FP => Row::new(CfaRule::fp(16), ra, RegRule::Offset(-16))
                .with_origin(Origin::FramePointer),
            SIGNAL => Row::signal_context(),
            ALIGNS => Row::new(CfaRule::AtRegister(BaseReg::Sp, 0), ra, RegRule::SameValue),
            START => Row::outermost(),
            FORGETS_FP => Row::new(CfaRule::sp(32), ra, RegRule::Undefined),
            _ => return Ok(None),
        }))
    }
    fn generation(&self) -> u64 {
        self.generation
    }
}

pub(crate) const STACK: u64 = 0x1_0000;
pub(crate) const FRAME: u64 = 32;

/// A stack, and what was read of it.
#[derive(Clone, Default)]
pub(crate) struct Stack {
    pub(crate) words: Vec<[u8; 8]>,
    pub(crate) is_lent: bool,
    pub(crate) absent: Option<u64>,
    /// The number of the read that fails.
    pub(crate) fails: Option<usize>,
    pub(crate) reads: Vec<u64>,
}

impl Stack {
    /// With return addresses to these functions at the ends of frames of four words.
    pub(crate) fn of(functions: &[u64]) -> Self {
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

    pub(crate) fn lent(self) -> Self {
        Self { is_lent: true, ..self }
    }

    pub(crate) fn set(&mut self, addr: u64, value: u64) {
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
pub(crate) struct Task {
    pub(crate) functions: Functions,
    pub(crate) code: Tracer,
    pub(crate) max_frames: u32,
    pub(crate) stack_end: u64,
    pub(crate) cache: RowCache<64>,
    pub(crate) last: IncrementalTrace<ROOM>,
}

pub(crate) const ROOM: usize = 16;

/// Replaces the return addresses to one function.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tracer {
    pub(crate) function: u64,
    pub(crate) generation: Option<u64>,
    pub(crate) asked: usize,
}

impl ReturnAddresses for Tracer {
    fn resolve(&mut self, ra: VirtAddr, _: Option<VirtAddr>) -> Option<VirtAddr> {
        self.asked += 1;
        (ra.get() & 0xf000 == self.function).then_some(VirtAddr::new(PLAIN + 0x55))
    }
    fn generation(&self) -> Option<u64> {
        self.generation
    }
}

impl Task {
    pub(crate) fn new() -> Self {
        Self {
            functions: Functions::default(),
            code: Tracer { generation: Some(0), ..Tracer::default() },
            max_frames: 100,
            stack_end: u64::MAX / 2,
            cache: RowCache::new(),
            last: IncrementalTrace::new(),
        }
    }

    /// Walks and holds the result against a walk from the beginning; returns how
    /// many frames were taken over.
    pub(crate) fn walk(&mut self, regs: Regs, stack: &mut Stack) -> usize {
        let Self { functions, code, max_frames, stack_end, cache, last } = self;
        let mut whole = Trace::<[_; ROOM]>::new();
        let mut copy = stack.clone();
        Walker::new(Toy, *functions)
            .cache(&mut RowCache::<4>::new())
            .return_addresses(*code)
            .max_frames(*max_frames)
            .stack_end(*stack_end)
            .trace(regs, &mut copy, &mut whole);
        stack.reads.clear();
        Walker::new(Toy, *functions)
            .cache(cache)
            .return_addresses(*code)
            .max_frames(*max_frames)
            .stack_end(*stack_end)
            .trace_incremental(regs, stack, last);
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
        last.reused()
    }
}

pub(crate) const fn leaf(pc: u64) -> Regs {
    Regs::new(pc, STACK, Some(STACK + 16))
}

pub(crate) const MIXED: [u64; 9] =
    [PLAIN, SAVES_FP, BY_FP, BY_FP, SAVES_FP, PLAIN, SAVES_FP, PLAIN, START];
