//! Stacks through frames whose row needs another register than the stack or frame pointer.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use core::convert::Infallible;

use test_support::SparseMemory;
use unwind_core::{
    Arch, BaseReg, CfaRule, DwarfReg, End, FrameContext, Memory, RegRule, RegisterRules,
    Registers as _, ReturnAddresses, Row, RowCache, RowSource, StepError, Trace, VirtAddr, Walker,
};
use unwind_x86::{Ia32, Ia32Regs, SignalTrampolines, X86_64, X86_64Regs};

/// One function at each multiple of 0x1000: its row, and the rules of other registers if
/// there are any.
#[derive(Clone, Default)]
struct Functions {
    list: Vec<(Row, Option<RegisterRules>)>,
    /// How often rules of other registers were asked for.
    asked: usize,
}

impl Functions {
    fn with(mut self, row: Row, rules: &[(u8, RegRule)]) -> Self {
        let mut all = RegisterRules::new();
        assert!(rules.iter().all(|&(register, rule)| all.add(DwarfReg(register), rule)));
        self.list.push((row, Some(all)));
        self
    }

    fn without_rules(mut self, row: Row) -> Self {
        self.list.push((row, None));
        self
    }

    fn at(&self, addr: VirtAddr) -> Option<&(Row, Option<RegisterRules>)> {
        let number = usize::try_from(addr.get() >> 12).unwrap().checked_sub(1)?;
        self.list.get(number)
    }
}

impl<A: Arch> RowSource<A> for Functions {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(self.at(frame.lookup_addr()).map(|(row, _)| *row))
    }

    fn register_rules<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, A::Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, Infallible> {
        self.asked += 1;
        Ok(self.at(frame.lookup_addr()).and_then(|(_, rules)| rules.clone()))
    }
}

const RBX: BaseReg = BaseReg::Reg(DwarfReg(3));

/// A frame of this size in bytes, with a return address below its CFA.
fn from_sp<const WORD: i32>(size: i32) -> Row {
    Row::new(CfaRule::sp(size), RegRule::Offset(-WORD), RegRule::SameValue)
}

/// The CFA is that much above rbx, resp. ebx.
fn from_rbx<const WORD: i32>(offset: i32) -> Row {
    from_sp::<WORD>(0).with_cfa(CfaRule::Register(RBX, offset))
}

type Walked = (Vec<u64>, Option<End>);

/// The same walk in five ways, which agree: without a cache, in parts, into a trace with a
/// cache, twice, and by comparison with the walk before.
fn walk<A: Arch + Copy>(arch: A, source: &Functions, regs: A::Regs, target: &SparseMemory) -> Walked
where
    SignalTrampolines: RowSource<A, Error = Infallible>,
{
    let mut target = target.clone();
    let source = RowSource::<A>::or(source.clone(), SignalTrampolines);
    let mut walker = Walker::new(arch, source.clone());
    let mut frames = walker.frames(regs, &mut target);
    let pcs: Vec<u64> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    let end = frames.end().map(|end| end.with_fault(VirtAddr::new(0)));
    assert_eq!(walk_in_parts(&mut walker, regs, &mut target), (pcs.clone(), end));
    let mut rows = RowCache::<64>::new();
    let mut cached = Walker::new(arch, source).cache(&mut rows);
    for _ in 0..2 {
        let mut trace = Trace::<[_; 16]>::new();
        cached.trace(regs, &mut target, &mut trace);
        assert_eq!(trace.pcs().map(VirtAddr::get).collect::<Vec<_>>(), pcs);
        assert_eq!(trace.end(), end);
    }
    (pcs, end)
}

/// The same walk, continued for each frame.
fn walk_in_parts<A: Arch, S: RowSource<A, Error = Infallible>>(
    walker: &mut Walker<A, S>,
    regs: A::Regs,
    target: &mut SparseMemory,
) -> Walked {
    let mut pcs = Vec::new();
    let mut at = walker.frames(regs, target).position();
    let mut end = None;
    while let Some(position) = at {
        let mut frames = walker.resume(position, target);
        pcs.extend(frames.next().map(|frame| frame.pc.addr().get()));
        (at, end) = (frames.position(), frames.end());
    }
    (pcs, end.map(|end| end.with_fault(VirtAddr::new(0))))
}

fn registers(pc: u64, sp: u64, rbx: u64) -> X86_64Regs {
    let mut gpr = [0x1111; 16];
    (gpr[7], gpr[3]) = (sp, rbx);
    X86_64Regs::from_all(pc, gpr)
}

/// As the dynamic linker's lazy binding: the innermost frame has saved rbx, the next one
/// keeps it, the third one's CFA hangs on it.
fn lazy_binding() -> (Functions, SparseMemory) {
    let functions = Functions::default()
        .with(from_sp::<8>(24), &[(3, RegRule::Offset(-16))])
        .with(from_sp::<8>(16), &[])
        .with(from_rbx::<8>(0x28), &[(3, RegRule::Offset(-0x18))])
        .with(from_sp::<8>(16), &[])
        .with(Row::outermost(), &[]);
    let target = SparseMemory::default()
        // The innermost frame, with the rbx of the third.
        .words(0x7f00, &[0, 0x7f80, 0x2010])
        .words(0x7f18, &[0, 0x3010])
        // The third has aligned its stack, and saved its caller's rbx.
        .words(0x7f90, &[0x99, 0, 0x4010])
        .words(0x7fa8, &[0, 0x5010]);
    (functions, target)
}

