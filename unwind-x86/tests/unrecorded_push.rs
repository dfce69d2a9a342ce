//! 32-bit code that has pushed registers, with call frame information for its entry alone.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use core::convert::Infallible;

use proptest::prelude::*;
use test_support::SparseMemory;
use unwind_core::{
    CfaRule, FrameContext, FramePc, Memory, Origin, RegRule, RegisterRules, Row, RowKey, RowSource,
    VirtAddr, Walker,
};
use unwind_x86::{Ia32, Ia32Regs, UnrecordedPushes};

const CODE: u64 = 0x40_1000;
const STACK: u64 = 0x7f00_0000;

/// The end of glibc's `memcpy` for i686, from where it pushes a register on.
const MEMCPY: &[u8] = &[
    0x50, // push %eax
    0x89, 0xc8, // mov %ecx, %eax
    0xc1, 0xe9, 0x02, // shr $2, %ecx
    0x83, 0xe0, 0x03, // and $3, %eax
    0xf3, 0xa5, // rep movsl
    0x89, 0xc1, // mov %eax, %ecx
    0xf3, 0xa4, // rep movsb
    0x58, // pop %eax
    0x89, 0xc7, // mov %eax, %edi
    0x89, 0xd6, // mov %edx, %esi
    0x8b, 0x44, 0x24, 0x04, // mov 4(%esp), %eax
    0xc3,
];
/// The offsets of its instructions.
const MEMCPY_STARTS: [u64; 12] = [0, 1, 3, 6, 9, 11, 13, 15, 16, 18, 20, 24];

/// A row for all code.
struct Entry(Row);

impl Entry {
    /// That of a function's entry.
    fn new() -> Self {
        Self(Row::new(CfaRule::sp(4), RegRule::Offset(-4), RegRule::SameValue))
    }
}

impl RowSource<Ia32> for Entry {
    type Error = Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, Ia32Regs>,
        _: &mut M,
    ) -> Result<Option<Row>, Infallible> {
        Ok((frame.lookup_addr().get() < STACK).then_some(self.0))
    }

    fn register_rules<M: Memory>(
        &mut self,
        _: &FrameContext<'_, Ia32Regs>,
        _: &mut M,
    ) -> Result<Option<RegisterRules>, Infallible> {
        Ok(Some(RegisterRules::default()))
    }

    fn generation(&self) -> u64 {
        7
    }

    fn row_key(&self, addr: VirtAddr) -> Option<RowKey> {
        Some(RowKey { table: 1, offset: addr.get() })
    }
}

fn memory(code: &[u8]) -> SparseMemory {
    SparseMemory::default().code(CODE, code)
}

fn ask(entry: Entry, pc: FramePc, code: &[u8]) -> Row {
    let regs = Ia32Regs::new(0, 0, 0);
    let frame = FrameContext::new(pc, 0, None, Some(&regs));
    UnrecordedPushes::new(entry).row(&frame, &mut memory(code)).unwrap().unwrap()
}

fn row_at(code: &[u8], at: u64) -> Row {
    ask(Entry::new(), FramePc::Exact(VirtAddr::new(CODE + at)), code)
}

#[test]
fn a_walk_finds_the_caller_at_each_instruction_of_a_copy() {
    for at in MEMCPY_STARTS {
        let is_pushed = (1..=15).contains(&at);
        let row = row_at(MEMCPY, at);
        let cfa = if is_pushed { 8 } else { 4 };
        assert_eq!(row.cfa(), CfaRule::sp(cfa), "{at}");
        assert_eq!(row.origin() == Origin::Instructions, is_pushed, "{at}");
        assert!(!row.is_guess(), "{at}");
        let words: &[u32] = if is_pushed { &[1, 0x41_2345] } else { &[0x41_2345] };
        let mut memory = memory(MEMCPY).words_32(STACK, words);
        let regs = Ia32Regs::new(u32::try_from(CODE + at).unwrap(), 0x7f00_0000, 0);
        let mut walker = Walker::new(Ia32::FLAT, UnrecordedPushes::new(Entry::new()));
        let pcs: Vec<u64> =
            walker.frames(regs, &mut memory).map(|frame| frame.pc.addr().get()).collect();
        assert_eq!(pcs[1], 0x41_2345, "{at}");
    }
}

