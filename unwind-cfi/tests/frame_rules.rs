//! Rules that are expressions, in frames: walks by them, in place and in the walked memory.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use testdata::{CfiBuilder, Cie};
use unwind_cfi::{
    CfiAbi, CfiError, CfiScratch, CfiSection, CfiSource, CfiTable, Entries, FrameRules, IndexEntry,
    RemoteCfi, RemoteCfiSource, index,
};
use unwind_core::{
    BaseReg, DwarfReg, End, FrameContext, FramePc, Memory, Module, ModuleMap, ReadError, RegRule,
    RowCache, RowSource, StepError, Trace, VirtAddr, Walker,
};
use unwind_x86::{Ia32, Ia32Regs, X86_64, X86_64Regs};

const STACK: u64 = 0x7000_0000;
const FRAME: u64 = 0x10_0000;
const HEADER: u64 = 0x8_0000;
const BREG: u8 = 0x70;
const DEREF: u8 = 0x06;
const PLUS: u8 = 0x23;
const RSP: u8 = 7;
const RBX: u8 = 3;
const R10: u8 = 10;

/// Code of 0x100 bytes from this address on, whose entry has these instructions, and the mark of a
/// signal frame or not.
type Function = (u64, Vec<u8>, bool);

/// `.eh_frame` at [`FRAME`] and its search table at [`HEADER`].
fn tables(abi: CfiAbi, functions: &[Function]) -> (Vec<u8>, Vec<u8>) {
    let mut builder = CfiBuilder::eh_frame(FRAME);
    let mut cie = |is_signal| {
        let mut cie = Cie::amd64();
        if abi == CfiAbi::Ia32 {
            (cie.ra, cie.data_align) = (8, -4);
            cie.instructions = vec![0x0c, 4, 4, 0x88, 1];
        }
        cie.augmentation = if is_signal { b"zRS" } else { b"zR" };
        builder.cie(&cie)
    };
    let cies = [cie(false), cie(true)];
    let relative = |to: u64| i32::try_from(to.cast_signed() - HEADER.cast_signed()).unwrap();
    let mut header = vec![1, 0x1b, 3, 0x3b];
    header.extend((relative(FRAME) - 4).to_le_bytes());
    header.extend(u32::try_from(functions.len()).unwrap().to_le_bytes());
    for (start, instructions, is_signal) in functions {
        let at = builder.fde(cies[usize::from(*is_signal)], *start, 0x100, instructions);
        for word in [*start, FRAME + at] {
            header.extend(relative(word).to_le_bytes());
        }
    }
    (builder.build().to_vec(), header)
}

/// Instructions of an entry: the CFA is this expression.
fn cfa(expression: &[u8]) -> Vec<u8> {
    [&[0x0f, u8::try_from(expression.len()).unwrap()], expression].concat()
}

/// A register is saved where this expression says.
fn saved(register: u8, expression: &[u8]) -> Vec<u8> {
    [&[0x10, register, u8::try_from(expression.len()).unwrap()], expression].concat()
}

/// Memory of which only these parts are here.
struct Space<'a>(Vec<(u64, &'a [u8])>);

impl Memory for Space<'_> {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        let bytes = self.0.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(addr.get().checked_sub(*start)?).ok()?;
            bytes.get(at..)?.get(..buf.len())
        });
        buf.copy_from_slice(bytes.ok_or(ReadError::NotResident)?);
        Ok(())
    }
}

