//! Stacks of vCPUs in every kind of code, over memory laid out by hand.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "tests"
)]

#[path = "stacks/frame_pointers.rs"]
mod frame_pointers;
mod guest;
#[path = "stacks/parts.rs"]
mod parts;

use guest::*;
use std::cell::Cell;

use unwind_core::{
    End, FrameContext, KeyedRange, Memory, Origin, ReadError, Row, RowKey, RowKeys, RowSource,
    StepError, Trace, VirtAddr,
};
use unwind_guest::orc::{OrcLayout, OrcRows, OrcTable};
use unwind_guest::paging::{Fault, PagingMode};
use unwind_guest::{
    CodeKind, GuestRows, GuestStack, GuestWalker, KernelCode, KernelFramePointers, Segment,
    UserCode, VcpuRegisters,
};
use unwind_x86::{X86_64, X86_64Regs};

fn pcs(trace: Option<&Trace>) -> Vec<u64> {
    trace.map(|trace| trace.pcs().map(VirtAddr::get).collect()).unwrap_or_default()
}

fn walk(guest: &Guest, orc: &Orc, vcpu: &VcpuRegisters) -> GuestStack<16> {
    let tables = [orc.table()];
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, OrcRows::new(&tables), Plain(16), Plain(8));
    let mut stack = GuestStack::new();
    walker.walk(vcpu, guest.memory(), &mut stack);
    // Again, by rows that were kept.
    let mut again = GuestStack::<16>::new();
    walker.walk(vcpu, guest.memory(), &mut again);
    assert_eq!(format!("{stack:?}"), format!("{again:?}"));
    stack
}

/// A system call: a function, its caller at the kernel's entry, and the program.
fn system_call(mode: PagingMode, cs: u64) -> (Guest, Orc, VcpuRegisters) {
    let mut guest = Guest::new(mode);
    let orc = Orc::new(&[call(24), REGISTERS, UNDEFINED]);
    guest.write(TASK_STACK + 0x100 + 16, &[KERNEL + 0x1010]);
    guest.save(TASK_STACK + 0x118, (USER, USER_STACK + 0x80, 7), (cs, 0x2b));
    guest.write(USER_STACK + 0x88, &[USER + 0x20, 0, 0]);
    let vcpu = guest.vcpu(0, (KERNEL + 0x10, TASK_STACK + 0x100, 7));
    (guest, orc, vcpu)
}

#[test]
fn a_system_call_has_both_parts() {
    for mode in [PagingMode::FourLevel, PagingMode::FiveLevel] {
        let (guest, orc, vcpu) = system_call(mode, 0x33);
        let stack = walk(&guest, &orc, &vcpu);
        assert_eq!(pcs(stack.kernel()), [KERNEL + 0x10, KERNEL + 0x1010]);
        assert_eq!(pcs(stack.user()), [USER, USER + 0x20]);
        assert_eq!(stack.user_code(), UserCode::Entered);
        assert!(stack.is_complete(), "{stack:?}");
        let kernel = stack.kernel().unwrap();
        assert_eq!(kernel.end(), Some(End::Outermost));
        let origins: Vec<_> = kernel.frames().map(|frame| frame.provenance.origin()).collect();
        assert_eq!(origins, [Origin::Registers, Origin::Table]);
        assert_eq!(stack.user().unwrap().end(), Some(End::ZeroReturnAddress));
    }
}

/// Rows of user code, and how often they are looked up.
struct Counted<'c>(&'c Cell<u32>);

impl RowSource<X86_64> for Counted<'_> {
    type Error = core::convert::Infallible;

    fn row<M: Memory>(
        &mut self,
        frame: &FrameContext<'_, X86_64Regs>,
        mem: &mut M,
    ) -> Result<Option<Row>, Self::Error> {
        self.0.set(self.0.get() + 1);
        RowSource::<X86_64>::row(&mut Plain(16), frame, mem)
    }
}

/// The table of this number has the program's rows.
struct Table(u64);

impl RowKeys for Table {
    fn find(&mut self, _: VirtAddr) -> Option<KeyedRange> {
        let text = VirtAddr::new(USER)..VirtAddr::new(USER + 0x1000);
        Some(KeyedRange { text, key: RowKey { table: self.0, offset: 0 } })
    }
}

