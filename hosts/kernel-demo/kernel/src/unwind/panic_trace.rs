//! What the panic handler tells: the functions that were under way, by the kernel's own
//! table.
//!
//! A panic comes on whatever stack there is, maybe a short one, with locks held and memory in
//! disorder. So the walk takes no lock and no memory but that stack, and prints each frame as
//! it finds it. Where it comes while this CPU walks, nothing is told but that.

use core::arch::asm;

use crate::frame::Frame;
use crate::options;
use crate::painted::{paint, used};
use crate::serial::println;
use crate::task::state::kernel_stack_of;
use crate::unwind::kernel_stack::try_walk;

/// The most stack that a trace may take, in bytes.
const MOST: u64 = 2 << 10;

/// Prints the trace. Any context; nothing else runs on this CPU any more.
#[inline(never)]
pub(crate) fn print() {
    if options::get().panic == 0 {
        return trace();
    }
    let sp = stack_pointer();
    let Some((low, _)) = kernel_stack_of(sp) else { return trace() };
    // Some way below what this function itself uses.
    let (low, high) = (low.max(sp - 2 * MOST), sp - 64);
    // SAFETY: below the stack pointer, and nothing interrupts.
    unsafe { paint(low, high) };
    trace();
    let bytes = used(low, high) + 64;
    println!("panic: {bytes} bytes of stack for the trace");
    assert!(bytes <= MOST, "a trace takes more stack than it may");
}

#[inline(never)]
fn trace() {
    let frame = here();
    let mut number = 0;
    let walk = try_walk(&frame, |pc| {
        println!("panic: {number:2} {pc:#x}");
        number += 1;
    });
    match walk {
        Some(walk) if walk.is_complete => println!("panic: complete"),
        Some(_) => println!("panic: callers are missing"),
        None => println!("panic: while a stack was walked"),
    }
}

/// This place in the caller, with the registers that calls preserve.
#[inline(always)]
fn here() -> Frame {
    let mut frame = Frame::default();
    let Frame { rip, rsp, rbp, rbx, r12, r13, r14, r15, .. } = &mut frame;
    // SAFETY: it reads registers alone.
    unsafe {
        asm!(
            "lea {rip}, [rip]",
            "mov {rsp}, rsp",
            "mov {rbp}, rbp",
            "mov {rbx}, rbx",
            rip = out(reg) * rip,
            rsp = out(reg) * rsp,
            rbp = out(reg) * rbp,
            rbx = out(reg) * rbx,
            options(nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: likewise.
    unsafe {
        asm!(
            "mov {r12}, r12",
            "mov {r13}, r13",
            "mov {r14}, r14",
            "mov {r15}, r15",
            r12 = out(reg) * r12,
            r13 = out(reg) * r13,
            r14 = out(reg) * r14,
            r15 = out(reg) * r15,
            options(nomem, nostack, preserves_flags),
        );
    }
    frame
}

#[inline(always)]
fn stack_pointer() -> u64 {
    let sp;
    // SAFETY: it reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Panics three calls deep, so that a run can look at the trace.
#[inline(never)]
pub(crate) fn rehearse() {
    outer(core::hint::black_box(3));
    core::hint::black_box(());
}

#[inline(never)]
fn outer(number: u64) {
    middle(number + 1);
    core::hint::black_box(());
}

#[inline(never)]
fn middle(number: u64) {
    inner(number + 1);
    core::hint::black_box(());
}

#[inline(never)]
fn inner(number: u64) {
    assert!(number == 0, "rehearsed");
    core::hint::black_box(());
}
