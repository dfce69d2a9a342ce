//! Models of a letter between a thread that asks and the handler of the one that answers.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-local --release --test loom_letters`
#![cfg(loom)]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod sync {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::{AtomicI32, AtomicU32, Ordering};
}

#[allow(dead_code, unreachable_pub, reason = "the library's own file")]
#[path = "../src/raw/letter.rs"]
mod letter;

use letter::Letter;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicI32, AtomicU32, Ordering, UnsafeCell};

/// The thread that answers, and one that does not.
const ASKED: i32 = 7;
const OTHER: i32 = 8;

struct Memory {
    letter: Letter<(u32, i32)>,
    /// How many requests were made.
    clock: AtomicU32,
}

fn memory() -> Arc<Memory> {
    let (word, thread) = (AtomicU32::new(0), AtomicI32::new(0));
    let letter = Letter::new(word, thread, UnsafeCell::new((0, 0)));
    Arc::new(Memory { letter, clock: AtomicU32::new(0) })
}

/// The handler of the thread that is asked.
fn handle(memory: &Memory) {
    memory.letter.answer(ASKED, |answer| {
        *answer = (memory.clock.load(Ordering::Relaxed), ASKED);
    });
}

/// Asks once, and gives up at some time. Returns whether there was an answer.
fn ask(memory: &Memory, thread: i32) -> bool {
    let Memory { letter, clock } = memory;
    let Some(request) = letter.take() else { return false };
    let now = clock.fetch_add(1, Ordering::Relaxed) + 1;
    letter.send(request, thread);
    let check = |&(at, of): &(u32, i32)| {
        assert!(at >= now, "the answer {at} is older than request {now}");
        assert_eq!(of, thread, "the answer of another thread");
    };
    let mut is_answered = letter.read(request, check).is_ok();
    if !is_answered && !letter.take_back(request) {
        is_answered = letter.read(request, check).is_ok();
        assert!(is_answered, "neither taken back nor answered");
    }
    letter.give_back(request);
    is_answered
}

/// All orders in which a thread loses its turn at most three times.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

#[test]
fn an_answer_is_that_of_its_own_request() {
    model(|| {
        let memory = memory();
        let asked = Arc::clone(&memory);
        let handler = thread::spawn(move || {
            handle(&asked);
            handle(&asked);
        });
        ask(&memory, ASKED);
        ask(&memory, ASKED);
        handler.join().unwrap();
        // Whatever became of them, the next one finds it free, or with a handler that leaves it.
        assert!(memory.letter.take().is_some());
    });
}

#[test]
fn a_late_handler_does_not_answer_for_another_thread() {
    model(|| {
        let memory = memory();
        let asked = Arc::clone(&memory);
        let handler = thread::spawn(move || handle(&asked));
        ask(&memory, ASKED);
        ask(&memory, OTHER);
        handler.join().unwrap();
    });
}

#[test]
fn two_who_ask_do_not_have_one_letter() {
    model(|| {
        let memory = memory();
        let (asked, other) = (Arc::clone(&memory), Arc::clone(&memory));
        let handler = thread::spawn(move || {
            handle(&asked);
            handle(&asked);
        });
        let other = thread::spawn(move || ask(&other, ASKED));
        ask(&memory, ASKED);
        other.join().unwrap();
        handler.join().unwrap();
        assert!(memory.letter.take().is_some());
    });
}