#[test]
fn registers_are_told_by_the_entry_where_its_row_holds() {
    let regs = Ia32Regs::new(0, 0, 0);
    let mut source = UnrecordedPushes::new(Entry::new());
    for at in MEMCPY_STARTS {
        let pc = FramePc::Exact(VirtAddr::new(CODE + at));
        let frame = FrameContext::new(pc, 0, None, Some(&regs));
        let rules = source.register_rules(&frame, &mut memory(MEMCPY)).unwrap();
        assert_eq!(rules.is_none(), (1..=15).contains(&at), "{at}");
    }
    let addr = VirtAddr::new(CODE);
    assert_eq!(RowSource::<Ia32>::generation(&source), 7);
    assert_eq!(source.row_key(addr), Entry::new().row_key(addr));
}

#[test]
fn comparisons_change_no_register() {
    for compare in [[0x39, 0xc8], [0x3b, 0xc8], [0x85, 0xc0]] {
        let code = [&compare[..], &[0x58, 0xc3]].concat();
        assert_eq!(row_at(&code, 0).cfa(), CfaRule::sp(8), "{compare:x?}");
    }
}

#[test]
fn rows_that_say_more_than_the_entry_are_left_as_they_are() {
    let pc = FramePc::Exact(VirtAddr::new(CODE + 1));
    let rows = [
        Row::new(CfaRule::sp(12), RegRule::Offset(-4), RegRule::SameValue),
        Row::new(CfaRule::sp(4), RegRule::Offset(-8), RegRule::SameValue),
        Entry::new().0.with_signal(),
        Row::outermost(),
    ];
    for row in rows {
        assert_eq!(ask(Entry(row), pc, MEMCPY), row);
    }
    // At a return address the instructions are those after a call.
    let back = FramePc::Return(VirtAddr::new(CODE + 1));
    assert_eq!(ask(Entry::new(), back, MEMCPY), Entry::new().0);
}

#[test]
fn what_may_change_the_stack_otherwise_proves_nothing() {
    let unknown: &[&[u8]] = &[
        &[0x58, 0x75, 0x00, 0xc3],             // pop; jne; ret
        &[0x58, 0xe8, 0, 0, 0, 0, 0xc3],       // pop; call; ret
        &[0x58, 0x5c, 0xc3],                   // pop; pop %esp; ret
        &[0x58, 0x89, 0xc4, 0xc3],             // pop; mov %eax, %esp; ret
        &[0x58, 0x8b, 0xe0, 0xc3],             // the same in the other encoding
        &[0x58, 0x8d, 0x64, 0x24, 0x08, 0xc3], // pop; lea 8(%esp), %esp; ret
        &[0x58, 0x83, 0xc4, 0x08, 0xc3],       // pop; add $8, %esp; ret
        &[0x58, 0x01, 0xc5, 0xc3],             // pop; add %eax, %ebp; ret
        &[0x58, 0x89, 0x04, 0x24, 0xc3],       // pop; mov %eax, (%esp); ret
        &[0x58, 0x44, 0xc3],                   // pop; inc %esp; ret
        &[0x58],                               // pop, and the end of what can be read
    ];
    for code in unknown {
        assert_eq!(row_at(code, 0), Entry::new().0, "{code:x?}");
    }
}

#[test]
fn a_frame_pointer_that_is_popped_is_where_it_was() {
    // pop %ebx; pop %ebp; ret
    let row = row_at(&[0x5b, 0x5d, 0xc3], 0);
    assert_eq!((row.cfa(), row.fp()), (CfaRule::sp(12), RegRule::Offset(-8)));
}

#[test]
fn operands_in_memory_have_their_lengths() {
    let loads: &[&[u8]] = &[
        &[0x8b, 0x07],                   // (%edi)
        &[0x8b, 0x45, 0x08],             // 8(%ebp)
        &[0x8b, 0x87, 1, 2, 3, 4],       // disp32(%edi)
        &[0x8b, 0x05, 1, 2, 3, 4],       // disp32
        &[0x8b, 0x04, 0x24],             // (%esp)
        &[0x8b, 0x44, 0x24, 0x04],       // 4(%esp)
        &[0x8b, 0x84, 0x24, 1, 2, 3, 4], // disp32(%esp)
        &[0x8b, 0x04, 0x8d, 1, 2, 3, 4], // disp32(,%ecx,4)
        &[0x8d, 0x44, 0x88, 0x04],       // lea 4(%eax,%ecx,4)
    ];
    for load in loads {
        let code = [load, &[0x58_u8, 0xc3][..]].concat();
        assert_eq!(row_at(&code, 0).cfa(), CfaRule::sp(8), "{load:x?}");
    }
}

