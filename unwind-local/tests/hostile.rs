//! Whatever registers and stacks hold, a walk does not fault, and ends.
//!
//! `UNWIND_HOSTILE_STACKS=1000000 cargo test --release -p unwind-local --test hostile` walks as many,
//! others with `UNWIND_HOSTILE_SEED=2`.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests"
)]

mod cursors;

use std::ptr::null_mut;

#[cfg(target_arch = "x86_64")]
use libc::{REG_RBP as FP, REG_RIP as PC, REG_RSP as STACK_POINTER};

use cursors::compare_ways;
use unwind_local::{Cursor, End, MAX_FRAMES, ReadError, StepError, backtrace_of, prepare};

const PAGE: usize = 4096;

/// The size of a word in bytes.
const WORD: usize = size_of::<usize>();

#[cfg(target_arch = "x86")]
use libc::{REG_EBP as FP, REG_EIP as PC, REG_ESP as STACK_POINTER};

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0 ^ (self.0 >> 29)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }
}

/// Pages that can be read, cannot be, and are not there, by turns.
fn pages() -> (usize, usize) {
    let len = 16 * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let first = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
    for number in [0, 5, 9] {
        let page = first.wrapping_byte_add(number * PAGE);
        assert_eq!(unsafe { libc::mprotect(page, PAGE, libc::PROT_NONE) }, 0);
    }
    for number in [7, 13, 15] {
        assert_eq!(unsafe { libc::munmap(first.wrapping_byte_add(number * PAGE), PAGE) }, 0);
    }
    (first.addr(), len)
}

fn is_writable(number: usize) -> bool {
    ![0, 5, 9, 7, 13, 15].contains(&number)
}

/// An address of code, of this program or the C library.
fn code(numbers: &mut Numbers) -> usize {
    match numbers.below(3) {
        0 => value as *const () as usize - 0x8000 + numbers.below(0x2_0000),
        _ => libc::malloc as *const () as usize - 0x4_0000 + numbers.below(0x10_0000),
    }
}

/// A value that a walk may take for an address.
fn value(numbers: &mut Numbers, start: usize, len: usize) -> usize {
    let own = std::ptr::from_ref(numbers).addr();
    let aligned = (numbers.below(2) + 1) * WORD;
    match numbers.below(10) {
        0..4 => start + numbers.below(len + 64) / aligned * aligned,
        4 => own.wrapping_add(numbers.below(4096)) & !(WORD - 1),
        5..8 => code(numbers),
        8 => numbers.below(0x1_0000),
        _ => numbers.next() as usize,
    }
}

#[test]
fn walks_of_random_registers_and_stacks_end_without_a_fault() {
    prepare();
    let (start, len) = pages();
    let setting = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    let stacks = setting("UNWIND_HOSTILE_STACKS").unwrap_or(60_000);
    let mut numbers = Numbers(setting("UNWIND_HOSTILE_SEED").unwrap_or(1));
    let mut out = [0; MAX_FRAMES];
    let mut frames = 0;
    for round in 0..stacks {
        if round % 50 == 0 {
            for page in (0..len / PAGE).filter(|&number| is_writable(number)) {
                for word in 0..PAGE / WORD {
                    let to =
                        std::ptr::with_exposed_provenance_mut(start + page * PAGE + WORD * word);
                    let value = value(&mut numbers, start, len);
                    unsafe { std::ptr::write_volatile(to, value) };
                }
            }
        }
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        for register in &mut context.uc_mcontext.gregs {
            *register = value(&mut numbers, start, len).cast_signed().try_into().unwrap();
        }
        // Mostly on these pages, and in code.
        if round % 4 != 0 {
            let (sp, pc) = (start + numbers.below(len / WORD) * WORD, code(&mut numbers));
            let registers = &mut context.uc_mcontext.gregs;
            registers[STACK_POINTER as usize] = sp.cast_signed().try_into().unwrap();
            registers[PC as usize] = pc.cast_signed().try_into().unwrap();
        }
        // No such context is one of the kernel's; that it does not fault is asked for here.
        let found = unsafe { backtrace_of(&context, &mut out) };
        frames += found.len;
        if round % 8 == 1 {
            compare_ways(unsafe { Cursor::of(&context) });
        }
    }
    // They go further than the first frame, often; less so with AddressSanitizer's frames.
    println!("{frames} frames of {stacks} stacks");
    assert!(u64::try_from(frames).unwrap() > stacks + stacks / 5, "{frames}");
}

#[test]
fn a_walk_that_guesses_reads_elsewhere_a_limited_number_of_times() {
    prepare();
    let len = 1024 * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let memory = unsafe { libc::mmap(null_mut(), len, protection, flags, -1, 0) };
    let start = memory.addr();
    // A frame in each page, whose code is said to be in that page, too.
    for frame in (start..start + len).step_by(PAGE) {
        let words = std::ptr::with_exposed_provenance_mut::<[usize; 2]>(frame);
        unsafe { words.write([frame + PAGE, frame + PAGE / 2]) };
    }
    memory.expose_provenance();
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    for (register, value) in [(PC, start + 64), (STACK_POINTER, start), (FP, start)] {
        context.uc_mcontext.gregs[register as usize] = value.cast_signed().try_into().unwrap();
    }
    let mut out = [0; MAX_FRAMES];
    let found = unsafe { backtrace_of(&context, &mut out) };
    unsafe { libc::munmap(memory, len) };
    // One read of each word of a frame, and two of the code, where a trampoline or the start of a
    // context may be.
    assert!((20..=96).contains(&found.len), "{found:?}");
    assert!(!found.is_complete, "{found:?}");
    let End::Step(StepError::Unreadable { error, .. }) = found.end else { panic!("{found:?}") };
    assert_eq!(error, ReadError::NotResident);
}
