//! Functions that call on another stack than they were called on.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use proptest::prelude::*;
use test_support::SparseMemory;
use unwind_core::{
    CfaRule, End, Frame, FrameContext, FramePc, Memory, ReadError, RegRule, RegisterRules, Row,
    RowKey, RowSource, TableError as _, VirtAddr, Walker,
};
use unwind_x86::{StackSwitchError, StackSwitches, SwitchingFunction, WayBack, X86_64, X86_64Regs};

/// Code that has called on the stack at `SYSTEM`, which is higher than its caller's at `USER`.
const SWITCH: u64 = 0x40_0000;
const OTHER: u64 = 0x50_0000;
const SYSTEM: u64 = 0x7f00_0000;
const USER: u64 = 0xc0_0000;
const FS: u64 = 0x60_0100;
/// What the thread's own memory leads to, as in Go: a goroutine, its thread, the goroutine
/// that the thread runs.
const G: u64 = 0x61_0000;
const M: u64 = 0x62_0000;
const CURRENT: u64 = 0x63_0000;

/// The end of Go 1.19's `runtime.systemstack`, from the call on.
const SYSTEMSTACK: &[u8] = &[
    0xff, 0xd7, // call *%rdi
    0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff, // mov %fs:-8, %rax
    0x48, 0x8b, 0x58, 0x30, // mov 0x30(%rax), %rbx
    0x48, 0x8b, 0x83, 0xc0, 0x00, 0x00, 0x00, // mov 0xc0(%rbx), %rax
    0x64, 0x48, 0x89, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff, // mov %rax, %fs:-8
    0x48, 0x8b, 0x60, 0x38, // mov 0x38(%rax), %rsp
    0x48, 0xc7, 0x40, 0x38, 0x00, 0x00, 0x00, 0x00, // movq $0, 0x38(%rax)
    0xc3,
];

/// The end of its `runtime.asmcgocall`.
const ASMCGOCALL: &[u8] = &[
    0xff, 0xd0, // call *%rax
    0x48, 0x8b, 0x7c, 0x24, 0x30, // mov 0x30(%rsp), %rdi
    0x48, 0x8b, 0x77, 0x08, // mov 0x8(%rdi), %rsi
    0x48, 0x2b, 0x74, 0x24, 0x28, // sub 0x28(%rsp), %rsi
    0x64, 0x48, 0x89, 0x3c, 0x25, 0xf8, 0xff, 0xff, 0xff, // mov %rdi, %fs:-8
    0x48, 0x89, 0xf4, // mov %rsi, %rsp
    0x89, 0x44, 0x24, 0x18, // mov %eax, 0x18(%rsp)
    0xc3,
];

/// All functions but those that switch: one slot of locals, and the last has no caller.
struct Tables;

impl RowSource<X86_64> for Tables {
    type Error = core::convert::Infallible;

    fn row<Mem: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        _: &mut Mem,
    ) -> Result<Option<Row>, Self::Error> {
        Ok(Some(match frame.lookup_addr().get() {
            0x50_0f00.. => Row::outermost(),
            _ => Row::new(CfaRule::sp(16), RegRule::Offset(-8), RegRule::SameValue),
        }))
    }

    fn register_rules<Mem: Memory>(
        &mut self,
        _: &FrameContext<'_, X86_64Regs>,
        _: &mut Mem,
    ) -> Result<Option<RegisterRules>, Self::Error> {
        Ok(Some(RegisterRules::new()))
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        Some(RowKey { table: 1, offset: addr.get() })
    }
}

fn memory(code: &[u8]) -> SparseMemory {
    SparseMemory::default()
        .code(SWITCH, code)
        .words(FS - 8, &[G])
        .words(G + 0x30, &[M])
        .words(M + 0xc0, &[CURRENT])
        .words(CURRENT + 0x38, &[USER, OTHER + 0x100])
        // Locals of the sampled function, and its return address.
        .words(SYSTEM, &[0, SWITCH + 2])
        .words(SYSTEM + 16, &[0, 0, 0, 0, 0, 0x40, CURRENT])
        .words(CURRENT + 8, &[USER + 0x40])
        .words(USER, &[OTHER + 0x20, 0, OTHER + 0xf10])
}

/// Memory in which one word is absent.
struct Without(SparseMemory, u64);

