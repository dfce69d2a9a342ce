//! Requests for stacks, and their deliveries.

use unwind_core::Trace;
use unwind_core::deferred::{
    CancelError, ClientId, Delivery, LossReason, Recipients, RequestOutcome, TaskState,
    TooManyClients, UserReturn,
};

use super::lent::{self, TraceBlock};
use super::walks::{NO_STACK, into, told};
use super::{count, hooks, number, put, shared};
use crate::host::UNWIND;
use crate::numbers::{unwind_error, unwind_loss, unwind_recipients, unwind_return};
use crate::types::{
    unwind_delivery, unwind_drops, unwind_registers, unwind_task, unwind_trace, unwind_walk,
};

const _: () = {
    assert!(size_of::<TaskState>() == size_of::<unwind_task>(), "the documented size");
    assert!(align_of::<TaskState>() == align_of::<unwind_task>(), "aligned alike");
};

/// The block of a task.
///
/// # Safety
///
/// If the pointer is neither NULL nor misaligned, there is a block, all zeroes at first, that stays for
/// `'a`, and is used by these calls alone.
unsafe fn state<'a>(task: *mut unwind_task) -> Result<&'a TaskState, unwind_error> {
    // SAFETY: the caller's promise; zeroes are a new block, and it is made of atomics.
    unsafe { shared(task.cast_const().cast()) }
}

/// Adds a client: a tracer, which multiplexes inside. There are 32 at a time. `client` gets its number,
/// which is never 0 and never used again: copies of it that are out of date are refused. Returns 0, or
/// UNWIND_ERROR_TOO_MANY_CLIENTS.
///
/// Task or interrupt context; does not wait.
///
/// # Safety
///
/// `client` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_register(client: *mut u64) -> i32 {
    if let Err(error) = super::check(client) {
        return error.number();
    }
    let registered = UNWIND.register().map_err(|TooManyClients| unwind_error::TooManyClients);
    // SAFETY: the caller's promise.
    number(registered.and_then(|registered| unsafe { put(client, registered.to_bits()) }))
}

/// Removes a client. When it returns 0, no delivery to the client runs and none will start: its data may
/// be freed. `caller` is the task that calls, or NULL if that has no block. Waits for deliveries to this client
/// on other tasks, by unwind_host_relax. Other numbers: UNWIND_ERROR_UNKNOWN_CLIENT, _OWN_DELIVERY,
/// _STILL_RUNNING; the client is registered as before, if it was.
///
/// Task context.
///
/// # Safety
///
/// The task's block is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_cancel(caller: *mut unwind_task, client: u64) -> i32 {
    let caller = match caller {
        caller if caller.is_null() => Ok(None),
        // SAFETY: the caller's promise.
        caller => unsafe { state(caller) }.map(Some),
    };
    number(caller.and_then(|caller| {
        UNWIND.cancel(caller, ClientId::from_bits(client)).map_err(|error| match error {
            CancelError::OwnDelivery => unwind_error::OwnDelivery,
            CancelError::StillRunning => unwind_error::StillRunning,
            _ => unwind_error::UnknownClient,
        })
    }))
}

/// The block of a task that is asked for something, once the place for its cookie was looked at, which is 0 until
/// there is one.
///
/// # Safety
///
/// As of [`unwind_request`].
unsafe fn asked<'a>(
    task: *mut unwind_task,
    cookie: *mut u64,
) -> Result<&'a TaskState, unwind_error> {
    // SAFETY: the caller's promise.
    let place = unsafe { put(cookie, 0) };
    // SAFETY: likewise.
    let task = unsafe { state(task) }?;
    place.map(|()| task)
}

/// Asks for a stack, and tells its cookie.
///
/// # Safety
///
/// As of [`unwind_request`].
unsafe fn ask(
    task: *mut unwind_task,
    cookie: *mut u64,
    request: impl FnOnce(&TaskState) -> RequestOutcome,
) -> i32 {
    // SAFETY: the caller's promise.
    let outcome = match unsafe { asked(task, cookie) } {
        Ok(task) => request(task),
        Err(error) => return error.number(),
    };
    // SAFETY: likewise.
    let _ = unsafe { put(cookie, outcome.cookie().map_or(0, |cookie| cookie.get())) };
    outcome.code().into()
}