/// The pcs and the end of a walk, by tables in place and in the walked memory, with a cache of
/// rows and without: all the same.
fn walk(functions: &[Function], regs: X86_64Regs, stack: &[u64]) -> (Vec<u64>, End<CfiError>) {
    let (frame, header) = tables(CfiAbi::X86_64, functions);
    let stack: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let parts = vec![(FRAME, &frame[..]), (HEADER, &header[..]), (STACK, &stack[..])];
    let mut space = Space(parts);
    let text = VirtAddr::new(0x1000)..VirtAddr::new(0x9000);

    let mut slots = [IndexEntry::default(); 16];
    let section = CfiSection::eh_frame(&frame, FRAME);
    let index = index(Entries::new(section, CfiAbi::X86_64), &mut slots).unwrap();
    let table = CfiTable::with_index(section, CfiAbi::X86_64, index);
    let mut modules = ModuleMap::<_, 4>::new();
    modules.add(Module { text: text.clone(), table }).unwrap();
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, CfiSource::new(&modules)).max_frames(40);
    let mut frames = walker.frames(regs, &mut space);
    let pcs: Vec<_> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    let end = frames.end().unwrap();

    let mut cache = RowCache::<64>::new();
    for _ in 0..3 {
        let mut trace = Trace::<[_; 64]>::default();
        let walker = Walker::new(X86_64::FOUR_LEVEL, CfiSource::new(&modules)).max_frames(40);
        walker.cache(&mut cache).trace(regs, &mut space, &mut trace);
        let traced: Vec<_> = trace.frames().map(|frame| frame.pc.addr().get()).collect();
        assert_eq!((&traced, trace.end().map(|end| end.code())), (&pcs, Some(end.code())));
    }

    let object = RemoteCfi::open(&mut space, CfiAbi::X86_64, HEADER).unwrap().unwrap();
    let mut objects = ModuleMap::<_, 4>::new();
    objects.add(Module { text, table: object }).unwrap();
    let mut scratch = CfiScratch::new();
    let source = RemoteCfiSource::new(&objects, &mut scratch);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source).max_frames(40);
    let mut frames = walker.frames(regs, &mut space);
    let far: Vec<_> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!((&far, frames.end().unwrap().code()), (&pcs, end.code()));
    (pcs, end)
}

fn outermost(start: u64) -> Function {
    (start, vec![0x07, 16], false)
}

/// The CFA is 8 above the word at 16 above the word at `rsp+8`: as OCaml 5 leaves an effect handler.
fn chained() -> Vec<u8> {
    cfa(&[BREG | RSP, 8, DEREF, PLUS, 16, DEREF, PLUS, 8])
}

#[test]
fn u2_a_cfa_that_only_the_frame_tells_leads_to_the_caller() {
    let functions =
        [(0x1000, chained(), false), (0x1100, vec![0x0e, 16], false), outermost(0x1200)];
    let stack = [0, STACK + 0x10, 7, 0, STACK + 0x30, 0, 0x1110, 0, 0x1210, 0];
    let regs = X86_64Regs::new(0x1010, STACK, 0);
    assert_eq!(walk(&functions, regs, &stack), (vec![0x1010, 0x1110, 0x1210], End::Outermost));
}

#[test]
fn u2_a_return_address_and_a_frame_pointer_may_be_where_an_expression_says() {
    // Above a word that tells how far: CFA = rsp+32; RA at CFA + 8 * [CFA].
    let by_word = [0x12, DEREF, 0x33, 0x24, 0x22];
    let instructions =
        [vec![0x0e, 32], saved(16, &by_word), saved(6, &[0x12, DEREF, 0x13, 0x38, 0x1c])];
    let functions = [
        (0x1000, instructions.concat(), false),
        (0x1100, vec![0x0c, 6, 16], false),
        outermost(0x1200),
    ];
    let stack = [0, 0, 0, STACK + 0x38, 2, 0, 0x1110, 0x9999, 0x1210, 0];
    let regs = X86_64Regs::new(0x1010, STACK, 5);
    assert_eq!(walk(&functions, regs, &stack), (vec![0x1010, 0x1110, 0x1210], End::Outermost));
}

