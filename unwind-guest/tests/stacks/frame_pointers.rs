//! Stacks of kernels that keep frame pointers.

use super::*;

/// Where the registers of user code are, which end the task's stack.
const SAVED: u64 = TASK_STACK + 0x4000 - 21 * 8;
/// The code of the kernel's entry.
const ENTRY: u64 = KERNEL + 0x2000;

/// A guest in a function of the kernel whose frame is complete, and its task's stack.
fn guest() -> Guest {
    let mut guest = Guest::new(PagingMode::FourLevel);
    guest.map(KERNEL, false);
    guest.map(TASK_STACK + 0x3000, false);
    // At 0x0c: push rbp; mov rbp, rsp; nop; pop rbp; ret. Then bytes that prove nothing.
    guest.write(KERNEL, &[u64::MAX]);
    guest.write(KERNEL + 8, &[0xe589_4855_cccc_cccc, 0xcccc_cccc_ccc3_5d90]);
    guest.write(THUNK, &[0xcccc_cccc_ccc3_9090]);
    guest.write(USER_STACK + 0x88, &[USER + 0x20, 0, 0]);
    guest
}

/// Code outside of the image, and where a tracer has functions return to.
const OUTSIDE: u64 = 0xffff_ffff_c000_0000;
const TRACED: u64 = KERNEL + 0x1800;
/// In a thunk, whose code is as that of a function that returns.
const THUNK: u64 = KERNEL + 0x20;

fn code() -> KernelCode {
    let range = |start, len| VirtAddr::new(start)..VirtAddr::new(start + len);
    KernelCode {
        image: range(KERNEL, 0x10_0000),
        entry: range(ENTRY, 0x1000),
        thunks: range(THUNK, 0x10),
        traced_returns: [0, TRACED, 0, 0].map(VirtAddr::new),
    }
}

/// The stack of a vCPU at an address, with a stack and a frame pointer.
fn walked(guest: &Guest, registers: (u64, u64, u64)) -> GuestStack<16> {
    let mut kept = GuestRows::<64>::new();
    let code = code();
    let rows = KernelFramePointers::new().with_code(&code);
    let mut walker = GuestWalker::new(&mut kept, rows, Plain(16), Plain(8));
    let mut stack = GuestStack::<16>::new();
    walker.walk(&guest.vcpu(0, registers), guest.memory(), &mut stack);
    stack
}

fn parts(stack: &GuestStack<16>) -> (Vec<u64>, Vec<u64>, UserCode, bool) {
    (pcs(stack.kernel()), pcs(stack.user()), stack.user_code(), stack.is_complete())
}

