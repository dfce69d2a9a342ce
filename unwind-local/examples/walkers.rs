//! Threads that walk through code of their own, whose tables they tell and free, that ask each other for
//! backtraces, and that have the kept rows forgotten, all at once. Each complete stack has to have
//! the callers that its thread knows.
//!
//! It is for `ThreadSanitizer` and `AddressSanitizer`: tables are heap blocks of exactly their length,
//! there are more threads than places of their own, and what the threads share is shared by this crate
//! alone. `ThreadSanitizer` runs handlers later than the kernel calls them, with the registers of before:
//! `--late-signals` leaves the asked stacks unchecked.
//!
//! `cargo run --release -p unwind-local --example walkers -- [--seconds N] [--late-signals]`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::panic,
    reason = "a program that reads nothing from outside"
)]

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("this example has code for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    let (mut seconds, mut is_late) = (5, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                seconds = args.next().and_then(|arg| arg.parse().ok()).expect("a number follows");
            }
            "--late-signals" => is_late = true,
            other => {
                eprintln!("unknown option {other}");
                return std::process::ExitCode::from(2);
            }
        }
    }
    stress::run(seconds, is_late)
}

#[cfg(target_arch = "x86_64")]
mod stress {
    use std::cell::Cell;
    use std::process::ExitCode;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use sframe::{Abi, Builder, Format, Function};
    use unwind_core::{CfaRule, RegRule, Row};
    use unwind_local::{
        CodeTable, ProgramCode, ThreadError, ThreadSignal, backtrace, keeps_rows, prepare,
    };

    /// More than there are places that are one thread's alone.
    const WALKERS: usize = 24;
    const ASKERS: usize = 3;
    /// The most callers that a thread knows.
    const MOST: usize = 32;
    const PAGE: usize = 4096;

