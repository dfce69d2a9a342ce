//! Rules of the walk, on a made-up CPU with a scripted table.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::std_instead_of_alloc,
    clippy::std_instead_of_core,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::convert::Infallible;

use unwind_core::{
    Arch, Base, CfaRule, DwarfReg, End, FrameContext, FramePc, Memory, Origin, ReadError, RegRule,
    Registers, Row, RowSource, StepError, TableError, TargetCode, UnwindCache, VirtAddr, Walker,
    WordSize,
};

#[derive(Clone, Copy, Debug)]
struct Regs {
    pc: u64,
    sp: u64,
    fp: u64,
    r3: u64,
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
        (reg == R3).then_some(self.r3)
    }
}

const R3: DwarfReg = DwarfReg(3);

/// Code lies below 0x10000; a trampoline at 0x5160 keeps what it interrupted
/// in four words at the stack pointer.
struct Toy;

impl Arch for Toy {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Eight;
    const SP: Option<DwarfReg> = Some(DwarfReg(7));
    const FP: Option<DwarfReg> = Some(DwarfReg(6));

    fn code_addr(&self, pc: u64) -> Option<VirtAddr> {
        (pc < 0x10000).then_some(VirtAddr::new(pc))
    }

    fn signal_context<M: Memory>(
        &self,
        pc: VirtAddr,
        sp: u64,
        mem: &mut M,
    ) -> Result<Option<Regs>, StepError> {
        if pc.get() != 0x5160 {
            return Ok(None);
        }
        let mut word = |at| {
            let addr = VirtAddr::new(sp + at);
            mem.read_u64(addr).map_err(|error| StepError::Unreadable { addr, error })
        };
        Ok(Some(Regs { pc: word(0)?, sp: word(8)?, fp: word(16)?, r3: word(24)? }))
    }
}

/// Words by address; `None` is absent.
#[derive(Clone, Default)]
struct Stack(BTreeMap<u64, Option<u64>>);

impl Stack {
    fn new(words: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self(words.into_iter().map(|(at, word)| (at, Some(word))).collect())
    }
}

impl Memory for Stack {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        match self.0.get(&addr.get()) {
            Some(Some(word)) => {
                buf.copy_from_slice(&word.to_le_bytes());
                Ok(())
            }
            Some(None) => Err(ReadError::NotResident),
            None => Err(ReadError::Invalid),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum BadTable {
    Malformed,
    Absent,
}

impl From<Infallible> for BadTable {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl TableError for BadTable {
    fn is_not_resident(&self) -> bool {
        *self == Self::Absent
    }
}

/// Rows for ranges of 0x100 bytes of code, by their start.
#[derive(Clone, Default)]
struct Script(BTreeMap<u64, Result<Row, BadTable>>);

impl Script {
    fn new(rows: impl IntoIterator<Item = (u64, Row)>) -> Self {
        Self(rows.into_iter().map(|(start, row)| (start, Ok(row))).collect())
    }
}

impl RowSource<Toy> for Script {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        self.0.get(&(frame.pc.lookup_addr().get() & !0xff)).copied().transpose()
    }
}

/// The row of a function that keeps a frame pointer.
const FP: Row = Row::new(CfaRule::fp(16), RegRule::AtCfa(-8), RegRule::AtCfa(-16));

/// The row of a function with `n` bytes of locals.
const fn locals(n: i32) -> Row {
    Row::new(CfaRule::sp(n + 8), RegRule::AtCfa(-8), RegRule::Same)
}

struct AlwaysFp;

impl RowSource<Toy> for AlwaysFp {
    type Error = BadTable;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        Ok(Some(FP.with_origin(Origin::FramePointer)))
    }
}

/// A table that knows the three functions of [`three_frames`].
fn all_with_frame_pointers() -> Script {
    Script::new([(0x1000, FP), (0x2000, FP), (0x3000, FP)])
}

const START: Regs = Regs { pc: 0x1010, sp: 0x8000, fp: 0, r3: 0 };

fn pcs(frames: &[unwind_core::Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.pc.addr().get()).collect()
}

/// The frames and the end of a walk by the script alone.
fn walk(script: Script, regs: Regs, stack: &Stack) -> (Vec<u64>, End<BadTable>) {
    let (mut walker, mut stack) = (Walker::new(Toy, script), stack.clone());
    let mut frames = walker.frames(regs, &mut stack);
    let seen: Vec<_> = frames.by_ref().collect();
    (pcs(&seen), frames.end().unwrap())
}

#[test]
fn an_outermost_row_ends_a_walk_and_adds_nothing() {
    let script = Script::new([(0x1000, locals(0)), (0x2000, Row::outermost())]);
    let stack = Stack::new([(0x8000, 0x2010)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x2010], End::Outermost));
    assert!(End::<BadTable>::Outermost.is_complete());
}

