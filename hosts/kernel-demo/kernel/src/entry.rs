//! What happens on the ways into the kernel and out of it.
//!
//! The unwinder is hooked in at three places:
//!
//! * an NMI takes a sample ([`sampler`]);
//! * a system call is traced ([`tracer`]), on its way in;
//! * every way out to user mode delivers what was asked for ([`delivery`]).

use crate::descriptors::{
    VECTOR_DEBUG, VECTOR_FLUSH, VECTOR_INT80, VECTOR_NMI, VECTOR_PAGE_FAULT, VECTOR_RETURN_WORK,
    VECTOR_SPURIOUS, VECTOR_SYSCALL, VECTOR_TIMER,
};
use crate::frame::{Frame, enter_nmi, leave_nmi};
use crate::memory::{self, Absent, shootdown};
use crate::task::{life, schedule, signal, system_call};
use crate::unwind::{branches, delivery, sampler, tracer};
use crate::{apic, branch_unit, cpu, grace, measure, single_step};

/// Called by entry.s for every way in.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(frame: &mut Frame) {
    if frame.is_user() {
        branch_unit::entered(schedule::current(), frame);
    }
    match frame.vector {
        // These two may have come at any instruction of the kernel, also right
        // before a way out: they leave again as they came.
        VECTOR_NMI => {
            enter_nmi();
            sampler::nmi(frame);
            leave_nmi();
            return;
        }
        VECTOR_DEBUG if frame.is_user() => return branch_unit::stepped(frame),
        VECTOR_DEBUG => return single_step::trap(),
        VECTOR_TIMER => {
            apic::end_of_interrupt();
            grace::tick();
            schedule::tick();
            branches::tick();
            measure::tick(frame);
        }
        // All it has to do is to lead to the way out to user mode.
        VECTOR_RETURN_WORK => apic::end_of_interrupt(),
        VECTOR_FLUSH => {
            shootdown::answer();
            apic::end_of_interrupt();
        }
        VECTOR_SPURIOUS => {}
        VECTOR_PAGE_FAULT => page_fault(frame),
        VECTOR_SYSCALL | VECTOR_INT80 => {
            cpu::enable_interrupts();
            tracer::system_call(frame);
            system_call::system_call(frame);
        }
        _ if frame.is_user() => life::kill_current(),
        vector => panic!("trap {vector} in the kernel: {frame:x?}"),
    }
    if frame.is_user() {
        leave(frame);
    }
}

/// Called by entry.s on a task's first way out.
#[unsafe(no_mangle)]
extern "C" fn leave_for_the_first_time(frame: &mut Frame) {
    schedule::arrived();
    leave(frame);
}

/// The way out to user mode. Interrupts are off when it returns.
#[inline(never)]
fn leave(frame: &mut Frame) {
    let task = schedule::current();
    loop {
        cpu::disable_interrupts();
        if life::is_ending() {
            cpu::enable_interrupts();
            life::end(task, frame);
        } else if schedule::switch_is_due() {
            schedule::switch();
        } else if signal::is_due(task) {
            cpu::enable_interrupts();
            // What was asked for so far is about the stack as it is before.
            delivery::deliver(task, frame);
            signal::deliver(task, frame);
        } else if delivery::entry_ends(task) {
            let traced = task.is_traced() && branch_unit::is_tracing();
            return branch_unit::set_watching(frame, traced || branches::is_recorded(task));
        } else {
            cpu::enable_interrupts();
            delivery::deliver(task, frame);
        }
    }
}

/// Brings an absent page in, which may take time. What cannot come ends the
/// task, or the kernel's copy that asked for it.
#[inline(never)]
fn page_fault(frame: &mut Frame) {
    const WRITE: u64 = 1 << 1;
    let addr = cpu::fault_address();
    let copy = memory::is_copy_fault(frame.rip);
    if !frame.is_user() && copy.is_none() {
        panic!("page fault in the kernel at {addr:#x}: {frame:x?}");
    }
    let task = schedule::current();
    let mapped = task.with_space(|space| space.absent(addr, frame.error & WRITE != 0));
    let come = match mapped {
        Some(Ok(None)) => Ok(()),
        Some(Ok(Some(absent))) => {
            if absent == Absent::OnDisk {
                schedule::sleep(1);
            }
            task.with_space(|space| space.page_in(addr)).unwrap_or(Err(memory::Unmapped))
        }
        Some(Err(_)) | None => Err(memory::Unmapped),
    };
    match (come, copy) {
        (Ok(()), _) => {}
        (Err(_), Some(failed)) => frame.rip = failed,
        (Err(_), None) => {
            tracer::fatal_fault(frame);
            life::kill_current();
        }
    }
}