    /// Calls the function that it gets: with a frame pointer, and without one.
    const BY_FRAME_POINTER: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3];
    const BY_STACK_POINTER: &[u8] = &[0x48, 0x83, 0xec, 8, 0xff, 0xd7, 0x48, 0x83, 0xc4, 8, 0xc3];

    /// What a thread that walks has told of itself.
    struct Walker {
        /// Zero until the callers are told, and once it has ended.
        thread: AtomicI32,
        callers: [AtomicUsize; MOST],
        len: AtomicUsize,
    }

    static WALKER: [Walker; WALKERS] = [const {
        Walker {
            thread: AtomicI32::new(0),
            callers: [const { AtomicUsize::new(0) }; MOST],
            len: AtomicUsize::new(0),
        }
    }; WALKERS];

    static IS_OVER: AtomicBool = AtomicBool::new(false);
    static WALKS: AtomicU64 = AtomicU64::new(0);
    static ANSWERS: AtomicU64 = AtomicU64::new(0);
    static CUT: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU64 = AtomicU64::new(0);

    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }

    /// Compares a stack with the callers that its thread knows.
    fn check(number: usize, frames: &[usize], is_complete: bool) {
        let walker = &WALKER[number];
        let known = &walker.callers[..walker.len.load(Ordering::Relaxed)];
        let known = known.iter().map(|caller| caller.load(Ordering::Relaxed));
        if !is_complete {
            CUT.fetch_add(1, Ordering::Relaxed);
        } else if !frames.iter().copied().rev().take(known.len()).eq(known.rev()) {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    }

    extern "C" fn walk() {
        let mut frames = [0; 128];
        let found = backtrace(&mut frames);
        check(NUMBER.get(), &frames[..found.len], found.is_complete);
        WALKS.fetch_add(1, Ordering::Relaxed);
    }

    /// A page of code.
    struct Code(usize, usize);

    impl Code {
        fn new(bytes: &[u8]) -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let first = unsafe { libc::mmap(null_mut(), PAGE, protection, flags, -1, 0) };
            assert_ne!(first, libc::MAP_FAILED, "no memory");
            unsafe { first.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Self(first.expose_provenance(), bytes.len())
        }

        fn tell(&self, table: CodeTable<'_>) -> ProgramCode {
            unsafe { ProgramCode::tell(self.0..self.0 + self.1, table) }.expect("room")
        }

        #[inline(never)]
        fn run(&self) {
            let function: extern "C" fn(extern "C" fn()) = unsafe { std::mem::transmute(self.0) };
            function(walk);
            std::hint::black_box(());
        }

        /// The rows of [`BY_STACK_POINTER`], for a place where they will be.
        fn sframe(&self, at: usize) -> Vec<u8> {
            let row =
                |cfa: i32| Row::new(CfaRule::sp(cfa), RegRule::Offset(-8), RegRule::SameValue);
            let mut builder = Builder::new(Format::V3, Abi::Amd64Little).expect("a format");
            let rows = [(0, row(8)), (4, row(16)), (10, row(8))];
            let function = Function::new(self.0 as u64, self.1 as u32, &rows);
            let lost = |omission| panic!("{omission:?}");
            builder.add(&function, lost).expect("room");
            builder.finish(at as u64, lost).expect("room")
        }

        /// The same rows as `.eh_frame`. Addresses are absolute.
        fn eh_frame(&self) -> Vec<u8> {
            let mut bytes = vec![
                0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
                1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, // code 1, data -8, RA 16, absolute
                0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
                0x1c, 0, 0, 0, 0x1c, 0, 0, 0, // FDE of 28 bytes, CIE 28 bytes back
            ];
            bytes.extend((self.0 as u64).to_le_bytes());
            bytes.extend((self.1 as u64).to_le_bytes());
            // 4 bytes on: CFA = rsp+16; 6 bytes on: rsp+8.
            bytes.extend([0, 0x44, 0x0e, 16, 0x46, 0x0e, 8, 0]);
            bytes
        }
    }

    impl Drop for Code {
        fn drop(&mut self) {
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.0), PAGE) };
        }
    }

    /// Walks until the end. Every second thread walks through code of three kinds, of which nothing was
    /// told a moment before. What a thread tells is ordered before what others find, and so are its walks before:
    /// the other threads tell nothing.
    #[inline(never)]
    fn walker(number: usize) {
        NUMBER.set(number);
        let mut frames = [0; 128];
        let found = backtrace(&mut frames);
        assert!(found.is_complete && keeps_rows(), "{found:?}");
        // This function's own address is another one later.
        let walker = &WALKER[number];
        for (to, caller) in walker.callers.iter().zip(&frames[1..found.len]) {
            to.store(*caller, Ordering::Relaxed);
        }
        walker.len.store((found.len - 1).min(MOST), Ordering::Relaxed);
        walker.thread.store(unsafe { libc::gettid() }, Ordering::Release);
        while number.is_multiple_of(2) && !IS_OVER.load(Ordering::Relaxed) {
            walk();
        }
        let [kept, plain] = [BY_FRAME_POINTER, BY_STACK_POINTER].map(Code::new);
        while !IS_OVER.load(Ordering::Relaxed) {
            let told = kept.tell(CodeTable::FramePointers);
            kept.run();
            drop(told);
            let table = plain.eh_frame().into_boxed_slice();
            let told = plain.tell(CodeTable::EhFrame(&table));
            plain.run();
            plain.run();
            drop(told);
            drop(table);
            // Its place is known once there is one.
            let mut table = plain.sframe(0).into_boxed_slice();
            let bytes = plain.sframe(table.as_ptr().expose_provenance());
            table.copy_from_slice(&bytes);
            let told = plain.tell(CodeTable::Sframe(&table));
            plain.run();
            drop(told);
        }
        walker.thread.store(0, Ordering::Relaxed);
    }

    /// Asks one thread after the other.
    fn asker(signal: ThreadSignal, is_late: bool) {
        for number in (0..WALKERS).cycle() {
            if IS_OVER.load(Ordering::Relaxed) {
                return;
            }
            let thread = WALKER[number].thread.load(Ordering::Acquire);
            if thread == 0 {
                continue;
            }
            let mut frames = [0; 128];
            match signal.backtrace(thread, Duration::from_millis(20), &mut frames) {
                Ok(found) => {
                    ANSWERS.fetch_add(1, Ordering::Relaxed);
                    if !is_late {
                        check(number, &frames[..found.len], found.is_complete);
                    }
                }
                Err(ThreadError::NoAnswer | ThreadError::NoSuchThread | ThreadError::Busy) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn run(seconds: u64, is_late: bool) -> ExitCode {
        prepare();
        let signal = unsafe { ThreadSignal::install(libc::SIGUSR2) }.expect("a free signal");
        let mut threads: Vec<_> =
            (0..WALKERS).map(|number| thread::spawn(move || walker(number))).collect();
        threads.extend((0..ASKERS).map(|_| thread::spawn(move || asker(signal, is_late))));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            // It loads and unloads an object: what is kept is out of date.
            prepare();
            thread::sleep(Duration::from_millis(1));
        }
        IS_OVER.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a thread without a fault");
        }
        let [walks, answers, cut, wrong] =
            [&WALKS, &ANSWERS, &CUT, &WRONG].map(|count| count.load(Ordering::Relaxed));
        println!("walks {walks}, answers {answers}; cut {cut}, wrong {wrong}");
        let is_right = wrong == 0 && walks > 0 && answers > 0 && cut * 2 < walks + answers;
        if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
