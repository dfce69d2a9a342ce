//! Backtraces of other threads, which a signal asks for.
#![cfg(test)]
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "tests"
)]

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use unwind_local::{BadSignal, ThreadError, ThreadSignal, backtrace, prepare};

const SECOND: Duration = Duration::from_secs(1);

/// Longer than any thread waits for a CPU, also on a machine that is busy.
const LONG: Duration = Duration::from_secs(120);

/// The signal, for one test at a time: each has all letters.
fn installed() -> (ThreadSignal, MutexGuard<'static, ()>) {
    static USER: Mutex<()> = Mutex::new(());
    let guard = USER.lock().unwrap_or_else(PoisonError::into_inner);
    prepare();
    (unsafe { ThreadSignal::install(libc::SIGUSR2) }.unwrap(), guard)
}

/// Ends the threads of a test, also of one that fails.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn gettid() -> i32 {
    unsafe { libc::gettid() }
}

/// Tells the callers of the innermost of these frames, and works or sleeps there until the end.
#[inline(never)]
fn deep(
    depth: usize,
    tell: &Sender<(i32, Vec<usize>)>,
    is_over: &AtomicBool,
    works: bool,
) -> usize {
    if depth != 0 {
        return black_box(deep(depth - 1, tell, is_over, works)) + 1;
    }
    let mut callers = [0; 256];
    let found = backtrace(&mut callers);
    assert!(found.is_complete);
    tell.send((gettid(), callers[1..found.len].to_vec())).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        if works {
            black_box(format!("{depth}"));
        } else {
            thread::sleep(Duration::from_millis(50));
        }
    }
    0
}

#[test]
fn a_thread_tells_where_it_sleeps_and_where_it_works() {
    let (signal, _guard) = installed();
    let is_over = AtomicBool::new(false);
    let (tell, told) = channel();
    thread::scope(|scope| {
        let _end = AtEnd(&is_over);
        for (depth, works) in [(0, false), (30, false), (3, true), (200, true)] {
            let (tell, is_over) = (tell.clone(), &is_over);
            scope.spawn(move || deep(depth, &tell, is_over, works));
        }
        for (tid, callers) in told.iter().take(4) {
            for _ in 0..200 {
                let mut frames = [0; 512];
                let found = signal.backtrace(tid, LONG, &mut frames).unwrap();
                let frames = &frames[..found.len];
                assert!(found.is_complete && frames.ends_with(&callers), "{found:?} {frames:x?}");
                let mut few = [0; 2];
                let found = signal.backtrace(tid, LONG, &mut few).unwrap();
                assert!(found.len == 2 && !found.is_complete);
            }
        }
    });
}

#[test]
fn who_does_not_answer_is_waited_for_no_longer_than_asked() {
    let (signal, _guard) = installed();
    let no_such = signal.backtrace(i32::MAX, SECOND, &mut [0; 8]);
    assert_eq!(no_such, Err(ThreadError::NoSuchThread));
    let mut frames = [0; 64];
    assert!(signal.backtrace(gettid(), LONG, &mut frames).unwrap().is_complete, "the own");

    let (tell, told) = channel();
    let both = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut set = MaybeUninit::<libc::sigset_t>::uninit();
            unsafe {
                libc::sigemptyset(set.as_mut_ptr());
                libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR2);
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), null_mut());
            }
            tell.send(gettid()).unwrap();
            both.wait();
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), null_mut()) };
            both.wait();
            both.wait();
        });
        let tid = told.recv().unwrap();
        let wait = Duration::from_millis(20);
        let before = Instant::now();
        // More than there is room for at a time: none stays taken.
        for _ in 0..2 * ThreadSignal::MOST_AT_A_TIME {
            assert_eq!(signal.backtrace(tid, wait, &mut frames), Err(ThreadError::NoAnswer));
        }
        assert!(before.elapsed() >= wait * 16 && before.elapsed() < LONG);
        both.wait();
        both.wait();
        // What came late has answered no request.
        assert!(signal.backtrace(tid, LONG, &mut frames).unwrap().is_complete);
        both.wait();
    });
    let errors =
        [ThreadError::NoSuchThread, ThreadError::NoAnswer, ThreadError::Busy, ThreadError::NotSent];
    test_support::check_messages(&errors.map(|error| error.to_string()));
}

#[test]
fn many_ask_each_other() {
    let (signal, _guard) = installed();
    let is_over = AtomicBool::new(false);
    let (answers, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let (tell, told) = channel();
    thread::scope(|scope| {
        let _end = AtEnd(&is_over);
        for depth in [2, 40] {
            let (tell, is_over) = (tell.clone(), &is_over);
            scope.spawn(move || deep(depth, &tell, is_over, true));
        }
        let threads: Vec<_> = told.iter().take(2).collect();
        let askers: Vec<_> = (0..12)
            .map(|number| {
                let (tid, callers): (i32, Vec<usize>) = threads[number % 2].clone();
                let (answers, refused) = (&answers, &refused);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let mut frames = [0; 512];
                        // Some do not wait, so that answers come late.
                        let wait = if turn % 3 == 0 { Duration::ZERO } else { LONG };
                        let found = loop {
                            match signal.backtrace(tid, wait, &mut frames) {
                                // Until those that are asked get a CPU no letter may be free.
                                Err(ThreadError::Busy) => thread::yield_now(),
                                found => break found,
                            }
                        };
                        match found {
                            Ok(found) => {
                                assert!(frames[..found.len].ends_with(&callers));
                                answers.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(ThreadError::NoAnswer) if wait.is_zero() => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for asker in askers {
            asker.join().unwrap();
        }
    });
    let (answers, refused) = (answers.into_inner(), refused.into_inner());
    // Of each three asks two wait for the answer.
    assert!(answers + refused == 2400 && answers >= 1592 && refused > 100, "{answers} {refused}");
}

#[test]
fn a_signal_with_a_handler_is_not_taken_over() {
    extern "C" fn other(_: i32) {}
    unsafe { libc::signal(libc::SIGURG, other as *const () as libc::sighandler_t) };
    for signal in [libc::SIGURG, libc::SIGKILL, 4000] {
        assert_eq!(unsafe { ThreadSignal::install(signal) }, Err(BadSignal(signal)));
    }
    let (signal, _guard) = installed();
    assert_eq!(unsafe { ThreadSignal::install(libc::SIGUSR2) }, Ok(signal));
}