#[test]
fn a_zero_return_address_ends_a_walk_and_is_no_frame() {
    let script = Script::new([(0x1000, locals(8))]);
    let stack = Stack::new([(0x8008, 0)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010], End::ZeroReturnAddress));
    assert!(End::<BadTable>::ZeroReturnAddress.is_complete());
}

#[test]
fn a_pc_that_no_source_covers_ends_a_walk_and_is_its_last_frame() {
    let script = Script::new([(0x1000, locals(0))]);
    let stack = Stack::new([(0x8000, 0x9010)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x9010], End::NoRow));
}

#[test]
fn a_malformed_table_ends_a_walk_with_its_own_error() {
    let mut script = Script::new([(0x1000, locals(0))]);
    script.0.insert(0x2000, Err(BadTable::Malformed));
    let stack = Stack::new([(0x8000, 0x2010)]);
    let end = End::Table(BadTable::Malformed);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x2010], end));
}

#[test]
fn unreadable_memory_ends_a_walk_with_its_address_and_kind() {
    let script = Script::new([(0x1000, locals(0x10)), (0x2000, locals(0x20))]);
    let mut stack = Stack::new([(0x8010, 0x2010)]);
    let addr = VirtAddr::new(0x8038);
    for error in [ReadError::Invalid, ReadError::NotResident] {
        let end = End::Step(StepError::Unreadable { addr, error });
        assert_eq!(walk(script.clone(), START, &stack), (vec![0x1010, 0x2010], end));
        assert_eq!(end.is_retryable(), error == ReadError::NotResident);
        assert!(!end.is_complete());
        stack.0.insert(0x8038, None);
    }
}

#[test]
fn a_return_address_where_no_code_can_be_ends_a_walk() {
    let script = Script::new([(0x1000, locals(0))]);
    let stack = Stack::new([(0x8000, 0x12345)]);
    let end = End::Step(StepError::NonCanonical { pc: 0x12345 });
    assert_eq!(walk(script.clone(), START, &stack), (vec![0x1010], end));
    let lost = Regs { pc: 0x12345, ..START };
    assert_eq!(walk(script, lost, &stack), (vec![], end), "also of the sample itself");
}

#[test]
fn a_misaligned_cfa_ends_a_walk() {
    let script = Script::new([(0x1000, locals(3))]);
    let end = End::Step(StepError::Misaligned { cfa: 0x800b });
    assert_eq!(walk(script, START, &Stack::default()), (vec![0x1010], end));
}

#[test]
fn a_cfa_that_does_not_rise_ends_a_walk() {
    let script = Script::new([(0x1000, locals(0)), (0x2000, locals(-16)), (0x3000, locals(-8))]);
    for (caller, cfa) in [(0x2010, 0x8000), (0x3010, 0x8008)] {
        let stack = Stack::new([(0x8000, caller), (0x7ff8, 0x1010)]);
        let end = End::Step(StepError::NoProgress { cfa, sp: 0x8008 });
        assert_eq!(walk(script.clone(), START, &stack), (vec![0x1010, caller], end));
    }
}

#[test]
fn the_cfa_may_stand_still_only_where_all_registers_are_known() {
    // The return address is in a register, as in a leaf of a CPU that does
    // not push it.
    let in_r3 = Row::new(CfaRule::sp(0), RegRule::Reg(Base::Reg(R3), 0), RegRule::Same);
    let still = Row::new(CfaRule::sp(0), RegRule::AtCfa(0), RegRule::Same);
    let script = Script::new([(0x1000, in_r3), (0x2000, still)]);
    let stack = Stack::new([(0x8000, 0x2010)]);
    let regs = Regs { r3: 0x2020, ..START };
    let end = End::Step(StepError::NoProgress { cfa: 0x8000, sp: 0x8000 });
    assert_eq!(walk(script, regs, &stack), (vec![0x1010, 0x2020], end));
}