#[test]
fn u2_registers_that_calls_preserve_are_found_for_an_expression() {
    // rbx is the caller's, which the first function has saved and changed.
    let by_rbx = cfa(&[BREG | RBX, 8, DEREF, PLUS, 16, DEREF, PLUS, 8]);
    let first = vec![0x0e, 32, 0x83, 2];
    let functions = [(0x1000, first, false), (0x1100, by_rbx.clone(), false), outermost(0x1200)];
    let stack = [0, 0, STACK + 0x20, 0x1110, 0, STACK + 0x30, 0, 0, STACK + 0x50, 0, 0x1210, 0];
    let regs = X86_64Regs::new(0x1010, STACK, 0);
    assert_eq!(walk(&functions, regs, &stack), (vec![0x1010, 0x1110, 0x1210], End::Outermost));
    // In the frame itself it is known, or not.
    let here = [(0x1000, by_rbx, false), outermost(0x1200)];
    let known = regs.with(X86_64Regs::RBX, STACK + 0x20);
    assert_eq!(walk(&here, known, &stack).0, [0x1010, 0x1210]);
    let unknown = StepError::UnknownRegister(BaseReg::Reg(DwarfReg(RBX)));
    assert_eq!(walk(&here, regs, &stack), (vec![0x1010], End::Step(unknown)));
    // No call preserves r10.
    let by_r10 = cfa(&[BREG | R10, 8, DEREF, PLUS, 16, DEREF, PLUS, 8]);
    let functions = [(0x1000, vec![], false), (0x1100, by_r10, false)];
    let unknown = StepError::UnknownRegister(BaseReg::Reg(DwarfReg(R10)));
    let expected = (vec![0x1010, 0x1110], End::Step(unknown));
    assert_eq!(walk(&functions, known, &[0x1110, 0, 0]), expected);
}

#[test]
fn u2_memory_that_an_expression_needs_and_is_absent_ends_the_walk_for_another_time() {
    let functions = [(0x1000, chained(), false)];
    let end = walk(&functions, X86_64Regs::new(0x1010, STACK, 0), &[0, 0x5000]).1;
    let addr = VirtAddr::new(0x5010);
    assert_eq!(end, End::Step(StepError::Unreadable { addr, error: ReadError::NotResident }));
    assert!(end.is_retryable());
}

#[test]
fn u2_what_is_malformed_or_too_long_is_an_error_of_the_table() {
    let long = [vec![0x96; 60], vec![BREG | RSP, 8, DEREF, DEREF, 0x19]].concat();
    for expression in [&[BREG | RSP, 0, 0x1c][..], &[0x30, 0x30, 0x1b], &[0x9c], &[0x03, 0], &long]
    {
        let functions = [(0x1000, cfa(expression), false)];
        let (pcs, end) = walk(&functions, X86_64Regs::new(0x1010, STACK, 0), &[0x1110, 0]);
        let is_expression = matches!(end, End::Table(CfiError::CfaExpression { at }) if at > 0x20);
        assert!(pcs == [0x1010] && is_expression, "{expression:x?}: {end}");
    }
}

#[test]
fn u3_a_cfa_of_another_stack_may_be_anywhere_with_the_mark_of_a_signal_frame_alone() {
    // Far below, and far above.
    let low = [0x1110, STACK + 0x28, 0x1210_u64];
    for (at, is_signal, frames) in [
        (0x3_0000_u64, true, 3),
        (0x3_0000, false, 1),
        (0x7fff_0000_0000, true, 3),
        (0x7fff_0000_0000, false, 3),
    ] {
        let functions = [
            (0x1000, chained(), is_signal),
            // Its frame pointer comes from there.
            (0x1100, vec![0x0e, 16, 0x86, 2], false),
            outermost(0x1200),
        ];
        let mut functions = functions.to_vec();
        functions[0].1.extend(saved(6, &[0x12, DEREF]));
        let (frame, _) = tables(CfiAbi::X86_64, &functions);
        let section = CfiSection::eh_frame(&frame, FRAME);
        let mut slots = [IndexEntry::default(); 16];
        let index = index(Entries::new(section, CfiAbi::X86_64), &mut slots).unwrap();
        let mut modules = ModuleMap::<_, 4>::new();
        let text = VirtAddr::new(0x1000)..VirtAddr::new(0x9000);
        let table = CfiTable::with_index(section, CfiAbi::X86_64, index);
        modules.add(Module { text, table }).unwrap();
        let stack = [0, STACK + 0x10, 0, 0, at];
        let bytes = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let (stack, low) = (bytes(&stack), bytes(&low));
        let mut space = Space(vec![(0x1000, &[0x90; 0x300]), (STACK, &stack), (at, &low)]);
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, CfiSource::new(&modules));
        let regs = X86_64Regs::new(0x1010, STACK, 0);
        let mut walked = walker.frames(regs, &mut space);
        let seen: Vec<_> = walked.by_ref().collect();
        assert_eq!(seen.len(), frames, "{at:#x} {is_signal}: {:?}", walked.end());
        if frames == 3 {
            assert_eq!(seen[0].cfa, Some(at + 8));
            assert!(walked.is_complete());
        }
    }
}