impl Memory for Without {
    fn read(&mut self, addr: VirtAddr, buf: &mut [u8]) -> Result<(), ReadError> {
        if addr.get() == self.1 { Err(ReadError::NotResident) } else { self.0.read(addr, buf) }
    }
}

fn walk(
    way_back: WayBack,
    fs_base: Option<u64>,
    memory: &mut impl Memory,
) -> (Vec<Frame>, End<StackSwitchError<core::convert::Infallible>>) {
    let functions = [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back }];
    let mut source = StackSwitches::new(functions.as_slice(), Tables);
    if let Some(fs_base) = fs_base {
        source = source.thread_pointer(fs_base);
    }
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source);
    let regs = X86_64Regs::new(OTHER + 0x10, SYSTEM, 0);
    let mut frames = walker.frames(regs, memory);
    let seen = frames.by_ref().collect();
    (seen, frames.end().unwrap())
}

fn pcs(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.pc.addr().get()).collect()
}

const THROUGH: [u64; 4] = [OTHER + 0x10, SWITCH + 2, OTHER + 0x20, OTHER + 0xf10];

#[test]
fn a_goroutine_is_found_by_the_instructions_that_return_to_it() {
    for code in [SYSTEMSTACK, ASMCGOCALL] {
        let (frames, end) = walk(WayBack::Instructions, Some(FS), &mut memory(code));
        assert_eq!((pcs(&frames).as_slice(), end), (THROUGH.as_slice(), End::Outermost));
        assert_eq!((frames[1].cfa, frames[2].sp), (Some(USER + 8), USER + 8));
    }
}

#[test]
fn a_frame_that_is_stopped_after_its_call_has_the_same_caller() {
    let functions =
        [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back: WayBack::Instructions }];
    let mut memory = memory(SYSTEMSTACK);
    for (at, is_after) in [(0, false), (2, true), (11, true)] {
        let source = StackSwitches::new(functions.as_slice(), Tables).thread_pointer(FS);
        let mut walker = Walker::new(X86_64::FOUR_LEVEL, source);
        let mut gpr = [0; 16];
        (gpr[0], gpr[7]) = (G, SYSTEM);
        let regs = X86_64Regs::from_all(SWITCH + at, gpr);
        let second = walker.frames(regs, &mut memory).nth(1).unwrap();
        assert_eq!(second.sp == USER + 8, is_after, "{at}");
    }
}

#[test]
fn a_stack_that_nobody_returns_to_ends_there() {
    let (frames, end) = walk(WayBack::Never, None, &mut memory(&[]));
    assert_eq!((pcs(&frames).as_slice(), end), (&THROUGH[..2], End::Outermost));
}

#[test]
fn what_is_continued_is_found_by_the_pc_that_is_saved_for_it() {
    // `morestack` has no instructions that lead back; those of `systemstack` are at 0x180.
    let way_back = WayBack::Continued(VirtAddr::new(SWITCH + 0x180));
    let start = || {
        let mut code = vec![0xcc; 0x180];
        // Another call, after which nothing leads back.
        code.extend([0xff, 0xd0, 0xcc, 0xcc]);
        code.extend(SYSTEMSTACK);
        memory(&code)
    };
    let (frames, end) = walk(way_back, Some(FS), &mut start());
    // The saved stack pointer is the one after the call.
    assert_eq!(pcs(&frames), [OTHER + 0x10, SWITCH + 2, OTHER + 0x100]);
    assert_eq!((frames[1].cfa, frames[2].sp), (Some(USER), USER));
    assert_ne!(end, End::Outermost);
    let (frames, end) = walk(way_back, Some(FS), &mut start().words(M + 0xc0, &[0]));
    assert_eq!((frames.len(), end), (2, End::Outermost), "no goroutine is left");
}

/// Go 1.19's `runtime.nanotime1`, without what it does to its thread.
const NANOTIME: &[u8] = &[
    0x48, 0x83, 0xec, 0x18, // sub $0x18, %rsp
    0x48, 0x89, 0x6c, 0x24, 0x10, // mov %rbp, 0x10(%rsp)
    0x48, 0x8d, 0x6c, 0x24, 0x10, // lea 0x10(%rsp), %rbp
    0x49, 0x89, 0xe4, // mov %rsp, %r12
    0x48, 0x8b, 0x62, 0x38, // mov 0x38(%rdx), %rsp
    0x48, 0x83, 0xe4, 0xf0, // and $-16, %rsp
    0xff, 0xd0, // call *%rax
    0x4c, 0x89, 0xe4, // mov %r12, %rsp
    0x48, 0x8b, 0x6c, 0x24, 0x10, // mov 0x10(%rsp), %rbp
    0x48, 0x83, 0xc4, 0x18, // add $0x18, %rsp
    0xc3, // ret
    0x0f, 0x05, // syscall
];

