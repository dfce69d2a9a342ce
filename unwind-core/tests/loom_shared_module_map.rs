//! Every interleaving of a lookup with changes, as loom finds them.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::std_instead_of_alloc, reason = "tests")]

use loom::sync::Arc;
use loom::thread;
use unwind_core::{Module, SharedModuleMap, TableLocation, VirtAddr};

/// A module around address 0x10 whose words all tell which one it is.
fn module(which: u64) -> Module<TableLocation> {
    let table = TableLocation { addr: VirtAddr::new(which), len: which };
    Module { text: VirtAddr::new(0x10)..VirtAddr::new(0x20), bias: which, table }
}

fn is_whole(found: &Module<TableLocation>) -> bool {
    *found == module(found.bias)
}

#[test]
fn f20_a_lookup_against_one_change_sees_the_old_or_the_new_modules() {
    loom::model(|| {
        let map = Arc::new(SharedModuleMap::<1>::new());
        map.add(&module(1)).unwrap();
        let reader = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                let found = map.find(VirtAddr::new(0x10)).unwrap();
                assert!(found.is_none() || found == Some(module(1)), "{found:?}");
            })
        };
        map.clear().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn f23_a_lookup_that_two_changes_overtake_never_mixes_their_words() {
    let mut model = loom::model::Builder::new();
    // Two preemptions are what it takes to get from the copy in use to the same
    // copy rewritten; one more for good measure.
    model.preemption_bound = Some(3);
    model.check(|| {
        let map = Arc::new(SharedModuleMap::<1>::new());
        map.add(&module(1)).unwrap();
        let reader = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                if let Ok(Some(found)) = map.find(VirtAddr::new(0x10)) {
                    assert!(is_whole(&found), "{found:?}");
                }
            })
        };
        map.clear().unwrap();
        map.add(&module(2)).unwrap();
        reader.join().unwrap();
    });
}