#[test]
fn a_looped_frame_pointer_ends_a_walk() {
    let script = Script::new([(0x1000, FP)]);
    // The frame at 0x8010 points back at the one at 0x8000.
    let stack =
        Stack::new([(0x8000, 0x8010), (0x8008, 0x1020), (0x8010, 0x8000), (0x8018, 0x1030)]);
    let end = End::Step(StepError::FramePointerBelowStack { fp: 0x8000, sp: 0x8020 });
    let regs = Regs { fp: 0x8000, ..START };
    assert_eq!(walk(script, regs, &stack), (vec![0x1010, 0x1020, 0x1030], end));
}

#[test]
fn a_zero_frame_pointer_is_not_taken_for_a_complete_stack() {
    let script = Script::new([(0x1000, FP)]);
    let stack = Stack::new([(0x8000, 0), (0x8008, 0x1020)]);
    let (frames, end) = walk(script, Regs { fp: 0x8000, ..START }, &stack);
    assert_eq!((frames, end), (vec![0x1010, 0x1020], End::Step(StepError::ZeroFramePointer)));
    assert!(!end.is_complete());
}

#[test]
fn rules_that_leave_the_address_space_end_a_walk_at_both_ends_of_it() {
    let at_cfa = |offset| Row::new(CfaRule::sp(8), RegRule::AtCfa(offset), RegRule::Same);
    for (sp, row) in [
        (u64::MAX - 7, locals(0)),
        (0, Row::new(CfaRule::sp(-8), RegRule::AtCfa(-8), RegRule::Same)),
        (0, at_cfa(-16)),
        (u64::MAX - 0xf, at_cfa(8)),
    ] {
        let script = Script::new([(0x1000, row)]);
        let (_, end) = walk(script, Regs { sp, ..START }, &Stack::default());
        assert_eq!(end, End::Step(StepError::Overflow), "sp {sp:#x}, {row:?}");
    }
}

#[test]
fn a_return_address_cannot_be_a_stack_address() {
    let row = Row::new(CfaRule::sp(8), RegRule::Cfa(-8), RegRule::Same);
    let (_, end) = walk(Script::new([(0x1000, row)]), START, &Stack::default());
    assert_eq!(end, End::Step(StepError::BadRule));
    let row = Row::new(CfaRule::sp(8), RegRule::Same, RegRule::Same);
    let (_, end) = walk(Script::new([(0x1000, row)]), START, &Stack::default());
    assert_eq!(end, End::Step(StepError::BadRule), "and this CPU has no link register");
}

#[test]
fn a_return_address_is_never_computed_from_the_stack_pointer() {
    // Each names an address that has code.
    for base in [Base::Sp, Base::Reg(DwarfReg(7))] {
        let row = Row::new(CfaRule::sp(8), RegRule::Reg(base, 0x1010 - 0x8000), RegRule::Same);
        let (frames, end) = walk(Script::new([(0x1000, row)]), START, &Stack::default());
        assert_eq!((frames, end), (vec![0x1010], End::Step(StepError::BadRule)), "{base:?}");
    }
}

#[test]
fn a_return_address_is_in_the_frame_pointer_only_where_all_registers_are_known() {
    for base in [Base::Fp, Base::Reg(DwarfReg(6))] {
        let in_fp = Row::new(CfaRule::sp(8), RegRule::Reg(base, 0), RegRule::Same);
        let script = Script::new([(0x1000, in_fp), (0x2000, in_fp)]);
        let regs = Regs { fp: 0x2010, ..START };
        // The first frame's caller still has it, but what it called may not.
        let (frames, end) = walk(script.clone(), regs, &Stack::default());
        assert_eq!(
            (frames, end),
            (vec![0x1010, 0x2010], End::Step(StepError::BadRule)),
            "{base:?}"
        );

        // A trampoline at 0x5160 restores pc, sp, fp and r3.
        let rows = [(0x1000, locals(0)), (0x2000, in_fp), (0x5100, Row::signal_context())];
        let saved = [(0x8000, 0x5160), (0x8008, 0x2010), (0x8010, 0x9000), (0x8018, 0x3010)];
        let stack = Stack::new(saved.into_iter().chain([(0x8020, 0)]));
        let (frames, end) = walk(Script::new(rows), START, &stack);
        assert_eq!((frames, end), (vec![0x1010, 0x5160, 0x2010, 0x3010], End::NoRow), "{base:?}");
    }
}

