//! Walks, with their caches and tables, ask for no memory.

use test_support::CountingAllocator;
use unwind_benches::corpus::Corpus;
use unwind_benches::{Unwind, Unwinder as _};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn no_walk_of_any_corpus_allocates() {
    for path in Corpus::paths() {
        let corpus = Corpus::open(&path);
        let mut unwind = Unwind::new(&corpus);
        let mut frames = 0_usize;
        let before = CountingAllocator::allocations();
        for snapshot in &corpus.snapshots {
            frames = frames.saturating_add(unwind.walk(snapshot));
        }
        assert_eq!(CountingAllocator::allocations(), before, "{}", corpus.name);
        assert!(frames > 0 && before > 0, "it does count");
    }
}