#[test]
fn rows_of_user_code_are_kept_by_their_table_and_not_for_another() {
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let (tables, count) = ([orc.table()], Cell::new(0));
    let orc_rows = OrcRows::new(&tables);
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, orc_rows, Counted(&count), Plain(8));
    let mut lookups = |table: Option<u64>| {
        count.set(0);
        let mut stack = GuestStack::<16>::new();
        match table {
            Some(table) => walker.walk_by_key(&vcpu, guest.memory(), Table(table), &mut stack),
            None => walker.walk(&vcpu, guest.memory(), &mut stack),
        }
        assert_eq!(pcs(stack.user()), [USER, USER + 0x20]);
        count.get()
    };
    assert_eq!(
        [Some(1), Some(1), Some(2), Some(1), None, None].map(&mut lookups),
        [2, 0, 2, 0, 2, 2]
    );
}

#[test]
fn the_interrupted_code_may_be_32_bit_or_in_a_segment_of_its_own() {
    let (mut guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x23);
    guest.write(USER_STACK + 0x80, &[(USER + 0x30) << 32, 0]);
    let (mut guest_low, low) = (guest, 0x10_0000);
    // 32-bit code has its stack below 4 GiB.
    guest_low.map(low, true);
    guest_low.save(TASK_STACK + 0x118, (USER, low + 0x80, 7), (0x23, 0x2b));
    guest_low.write(low + 0x80, &[(USER + 0x30) << 32, 0]);
    let stack = walk(&guest_low, &orc, &vcpu);
    assert_eq!(pcs(stack.user()), [USER, USER + 0x30]);
    assert_eq!(stack.code(), Some(CodeKind::Ia32 { code_base: 0, stack_base: 0 }));
    assert!(stack.is_complete());

    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x0f);
    let stack = walk(&guest, &orc, &vcpu);
    assert_eq!((stack.user_code(), stack.user().is_none()), (UserCode::Segment(0x0f), true));
    assert!(!stack.is_complete());
}

#[test]
fn an_interrupt_leads_from_its_stack_to_the_interrupted_kernel_and_on() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    // A handler, on a stack below the task's, called from where the stack was switched; the entry, which
    // interrupted a function that keeps its CFA in r10; and that one's caller.
    let switched = entry([16, 0], 9, 2);
    let realigned = entry([-8, 0], 6, 2);
    let orc = Orc::new(&[call(8), switched, REGISTERS, realigned, REGISTERS, UNDEFINED]);
    guest.write(IRQ_STACK + 0x100, &[KERNEL + 0x1010, TASK_STACK + 0x100 - 8]);
    guest.write(TASK_STACK + 0x100, &[KERNEL + 0x2010]);
    guest.save(TASK_STACK + 0x108, (KERNEL + 0x3000, TASK_STACK + 0x300, 7), (0x10, 0x18));
    // r10 less 8 is the CFA.
    guest.write(TASK_STACK + 0x330, &[KERNEL + 0x4010]);
    guest.save(TASK_STACK + 0x338, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    guest.write(USER_STACK + 0x88, &[0]);
    let vcpu = guest.vcpu(0, (KERNEL + 0x20, IRQ_STACK + 0x100, 7));
    let stack = walk(&guest, &orc, &vcpu);
    let expected = [0x20, 0x1010, 0x2010, 0x3000, 0x4010].map(|at| KERNEL + at);
    assert_eq!(pcs(stack.kernel()), expected, "{:?}", stack.kernel().unwrap().end());
    let frames = stack.kernel().unwrap().frames();
    let exact: Vec<_> = frames.map(|frame| frame.pc.is_exact()).collect();
    assert_eq!(exact, [true, false, false, true, false]);
    assert_eq!(pcs(stack.user()), [USER]);
    assert!(stack.is_complete());
}

#[test]
fn an_exception_is_left_before_its_registers_are_saved() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    // An error code above what the CPU has saved.
    let orc = Orc::new(&[entry([8, 0], 5, 4 | SIGNAL), UNDEFINED]);
    guest.write(IRQ_STACK + 8, &[USER, 0x33, 2, USER_STACK + 0x80, 0x2b]);
    guest.write(USER_STACK + 0x88, &[0]);
    let stack = walk(&guest, &orc, &guest.vcpu(0, (KERNEL, IRQ_STACK, 9)));
    assert_eq!((pcs(stack.kernel()), pcs(stack.user())), (vec![KERNEL], vec![USER]));
    assert!(stack.is_complete());
}