#[test]
fn a_cfa_on_a_register_that_callees_have_saved_is_found() {
    let (functions, target) = lazy_binding();
    let regs = registers(0x1004, 0x7f00, 0xbad);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
    assert_eq!(pcs, [0x1004, 0x2010, 0x3010, 0x4010, 0x5010]);
    assert_eq!(end, Some(End::Outermost));
}

#[test]
fn registers_of_callers_are_told_where_all_frames_before_tell_how() {
    let (functions, mut target) = lazy_binding();
    let regs = registers(0x1004, 0x7f00, 0xbad).with(DwarfReg(12), 0xc);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, functions);
    let mut frames = walker.frames(regs, &mut target);
    let mut told = Vec::new();
    while let Some(at) = frames.position() {
        // rbx, r11, which calls do not preserve, r12, which no frame has saved, rsp, rbp.
        let values = [3, 11, 12, 7, 6].map(|register| frames.register(DwarfReg(register)));
        assert_eq!((values[3], values[4]), (Some(at.sp()), at.fp()));
        told.push((at.pc().addr().get(), values[0], values[1], values[2]));
        frames.next();
    }
    let r12 = Some(0xc);
    let expected = [
        (0x1004, Some(0xbad), Some(0x1111), r12),
        (0x2010, Some(0x7f80), None, r12),
        (0x3010, Some(0x7f80), None, r12),
        (0x4010, Some(0x99), None, r12),
        (0x5010, Some(0x99), None, r12),
    ];
    assert_eq!(told, expected);
    assert_eq!(frames.register(DwarfReg(3)), None, "no frame comes");
}

#[test]
fn a_register_that_a_frame_does_not_tell_of_ends_the_walk_with_that() {
    let (mut functions, target) = lazy_binding();
    let regs = registers(0x1004, 0x7f00, 0x7f80);
    let unknown = Some(End::Step(StepError::UnknownRegister(RBX)));
    // What came before does not matter where a frame has saved it.
    for (number, cut) in [(0, true), (1, true), (2, false), (3, false)] {
        let rules = functions.list[number].1.take();
        let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
        assert_eq!((pcs.len(), end), if cut { (3, unknown) } else { (5, Some(End::Outermost)) });
        functions.list[number].1 = rules;
    }
    functions.list[1].1 = Some(RegisterRules::new());
    assert!(functions.list[1].1.as_mut().unwrap().add(DwarfReg(3), RegRule::Undefined));
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
    assert_eq!((pcs.len(), end), (3, unknown));
}

#[test]
fn a_frame_that_saves_the_register_tells_it_whatever_its_callees_say() {
    let functions = Functions::default()
        .without_rules(from_sp::<8>(8))
        .with(from_sp::<8>(24), &[(3, RegRule::Offset(-16))])
        .with(from_rbx::<8>(0x10), &[])
        .with(Row::outermost(), &[]);
    let target = SparseMemory::default()
        .words(0x7f00, &[0x2010])
        .words(0x7f08, &[0, 0x7f40, 0x3010])
        .words(0x7f48, &[0x4010]);
    let regs = registers(0x1004, 0x7f00, 0xbad);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
    assert_eq!((pcs.len(), end), (4, Some(End::Outermost)));
}

#[test]
fn what_only_the_sampled_frame_had_is_not_taken_for_a_callers() {
    // r11 is not preserved by calls.
    let row = from_sp::<8>(0).with_cfa(CfaRule::Register(BaseReg::Reg(DwarfReg(11)), 8));
    let functions = Functions::default().with(from_sp::<8>(8), &[]).with(row, &[]);
    let target = SparseMemory::default().words(0x7f00, &[0x2010]).words(0x1111, &[0x1010]);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, registers(0x1004, 0x7f00, 0), &target);
    let unknown = StepError::UnknownRegister(BaseReg::Reg(DwarfReg(11)));
    assert_eq!((pcs.len(), end), (2, Some(End::Step(unknown))));
}

#[test]
fn the_frame_pointer_by_its_number_is_the_frame_pointer() {
    let by_number = from_sp::<8>(0).with_cfa(CfaRule::Register(BaseReg::Reg(DwarfReg(6)), 16));
    let keeps = from_sp::<8>(8);
    let loses = Row::new(CfaRule::sp(8), RegRule::Offset(-8), RegRule::Undefined);
    let target = SparseMemory::default().words(0x7f00, &[0x2010]).words(0x7f48, &[0x3010]);
    let regs = X86_64Regs::new(0x1004, 0x7f00, 0x7f40);
    for (first, frames) in [(keeps, 3), (loses, 2)] {
        let functions =
            Functions::default().with(first, &[]).with(by_number, &[]).with(Row::outermost(), &[]);
        let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
        assert_eq!(pcs.len(), frames, "{end:?}");
    }
}