#[test]
fn every_rule_finds_what_it_says() {
    let r3 = Base::Reg(R3);
    let stack = Stack::new([
        (0x8000, 0x2010),
        (0x8008, 0x9990),
        (0x9000, 0x2020),
        (0x9008, 0x9998),
        (0xa000, 0x8008),
    ]);
    let regs = Regs { pc: 0x1010, sp: 0x8000, fp: 0xa000, r3: 0x9000 };
    let cases = [
        // CFA, RA, FP: the caller's pc, sp and fp.
        (CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::Same, 0x2010, 0x8008, Some(0xa000)),
        (CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::Undefined, 0x2010, 0x8008, None),
        (CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::AtCfa(0), 0x2010, 0x8008, Some(0x9990)),
        (CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::Cfa(-8), 0x2010, 0x8008, Some(0x8000)),
        (CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::Reg(r3, 4), 0x2010, 0x8008, Some(0x9004)),
        (CfaRule::sp(8), RegRule::AtCfa(-8), RegRule::AtReg(r3, 8), 0x2010, 0x8008, Some(0x9998)),
        (
            CfaRule::Offset(r3, 0),
            RegRule::AtReg(r3, 0),
            RegRule::Same,
            0x2020,
            0x9000,
            Some(0xa000),
        ),
        (
            CfaRule::Deref(Base::Fp, 0),
            RegRule::AtCfa(-8),
            RegRule::Same,
            0x2010,
            0x8008,
            Some(0xa000),
        ),
        (CfaRule::sp(8), RegRule::Reg(r3, -0x8000), RegRule::Same, 0x1000, 0x8008, Some(0xa000)),
        // The stack and frame pointer by their DWARF numbers.
        (
            CfaRule::Offset(Base::Reg(DwarfReg(7)), 8),
            RegRule::AtCfa(-8),
            RegRule::AtReg(Base::Reg(DwarfReg(6)), 0),
            0x2010,
            0x8008,
            Some(0x8008),
        ),
    ];
    for (cfa, ra, fp, pc, sp, caller_fp) in cases {
        // The caller's frame pointer shows in its own CFA.
        let probe = Row::new(CfaRule::fp(0x100), RegRule::AtCfa(0), RegRule::Same);
        let row = Row::new(cfa, ra, fp);
        let script = Script([(0x1000, Ok(row)), (0x2000, Ok(probe))].into_iter().collect());
        let mut walker = Walker::new(Toy, script);
        let mut stack = stack.clone();
        let mut frames = walker.frames(regs, &mut stack);
        let first = frames.next().unwrap();
        assert_eq!(first.cfa, Some(sp), "{row:?}");
        let second = frames.next().unwrap();
        assert_eq!((second.pc, second.sp), (FramePc::Return(VirtAddr::new(pc)), sp), "{row:?}");
        if pc & 0x2000 == 0 {
            continue;
        }
        let end = frames.end().unwrap();
        match caller_fp {
            None => assert_eq!(end, End::Step(StepError::UnknownRegister(Base::Fp)), "{row:?}"),
            Some(fp) if fp < sp => {
                assert_eq!(end, End::Step(StepError::FramePointerBelowStack { fp, sp }), "{row:?}");
            }
            Some(fp) if fp & 7 != 0 => {
                assert_eq!(end, End::Step(StepError::Misaligned { cfa: fp + 0x100 }), "{row:?}");
            }
            Some(fp) => {
                let addr = VirtAddr::new(fp + 0x100);
                let error = ReadError::Invalid;
                assert_eq!(end, End::Step(StepError::Unreadable { addr, error }), "{row:?}");
            }
        }
    }
}

#[test]
fn a_rule_on_a_register_that_is_not_known_is_a_typed_end() {
    let on_r3 = Row::new(CfaRule::Offset(Base::Reg(R3), 8), RegRule::AtCfa(-8), RegRule::Same);
    let script = Script::new([(0x1000, on_r3), (0x2000, on_r3)]);
    let stack = Stack::new([(0x9000, 0x2010), (0x9008, 0x2020)]);
    let end = End::Step(StepError::UnknownRegister(Base::Reg(R3)));
    let regs = Regs { r3: 0x9000, ..START };
    assert_eq!(walk(script, regs, &stack), (vec![0x1010, 0x2010], end));
}