#[test]
fn an_interrupt_of_user_code_is_led_out_of_by_the_mark() {
    let mut guest = guest();
    guest.save(TASK_STACK + 0x118, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    // Called from the entry, which has the address of the registers in the frame pointer, with a mark.
    guest.write(TASK_STACK + 0x108, &[(TASK_STACK + 0x118) | 1, ENTRY + 0x10]);
    let stack = walked(&guest, (KERNEL + 0x10, TASK_STACK + 0x108, TASK_STACK + 0x108));
    let kernel = vec![KERNEL + 0x10, ENTRY + 0x10];
    assert_eq!(parts(&stack), (kernel, vec![USER, USER + 0x20], UserCode::Entered, true));
}

#[test]
fn the_function_that_saves_the_registers_has_its_caller() {
    let mut guest = guest();
    let saved = TASK_STACK + 0x118;
    guest.save(saved, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    // It has just made the mark, and calls another one.
    guest.write(saved - 0x18, &[saved | 1, ENTRY + 0x800, ENTRY + 0x10]);
    let stack = walked(&guest, (KERNEL + 0x10, saved - 0x18, saved - 0x18));
    let kernel = vec![KERNEL + 0x10, ENTRY + 0x800, ENTRY + 0x10];
    assert_eq!(parts(&stack), (kernel, vec![USER, USER + 0x20], UserCode::Entered, true));
}

#[test]
fn a_system_call_is_below_the_registers_that_end_the_stack() {
    for padding in [0, 16] {
        let (mut guest, saved) = (guest(), SAVED - padding);
        guest.save(saved, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
        // Two functions, of which the second is called from the entry, without a frame pointer.
        guest.write(saved - 0x40, &[saved - 0x10, KERNEL + 0x1010]);
        guest.write(saved - 0x10, &[0, ENTRY + 0x10]);
        let stack = walked(&guest, (KERNEL + 0x10, saved - 0x40, saved - 0x40));
        let kernel = vec![KERNEL + 0x10, KERNEL + 0x1010, ENTRY + 0x10];
        assert_eq!(parts(&stack), (kernel, vec![USER, USER + 0x20], UserCode::Entered, true));
    }
    // Elsewhere they are no end of a stack.
    let (mut guest, saved) = (guest(), TASK_STACK + 0x118);
    guest.save(saved, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    guest.write(saved - 0x10, &[0, ENTRY + 0x10]);
    let stack = walked(&guest, (KERNEL + 0x10, saved - 0x10, saved - 0x10));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
}

#[test]
fn a_thread_of_the_kernel_ends_where_nobodys_registers_are() {
    // With a mark, as a thread begins; without one and some words below, as a CPU does.
    for (fp, below) in [(SAVED | 1, 0), (0, 0x38)] {
        let (mut guest, frame) = (guest(), SAVED - below - 0x10);
        guest.write(frame, &[fp, KERNEL + 0x1010]);
        let stack = walked(&guest, (KERNEL + 0x10, frame, frame));
        let kernel = vec![KERNEL + 0x10, KERNEL + 0x1010];
        assert_eq!(parts(&stack), (kernel, vec![], UserCode::None, true));
        // A thread that the kernel makes for a process has a user's segments, and no code.
        guest.save(SAVED, (0, 0, 0), (0x33, 0x2b));
        let other = walked(&guest, (KERNEL + 0x10, frame, frame));
        assert_eq!(parts(&other), parts(&stack));
    }
}

#[test]
fn an_interrupt_leads_over_its_stack_to_the_interrupted_function() {
    let mut guest = guest();
    // The interrupted function has its frame; its caller was called by the entry.
    guest.save(SAVED, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    guest.write(SAVED - 0x10, &[0, ENTRY + 0x10]);
    let interrupted = TASK_STACK + 0x300;
    guest.write(interrupted, &[SAVED - 0x10, KERNEL + 0x1010]);
    let saved = TASK_STACK + 0x200;
    guest.save(saved, (KERNEL + 0x10, interrupted, interrupted), (0x10, 0x18));
    // On the task's stack, it has changed to the one of interrupts, which is lower.
    guest.write(saved - 0x10, &[saved | 1, ENTRY + 0x20]);
    guest.write(IRQ_STACK + 0x100, &[saved - 0x10, KERNEL + 0x1020]);
    let at = IRQ_STACK + 0x100;
    let expected =
        vec![KERNEL + 0x10, KERNEL + 0x1020, ENTRY + 0x20, KERNEL + 0x10, KERNEL + 0x1010];
    let stack = walked(&guest, (KERNEL + 0x10, at, at));
    let kernel = [expected, vec![ENTRY + 0x10]].concat();
    assert_eq!(parts(&stack), (kernel.clone(), vec![USER, USER + 0x20], UserCode::Entered, true));
    // The same from a stack above the task's: what it goes back to is lower.
    let high = TASK_STACK + 0x10_0000;
    guest.map(high, false);
    guest.write(high + 0x100, &[saved - 0x10, KERNEL + 0x1020]);
    let stack = walked(&guest, (KERNEL + 0x10, high + 0x100, high + 0x100));
    assert_eq!(pcs(stack.kernel()), kernel);
    assert!(stack.is_complete());
}

#[test]
fn a_function_without_its_frame_is_not_skipped_or_is_marked() {
    let mut guest = guest();
    guest.save(SAVED, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    guest.write(SAVED - 0x10, &[0, ENTRY + 0x10]);
    // At its first byte, with the caller's frame pointer.
    guest.write(SAVED - 0x40, &[KERNEL + 0x1010]);
    let stack = walked(&guest, (KERNEL + 0xc, SAVED - 0x40, SAVED - 0x10));
    assert_eq!(pcs(stack.kernel()), [KERNEL + 0xc, KERNEL + 0x1010, ENTRY + 0x10]);
    assert!(stack.is_complete());
    // Where the instructions prove nothing, a caller may be missing.
    let stack = walked(&guest, (KERNEL, SAVED - 0x40, SAVED - 0x10));
    assert_eq!(pcs(stack.kernel()), [KERNEL, ENTRY + 0x10]);
    assert!(!stack.is_complete());
}

#[test]
fn callers_that_tracers_hide_are_marked() {
    // A caller whose return is traced, and a trampoline before the function that it traces.
    for through in [TRACED, OUTSIDE + 0x10] {
        let mut guest = guest();
        guest.save(SAVED, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
        guest.write(SAVED - 0x10, &[0, ENTRY + 0x10]);
        guest.write(SAVED - 0x40, &[SAVED - 0x20, through]);
        guest.write(SAVED - 0x20, &[SAVED - 0x10, KERNEL + 0x1010]);
        let stack = walked(&guest, (KERNEL + 0x10, SAVED - 0x40, SAVED - 0x40));
        let kernel = [KERNEL + 0x10, through, KERNEL + 0x1010, ENTRY + 0x10];
        assert_eq!(pcs(stack.kernel()), kernel);
        assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Entered, false));
    }
}

#[test]
fn a_thunk_proves_nothing() {
    let mut guest = guest();
    guest.save(SAVED, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    guest.write(SAVED - 0x10, &[0, ENTRY + 0x10]);
    // The word at the stack pointer is the function to call, by a return.
    guest.write(SAVED - 0x40, &[KERNEL + 0x3000, KERNEL + 0x1010]);
    let stack = walked(&guest, (THUNK, SAVED - 0x40, SAVED - 0x10));
    assert_eq!(pcs(stack.kernel()), [THUNK, ENTRY + 0x10]);
    assert!(!stack.is_complete());
}

#[test]
fn the_mark_of_the_entry_does_not_lead_over_its_frame() {
    let (mut guest, saved) = (guest(), TASK_STACK + 0x118);
    guest.save(saved, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    // A function that has no frame yet, and whose instructions prove nothing.
    let stack = walked(&guest, (KERNEL, saved - 8, saved | 1));
    assert_eq!(pcs(stack.kernel()), [KERNEL]);
    assert!(!stack.is_complete());
}

#[test]
fn registers_that_are_zero_at_the_entry_are_not_of_a_thread_of_the_kernel() {
    let mut guest = guest();
    guest.write(SAVED - 0x10, &[0, ENTRY + 0x10]);
    let stack = walked(&guest, (KERNEL + 0x10, SAVED - 0x10, SAVED - 0x10));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
    // Nor is a frame pointer of zero elsewhere one, or one of user code, or one that goes back on its stack.
    for fp in [0, USER_STACK + 0x80, TASK_STACK + 0x3000] {
        guest.write(SAVED - 0x80, &[fp, KERNEL + 0x1010]);
        let stack = walked(&guest, (KERNEL + 0x10, SAVED - 0x80, SAVED - 0x80));
        assert!(!stack.is_complete(), "{fp:#x}");
    }
}

#[test]
fn the_entry_does_not_believe_the_frame_pointer_of_user_code() {
    let mut guest = guest();
    // User code that has laid out registers of the kernel's caller, with a mark.
    guest.save(USER_STACK, (USER + 0x100, USER_STACK + 0x80, 7), (0x33, 0x2b));
    let stack = walked(&guest, (ENTRY, SAVED, USER_STACK | 1));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
    // Nor another mark of the kernel's, as of an exception in the middle of another one.
    let other = TASK_STACK + 0x118;
    guest.save(other, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    let stack = walked(&guest, (ENTRY, SAVED, other | 1));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Unknown, false));
    // That of the function that was interrupted may lead to a caller of that one.
    guest.save(SAVED, (USER, USER_STACK + 0x80, 7), (0x33, 0x2b));
    guest.write(SAVED - 0x10, &[0, ENTRY + 0x10]);
    let stack = walked(&guest, (ENTRY, SAVED - 0x100, SAVED - 0x10));
    assert_eq!((stack.user_code(), stack.is_complete()), (UserCode::Entered, false));
}