#[test]
fn a_restored_register_is_the_sampled_one() {
    // After `pop rbx` the row still names its slot, which lies below the stack pointer:
    // beyond the red zone it is not believed.
    let rules = [(3, RegRule::Offset(-0x108))];
    let functions = Functions::default()
        .with(from_sp::<8>(8), &rules)
        .with(from_rbx::<8>(0x10), &[])
        .with(Row::outermost(), &[]);
    let target = SparseMemory::default()
        .words(0x7e00, &[0xbad])
        .words(0x7f00, &[0x2010])
        .words(0x7f48, &[0x3010]);
    let regs = registers(0x1004, 0x7f00, 0x7f40);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
    assert_eq!((pcs.len(), end), (3, Some(End::Outermost)));
}

#[test]
fn a_signal_begins_anew() {
    let mut greg = [0_u64; 17];
    // As the kernel saves them: rbx, rsp, rip.
    (greg[11], greg[15], greg[16]) = (0x7f80, 0x7f18, 0x2008);
    let (mut functions, target) = lazy_binding();
    // The handler has an rbx of its own.
    functions = functions.with(from_sp::<8>(8), &[(3, RegRule::Undefined)]);
    let target = target
        .code(0x10_0000, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        .words(0x6000, &[0x10_0000])
        .words(0x6008 + 40, &greg);
    let regs = registers(0x6004, 0x6000, 0xbad);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
    assert_eq!(pcs, [0x6004, 0x10_0000, 0x2008, 0x3010, 0x4010, 0x5010]);
    assert_eq!(end, Some(End::Outermost));
}

#[test]
fn frames_are_followed_once_however_many_need_it() {
    let mut functions = Functions::default().with(from_sp::<8>(8), &[]);
    let mut target = SparseMemory::default().words(0x7f00, &[0x2010]);
    for number in 0..12_u64 {
        let sp = 0x7f08 + 8 * number;
        functions = functions.with(from_rbx::<8>(8), &[(3, RegRule::ValOffset(0))]);
        target = target.words(sp, &[0x3010 + 0x1000 * number]);
    }
    let functions = functions.with(Row::outermost(), &[]);
    let regs = registers(0x1004, 0x7f00, 0x7f08);
    let (pcs, end) = walk(X86_64::FOUR_LEVEL, &functions, regs, &target);
    assert_eq!((pcs.len(), end), (14, Some(End::Outermost)));
    let mut functions = functions;
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, &mut functions);
    assert_eq!(walker.frames(regs, &mut target.clone()).count(), 14);
    assert_eq!(functions.asked, 12);
    // Where the way is not known, it is looked for once.
    functions.asked = 0;
    let target = target.words(0x7f00, &[0xf_0010]);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, &mut functions)
        .return_addresses(Replaced(None))
        .fallback(Pushed);
    assert_eq!(walker.frames(regs, &mut target.clone()).count(), 14);
    assert_eq!(functions.asked, 1);
}

/// Nothing but the return address is on the stack of a frame.
struct Pushed;

impl RowSource<X86_64> for Pushed {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        _: &FrameContext<'_, X86_64Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok(Some(from_sp::<8>(8)))
    }
}

/// A tracer has replaced the return address to the second function.
#[derive(Clone, Copy)]
struct Replaced(Option<u64>);

impl ReturnAddresses for Replaced {
    fn resolve(&mut self, ra: VirtAddr, _: Option<VirtAddr>) -> Option<VirtAddr> {
        (ra.get() == 0xf_0010).then_some(VirtAddr::new(0x2010))
    }
    fn generation(&self) -> Option<u64> {
        self.0
    }
}

#[test]
fn a_replaced_return_address_is_followed_if_it_can_be_asked_about_twice() {
    let (functions, target) = lazy_binding();
    let target = target.words(0x7f10, &[0xf_0010]);
    let regs = registers(0x1004, 0x7f00, 0xbad);
    for (generation, frames) in [(Some(1), 5), (None, 3)] {
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, functions.clone())
            .return_addresses(Replaced(generation));
        assert_eq!(walker.frames(regs, &mut target.clone()).count(), frames);
    }
}

#[test]
fn a_32_bit_cfa_on_ebx_is_found() {
    let functions = Functions::default()
        .with(from_sp::<4>(12), &[(3, RegRule::Offset(-8))])
        .with(from_rbx::<4>(8), &[])
        .with(Row::outermost(), &[]);
    let target =
        SparseMemory::default().words_32(0x7f00, &[0, 0x7f40, 0x2010]).words_32(0x7f44, &[0x3010]);
    let regs = Ia32Regs::from_all(0x1004, [0, 0, 0, 0xbad, 0x7f00, 0, 0, 0]);
    assert_eq!(regs.fp(), Some(0));
    let (pcs, end) = walk(Ia32::FLAT, &functions, regs, &target);
    assert_eq!((pcs.len(), end), (3, Some(End::Outermost)));
}