#[test]
fn a_call_as_the_last_instruction_of_a_function_is_looked_up_in_that_function() {
    // 0x2000 is the return address of a call that ends at 0x1fff.
    let script = Script::new([(0x1000, locals(0)), (0x1f00, Row::outermost())]);
    let stack = Stack::new([(0x8000, 0x2000)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x2000], End::Outermost));
    // A sampled pc there is another matter.
    let script = Script::new([(0x1f00, locals(0)), (0x2000, Row::outermost())]);
    let at_start = Regs { pc: 0x2000, ..START };
    assert_eq!(walk(script, at_start, &stack), (vec![0x2000], End::Outermost));
}

#[test]
fn a_signal_frame_gives_back_all_registers_and_an_exact_pc() {
    let on_r3 = Row::new(CfaRule::Offset(Base::Reg(R3), 8), RegRule::AtCfa(-8), RegRule::Same);
    // The handler runs on a stack of its own, above the interrupted one.
    let stack = Stack::new([
        (0x8000, 0x5160),
        (0x8008, 0x2000),
        (0x8010, 0x7000),
        (0x8018, 0),
        (0x8020, 0x7100),
        (0x7100, 0x3010),
    ]);
    for signal in [Row::signal_context(), locals(0).with_signal()] {
        let script = Script::new([
            (0x1000, locals(0)),
            (0x5100, signal),
            (0x2000, on_r3),
            (0x3000, Row::outermost()),
        ]);
        let (mut walker, mut stack) = (Walker::new(Toy, script), stack.clone());
        let frames: Vec<_> = walker.frames(START, &mut stack).collect();
        assert_eq!(pcs(&frames), [0x1010, 0x5160, 0x2000, 0x3010]);
        // 0x2000 is looked up as it is, one byte back would be another row.
        assert_eq!(frames[2].pc, FramePc::Exact(VirtAddr::new(0x2000)));
        assert_eq!(frames[2].provenance.origin(), Origin::SignalContext);
        assert_eq!(frames[1].cfa, Some(0x7000));
        assert_eq!((frames[2].sp, frames[2].cfa), (0x7000, Some(0x7108)));
        assert!(!frames[3].pc.is_exact());
    }
}

#[test]
fn a_signal_row_without_a_known_trampoline_is_applied_with_an_exact_pc() {
    let script = Script::new([
        (0x1000, locals(0)),
        (0x6100, locals(0).with_signal()),
        (0x2000, Row::outermost()),
    ]);
    let stack = Stack::new([(0x8000, 0x6160), (0x8008, 0x2000)]);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x6160, 0x2000], End::Outermost));
    let script = Script::new([(0x1000, locals(0)), (0x6100, Row::signal_context())]);
    let end = End::Step(StepError::UnknownTrampoline);
    assert_eq!(walk(script, START, &stack), (vec![0x1010, 0x6160], end));
}

/// Three functions with frame pointers; what the table knows of them is the
/// test's choice.
fn three_frames() -> (Regs, Stack) {
    let stack = Stack::new([
        (0x8010, 0x8030),
        (0x8018, 0x2010),
        (0x8030, 0x8040),
        (0x8038, 0x3010),
        (0x8040, 0),
        (0x8048, 0),
    ]);
    (Regs { fp: 0x8010, ..START }, stack)
}

fn walk_with_fallback(script: Script) -> (Vec<unwind_core::Frame>, End<BadTable>, u32) {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    let seen: Vec<_> = frames.by_ref().collect();
    (seen, frames.end().unwrap(), frames.table_errors())
}

#[test]
fn a_missing_row_goes_on_by_the_fallback_and_the_frame_says_so() {
    let script = Script::new([(0x1000, FP), (0x3000, FP)]);
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010, 0x3010], End::ZeroReturnAddress, 0)
    );
    let origins: Vec<_> = frames.iter().map(|frame| frame.provenance.origin()).collect();
    assert_eq!(origins, [Origin::Registers, Origin::Table, Origin::FramePointer]);
    assert!(frames.iter().all(|frame| !frame.provenance.is_after_failure()));
}

#[test]
fn a_malformed_row_goes_on_by_the_fallback_and_is_counted() {
    let mut script = Script::new([(0x1000, FP), (0x3000, FP)]);
    script.0.insert(0x2000, Err(BadTable::Malformed));
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010, 0x3010], End::ZeroReturnAddress, 1)
    );
    assert!(frames[2].provenance.is_after_failure() && !frames[1].provenance.is_after_failure());
}

