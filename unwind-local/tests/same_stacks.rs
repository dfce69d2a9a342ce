//! The stacks are those that glibc's `backtrace` finds, in ten situations, and libunwind's
//! where it is installed.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests"
)]

mod cursors;

use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::Once;

use cursors::compare_ways;
use unwind_core::Trace;
use unwind_local::{
    CallerRegisters, Cursor, DwarfReg, End, MAX_FRAMES, Origin, backtrace, backtrace_of, frames,
    keeps_rows, prepare, trace, trace_from, trace_of,
};

unsafe extern "C" {
    #[link_name = "backtrace"]
    fn glibc_backtrace(buffer: *mut *mut c_void, size: i32) -> i32;
}

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// Walks by each way, from this frame on.
#[inline(never)]
fn compare() {
    let mut ours = [0_usize; 1024];
    let found = backtrace(&mut ours);
    let mut theirs = [null_mut::<c_void>(); 1024];
    let count = unsafe { glibc_backtrace(theirs.as_mut_ptr(), 1024) };
    let theirs: Vec<_> =
        theirs[..usize::try_from(count).unwrap()].iter().map(|pc| pc.addr()).collect();
    // Each was called from another place of this function.
    assert_eq!(ours[1..found.len], theirs[1..], "{found:x?}");
    assert!(found.is_complete, "{}", found.end);
    assert!(ours[0].abs_diff(theirs[0]) < 4096);
    let mut walked = Vec::new();
    let end = frames(|frame| {
        walked.push(usize::try_from(frame.pc.addr().get()).unwrap());
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!((&walked[1..], end), (&theirs[1..], Some(found.end)));
    by_cursor(&theirs[1..], found.end);
    let mut of_callers = Trace::<[_; 1024]>::new();
    trace(&mut of_callers);
    assert_eq!(pcs(&of_callers)[1..], theirs[1..]);
    by_kept_registers(&CallerRegisters::here(), &theirs[1..]);
    by_libunwind(&theirs[1..]);
    COMPARED.with(|compared| compared.set(compared.get() + 1));
}

fn pcs(trace: &Trace) -> Vec<usize> {
    assert!(trace.is_complete(), "{:?}", trace.end());
    trace.pcs().map(|pc| usize::try_from(pc.get()).unwrap()).collect()
}

/// From the frame of the caller on, whose registers these are, and not from this one.
#[inline(never)]
fn by_kept_registers(registers: &CallerRegisters, expected: &[usize]) {
    let mut kept = Trace::<[_; 1024]>::new();
    unsafe { trace_from(registers, &mut kept) };
    assert_eq!(pcs(&kept)[1..], *expected);
}

/// A frame at a time, from the caller's on.
#[inline(never)]
fn by_cursor(expected: &[usize], end: End) {
    let mut cursor = unsafe { Cursor::here() };
    assert_eq!(compare_ways(cursor), (expected.len() + 2, end));
    let (mut walked, mut last_sp) = (Vec::new(), 0);
    while let Some(frame) = cursor.frame() {
        assert_eq!(cursor.pc().unwrap().addr(), frame.pc.addr());
        let sp = cursor.register(DwarfReg(7)).unwrap();
        assert_eq!(cursor.sp(), Some(sp));
        // A handler may have a stack of its own.
        assert!(sp > last_sp || frame.provenance.origin() == Origin::SignalContext);
        last_sp = sp;
        // Calls preserve it, and every frame here tells how.
        assert!(cursor.register(DwarfReg(3)).is_some(), "rbx of {frame:?}");
        let addr = frame.pc.lookup_addr().get();
        // The C library's code has no call frame information in few places.
        assert!(cursor.function().is_none_or(|function| function.contains(&addr)));
        assert_eq!(cursor.is_signal_trampoline(), was_trampoline(cursor));
        walked.push(usize::try_from(frame.pc.addr().get()).unwrap());
        assert_eq!(cursor.step(), cursor.end().is_none());
    }
    // Without this function's frame and that of the place in its caller.
    assert_eq!(walked[2..], *expected);
    assert!(cursor.is_complete() && cursor.end() == Some(end), "{:?}", cursor.end());
    assert!(!cursor.step() && cursor.register(DwarfReg(3)).is_none());
}

/// Whether the caller is what a signal interrupted.
fn was_trampoline(mut cursor: Cursor) -> bool {
    cursor.step();
    cursor.frame().is_some_and(|frame| frame.provenance.origin() == Origin::SignalContext)
}

fn by_libunwind(expected: &[usize]) {
    static LOADED: Once = Once::new();
    static mut FUNCTION: Option<unsafe extern "C" fn(*mut *mut c_void, i32) -> i32> = None;
    LOADED.call_once(|| {
        let library = unsafe { libloading::Library::new("libunwind.so.8") };
        let Ok(library) = library else { return test_support::skip("libunwind is not installed") };
        let function = unsafe { library.get(b"unw_backtrace\0") };
        unsafe { FUNCTION = function.map(|function| *function).ok() };
        std::mem::forget(library);
    });
    let Some(function) = (unsafe { FUNCTION }) else { return };
    let mut theirs = [null_mut::<c_void>(); 1024];
    let count = unsafe { function(theirs.as_mut_ptr(), 1024) };
    let theirs: Vec<_> =
        theirs[..usize::try_from(count).unwrap()].iter().map(|pc| pc.addr()).collect();
    assert!(theirs.ends_with(&expected[1..]), "{theirs:x?} {expected:x?}");
}

#[inline(never)]
fn recurse(depth: usize, then: &dyn Fn()) -> usize {
    if depth == 0 {
        then();
        return 0;
    }
    black_box(recurse(depth - 1, then)) + 1
}

/// A frame of more than two pages.
#[inline(never)]
fn large_frames(depth: usize, then: &dyn Fn()) -> usize {
    let mut room = [0_u8; 9 << 10];
    black_box(&mut room);
    if depth == 0 {
        then();
        return 0;
    }
    let found = large_frames(depth - 1, then);
    black_box(&mut room);
    found + 1
}

fn compared(run: impl FnOnce()) {
    let before = COMPARED.with(Cell::get);
    run();
    assert!(COMPARED.with(Cell::get) > before);
}

fn in_all_situations() {
    compared(compare);
    for depth in [10, 40, 300] {
        compared(|| _ = recurse(depth, &compare));
        compared(|| _ = recurse(depth, &compare));
    }
    compared(|| _ = large_frames(20, &compare));
    compared(in_a_callback);
    compared(|| in_a_handler(0));
    compared(|| in_a_handler(libc::SA_ONSTACK));
    compared(|| _ = recurse(100, &|| in_a_handler(libc::SA_ONSTACK)));
}

/// Called by the C library.
fn in_a_callback() {
    unsafe extern "C" fn order(_: *const c_void, _: *const c_void) -> i32 {
        compare();
        0
    }
    let mut list = [2_u64, 1];
    unsafe { libc::qsort(list.as_mut_ptr().cast(), 2, 8, Some(order)) };
}

thread_local! {
    static INTERRUPTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

unsafe extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    compare();
    let mut all = [0; 1024];
    let from_here = backtrace(&mut all);
    let mut interrupted = [0; 1024];
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let found = unsafe { backtrace_of(context, &mut interrupted) };
    assert!(found.is_complete, "{}", found.end);
    assert!(all[..from_here.len].ends_with(&interrupted[..found.len]));
    assert_eq!(found.end, End::Outermost);
    let mut same = Trace::<[_; 1024]>::new();
    unsafe { trace_of(context, &mut same) };
    assert_eq!(pcs(&same), interrupted[..found.len]);
    let mut cursor = unsafe { Cursor::here() };
    while cursor.frame().unwrap().provenance.origin() != Origin::SignalContext {
        assert!(cursor.step());
    }
    // All registers of what was interrupted are known, also those that calls do not preserve.
    let mut same = unsafe { Cursor::of(context) };
    let saved = |register: i32| context.uc_mcontext.gregs[usize::try_from(register).unwrap()];
    for (register, number) in [(libc::REG_RAX, 0), (libc::REG_RBX, 3), (libc::REG_R11, 11)] {
        let value = Some(saved(register).cast_unsigned());
        assert_eq!(cursor.register(DwarfReg(number)), value);
        assert_eq!(same.register(DwarfReg(number)), value);
    }
    INTERRUPTED.with(|lens| lens.set((from_here.len, found.len)));
}

fn in_a_handler(flags: i32) {
    let mut room = vec![0_u8; 256 << 10];
    let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
    unsafe {
        libc::sigaltstack(&raw const stack, null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, null_mut());
        libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1);
        let none = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        libc::sigaltstack(&raw const none, null_mut());
    }
    let (all, interrupted) = INTERRUPTED.with(Cell::get);
    assert!(all > interrupted && interrupted > 1);
}

#[test]
fn stacks_are_those_of_glibc_and_libunwind() {
    // Without kept rows, then with them.
    assert!(!keeps_rows());
    in_all_situations();
    std::thread::spawn(in_all_situations).join().unwrap();
    prepare();
    assert!(keeps_rows());
    in_all_situations();
    let threads: Vec<_> = (0..20).map(|_| std::thread::spawn(in_all_situations)).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    recurse(MAX_FRAMES + 10, &more_than_a_walk_may_have);
}

fn more_than_a_walk_may_have() {
    let start = unsafe { Cursor::here() };
    assert_eq!(compare_ways(start), (MAX_FRAMES, End::FrameLimit));
}

#[test]
fn errno_is_kept() {
    unsafe { *libc::__errno_location() = 77 };
    _ = backtrace(&mut [0; 64]);
    // A frame pointer that leads nowhere.
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    let registers = &mut context.uc_mcontext.gregs;
    registers[usize::try_from(libc::REG_RIP).unwrap()] = 0x1234;
    registers[usize::try_from(libc::REG_RSP).unwrap()] = 0x1000;
    registers[usize::try_from(libc::REG_RBP).unwrap()] = 0x2000;
    let mut out = [0; 8];
    let found = unsafe { backtrace_of(&context, &mut out) };
    assert_eq!((found.len, found.is_complete), (1, false));
    assert_eq!(unsafe { *libc::__errno_location() }, 77);
}
