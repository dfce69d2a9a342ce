//! Walks on stacks that are not the thread's own: signal stacks, fibers.
#![cfg(test)]
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests"
)]

use std::cell::Cell;
use std::hint::black_box;
use std::ptr::null_mut;

use unwind_local::{
    Backtrace, End, MAX_FRAMES, ReadError, StepError, backtrace, backtrace_of, prepare,
};

const PAGE: usize = 4096;

/// Memory for a stack.
fn pages(number: usize) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let memory = unsafe { libc::mmap(null_mut(), number * PAGE, protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.expose_provenance()
}

fn use_signal_stack(start: usize, len: usize) {
    let flags = if len == 0 { libc::SS_DISABLE } else { 0 };
    let start = std::ptr::with_exposed_provenance_mut(start);
    let stack = libc::stack_t { ss_sp: start, ss_flags: flags, ss_size: len };
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, null_mut()) }, 0);
}

thread_local! {
    static RUN: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Calls a function in a handler on the signal stack.
fn in_handler(run: fn()) {
    extern "C" fn handler(_: i32) {
        RUN.with(Cell::get).unwrap()();
    }
    RUN.with(|cell| cell.set(Some(run)));
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGUSR2, &raw const action, null_mut());
        libc::raise(libc::SIGUSR2);
    }
}

/// Runs in a child process, and returns how that ended: zero if the function came to its end.
fn in_child(run: impl FnOnce()) -> i32 {
    match unsafe { libc::fork() } {
        0 => {
            run();
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

/// Calls with a frame of this many bytes in between.
#[inline(never)]
fn with_room<const BYTES: usize>(run: &dyn Fn()) {
    let mut room = [0_u8; BYTES];
    black_box(&mut room);
    run();
    black_box(&mut room);
}

/// From here on the process ends with each system call but these, and that which ends it.
fn allow_system_calls(calls: &[libc::c_long]) {
    let statement = |code: u32, jumps: [u8; 2], k: u32| libc::sock_filter {
        code: code.try_into().unwrap(),
        jt: jumps[0],
        jf: jumps[1],
        k,
    };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, [0, 0], 0)];
    for call in calls.iter().chain([&libc::SYS_exit_group]) {
        let number = u32::try_from(*call).unwrap();
        program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, [0, 1], number));
        program.push(statement(libc::BPF_RET | libc::BPF_K, [0, 0], libc::SECCOMP_RET_ALLOW));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, [0, 0], libc::SECCOMP_RET_KILL_PROCESS));
    let filter =
        libc::sock_fprog { len: program.len().try_into().unwrap(), filter: program.as_mut_ptr() };
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

/// The calls that a walk may make.
const CHECKS: [libc::c_long; 5] = [
    libc::SYS_rt_sigprocmask,
    libc::SYS_process_vm_readv,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
];

/// The first walk of a process, of what is to be found out by system calls.
#[inline(never)]
fn walk_with_checks() {
    with_room::<{ 3 * PAGE }>(&|| {
        allow_system_calls(&CHECKS);
        let found = backtrace(&mut [0; 64]);
        unsafe { libc::_exit(i32::from(!found.is_complete)) };
    });
}

/// Walks, and again without system calls.
#[inline(never)]
fn walk_twice() {
    with_room::<{ 3 * PAGE }>(&|| {
        let mut out = [[0; 64]; 2];
        let mut walk = |at: usize| backtrace(&mut out[at]);
        let walks = [0, 1].map(|at| {
            let found = walk(at);
            if at == 0 {
                allow_system_calls(&[]);
            }
            found
        });
        // A panic would write, which ends the process in another way.
        let is_right = walks[0] == walks[1] && walks[0].is_complete && out[0][1..] == out[1][1..];
        unsafe { libc::_exit(i32::from(!is_right)) };
    });
}

#[test]
fn the_second_walk_on_a_stack_makes_no_system_call() {
    prepare();
    assert_eq!(in_child(walk_twice), 0, "on the thread's own stack");
    let (far, near) = (pages(16), pages(16));
    for start in [far, near] {
        let in_handler = move || {
            use_signal_stack(start, 16 * PAGE);
            in_handler(walk_twice);
        };
        assert_eq!(in_child(in_handler), 0, "on a signal stack");
        // And where that is near to the thread's own stack.
        let in_thread = move || std::thread::spawn(in_handler).join().unwrap();
        assert_eq!(in_child(in_thread), 0, "on the signal stack of a thread");
    }
}