#[test]
fn a_row_that_cannot_be_applied_goes_on_by_the_fallback() {
    let script = Script::new([(0x1000, FP), (0x2000, locals(3)), (0x3000, FP)]);
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010, 0x3010], End::ZeroReturnAddress, 0)
    );
    assert!(frames[2].provenance.is_after_failure());
    assert_eq!(frames[2].provenance.origin(), Origin::FramePointer);
}

#[test]
fn absent_memory_is_not_papered_over_by_the_fallback() {
    let mut script = Script::new([(0x1000, FP), (0x3000, FP)]);
    script.0.insert(0x2000, Err(BadTable::Absent));
    let (frames, end, errors) = walk_with_fallback(script);
    assert_eq!(
        (pcs(&frames), end, errors),
        (vec![0x1010, 0x2010], End::Table(BadTable::Absent), 0)
    );
    assert!(end.is_retryable());

    let (regs, mut stack) = three_frames();
    stack.0.insert(0x8100, None);
    let script = Script::new([(0x1000, locals(0x100))]);
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 1);
    assert!(frames.end().unwrap().is_retryable());
}

#[test]
fn what_is_wrong_with_the_row_is_the_end_if_the_fallback_fails_too() {
    for (row, end) in [
        (Ok(locals(3)), End::Step(StepError::Misaligned { cfa: 0x800b })),
        (Err(BadTable::Malformed), End::Table(BadTable::Malformed)),
    ] {
        let mut walker = Walker::new(Toy, Script([(0x1000, row)].into())).fallback(AlwaysFp);
        let mut stack = Stack::default();
        let mut frames = walker.frames(START, &mut stack);
        assert_eq!(frames.by_ref().count(), 1);
        assert_eq!(frames.end(), Some(end));
    }
}

#[test]
fn nothing_is_committed_when_a_step_fails() {
    // The first rule of the row could be applied, the last one could not.
    let bad = Row::new(CfaRule::sp(0x20), RegRule::AtCfa(-8), RegRule::AtCfa(0x1000));
    let (regs, stack) = three_frames();
    let stack = Stack(stack.0.into_iter().chain([(0x8020 - 8, Some(0x2010))]).collect());
    let mut walker = Walker::new(Toy, Script::new([(0x1000, bad)])).fallback(AlwaysFp);
    let mut mem = stack.clone();
    let frames: Vec<_> = walker.frames(regs, &mut mem).collect();
    // The fallback saw the registers of the first frame, not half of the
    // second's.
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3010]);
    let (frames, end) = walk(Script::new([(0x1000, bad)]), regs, &stack);
    assert_eq!(frames, [0x1010]);
    assert!(matches!(end, End::Step(StepError::Unreadable { .. })));
}

#[test]
fn the_upper_bound_of_the_stack_is_honoured() {
    let (regs, stack) = three_frames();
    for (stack_end, count, end) in [
        (0x8050, 3, End::ZeroReturnAddress),
        (0x804f, 3, End::Step(StepError::BeyondStack { cfa: 0x8050 })),
        (0x803f, 2, End::Step(StepError::BeyondStack { cfa: 0x8040 })),
        (0x8000, 1, End::Step(StepError::BeyondStack { cfa: 0x8020 })),
    ] {
        let mut walker = Walker::new(Toy, all_with_frame_pointers()).stack_end(stack_end);
        let mut stack = stack.clone();
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!((frames.by_ref().count(), frames.end()), (count, Some(end)), "{stack_end:#x}");
    }
}

#[test]
fn a_walk_is_full_only_if_there_is_another_frame() {
    let (regs, stack) = three_frames();
    for (max, count, end) in [
        (0, 0, End::Full),
        (1, 1, End::Full),
        (2, 2, End::Full),
        (3, 3, End::ZeroReturnAddress),
        (4, 3, End::ZeroReturnAddress),
    ] {
        let mut walker = Walker::new(Toy, all_with_frame_pointers()).max_frames(max);
        let mut stack = stack.clone();
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!((frames.by_ref().count(), frames.end()), (count, Some(end)), "at most {max}");
        assert!(frames.next().is_none(), "the iterator stays at its end");
    }
}