#[test]
fn a_thread_of_the_kernel_has_no_user_part() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    let orc = Orc::new(&[call(8), END, UNDEFINED]);
    guest.write(TASK_STACK, &[KERNEL + 0x1010]);
    let stack = walk(&guest, &orc, &guest.vcpu(0, (KERNEL, TASK_STACK, 0)));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::None, true));
    // The first instructions of a system call have such an entry, too, and a user below them.
    let stack = walk(&guest, &orc, &guest.vcpu(0, (KERNEL + 0x1000, USER_STACK, 0)));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
}

#[test]
fn a_task_that_was_forked_has_the_user_code_that_it_begins_with() {
    let orc = Orc::new(&[call(8), END, UNDEFINED]);
    // Some versions leave two words above the registers that end a stack.
    for padding in [0, 16] {
        let mut guest = Guest::new(PagingMode::FourLevel);
        guest.map(TASK_STACK + 0x3000, false);
        let saved = TASK_STACK + 0x4000 - padding - 21 * 8;
        guest.write(saved - 8, &[KERNEL + 0x1010]);
        guest.write(USER_STACK + 0x88, &[0]);
        let vcpu = guest.vcpu(0, (KERNEL, saved - 8, 0));
        let of_kernel = walk(&guest, &orc, &vcpu);
        assert_eq!((of_kernel.user_code(), of_kernel.is_complete()), (UserCode::None, true));
        // What is no user's and not empty, such as the kernel's own.
        guest.save(saved, (KERNEL, TASK_STACK, 7), (0x10, 0x18));
        guest.write(saved + 18 * 8, &[2]);
        let of_others = walk(&guest, &orc, &vcpu);
        assert_eq!((of_others.user_code(), of_others.is_complete()), (UserCode::Unknown, false));
        guest.save(saved, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
        let stack = walk(&guest, &orc, &vcpu);
        assert_eq!(pcs(stack.kernel()), [KERNEL, KERNEL + 0x1010]);
        assert_eq!((pcs(stack.user()), stack.is_complete()), (vec![USER], true), "{padding}");
    }
}

#[test]
fn what_is_beside_a_zero_is_no_entry_of_the_kernel() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    let orc = Orc::new(&[call(8), END, UNDEFINED]);
    // The word beside the zero is in code that ends a stack, but not after a call.
    guest.map(KERNEL + 0x1000, false);
    guest.write(TASK_STACK, &[0, KERNEL + 0x1010]);
    let stack = walk(&guest, &orc, &guest.vcpu(0, (KERNEL, TASK_STACK, 0)));
    assert_eq!(stack.kernel().unwrap().end(), Some(End::ZeroReturnAddress));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
}

#[test]
fn a_vcpu_reads_what_it_may_read() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    // Under KPTI user code has a table of its own, with its pages and the kernel's entry.
    let (small, page) = (0x3000, guest.locate(USER_STACK).unwrap());
    guest.map_at(small, USER_STACK, page, true);
    guest.map_at(small, IRQ_STACK, page, false);
    guest.write(USER_STACK + 8, &[USER + 0x20, 0, 0]);
    let orc = Orc::new(&[]);
    let at = |rsp| VcpuRegisters { cr3: small | 5, ..guest.vcpu(3, (USER, rsp, 0)) };
    let stack = walk(&guest, &orc, &at(USER_STACK));
    assert_eq!((pcs(stack.user()), stack.kernel().is_none()), (vec![USER, USER + 0x20], true));
    assert!(stack.is_complete());
    for (rsp, error) in [(IRQ_STACK, ReadError::Supervisor), (TASK_STACK, ReadError::NotResident)] {
        let stack = walk(&guest, &orc, &at(rsp));
        let addr = VirtAddr::new(rsp + 8);
        let end = End::Step(StepError::Unreadable { addr, error });
        assert_eq!(stack.user().unwrap().end(), Some(end));
        let fault = stack.user_fault().unwrap();
        assert_eq!(fault.read_error(), error);
        assert_eq!(matches!(fault, Fault::Supervisor { .. }), rsp == IRQ_STACK);
    }
    // The same page is the kernel's to read, of whose stack that is none.
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let mut hidden = guest;
    hidden.save(TASK_STACK + 0x118, (USER, IRQ_STACK, 7), (0x33, 0x2b));
    let stack = walk(&hidden, &orc, &vcpu);
    assert_eq!(stack.kernel_fault(), None);
    assert!(matches!(stack.user_fault(), Some(Fault::Supervisor { .. })));
    assert!(!stack.is_complete());
}