/// Asks for the user stack of a task, the one that runs on this CPU. Returns one of enum unwind_outcome, or an
/// error, less than 0. `cookie` gets what the sample records in place of the stack, or 0 if there is none.
///
/// Any context, also an NMI inside of any function here. Neither locks, allocates nor faults.
///
/// # Safety
///
/// The task's block is there, and `cookie` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_request(
    task: *mut unwind_task,
    client: u64,
    cookie: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { ask(task, cookie, |task| UNWIND.request(task, ClientId::from_bits(client))) }
}

/// As unwind_request, but for the stack as it is now, also if the client was served in this kernel entry:
/// for a sample after the kernel itself has changed the user stack or its registers, by a signal frame, say.
/// There are two stacks in one entry at most.
///
/// Task context, by the task itself.
///
/// # Safety
///
/// As of unwind_request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_request_anew(
    task: *mut unwind_task,
    client: u64,
    cookie: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { ask(task, cookie, |task| UNWIND.request_anew(task, ClientId::from_bits(client))) }
}

/// The cookie of the kernel entry that the task is in, without a request for its stack. Returns 0, or as
/// unwind_request where that is refused.
///
/// Any context, as unwind_request.
///
/// # Safety
///
/// As of unwind_request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_cookie(task: *mut unwind_task, cookie: *mut u64) -> i32 {
    // SAFETY: the caller's promise.
    let found = match unsafe { asked(task, cookie) } {
        Ok(task) => UNWIND.cookie(task),
        Err(error) => return error.number(),
    };
    match found {
        // SAFETY: likewise.
        Ok(found) => number(unsafe { put(cookie, found.get()) }),
        Err(refusal) => i32::from(refusal.code() | REFUSED),
    }
}

/// The bit of a refusal's number.
const REFUSED: u8 = 16;

/// Delivers what was asked for in this kernel entry: the stack is walked once, by unwind_host_walk, and each
/// client is called by unwind_host_deliver. `recipients` is one of enum unwind_recipients. Returns how many clients
/// were called, or an error.
///
/// `trace` is the task's or one of a pool, and nobody else's meanwhile. NULL: there is no memory, and clients
/// are told UNWIND_SAMPLE_STACK_LOST.
///
/// In the task, on its way to user code, before a signal frame is set up, and before exec and exit take the memory
/// away. It may fault and sleep as far as the hooks do. Not within a delivery of the same task. After an error
/// nothing was delivered, and unwind_user_return is pending again: deliver with NULL.
///
/// # Safety
///
/// The task's block is there, and the trace is NULL or was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_deliver(
    task: *mut unwind_task,
    trace: *mut unwind_trace,
    recipients: u32,
) -> i32 {
    // SAFETY: the caller's promise.
    count(unsafe { deliver(task, trace, recipients) })
}

/// # Safety
///
/// As of [`unwind_deliver`].
unsafe fn deliver(
    task: *mut unwind_task,
    trace: *mut unwind_trace,
    recipients: u32,
) -> Result<u32, unwind_error> {
    // SAFETY: the caller's promise.
    let task = unsafe { state(task) }?;
    let recipients =
        match unwind_recipients::from_number(recipients).ok_or(unwind_error::Invalid)? {
            unwind_recipients::Requesters => Recipients::Requesters,
            unwind_recipients::AllClients => Recipients::AllClients,
        };
    let walk = |trace: &mut Trace| walk(task, trace);
    if trace.is_null() {
        return Ok(call(task, UNWIND.deliver(task, recipients, None, walk), &mut [], &mut []));
    }
    // SAFETY: likewise.
    let (_lent, block) = unsafe { lent::trace(trace.cast()) }?;
    let TraceBlock { cache, pcs, provenance } = block;
    Ok(call(task, UNWIND.deliver(task, recipients, Some(cache), walk), pcs, provenance))
}

/// Walks the task's stack as the host says. Without a walk the trace has no frames.
#[inline(never)]
fn walk(task: &TaskState, trace: &mut Trace) {
    let mut walk = unwind_walk {
        regs: unwind_registers::default(),
        space: core::ptr::null(),
        rows: core::ptr::null_mut(),
        scratch: core::ptr::null_mut(),
        context: core::ptr::null_mut(),
        stack_end: 0,
        flags: 0,
    };
    if hooks::walk(task, &mut walk) {
        // SAFETY: what the host has filled in is NULL or what it should be. What is wrong leaves no frames.
        let _ = unsafe { into(&walk, trace) };
    }
}