#[test]
fn vectors_and_stores_elsewhere_are_followed() {
    let moves: &[&[u8]] = &[
        &[0xf3, 0x0f, 0x7e, 0x40, 0xe8],       // movq -24(%eax), %xmm0
        &[0x66, 0x0f, 0xd6, 0x42, 0xe8],       // movq %xmm0, -24(%edx)
        &[0xf3, 0x0f, 0x6f, 0x00],             // movdqu (%eax), %xmm0
        &[0x66, 0x0f, 0x7f, 0x54, 0x3a, 0xe0], // movdqa %xmm2, -32(%edx,%edi)
        &[0x0f, 0x28, 0x48, 0xfc],             // movaps -4(%eax), %xmm1
        &[0x66, 0x0f, 0x3a, 0x0f, 0xda, 0x04], // palignr $4, %xmm2, %xmm3
        &[0x66, 0x0f, 0x3a, 0x0f, 0x98, 1, 2, 3, 4, 0x04], // palignr $4, disp32(%eax), %xmm3
        &[0x0f, 0xb7, 0x48, 0x01],             // movzwl 1(%eax), %ecx
        &[0x0f, 0xb6, 0x00],                   // movzbl (%eax), %eax
        &[0x66, 0x89, 0x4a, 0x01],             // mov %cx, 1(%edx)
        &[0x88, 0x02],                         // mov %al, (%edx)
        &[0x89, 0x4a, 0x03],                   // mov %ecx, 3(%edx)
    ];
    for step in moves {
        let code = [step, &[0x58_u8, 0xc3][..]].concat();
        assert_eq!(row_at(&code, 0).cfa(), CfaRule::sp(8), "{step:x?}");
    }
    let unknown: &[&[u8]] = &[
        &[0x66, 0x0f, 0x7e, 0xc4],       // movd %xmm0, %esp
        &[0x0f, 0x7e, 0x04, 0x24],       // movd %mm0, (%esp)
        &[0x66, 0x0f, 0xd6, 0x04, 0x24], // movq %xmm0, (%esp)
        &[0x0f, 0x11, 0x45, 0x04],       // movups %xmm0, 4(%ebp)
        &[0x0f, 0xb6, 0xe0],             // movzbl %al, %esp
        &[0x88, 0x04, 0x24],             // mov %al, (%esp)
        &[0x89, 0x4d, 0x00],             // mov %ecx, (%ebp)
        &[0x89, 0xc5],                   // mov %eax, %ebp
        &[0x0f, 0x05],                   // any other one
    ];
    for step in unknown {
        let code = [step, &[0x58_u8, 0xc3][..]].concat();
        assert_eq!(row_at(&code, 0), Entry::new().0, "{step:x?}");
    }
}

#[test]
fn a_return_address_is_not_below_the_stack_pointer() {
    let pc = FramePc::Exact(VirtAddr::new(CODE));
    // glibc's `memcpy` for SSSE3 has rows that count a register less at each `ret`.
    for cfa in [0, -4] {
        let row = Row::new(CfaRule::sp(cfa), RegRule::Offset(-4), RegRule::SameValue);
        // mov 8(%esp), %eax; pop %ebx; ret
        let code = [0x8b, 0x44, 0x24, 0x08, 0x5b, 0xc3];
        for (at, real) in [(0, 8), (4, 8), (5, 4)] {
            assert_eq!(ask(Entry(row), pc, &code[at..]).cfa(), CfaRule::sp(real), "{cfa} {at}");
        }
        // Where nothing is proved it stays.
        assert_eq!(ask(Entry(row), pc, &[0xff, 0xe3]), row);
    }
}

proptest! {
    #[test]
    fn any_code_has_a_row(code in proptest::collection::vec(any::<u8>(), 0..64)) {
        let row = row_at(&code, 0);
        prop_assert!(row.is_from_sp());
    }
}