#[test]
fn a_function_that_keeps_its_frame_pointer_is_left_by_it_while_it_has_it() {
    let way_back = WayBack::FramePointer;
    // The frame pointer is on the stack before, lower than the one that is called on.
    let mut memory = memory(NANOTIME)
        .words(SYSTEM, &[0, SWITCH + 27])
        .words(USER + 0x10, &[1, OTHER + 0x20, 0, OTHER + 0xf10]);
    let functions = [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back }];
    let source = StackSwitches::new(functions.as_slice(), Tables);
    let mut walker = Walker::new(X86_64::FOUR_LEVEL, source);
    let mut walk = |pc| {
        let regs = X86_64Regs::new(pc, SYSTEM, USER + 0x10);
        let mut frames = walker.frames(regs, &mut memory);
        let found = pcs(&frames.by_ref().collect::<Vec<_>>());
        (found, frames.end().unwrap())
    };
    let callers = [OTHER + 0x20, OTHER + 0xf10];
    let called = [OTHER + 0x10, SWITCH + 27, callers[0], callers[1]];
    assert_eq!(walk(OTHER + 0x10), (called.to_vec(), End::Outermost));
    let mut by_frame_pointer = |offset| {
        walk(SWITCH + offset) == (vec![SWITCH + offset, callers[0], callers[1]], End::Outermost)
    };
    // Not before it is set, nor from where it is the caller's again to the end; then it is.
    let expected = |offset| matches!(offset, 14..=30 | 40..=42);
    for offset in 0..42 {
        assert_eq!(by_frame_pointer(offset), expected(offset), "{offset}");
    }
}

#[test]
fn where_the_way_back_is_not_known_the_walk_ends_with_that() {
    let no_way = End::Table(StackSwitchError::NoWayBack);
    let end = |memory: &mut SparseMemory, fs| {
        let (frames, end) = walk(WayBack::Instructions, fs, memory);
        assert_eq!(frames.len(), 2);
        end
    };
    assert_eq!(end(&mut memory(SYSTEMSTACK), None), no_way, "without a thread pointer");
    assert_eq!(end(&mut memory(SYSTEMSTACK).words(G + 0x30, &[0]), Some(FS)), no_way);
    assert_eq!(end(&mut memory(SYSTEMSTACK), Some(0x1234_5678)), no_way, "nothing is there");
    // A call, a jump, a register that nobody has set, a write that may be anywhere, `pop rax`
    // of what was just written over.
    let strange: [&[u8]; 12] = [
        // xchg %rax, %r8; lea of a register; lea 0x20(%rsp), %esp
        &[0xff, 0xd0, 0x49, 0x90, 0xc3],
        &[0xff, 0xd0, 0x48, 0x8d, 0xe0, 0xc3],
        &[0xff, 0xd0, 0x8d, 0x64, 0x24, 0x20, 0xc3],
        // `or $1, %rsp`, `xor %rax, %rsp` by either operand.
        &[0xff, 0xd0, 0x48, 0x83, 0xcc, 1, 0xc3],
        &[0xff, 0xd0, 0x48, 0x31, 0xc4, 0xc3],
        &[0xff, 0xd0, 0x48, 0x33, 0xe0, 0xc3],
        &[0xff, 0xd0, 0xe8, 0, 0, 0, 0, 0xc3],
        &[0xff, 0xd0, 0xeb, 0, 0xc3],
        &[0xff, 0xd0, 0x48, 0x89, 0xdc, 0xc3],
        &[0xff, 0xd0, 0x48, 0x89, 0x03, 0xc3],
        &[0xff, 0xd0, 0x48, 0x89, 0x1c, 0x24, 0x5c, 0xc3],
        // cpuid
        &[0xff, 0xd0, 0x0f, 0xa2, 0xc3],
    ];
    for code in strange {
        assert_eq!(end(&mut memory(code), Some(FS)), no_way, "{code:x?}");
    }
    let mut long = vec![0x90; 63];
    long.insert(0, 0xd0);
    long.insert(0, 0xff);
    long.push(0xc3);
    assert_ne!(end(&mut memory(&long), Some(FS)), no_way);
    long.insert(2, 0x90);
    assert_eq!(end(&mut memory(&long), Some(FS)), no_way);
}