#[test]
fn a_crafted_ring_of_signal_frames_ends_with_the_limit() {
    // The trampoline's context leads back to the trampoline.
    let script = Script::new([(0x5100, Row::signal_context())]);
    let stack = Stack::new([(0x8000, 0x5160), (0x8008, 0x8000), (0x8010, 0), (0x8018, 0)]);
    let (frames, end) = walk(script, Regs { pc: 0x5160, ..START }, &stack);
    assert_eq!((frames.len(), end), (510, End::Full));
}

#[test]
fn a_zero_that_a_stray_frame_pointer_finds_completes_no_stack() {
    let (regs, mut stack) = three_frames();
    stack.0.extend([(0x8030, Some(0x9000)), (0x9000, Some(0)), (0x9008, Some(0))]);
    let mut walker = Walker::new(Toy, AlwaysFp);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 3);
    let end = frames.end().unwrap();
    assert_eq!(end, End::Step(StepError::ZeroReturnAddress { cfa: 0x9010 }));
    assert!(!end.is_complete());
}

#[test]
fn a_zero_at_a_stack_pointer_that_a_frame_pointer_gave_completes_no_stack() {
    let (regs, mut stack) = three_frames();
    stack.0.extend([(0x8030, Some(0x8048)), (0x8048, Some(0)), (0x8050, Some(0))]);
    for (row, end) in [
        (locals(8), End::Step(StepError::ZeroReturnAddress { cfa: 0x8050 })),
        (FP, End::ZeroReturnAddress),
    ] {
        let mut walker = Walker::new(Toy, Script::new([(0x3000, row)])).fallback(AlwaysFp);
        let mut frames = walker.frames(regs, &mut stack);
        assert_eq!((frames.by_ref().count(), frames.end()), (3, Some(end)), "{row:?}");
    }
}

/// Code ends at 0x3000.
struct NoCodeAbove;

impl TargetCode for NoCodeAbove {
    fn is_code(&mut self, call: VirtAddr) -> bool {
        call.get() < 0x3000
    }
}

#[test]
fn a_return_address_that_leads_to_no_code_ends_a_walk_or_asks_the_fallback() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, AlwaysFp).code(NoCodeAbove);
    let mut frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.by_ref().count(), 2);
    let pc = VirtAddr::new(0x3010);
    assert_eq!(frames.end(), Some(End::Step(StepError::NotCode { pc })));
    // The last byte of a call counts, not the address behind it.
    stack.0.insert(0x8038, Some(0x3000));
    let frames = walker.frames(regs, &mut stack);
    assert_eq!(frames.map(|frame| frame.pc.addr().get()).last(), Some(0x3000));
    // A row of the table that leads nowhere leaves it to the fallback.
    stack.0.insert(0x8000, Some(0x5000));
    let script = Script::new([(0x1000, locals(0))]);
    let mut walker = Walker::new(Toy, script).fallback(AlwaysFp).code(NoCodeAbove);
    let frames: Vec<_> = walker.frames(regs, &mut stack).collect();
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3000]);
    assert!(frames[1].provenance.is_after_failure());
}

/// Two frames return to the tracer's trampoline; the real addresses are known
/// by the slot.
struct Uretprobes;

impl TargetCode for Uretprobes {
    fn real_return(&mut self, ra: VirtAddr, slot: Option<VirtAddr>) -> Option<VirtAddr> {
        let real = match (ra.get(), slot?.get()) {
            (0x7000, 0x8018) => 0x2010,
            (0x7000, 0x8038) => 0x3010,
            _ => return None,
        };
        Some(VirtAddr::new(real))
    }
}

#[test]
fn h11_trampoline_addresses_are_replaced_in_direct_and_deferred_walks() {
    let (regs, mut stack) = three_frames();
    stack.0.insert(0x8018, Some(0x7000));
    stack.0.insert(0x8038, Some(0x7000));
    let mut plain = Walker::new(Toy, AlwaysFp);
    let frames: Vec<_> = plain.frames(regs, &mut stack).collect();
    assert_eq!(pcs(&frames), [0x1010, 0x7000, 0x7000]);

    let mut walker = Walker::new(Toy, AlwaysFp).code(Uretprobes);
    let frames: Vec<_> = walker.frames(regs, &mut stack).collect();
    assert_eq!(pcs(&frames), [0x1010, 0x2010, 0x3010]);
    assert!(frames[1].provenance.is_behind_trampoline());
    assert!(!frames[0].provenance.is_behind_trampoline());

    let mut trace = UnwindCache::<8, BadTable>::new();
    walker.trace(regs, &mut stack, &mut trace);
    assert!(trace.pcs().map(VirtAddr::get).eq([0x1010, 0x2010, 0x3010]));
    assert!(trace.frames().nth(2).unwrap().provenance.is_behind_trampoline());
}

