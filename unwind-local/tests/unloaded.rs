//! An address on a stack may be that of an object which another thread unloads at this moment: a
//! walk that has guessed may meet it, reads its tables by calls that cannot fault, and ends.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests"
)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use unwind_local::{End, backtrace_of, prepare};

#[cfg(target_arch = "x86")]
use libc::{REG_EBP as FP, REG_EIP as PC, REG_ESP as SP};
#[cfg(target_arch = "x86_64")]
use libc::{REG_RBP as FP, REG_RIP as PC, REG_RSP as SP};

/// The size of a word in bytes.
const WORD: usize = size_of::<usize>();

/// glibc's own objects that hardly any program loads, with a function of each.
const OBJECTS: [(&CStr, &CStr); 2] =
    [(c"libBrokenLocale.so.1", c"__ctype_get_mb_cur_max"), (c"libanl.so.1", c"gai_cancel")];

/// Loads it, says where its function is, and unloads it, again and again.
fn come_and_go((name, function): (&CStr, &CStr), address: &AtomicUsize, stop: &AtomicBool) -> u32 {
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if object.is_null() {
            break;
        }
        address.store(unsafe { libc::dlsym(object, function.as_ptr()) }.addr(), Ordering::Relaxed);
        // At times for longer than a walk takes.
        if times % 4 == 0 {
            thread::sleep(Duration::from_micros(50));
        }
        unsafe { libc::dlclose(object) };
        times += 1;
    }
    times
}

/// A stack of which the frame pointer leads from code that nothing tells of into the object, and
/// from there to the end. Returns whether a table of the object has told of its
/// caller.
fn walk_into(address: usize) -> bool {
    let mut out = [0; 32];
    let mut stack = [0_usize; 64];
    let base = stack.as_mut_ptr().addr();
    // The saved frame pointer and the return address, in a chain.
    stack[8] = base + 16 * WORD;
    stack[9] = address + 1;
    // What a table finds, and what a frame pointer does.
    stack[10] = address + 2;
    stack[17] = address + 3;
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    // No object has data on the stack as its code.
    let words = [(PC, base), (SP, base), (FP, base + 8 * WORD)];
    for (register, value) in words {
        context.uc_mcontext.gregs[register as usize] = value.cast_signed().try_into().unwrap();
    }
    let found = unsafe { backtrace_of(&context, &mut out) };
    std::hint::black_box(&stack);
    assert!(!found.is_complete, "{found:?}");
    assert_ne!(found.end, End::Outermost);
    out.get(2) == Some(&(address + 2))
}

#[test]
fn tables_that_another_thread_unmaps_are_read_without_a_fault() {
    prepare();
    for object in OBJECTS {
        let (address, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (times, walks, into) = thread::scope(|scope| {
            let loads = scope.spawn(|| come_and_go(object, &address, &stop));
            let (mut walks, mut into) = (0_u32, 0_u32);
            let end = Instant::now() + Duration::from_secs(1);
            // On a busy machine the two threads may not run at a time for as long.
            let latest = end + Duration::from_secs(60);
            let is_over = |walks, into| {
                let now = Instant::now();
                now >= latest || now >= end && walks > 100 && into > 0
            };
            while !is_over(walks, into) && !loads.is_finished() {
                let address = address.load(Ordering::Relaxed);
                if address != 0 {
                    walks += 1;
                    into += u32::from(walk_into(address));
                }
            }
            stop.store(true, Ordering::Relaxed);
            (loads.join().unwrap(), walks, into)
        });
        println!("{object:?}: loaded {times} times, {walks} walks, {into} by its tables");
        // Where the C library has no such object there is nothing to see.
        assert!(times == 0 || walks > 100, "{walks}");
        assert!(times == 0 || into > 0, "no walk met a table");
    }
}