/// Calls each client.
fn call<W: FnOnce(&mut Trace)>(
    task: &TaskState,
    mut delivery: Delivery<'_, W>,
    pcs: &mut [u64],
    provenance: &mut [u8],
) -> u32 {
    let mut called = 0_u32;
    while let Some(guard) = delivery.next() {
        let stack = guard.trace().map_or(NO_STACK, |trace| told(trace, pcs, provenance));
        let sample = guard.outcome().code().into();
        let (client, cookie) = (guard.client().to_bits(), guard.cookie().get());
        hooks::deliver(task, &unwind_delivery { client, cookie, sample, stack });
        called = called.wrapping_add(1);
    }
    called
}

/// Tells those who asked that there is no stack any more, by unwind_host_deliver. `loss` is one of enum
/// unwind_loss. Returns how many clients were called, or an error.
///
/// By the task itself, or by who ends it once it does not run any more. Task context.
///
/// # Safety
///
/// The task's block is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_abandon(task: *mut unwind_task, loss: u32) -> i32 {
    // SAFETY: the caller's promise.
    let task = unsafe { state(task) };
    count(task.and_then(|task| {
        let reason = match unwind_loss::from_number(loss).ok_or(unwind_error::Invalid)? {
            unwind_loss::TaskGone => LossReason::TaskGone,
            unwind_loss::Exec => LossReason::Exec,
        };
        Ok(call(task, UNWIND.abandon(task, reason), &mut [], &mut []))
    }))
}

/// Ends the kernel entry, and its cookie, after the deliveries. UNWIND_RETURN_READY: the task may continue to
/// user code. UNWIND_RETURN_PENDING: something was asked for meanwhile; deliver, and call this again. Less than 0:
/// an error.
///
/// By the task itself, on its way to user code, interrupts off. One load and one branch if nothing was asked
/// for, and no hook is called.
///
/// # Safety
///
/// The task's block is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_user_return(task: *mut unwind_task) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { state(task) }
        .map_or_else(unwind_error::number, |task| told_return(UNWIND.user_return(task)))
}

const fn told_return(user_return: UserReturn) -> i32 {
    match user_return {
        UserReturn::Ready => unwind_return::Ready.number(),
        UserReturn::Pending => unwind_return::Pending.number(),
    }
}

/// Refuses requests from here on: at an exit, or at the point of no return of an exec. What was asked for
/// before is still to be delivered or abandoned. Returns 0, or an error.
///
/// As unwind_user_return, or by who ends the task once it does not run any more.
///
/// # Safety
///
/// The task's block is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_close(task: *mut unwind_task) -> i32 {
    // SAFETY: the caller's promise.
    number(unsafe { state(task) }.map(|task| UNWIND.close(task)))
}

/// Grants requests again after unwind_close, with new cookies: after an exec. UNWIND_RETURN_PENDING: something
/// is neither delivered nor abandoned, and nothing was done. Less than 0: an error.
///
/// By the task itself.
///
/// # Safety
///
/// The task's block is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_reopen(task: *mut unwind_task) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { state(task) }
        .map_or_else(unwind_error::number, |task| told_return(UNWIND.reopen(task)))
}

/// How many samples and stacks were lost so far. Returns 0, or an error.
///
/// Any context.
///
/// # Safety
///
/// `drops` is NULL or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unwind_get_drops(drops: *mut unwind_drops) -> i32 {
    let found = UNWIND.drops();
    let found = unwind_drops {
        kernel_thread: found.kernel_thread,
        user_worker: found.user_worker,
        exiting: found.exiting,
        no_user_registers: found.no_user_registers,
        unknown_client: found.unknown_client,
        schedule_failed: found.schedule_failed,
        client_cancelled: found.client_cancelled,
        no_trace: found.no_cache,
        no_frames: found.no_frames,
        truncated: found.truncated,
        task_gone: found.task_gone,
        exec: found.exec,
        unfinished: found.unfinished,
    };
    // SAFETY: the caller's promise.
    number(unsafe { put(drops, found) })
}
