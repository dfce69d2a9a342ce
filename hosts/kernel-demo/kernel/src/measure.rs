//! How much stack the unwinder takes in this kernel.
//!
//! After the sampling there is a phase in which each timer tick that interrupts
//! user code sends an NMI, and the stack that its request and the later walk
//! use is measured on painted stacks. The ordinary stacks are painted when the
//! kernel starts.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use unwind_core::{PackedFrame, Trace};

use crate::exclusive::Exclusive;
use crate::frame::Frame;
use crate::memory::UserMemory;
use crate::painted::PAINT;
use crate::task::state::{TRACE_LEN, Task};
use crate::unwind::rows::Rows;
use crate::unwind::user_stack;
use crate::{apic, cpu};

const LEN: usize = 8 << 10;

static MEASURING: AtomicBool = AtomicBool::new(false);

/// Starts or ends the phase.
pub(crate) fn set_measuring(on: bool) {
    MEASURING.store(on, Ordering::Relaxed);
}

/// Whether it is on.
pub(crate) fn is_measuring() -> bool {
    MEASURING.load(Ordering::Relaxed)
}

/// The timer's interrupt.
pub(crate) fn tick(frame: &Frame) {
    if is_measuring() && frame.is_user() {
        apic::send_nmi();
    }
}

/// The most that was seen, in bytes.
pub(crate) struct Most(AtomicUsize);

impl Most {
    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn note(&self, bytes: usize) {
        self.0.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request, the host's hooks included.
pub(crate) static REQUEST: Most = Most::new();
/// A walk of 64-bit code with nothing cached, by tables in user memory.
pub(crate) static WALK_BY_TABLES: Most = Most::new();
/// The same by frame pointers.
pub(crate) static WALK_BY_FRAME_POINTERS: Most = Most::new();
/// The same of 32-bit code.
pub(crate) static WALK_OF_COMPAT: Most = Most::new();

/// Makes a request in an NMI, measured in the phase for it.
pub(crate) fn request<R>(request: impl FnOnce() -> R) -> R {
    static STACK: MeasuredStack = MeasuredStack::new();
    if !is_measuring() {
        return request();
    }
    let (outcome, bytes) = STACK.call(request);
    REQUEST.note(bytes);
    outcome
}

/// Walks a stack once more, measured, with nothing cached. Task context.
pub(crate) fn walk(task: &Task, frame: &Frame) {
    static STACK: MeasuredStack = MeasuredStack::new();
    static SCRATCH: Exclusive<(Trace<[PackedFrame; TRACE_LEN]>, Rows)> =
        Exclusive::new((Trace::<[_; TRACE_LEN]>::new(), Rows::new()));
    if !is_measuring() {
        return;
    }
    let by_tables = task.has_tables();
    let most = match (frame.is_compat(), by_tables) {
        (true, _) => &WALK_OF_COMPAT,
        (false, true) => &WALK_BY_TABLES,
        (false, false) => &WALK_BY_FRAME_POINTERS,
    };
    SCRATCH.try_with(|(trace, rows)| {
        let mut walk = || {
            rows.cache.clear();
            user_stack::walk_with(task, frame, &mut UserMemory, rows, trace);
        };
        // Afterwards all pages that the walk needs are present, and stay so for
        // as long as no other task runs.
        walk();
        let interrupts = cpu::disable_interrupts();
        let ((), bytes) = STACK.call(walk);
        cpu::restore_interrupts(interrupts);
        most.note(bytes);
    });
}

#[repr(C, align(16))]
struct Painted(UnsafeCell<[u64; LEN / 8]>);

/// A stack of its own for what is measured.
struct MeasuredStack(Exclusive<Painted>);

unsafe extern "C" {
    fn call_on_stack(function: extern "C" fn(*mut u8), argument: *mut u8, top: *mut u64);
}

impl MeasuredStack {
    const fn new() -> Self {
        Self(Exclusive::new(Painted(UnsafeCell::new([0; LEN / 8]))))
    }

    /// Calls `f` on a painted stack; returns how many bytes of it lost their
    /// paint. `f` is not interrupted but by NMIs, which have stacks of their
    /// own.
    fn call<R>(&self, f: impl FnOnce() -> R) -> (R, usize) {
        let result = self.0.try_with(|stack| {
            let words = stack.0.get_mut();
            words.fill(PAINT);
            let mut call = Call { f: Some(f), result: None };
            let top = words.as_mut_ptr_range().end;
            let argument = (&raw mut call).cast();
            // SAFETY: only this call uses the stack, and `run` gets the type of
            // `call` that it expects.
            unsafe { call_on_stack(call.run(), argument, top) }
            let untouched = words.iter().take_while(|&&word| word == PAINT).count();
            let result = call.result.take();
            result.map(|result| (result, LEN - 8 * untouched))
        });
        match result.flatten() {
            Some(result) => result,
            None => panic!("a measurement in a measurement"),
        }
    }
}

struct Call<F, R> {
    f: Option<F>,
    result: Option<R>,
}

impl<F: FnOnce() -> R, R> Call<F, R> {
    /// The function that makes the call it is given.
    fn run(&self) -> extern "C" fn(*mut u8) {
        extern "C" fn run<F: FnOnce() -> R, R>(call: *mut u8) {
            // SAFETY: `MeasuredStack::call` passes a call of this type, and does
            // not touch it meanwhile.
            let call = unsafe { &mut *call.cast::<Call<F, R>>() };
            call.result = call.f.take().map(|f| f());
        }
        run::<F, R>
    }
}
