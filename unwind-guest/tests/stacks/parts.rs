//! What a host has of a walk beside the stack: its own parts, another kernel, another fallback, the rows that are kept.

use std::fmt;

use unwind_core::{
    Arch, Empty, End, KeyedRange, ReturnAddresses, RowKeys, RowSource, RowStore, VirtAddr, Walker,
};
use unwind_guest::orc::OrcRows;
use unwind_guest::paging::{PagedMemory, PagingMode};
use unwind_guest::{
    CodeKind, GuestRows, GuestStack, GuestWalker, StackPart, StackParts, UserCode, VcpuMemory,
    VcpuRegisters,
};
use unwind_x86::TrustedFramePointers;

use crate::guest::*;
use crate::{pcs, system_call};

#[test]
fn a_kernel_that_has_no_rows_of_its_own_is_walked_by_those_of_user_code() {
    let (mut guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    guest.write(TASK_STACK + 0x108, &[KERNEL + 0x2010]);
    guest.write(TASK_STACK + 0x118, &[0]);
    let tables = [orc.table()];
    let kernel_part = |kernel: Option<OrcRows<'_>>| {
        let mut rows = GuestRows::<64>::new();
        let mut walker = GuestWalker::of_any_kernel(&mut rows, kernel, Plain(16), Plain(8));
        let mut stack = GuestStack::<16>::new();
        walker.walk(&vcpu, guest.memory(), &mut stack);
        (pcs(stack.kernel()), stack.user_code(), stack.is_complete())
    };
    // By words that user code would have, 16 bytes a frame.
    let by_user_rows = vec![KERNEL + 0x10, KERNEL + 0x2010];
    assert_eq!(kernel_part(None), (by_user_rows, UserCode::Unknown, false));
    let (pcs, user_code, _) = kernel_part(Some(OrcRows::new(&tables)));
    assert_eq!((pcs, user_code), (vec![KERNEL + 0x10, KERNEL + 0x1010], UserCode::Entered));
}

#[test]
fn another_fallback_is_no_guess_where_the_host_says_so() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    guest.write(USER_STACK, &[0, USER + 0x20]);
    let vcpu = guest.vcpu(3, (USER, USER_STACK, USER_STACK));
    let frames = |stack: &GuestStack<16>| -> Vec<_> {
        let frames = stack.user().unwrap().frames();
        frames.map(|frame| (frame.pc.addr().get(), frame.provenance.is_after_gap())).collect()
    };
    let (mut rows, mut stack) = (GuestRows::<64>::new(), GuestStack::new());
    let orc = || OrcRows::new(&[]);
    GuestWalker::new(&mut rows, orc(), Empty, Empty).walk(&vcpu, guest.memory(), &mut stack);
    assert_eq!(frames(&stack), [(USER, false), (USER + 0x20, true)]);
    let walker = GuestWalker::new(&mut rows, orc(), Empty, Empty);
    walker.fallback(TrustedFramePointers).walk(&vcpu, guest.memory(), &mut stack);
    assert_eq!(frames(&stack), [(USER, false), (USER + 0x20, false)]);
}

/// What a host takes itself.
#[derive(Debug, Default)]
struct Taken {
    /// The part, the pc and the CFA of each frame.
    frames: Vec<(StackPart, u64, Option<u64>)>,
    ends: Vec<String>,
    /// How many parts there were before it was told, and what was.
    user_code: Option<(usize, UserCode)>,
}

impl StackParts for Taken {
    fn walk<A, S, F, T, C, M>(
        &mut self,
        part: StackPart,
        walker: Walker<A, S, F, T, C>,
        regs: A::Regs,
        memory: &mut M,
    ) -> bool
    where
        A: Arch,
        S: RowSource<A, Error: fmt::Display>,
        F: RowSource<A>,
        F::Error: Into<S::Error>,
        T: ReturnAddresses,
        C: RowStore,
        M: VcpuMemory,
    {
        let mut walker = walker;
        let mut frames = walker.frames(regs, memory);
        let of_part = frames.by_ref().map(|frame| (part, frame.pc.addr().get(), frame.cfa));
        self.frames.extend(of_part);
        let end = frames.end().unwrap();
        self.ends.push(end.to_string());
        matches!(end, End::Outermost)
    }

    fn user_code(&mut self, user_code: UserCode) {
        assert_eq!(self.user_code.replace((self.ends.len(), user_code)), None);
    }
}

fn take(guest: &Guest, orc: &Orc, vcpu: &VcpuRegisters) -> Taken {
    let tables = [orc.table()];
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, OrcRows::new(&tables), Plain(16), Plain(8));
    let mut memory = PagedMemory::new(guest.memory(), vcpu.address_space());
    let mut taken = Taken::default();
    walker.walk_parts(vcpu, &mut memory, NoTable, &mut taken);
    taken
}

/// No table is known.
struct NoTable;

impl RowKeys for NoTable {
    fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
        None
    }
}

#[test]
fn a_host_takes_the_frames_of_both_parts_itself() {
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let taken = take(&guest, &orc, &vcpu);
    let code = CodeKind::X86_64;
    let (kernel, user) = (StackPart::Kernel(code), StackPart::User(code));
    let expected = [
        (kernel, KERNEL + 0x10, Some(TASK_STACK + 0x118)),
        (kernel, KERNEL + 0x1010, None),
        (user, USER, Some(USER_STACK + 0x90)),
        (user, USER + 0x20, Some(USER_STACK + 0xa0)),
    ];
    assert_eq!(taken.frames, expected, "{taken:?}");
    assert_eq!(taken.ends, ["outermost frame", "return address zero"]);
    assert_eq!(taken.user_code, Some((1, UserCode::Entered)));
}

#[test]
fn the_user_part_follows_where_the_kernels_has_ended_and_is_told_in_each_case() {
    // A thread of the kernel's own; a kernel's part that is cut; user code that runs.
    let (mut guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let own = Orc::new(&[call(24), END, UNDEFINED]);
    let taken = take(&guest, &own, &vcpu);
    assert_eq!((taken.ends.len(), taken.user_code), (1, Some((1, UserCode::None))));
    let cut = Orc::new(&[call(24), UNDEFINED, UNDEFINED]);
    let taken = take(&guest, &cut, &vcpu);
    assert_eq!((taken.ends.len(), taken.user_code), (1, Some((1, UserCode::Unknown))));
    guest.write(USER_STACK + 8, &[0]);
    let running = guest.vcpu(3, (USER, USER_STACK, 0));
    let taken = take(&guest, &orc, &running);
    assert_eq!((taken.ends.len(), taken.user_code), (1, Some((0, UserCode::Running))));
    let sixteen = take(&guest, &orc, &VcpuRegisters { cr0: 0, ..vcpu });
    assert_eq!((sixteen.ends.len(), sixteen.user_code), (1, Some((1, UserCode::Unknown))));
}

#[test]
fn rows_of_a_kernel_are_kept_until_they_are_to_be_forgotten() {
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let other = Orc::new(&[call(32), END, UNDEFINED]);
    let mut rows = GuestRows::<64>::new();
    let kernel = |orc: &Orc, rows: &mut GuestRows<64>| {
        let (tables, mut stack) = ([orc.table()], GuestStack::<16>::new());
        let mut walker = GuestWalker::new(rows, OrcRows::new(&tables), Plain(16), Plain(8));
        walker.walk(&vcpu, guest.memory(), &mut stack);
        pcs(stack.kernel())
    };
    let expected = kernel(&orc, &mut rows);
    assert_eq!(kernel(&other, &mut rows), expected);
    rows.clear_kernel();
    assert_ne!(kernel(&other, &mut rows), expected);
}