#[test]
fn u2_expressions_of_32_bit_code_are_evaluated_in_32_bits() {
    // CFA = [[esp+4]+8]+4.
    let expression = cfa(&[BREG | 4, 4, DEREF, PLUS, 8, DEREF, PLUS, 4]);
    let functions = [(0x1000, expression, false), (0x1100, vec![0x07, 8], false)];
    let (frame, header) = tables(CfiAbi::Ia32, &functions);
    let words = [0, 0x7000_0008, 0, 0, 0x7000_0018_u32, 0, 0x1110];
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut space = Space(vec![(FRAME, &frame), (HEADER, &header), (STACK, &stack)]);
    let object = RemoteCfi::open(&mut space, CfiAbi::Ia32, HEADER).unwrap().unwrap();
    let text = VirtAddr::new(0x1000)..VirtAddr::new(0x9000);
    let mut objects = ModuleMap::<_, 4>::new();
    objects.add(Module { text, table: object }).unwrap();
    let mut scratch = CfiScratch::new();
    let mut walker = Walker::new(Ia32::FLAT, RemoteCfiSource::new(&objects, &mut scratch));
    let mut frames = walker.frames(Ia32Regs::new(0x1010, 0x7000_0000, 0), &mut space);
    let pcs: Vec<_> = frames.by_ref().map(|frame| frame.pc.addr().get()).collect();
    assert_eq!((pcs, frames.end()), (vec![0x1010, 0x1110], Some(End::Outermost)));
}

#[test]
fn u2_no_cache_keeps_a_row_of_one_frame() {
    let functions = [(0x1000, chained(), false), (0x1100, vec![0x0e, 16], false)];
    let (frame, _) = tables(CfiAbi::X86_64, &functions);
    let section = CfiSection::eh_frame(&frame, FRAME);
    let mut slots = [IndexEntry::default(); 16];
    let index = index(Entries::new(section, CfiAbi::X86_64), &mut slots).unwrap();
    let table = CfiTable::with_index(section, CfiAbi::X86_64, index);
    let found = table.find_row(0x1010);
    assert!(FrameRules::may_say_more(&found) && found.is_err());
    assert!(table.find_frame_rules(0x1110).unwrap().is_none(), "a row says it");
    assert!(!FrameRules::may_say_more(&table.find_row(0x1110)));
    let rules = table.find_frame_rules(0x1010).unwrap().unwrap();
    let mut cfas = Vec::new();
    for above in [0x30, 0x48] {
        let words = [0, STACK + 0x10, 7, 0, STACK + above, 0];
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut space = Space(vec![(STACK, &stack)]);
        let pc = FramePc::Exact(VirtAddr::new(0x1010));
        let frame = FrameContext::<X86_64Regs>::new(pc, STACK, None, None);
        let row = rules.row(&frame, &mut space).unwrap();
        assert_eq!((row.ra(), row.fp()), (RegRule::Offset(-8), RegRule::SameValue));
        cfas.push(row.cfa().to_string());
        let mut modules = ModuleMap::<_, 4>::new();
        let text = VirtAddr::new(0x1000)..VirtAddr::new(0x9000);
        modules.add(Module { text, table }).unwrap();
        let found = RowSource::<X86_64>::row(&mut CfiSource::new(&modules), &frame, &mut space);
        assert_eq!(found, Ok(Some(row)));
    }
    assert_eq!(cfas, ["sp+56", "sp+80"]);
}
