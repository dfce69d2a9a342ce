//! The system calls. Numbers are those of Linux for 64-bit tasks where Linux
//! has the call; 32-bit tasks use the same numbers.

use core::hint::black_box;

use super::program::Program;
use super::schedule::current;
use super::{life, schedule, signal};
use crate::frame::Frame;
use crate::unwind::aux_trace;

const SIGACTION: u64 = 13;
const SIGRETURN: u64 = 15;
const YIELD: u64 = 24;
const FORK: u64 = 57;
const EXEC: u64 = 59;
const EXIT: u64 = 60;
const WAIT: u64 = 61;
const RAISE: u64 = 62;
/// Work in the kernel.
const SPIN: u64 = 1000;

/// A part begins that is traced, and where it lies.
const TRACE_BEGIN: u64 = 1001;
/// It ends, and how many branches it has.
const TRACE_END: u64 = 1002;

/// The program has found that its x87 registers are another's.
const X87_IS_LOST: u64 = 1003;

const FAILED: u64 = u64::MAX;

/// A call's number and arguments.
struct Call {
    number: u64,
    first: u64,
    second: u64,
}

impl Call {
    const fn new(frame: &Frame) -> Self {
        let Frame { rax, rbx, rcx, rdi, rsi, .. } = *frame;
        let (first, second) = if frame.is_compat() { (rbx, rcx) } else { (rdi, rsi) };
        Self { number: rax, first, second }
    }
}

/// Whether the tracer that asks for stacks records this call: those after which the task is
/// not what it was.
pub(crate) fn is_traced(frame: &Frame) -> bool {
    matches!(Call::new(frame).number, EXEC | EXIT | FORK | RAISE)
}

/// Whether the tracer that does not ask records this call: those that take long, so that
/// another client may ask. After a signal it would get the stack of the handler.
pub(crate) fn is_traced_without_asking(frame: &Frame) -> bool {
    matches!(Call::new(frame).number, SPIN | YIELD)
}

/// Carries out the system call of the task. Interrupts are on.
#[inline(never)]
pub(crate) fn system_call(frame: &mut Frame) {
    let task = current();
    let call = Call::new(frame);
    let result = match call.number {
        SPIN => Some(spin_outer(call.first)),
        YIELD => {
            schedule::sleep(1);
            Some(0)
        }
        SIGACTION => {
            signal::set_handler(task, call.first, call.second);
            Some(0)
        }
        RAISE => {
            signal::raise(task);
            Some(0)
        }
        TRACE_BEGIN => {
            aux_trace::begin(call.first, call.second);
            Some(0)
        }
        TRACE_END => {
            aux_trace::end(call.first);
            Some(0)
        }
        // These two set all registers.
        SIGRETURN => return signal::finish(frame),
        EXEC => match Program::from_number(call.first) {
            Some(program) if life::exec(task, frame, program).is_some() => return,
            _ => None,
        },
        EXIT => life::end(task, frame),
        FORK => life::fork(task, frame).map(u64::from),
        WAIT => life::wait(task).map(u64::from),
        X87_IS_LOST => panic!("a program has lost its x87 state"),
        _ => None,
    };
    frame.rax = result.unwrap_or(FAILED);
}

/// Work in the kernel, in a known chain of functions against which samples are
/// checked.
#[inline(never)]
fn spin_outer(rounds: u64) -> u64 {
    black_box(spin_middle(rounds)).wrapping_add(1)
}

#[inline(never)]
fn spin_middle(rounds: u64) -> u64 {
    black_box(spin_inner(rounds)).wrapping_add(1)
}

#[inline(never)]
fn spin_inner(rounds: u64) -> u64 {
    (0..rounds).fold(0, |sum, round| black_box(sum ^ round))
}