#[test]
fn absent_memory_on_the_way_back_can_be_tried_again() {
    for absent in [FS - 8, G + 0x30, M + 0xc0, CURRENT + 0x38] {
        let (frames, end) =
            walk(WayBack::Instructions, Some(FS), &mut Without(memory(SYSTEMSTACK), absent));
        assert_eq!((frames.len(), end), (2, End::Table(StackSwitchError::Absent)), "{absent:#x}");
        assert!(end.is_retryable());
        // The goroutine that would be continued, too.
        let way_back = WayBack::Continued(VirtAddr::new(SWITCH));
        let (frames, end) = walk(way_back, Some(FS), &mut Without(memory(SYSTEMSTACK), absent));
        assert_eq!((frames.len(), end), (2, End::Table(StackSwitchError::Absent)), "{absent:#x}");
    }
    // As a function that may not have switched yet is stopped.
    let functions =
        [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back: WayBack::Instructions }];
    let mut source = StackSwitches::new(functions.as_slice(), Tables).thread_pointer(FS);
    let pc = FramePc::Exact(VirtAddr::new(SWITCH + 2));
    let frame = FrameContext::new(pc, SYSTEM, None, None);
    let row = source.row(&frame, &mut Without(memory(SYSTEMSTACK), G + 0x30));
    assert_eq!(row, Err(StackSwitchError::Absent));
}

/// A function that is stopped itself has the row of its table where nobody returns to it.
#[test]
fn a_function_that_is_stopped_has_the_row_of_its_table_where_no_call_was_made() {
    for way_back in [WayBack::Never, WayBack::Continued(VirtAddr::new(SWITCH))] {
        let functions = [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back }];
        let mut source = StackSwitches::new(functions.as_slice(), Tables);
        let pc = FramePc::Exact(VirtAddr::new(SWITCH + 2));
        let frame = FrameContext::new(pc, SYSTEM, None, None);
        let row = source.row(&frame, &mut memory(SYSTEMSTACK)).unwrap().unwrap();
        assert_eq!((row.cfa(), row.other_stack_cfa()), (CfaRule::sp(16), None));
    }
}

