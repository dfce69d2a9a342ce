//! Random tables of rows, and stacks to walk by them.

use core::convert::Infallible;

use unwind_core::{
    Arch, BaseReg, CfaRule, Coverage, FrameContext, Memory, Origin, RegRule, ReturnAddresses, Row,
    RowSource, StepError, VirtAddr, WordSize,
};

use test_support::cpu::R3;
pub(crate) use test_support::cpu::Regs;

/// A xorshift generator: the same numbers each time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len().try_into().unwrap())).unwrap()]
    }
}

/// Code ends at 2^40, and none is at zero; signal contexts are two words at the stack
/// pointer.
pub(crate) struct Wide;
pub(crate) struct Narrow;

pub(crate) const CODE_END: u64 = 1 << 40;

impl Arch for Wide {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        (1..CODE_END).contains(&pc).then_some(VirtAddr::new(pc))
    }
    fn signal_context<M: Memory>(
        &self,
        _: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Regs>, StepError> {
        let mut word = |addr| {
            let addr = VirtAddr::new(addr);
            mem.read_u64(addr).map_err(|error| StepError::Unreadable { addr, error })
        };
        Ok(Some(Regs::new(word(sp)?, word(sp.wrapping_add(8))?, None)))
    }
}

impl Arch for Narrow {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;
    fn stack_addr(&self, sp: u64) -> VirtAddr {
        VirtAddr::new(sp.wrapping_add(0x10_0000))
    }
}

/// Rows by the low bits of the pc.
pub(crate) struct Table {
    pub(crate) rows: Vec<Option<Row>>,
    pub(crate) generation: u64,
}

impl Table {
    pub(crate) fn random(random: &mut Random, word: i32) -> Self {
        let row = |random: &mut Random| {
            let base = if random.below(10) == 0 { BaseReg::Fp } else { BaseReg::Sp };
            let base = if random.below(90) == 0 { BaseReg::Reg(R3) } else { base };
            let offset = random.pick(&[word, 2 * word, 2 * word, 3 * word, 0x40, 0x40]);
            let odd = random.pick(&[0, -word, 3, word + 3, i32::MAX, i32::MIN, 0x1_0000]);
            let offset = if random.below(60) == 0 { odd } else { offset };
            let cfa = match random.below(120) {
                0 => CfaRule::AtRegister(base, offset),
                _ => CfaRule::Register(base, offset),
            };
            let ra = match random.below(120) {
                0 => RegRule::Undefined,
                1 => RegRule::Offset(-3 * word),
                _ => RegRule::Offset(-word),
            };
            let fp = match random.below(12) {
                0..5 => RegRule::SameValue,
                5..9 => RegRule::Offset(-2 * word),
                9 => RegRule::Offset(-3 * word),
                10 => random.pick(&[
                    RegRule::Offset(8),
                    RegRule::Undefined,
                    RegRule::ValOffset(-word),
                ]),
                _ => random.pick(&[
                    RegRule::Offset(-0x1_0000),
                    RegRule::Offset(0),
                    RegRule::SameValue,
                ]),
            };
            let origins = [Origin::Table, Origin::CallFrames, Origin::Host, Origin::FramePointer];
            let origin = random.pick(&origins);
            let row = match random.below(80) {
                0 => Row::outermost(),
                _ => Row::new(cfa, ra, fp),
            };
            let row = row.with_origin(origin);
            let is_guess = origin == Origin::FramePointer && !row.is_outermost();
            let row = if is_guess && random.below(2) == 0 { row.with_guess() } else { row };
            if random.below(50) == 0 { row.with_signal() } else { row }
        };
        let rows = (0..256).map(|_| (random.below(40) != 0).then(|| row(random))).collect();
        Self { rows, generation: 0 }
    }

    #[allow(dead_code, reason = "the tables of one of the tests stay")]
    pub(crate) fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }
}

impl<A: Arch> RowSource<A> for &Table {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        let at = frame.lookup_addr().get() % 256;
        Ok(self.rows[usize::try_from(at).unwrap()])
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// The same, of which walks know that it needs no more than an address.
pub(crate) struct ByAddr<'t>(pub(crate) &'t Table);

impl<A: Arch> RowSource<A> for ByAddr<'_> {
    type Error = Infallible;
    const IS_BY_ADDR: bool = true;
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        RowSource::<A>::row(&mut self.0, frame, mem)
    }

    fn generation(&self) -> u64 {
        self.0.generation
    }
}

/// Frames that all keep a frame pointer.
pub(crate) struct FramePointers;

impl<A: Arch> RowSource<A> for FramePointers {
    type Error = Infallible;
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(Row::frame_pointer(A::WORD).with_guess()))
    }
}

/// The same, of which walks know it.
#[allow(dead_code, reason = "not all of the tests follow the chain")]
pub(crate) struct Chain;

impl<A: Arch> RowSource<A> for Chain {
    type Error = Infallible;
    const COVERAGE: Coverage = Coverage::FramePointer { is_guess: true };
    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        RowSource::<A>::row(&mut FramePointers, frame, mem)
    }
}

/// Some return addresses are a tracer's.
#[derive(Clone, Copy)]
pub(crate) struct Uretprobes;

impl ReturnAddresses for Uretprobes {
    fn resolve(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let slot = slot?.get();
        // Zero is no good answer, but nothing may come of it.
        (ra.get() % 64 == 5).then(|| VirtAddr::new(if slot % 256 == 0 { 0 } else { slot % 999 }))
    }

    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() % 64 != 9
    }
}

/// Near the lowest address, where sums that wrap end up.
pub(crate) const STACK: u64 = 0x10;
pub(crate) const WORDS: u64 = 1 << 8;
