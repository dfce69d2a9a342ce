//! Signals: a handler runs on top of the code that the task was in, and makes
//! its own system calls before that code continues.
//!
//! Only what the walk of stacks needs: one handler, raised by the task itself.
//! The frame on the user stack has Linux's layout, and the handler returns to
//! Linux's trampoline, so that unwinders know it by its bytes.

use core::sync::atomic::Ordering;

use unwind_core::{Memory, VirtAddr};

use super::life::kill_current;
use super::state::{SignalState, Task};
use crate::frame::Frame;
use crate::memory::{USER_END, UserMemory, copy_to_user};

/// The words of a signal frame: the trampoline's address, the context's head,
/// the registers in Linux's order.
const HEAD: usize = 1 + 5;
const REGISTERS: usize = 18;
const WORDS: usize = HEAD + REGISTERS;
const BYTES: u64 = WORDS as u64 * 8;

/// The bytes below its stack pointer that the interrupted code may use.
const RED_ZONE: u64 = 128;

/// System call: names the handler and the trampoline that it returns to.
pub(super) fn set_handler(task: &Task, handler: u64, trampoline: u64) {
    task.signals.with(|state| *state = SignalState { handler, trampoline });
    task.has_handler.store(true, Ordering::Relaxed);
}

/// System call: a signal to the task itself.
pub(super) fn raise(task: &Task) {
    task.signal_is_due.store(true, Ordering::Relaxed);
}

/// Whether the task has a signal to handle before it continues.
pub(crate) fn is_due(task: &Task) -> bool {
    task.signal_is_due.load(Ordering::Relaxed)
}

/// Makes the task continue in its handler. Task context, may sleep.
pub(crate) fn deliver(task: &Task, frame: &mut Frame) {
    task.signal_is_due.store(false, Ordering::Relaxed);
    let state = task.signals.with(|state| *state);
    // As after a call: 8 below a multiple of 16.
    let at = ((frame.rsp - RED_ZONE - BYTES) & !15) - 8;
    let mut words = [0; WORDS];
    words[0] = state.trampoline;
    words[HEAD..].copy_from_slice(&registers(frame));
    let bytes = words.map(u64::to_le_bytes);
    if state.handler == 0 || copy_to_user(at, bytes.as_flattened()).is_err() {
        kill_current();
    }
    frame.rip = state.handler;
    frame.rsp = at;
    frame.rdi = 1;
}

/// System call: the handler has returned. The interrupted code continues.
pub(super) fn finish(frame: &mut Frame) {
    let mut bytes = [[0; 8]; REGISTERS];
    // The return has taken the trampoline's address from the stack.
    let at = VirtAddr::new(frame.rsp.wrapping_add(8 * (HEAD as u64 - 1)));
    if UserMemory.read(at, bytes.as_flattened_mut()).is_err() {
        kill_current();
    }
    set_registers(frame, &bytes.map(u64::from_le_bytes));
    // The way out would fault in the kernel.
    if frame.rip >= USER_END {
        kill_current();
    }
}

/// The general registers in the order of Linux's `struct sigcontext`.
const fn registers(frame: &Frame) -> [u64; REGISTERS] {
    let Frame { r8, r9, r10, r11, r12, r13, r14, r15, .. } = *frame;
    let Frame { rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags, .. } = *frame;
    [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, rflags]
}

const fn set_registers(frame: &mut Frame, registers: &[u64; REGISTERS]) {
    /// Those that user code may set as it likes.
    const USER_FLAGS: u64 = 0xcd5;
    let flags;
    [
        frame.r8, frame.r9, frame.r10, frame.r11, frame.r12, frame.r13, frame.r14, frame.r15,
        frame.rdi, frame.rsi, frame.rbp, frame.rbx, frame.rdx, frame.rax, frame.rcx, frame.rsp,
        frame.rip, flags,
    ] = *registers;
    frame.rflags = frame.rflags & !USER_FLAGS | flags & USER_FLAGS;
}