#[test]
fn a_trace_holds_what_the_frames_said_and_forgets_the_walk_before() {
    let (regs, mut stack) = three_frames();
    let mut walker = Walker::new(Toy, all_with_frame_pointers());
    let mut trace = UnwindCache::<8, BadTable>::new();
    assert!(trace.end().is_none() && trace.is_empty() && !trace.is_complete());
    for _ in 0..2 {
        walker.trace(regs, &mut stack, &mut trace);
        let frames: Vec<_> = walker.frames(regs, &mut stack).collect();
        let kept: Vec<_> = trace.frames().map(|frame| (frame.pc, frame.provenance)).collect();
        let seen: Vec<_> = frames.iter().map(|frame| (frame.pc, frame.provenance)).collect();
        assert_eq!(kept, seen);
        assert_eq!((trace.len(), trace.end()), (3, Some(End::ZeroReturnAddress)));
        assert!(trace.is_complete() && !trace.is_empty());
    }
    let mut small = UnwindCache::<2, BadTable>::new();
    walker.trace(regs, &mut stack, &mut small);
    assert!(small.pcs().map(VirtAddr::get).eq([0x1010, 0x2010]));
    assert_eq!(small.end(), Some(End::Full));
    assert!(!small.is_complete(), "a truncated stack never looks complete");
    let mut exact = UnwindCache::<3, BadTable>::new();
    walker.trace(regs, &mut stack, &mut exact);
    assert_eq!((exact.len(), exact.end()), (3, Some(End::ZeroReturnAddress)));
}

#[test]
fn a_fallback_that_fails_is_the_reason_only_where_no_table_had_one() {
    let broken = Script([(0x1000, Err(BadTable::Malformed))].into());
    let of = |rows: Script| {
        let mut walker = Walker::new(Toy, rows).fallback(broken.clone());
        let mut stack = Stack::default();
        let mut frames = walker.frames(START, &mut stack);
        // There are more.
        assert_eq!(frames.end(), None);
        assert!(format!("{frames:?}").starts_with("Frames"));
        assert_eq!(frames.by_ref().count(), 1);
        frames.end().unwrap()
    };
    assert_eq!(of(Script::default()), End::Table(BadTable::Malformed));
    let backwards = Row::new(CfaRule::sp(-8), RegRule::AtCfa(-8), RegRule::Same);
    let expected = StepError::NoProgress { cfa: 0x7ff8, sp: 0x8000 };
    assert_eq!(of(Script::new([(0x1000, backwards)])), End::Step(expected));
}

/// A mode whose stacks are not walked.
struct Vm86;

impl Arch for Vm86 {
    type Regs = Regs;
    const WORD: WordSize = WordSize::Four;
    fn is_walkable(&self) -> bool {
        false
    }
}

impl RowSource<Vm86> for AlwaysFp {
    type Error = BadTable;
    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, BadTable> {
        panic!("no row is asked for")
    }
}

#[test]
fn a_mode_that_cannot_be_walked_has_no_frames_and_says_so() {
    let mut walker = Walker::new(Vm86, AlwaysFp);
    let mut stack = Stack::default();
    let mut frames = walker.frames(START, &mut stack);
    assert!(frames.next().is_none());
    assert_eq!(frames.end(), Some(End::NotWalkable));
}

#[test]
fn the_text_of_a_frame_says_who_found_it_and_how_sure_that_is() {
    let stack = Stack::new([(0x8000, 0x2010)]);
    let script = Script::new([(0x1000, locals(0)), (0x2000, Row::outermost())]);
    let (mut walker, mut stack) = (Walker::new(Toy, script), stack);
    let texts: Vec<_> =
        walker.frames(START, &mut stack).map(|frame| format!("{:?}", frame.provenance)).collect();
    let sure = "after_failure: false, behind_trampoline: false";
    let expected = [
        format!("Provenance {{ origin: Registers, exact: true, {sure} }}"),
        format!("Provenance {{ origin: Table, exact: false, {sure} }}"),
    ];
    assert_eq!(texts, expected);
}