#[test]
fn registers_that_are_not_mapped_end_the_kernels_part() {
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    // The return address is mapped, and the page after it is not.
    let mut guest = guest;
    let rsp = TASK_STACK + 0xfe8;
    guest.write(rsp + 16, &[KERNEL + 0x1010]);
    let mut general = vcpu.general;
    general[7] = rsp;
    let stack = walk(&guest, &orc, &VcpuRegisters { general, ..vcpu });
    assert_eq!(pcs(stack.kernel()).len(), 2);
    let addr = VirtAddr::new(TASK_STACK + 0x1000 + 136);
    let error = ReadError::NotResident;
    assert_eq!(
        stack.kernel().unwrap().end(),
        Some(End::Step(StepError::Unreadable { addr, error }))
    );
    assert_eq!(stack.user_code(), UserCode::Unknown);
    assert!(matches!(stack.kernel_fault(), Some(Fault::NotPresent { .. })));
}

#[test]
fn both_parts_are_one_trace_that_is_complete_if_the_stack_is() {
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let mut trace = Trace::<[_; 8]>::new();
    let lent: &mut Trace = &mut trace;
    let stack = walk(&guest, &orc, &vcpu);
    stack.write_to(lent);
    assert_eq!(pcs(Some(lent)), [pcs(stack.kernel()), pcs(stack.user())].concat());
    assert!(lent.is_complete() && !stack.is_retryable());

    // The user part is in a segment of its own.
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x0f);
    let stack = walk(&guest, &orc, &vcpu);
    stack.write_to(lent);
    assert_eq!((pcs(Some(lent)), lent.end()), (pcs(stack.kernel()), None));
    assert!(!lent.is_complete() && !stack.is_retryable());
}

