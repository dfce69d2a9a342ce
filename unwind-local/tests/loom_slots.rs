//! Models of a slot whose words are put in and taken out while others read them.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p unwind-local --release --test loom_slots`
#![cfg(loom)]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[allow(dead_code, unreachable_pub, reason = "the library's own file")]
#[path = "../src/raw/slot.rs"]
mod slot;

use loom::sync::Arc;
use loom::thread;
use slot::Slot;
use sync::AtomicU64;

/// Two words show what more would.
const WORDS: usize = 2;

fn slot() -> Arc<Slot<WORDS>> {
    Arc::new(Slot::new(AtomicU64::new(0), std::array::from_fn(|_| AtomicU64::new(0))))
}

/// Words that belong together are equal.
fn read(slot: &Slot<WORDS>) -> Option<u64> {
    let words = slot.read()?;
    assert!(words[0] != 0 && words.iter().all(|word| *word == words[0]), "{words:?}");
    Some(words[0])
}

#[test]
fn words_that_are_read_were_put_in_together() {
    loom::model(|| {
        let slot = slot();
        let first = slot.put([1; WORDS]).unwrap();
        let other = Arc::clone(&slot);
        let writer = thread::spawn(move || {
            assert!(other.take(first));
            other.put([2; WORDS]).unwrap()
        });
        let found = read(&slot);
        let second = writer.join().unwrap();
        assert_ne!(first, second);
        assert!(matches!(found, None | Some(1 | 2)));
        assert_eq!(read(&slot), Some(2));
    });
}

#[test]
fn of_two_who_put_words_in_one_finds_the_slot_empty() {
    loom::model(|| {
        let slot = slot();
        let other = Arc::clone(&slot);
        let writer = thread::spawn(move || other.put([2; WORDS]));
        let own = slot.put([1; WORDS]);
        let others = writer.join().unwrap();
        assert!(own.is_some() != others.is_some());
        assert_eq!(read(&slot), Some(if own.is_some() { 1 } else { 2 }));
    });
}

#[test]
fn words_are_taken_out_once() {
    loom::model(|| {
        let slot = slot();
        let version = slot.put([1; WORDS]).unwrap();
        let other = Arc::clone(&slot);
        let taker = thread::spawn(move || other.take(version));
        let own = slot.take(version);
        assert!(own != taker.join().unwrap());
        assert_eq!(read(&slot), None);
        assert!(!slot.take(version));
    });
}