#[test]
fn the_first_walk_on_a_stack_makes_checks_and_no_other_system_calls() {
    assert_eq!(in_child(walk_with_checks), 0, "on the thread's own stack");
    let start = pages(16);
    let in_handler = move || {
        use_signal_stack(start, 16 * PAGE);
        in_handler(walk_with_checks);
    };
    assert_eq!(in_child(in_handler), 0, "on a signal stack");
    let in_thread = move || std::thread::spawn(in_handler).join().unwrap();
    assert_eq!(in_child(in_thread), 0, "on the signal stack of a thread");
}

thread_local! {
    /// The memory of the signal stack.
    static START: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn pages_that_a_signal_stack_had_are_asked_for_again_after_a_guess() {
    prepare();
    let status = in_child(|| {
        let start = pages(16);
        START.with(|cell| cell.set(start));
        use_signal_stack(start, 16 * PAGE);
        in_handler(|| with_room::<{ 9 * PAGE }>(&|| _ = backtrace(&mut [0; 8])));
        // The upper part is gone, and the lower one is the signal stack now.
        use_signal_stack(0, 0);
        let upper = std::ptr::with_exposed_provenance_mut(start + 12 * PAGE);
        assert_eq!(unsafe { libc::munmap(upper, 4 * PAGE) }, 0);
        use_signal_stack(start, 12 * PAGE);
        in_handler(|| {
            let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
            let own = (&raw const context).addr();
            let registers = &mut context.uc_mcontext.gregs;
            let mut set = |register: i32, value: usize| {
                registers[usize::try_from(register).unwrap()] =
                    value.cast_signed().try_into().unwrap();
            };
            set(libc::REG_RIP, 0x1234);
            set(libc::REG_RSP, own & !15);
            set(libc::REG_RBP, START.with(Cell::get) + 13 * PAGE);
            let found = unsafe { backtrace_of(&context, &mut [0; 8]) };
            assert!(!found.is_complete && found.len == 1, "{found:?}");
        });
    });
    assert_eq!(status, 0);
}

thread_local! {
    static FIBER: Cell<(usize, Option<Backtrace>)> = const { Cell::new((0, None)) };
    static BACK: Cell<*mut libc::ucontext_t> = const { Cell::new(null_mut()) };
}

/// A backtrace where that many bytes of a stack of 8 MiB are in use.
fn on_a_fiber(bytes: usize) -> Backtrace {
    #[inline(never)]
    fn descend(lowest: usize) {
        let mut room = [0_u8; 3 << 10];
        black_box(&mut room);
        if (&raw const room).addr() < lowest {
            let found = backtrace(&mut [0; MAX_FRAMES]);
            FIBER.with(|fiber| fiber.set((0, Some(found))));
        } else {
            descend(lowest);
        }
        black_box(&mut room);
    }
    extern "C" fn fiber() {
        descend(FIBER.with(Cell::get).0);
        unsafe { libc::setcontext(BACK.with(Cell::get)) };
    }
    let start = pages(2048);
    FIBER.with(|fiber| fiber.set((start + 2048 * PAGE - bytes, None)));
    unsafe {
        let mut back: libc::ucontext_t = std::mem::zeroed();
        let mut context: libc::ucontext_t = std::mem::zeroed();
        libc::getcontext(&raw mut context);
        context.uc_stack.ss_sp = std::ptr::with_exposed_provenance_mut(start);
        context.uc_stack.ss_size = 2048 * PAGE;
        BACK.with(|cell| cell.set(&raw mut back));
        libc::makecontext(&raw mut context, fiber, 0);
        assert_eq!(libc::swapcontext(&raw mut back, &raw const context), 0);
        libc::munmap(std::ptr::with_exposed_provenance_mut(start), 2048 * PAGE);
    }
    FIBER.with(Cell::take).1.unwrap()
}

#[test]
fn a_walk_asks_for_a_limited_number_of_pages_of_a_fiber() {
    prepare();
    // The outermost frame of a fiber has no call before it.
    let found = on_a_fiber(1 << 20);
    assert!(!matches!(found.end, End::Step(StepError::Unreadable { .. })), "{found:?}");
    let more = on_a_fiber(3 << 20);
    let End::Step(StepError::Unreadable { error, .. }) = more.end else { panic!("{more:?}") };
    assert_eq!(error, ReadError::NotResident);
    assert!((found.len..2 * found.len).contains(&more.len), "{found:?} {more:?}");
}