#[test]
fn a_stack_is_to_be_walked_again_where_memory_is_absent() {
    let (mut guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    // The user's stack is in a page that is not there; then the saved registers are.
    guest.save(TASK_STACK + 0x118, (USER, USER_STACK + 0x1000, 7), (0x33, 0x2b));
    let stack = walk(&guest, &orc, &vcpu);
    assert_eq!((stack.user_code(), stack.is_retryable()), (UserCode::Entered, true));
    let mut general = vcpu.general;
    general[7] = TASK_STACK + 0xfe8;
    guest.write(TASK_STACK + 0xff8, &[KERNEL + 0x1010]);
    let stack = walk(&guest, &orc, &VcpuRegisters { general, ..vcpu });
    assert!(stack.user().is_none() && stack.is_retryable());
}

#[test]
fn what_are_no_saved_registers_is_not_followed() {
    // A selector of nobody, a user's of which the stack's is the kernel's, a user's with a kernel's pc.
    for (rip, cs, ss) in
        [(USER, 0xcccc, 0x2b), (USER, 0x33, 0x18), (KERNEL, 0x33, 0x2b), (USER, 0x10, 0x18)]
    {
        let (mut guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
        guest.save(TASK_STACK + 0x118, (rip, USER_STACK + 0x80, 7), (cs, ss));
        let stack = walk(&guest, &orc, &vcpu);
        assert_eq!(pcs(stack.kernel()).len(), 2, "{cs:#x}");
        assert!(matches!(stack.kernel().unwrap().end(), Some(End::Table(_))), "{cs:#x}");
        assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
    }
}

#[test]
fn sixteen_bit_code_is_told_with_its_first_frame_alone() {
    let (guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let cs = Segment { l: false, base: 0xf_0000, ..vcpu.cs };
    let vcpu = VcpuRegisters { cs, rip: 0xfff0, ..vcpu };
    for (vcpu, is_user) in [
        (vcpu, false),
        (VcpuRegisters { cr0: 0, ..vcpu }, false),
        (VcpuRegisters { efer: 0, rflags: 1 << 17, ..vcpu }, true),
    ] {
        assert_eq!(vcpu.code(), CodeKind::Sixteen);
        let stack = walk(&guest, &orc, &vcpu);
        let (part, other) = match is_user {
            true => (stack.user(), stack.kernel()),
            false => (stack.kernel(), stack.user()),
        };
        assert_eq!((pcs(part), other.is_none()), (vec![0xf_fff0], true));
        let expected = if is_user { UserCode::Running } else { UserCode::Unknown };
        assert_eq!((stack.user_code(), stack.is_complete()), (expected, false));
    }
}

#[test]
fn a_32_bit_kernel_is_walked_by_the_rows_of_32_bit_code() {
    let mut guest = Guest::new(PagingMode::FourLevel);
    let low = 0x10_0000;
    guest.map(low, false);
    guest.write(low + 0x80, &[0xc100_1010_u64 << 32, 0]);
    let vcpu = guest.vcpu(0, (0xc100_0000, low + 0x80, 0));
    let vcpu = VcpuRegisters { cs: Segment { l: false, db: true, ..vcpu.cs }, ..vcpu };
    let stack = walk(&guest, &Orc::new(&[]), &vcpu);
    assert_eq!(pcs(stack.kernel()), [0xc100_0000, 0xc100_1010]);
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
}

#[test]
fn registers_are_those_that_kvm_gives() {
    use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
    let regs =
        kvm_regs { rax: 1, rdx: 2, rcx: 3, rbx: 4, r15: 16, rip: 0x99, ..Default::default() };
    let cs = kvm_segment { selector: 0x33, l: 1, dpl: 3, ..Default::default() };
    let ss = kvm_segment { selector: 0x2b, db: 1, dpl: 3, base: 7, ..Default::default() };
    let (cr0, cr3, cr4, efer) = (0x8005_0033, 0x2005, 0x2_06b0, 0xd01);
    let sregs = kvm_sregs { cs, ss, cr0, cr3, cr4, efer, ..Default::default() };
    let vcpu = VcpuRegisters::from_kvm(&regs, &sregs);
    assert_eq!(vcpu.general, [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
    assert_eq!((vcpu.rip, vcpu.cs.selector, vcpu.ss.base), (0x99, 0x33, 7));
    assert_eq!((vcpu.code(), vcpu.is_user()), (CodeKind::X86_64, true));
    let space = vcpu.address_space();
    assert_eq!((space.root().get(), space.pcid()), (0x2000, Some(5)));
    let (own, other) = vcpu.kernel_address_spaces();
    assert_eq!((own.root().get(), other), (0x2000, None));
    let (own, other) = VcpuRegisters { cr3: 0x3005, ..vcpu }.kernel_address_spaces();
    assert_eq!((own.root().get(), other.map(|other| other.root().get())), (0x3000, Some(0x2000)));
}

#[test]
fn a_kernel_without_tables_or_frame_pointers_is_no_complete_stack() {
    let (guest, _, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let mut general = vcpu.general;
    general[6] = TASK_STACK + 0x108;
    let stack = walk(&guest, &Orc::new(&[]), &VcpuRegisters { general, ..vcpu });
    assert!(!stack.is_complete());
    let frames: Vec<_> = stack.kernel().unwrap().frames().skip(1).collect();
    assert!(frames.iter().all(|frame| frame.provenance.is_after_gap()), "{frames:?}");
    assert_eq!(stack.user_code(), UserCode::Unknown);
}

#[test]
fn a_table_in_the_guests_memory_is_the_same_table() {
    let (mut guest, orc, vcpu) = system_call(PagingMode::FourLevel, 0x33);
    let expected = walk(&guest, &orc, &vcpu);
    let entries_at = IPS_AT + 0x800;
    guest.map(IPS_AT, false);
    let pad = |bytes: &[u8]| -> Vec<u64> {
        let words = bytes.chunks(8).map(|word| {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            u64::from_le_bytes(whole)
        });
        words.collect()
    };
    guest.write(IPS_AT, &pad(&orc.ips));
    guest.write(entries_at, &pad(&orc.entries));
    let at = VirtAddr::new;
    let table = |ips| OrcTable::in_memory(OrcLayout::Linux6_4, at(ips), at(entries_at), 3);
    let tables = [table(IPS_AT)];
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, OrcRows::new(&tables), Plain(16), Plain(8));
    let mut stack = GuestStack::<16>::new();
    walker.walk(&vcpu, guest.memory(), &mut stack);
    assert_eq!(format!("{stack:?}"), format!("{expected:?}"));
    // A table that is not there is an end that says so, and a later walk may get further.
    let absent = [table(IPS_AT + 0x10_0000)];
    let mut rows = GuestRows::<64>::new();
    let mut walker = GuestWalker::new(&mut rows, OrcRows::new(&absent), Plain(16), Plain(8));
    walker.walk(&vcpu, guest.memory(), &mut stack);
    let end = stack.kernel().unwrap().end().unwrap();
    assert!(end.is_retryable(), "{end:?}");
}