#[test]
fn instructions_have_the_effects_that_the_manual_says() {
    let cases: [(&[u8], u64); 15] = [
        // mov $0x1000, %rbx; sub %rbx, %rsp
        (&[0x48, 0xc7, 0xc3, 0, 0x10, 0, 0, 0x48, 0x29, 0xdc], SYSTEM + 16 - 0x1000),
        // lea 0x20(%rbp), %rsp
        (&[0x48, 0x8d, 0x65, 0x20], SYSTEM + 0x20),
        // mov $0x1000, %rbx; add %rbx, %rsp by the other operand
        (&[0x48, 0xc7, 0xc3, 0, 0x10, 0, 0, 0x48, 0x03, 0xe3], SYSTEM + 16 + 0x1000),
        // mov $0x1000, %rbx; lea 0x10(%rbp,%rbx), %rsp
        (&[0x48, 0xc7, 0xc3, 0, 0x10, 0, 0, 0x48, 0x8d, 0x64, 0x1d, 0x10], SYSTEM + 0x10 + 0x1000),
        // mov %rsp, %r9; mov %r9, %rsp by the other operand
        (&[0x49, 0x89, 0xe1, 0x49, 0x8b, 0xe1], SYSTEM + 16),
        // The same as the one below, by the other operand.
        (&[0x48, 0x33, 0xdb, 0x48, 0x01, 0xdc], SYSTEM + 16),
        // pop %rsp
        (&[0x5c], 0),
        // add $0x10, %rsp; sub $8, %rsp; and $-16, %rsp
        (&[0x48, 0x83, 0xc4, 0x10, 0x48, 0x83, 0xec, 8, 0x48, 0x83, 0xe4, 0xf0], SYSTEM + 16),
        // lea 0x20(%rsp), %rsp
        (&[0x48, 0x8d, 0x64, 0x24, 0x20], SYSTEM + 0x30),
        // mov $0x1000, %rbx; mov $0x200, %r12; lea 8(%rbx,%r12,4), %rsp
        (
            &[
                0x48, 0xc7, 0xc3, 0, 0x10, 0, 0, 0x49, 0xc7, 0xc4, 0, 2, 0, 0, 0x4a, 0x8d, 0x64,
                0xa3, 8,
            ],
            0x1808,
        ),
        // push %rax; pop %rcx
        (&[0x50, 0x59], SYSTEM + 16),
        // xor %ebx, %ebx does not make it known; xor %rbx, %rbx: add %rbx, %rsp
        (&[0x48, 0x31, 0xdb, 0x48, 0x01, 0xdc], SYSTEM + 16),
        // mov 1(%rip), %rsp: the bytes after the `ret`
        (&[0x48, 0x8b, 0x25, 1, 0, 0, 0], 0x0807_0605_0403_0201),
        // mov %rsp, %r9; mov %r9, %rsp; nopl 0(%rax); xorps %xmm15, %xmm15
        (
            &[0x49, 0x89, 0xe1, 0x4c, 0x89, 0xcc, 0x0f, 0x1f, 0x40, 0, 0x45, 0x0f, 0x57, 0xff],
            SYSTEM + 16,
        ),
        // mov %rsp, %rbp; leave
        (&[0x48, 0x89, 0xe5, 0xc9], SYSTEM + 24),
    ];
    let functions =
        [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back: WayBack::Instructions }];
    let mut source = StackSwitches::new(functions.as_slice(), Tables);
    for (instructions, sp) in cases {
        let mut code = vec![0xff, 0xd0];
        code.extend(instructions);
        code.push(0xc3);
        code.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        let pc = FramePc::Return(VirtAddr::new(SWITCH + 2));
        let frame = FrameContext::new(pc, SYSTEM + 16, Some(SYSTEM), None);
        let row = source.row(&frame, &mut memory(&code)).unwrap().unwrap();
        assert_eq!(row.other_stack_cfa(), Some(sp.wrapping_add(8)), "{instructions:x?}");
        let writes_fp = instructions.ends_with(&[0xc9]);
        assert_eq!(row.fp() == RegRule::Undefined, writes_fp, "{instructions:x?}");
    }
}

#[test]
fn functions_that_switch_have_no_key_and_no_rules_and_others_keep_theirs() {
    let functions = [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back: WayBack::Never }];
    let mut source = StackSwitches::new(functions.as_slice(), Tables);
    let mut rules = |pc| {
        let frame = FrameContext::new(FramePc::Return(VirtAddr::new(pc)), SYSTEM, None, None);
        source.register_rules(&frame, &mut memory(&[])).unwrap()
    };
    assert_eq!((rules(SWITCH + 2), rules(OTHER).is_some()), (None, true));
    assert_eq!(source.row_key(VirtAddr::new(SWITCH)), None);
    assert!(source.row_key(VirtAddr::new(OTHER)).is_some());
    let absent = StackSwitchError::<unwind_core::TableFault>::Absent;
    assert!(
        absent.is_not_resident()
            && absent.code() != StackSwitchError::NoWayBack::<unwind_core::TableFault>.code()
    );
}

proptest! {
    #[test]
    fn any_code_is_followed_within_bounds(
        code in prop::collection::vec(any::<u8>(), 0..300),
        exact in any::<bool>(),
    ) {
        let functions =
            [SwitchingFunction { code: SWITCH..SWITCH + 0x100, way_back: WayBack::Instructions }];
        let mut source = StackSwitches::new(functions.as_slice(), Tables).thread_pointer(FS);
        let mut memory = memory(&code);
        let pc = VirtAddr::new(SWITCH + 2);
        let pc = if exact { FramePc::Exact(pc) } else { FramePc::Return(pc) };
        let regs = X86_64Regs::new(SWITCH + 2, SYSTEM, SYSTEM + 8);
        let frame = FrameContext::new(pc, SYSTEM, Some(SYSTEM + 8), Some(&regs));
        let _ = source.row(&frame, &mut memory);
        let way_back = WayBack::Continued(VirtAddr::new(SWITCH));
        let _ = walk(way_back, Some(FS), &mut memory);
    }
}
