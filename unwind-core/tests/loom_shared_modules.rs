//! Every interleaving of a lookup with changes, as loom finds them.
#![cfg(loom)]
#![cfg(test)]

use std::num::NonZero;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use unwind_core::{MapError, Module, SharedModuleMap, TableLocation, VirtAddr};

/// A table whose words all tell which one it is.
fn table(which: u64) -> TableLocation {
    TableLocation { addr: VirtAddr::new(which), len: which, id: NonZero::new(which) }
}

/// A module around address 0x10 whose words all tell which one it is.
fn module(which: u64) -> Module<TableLocation> {
    Module { text: VirtAddr::new(0x10)..VirtAddr::new(0x20), table: table(which) }
}

fn is_whole(found: &Module<TableLocation>) -> bool {
    *found == module(found.table.len)
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

/// A map of two modules and data beside it: what a host keeps for those who
/// change the map, and what it makes before it adds a module. loom reports two
/// accesses that are not ordered.
struct Shared {
    map: SharedModuleMap<2>,
    of_changes: UnsafeCell<u32>,
    of_module: UnsafeCell<u32>,
}

// SAFETY: loom checks every access.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        let (of_changes, of_module) = (UnsafeCell::new(0), UnsafeCell::new(0));
        Arc::new(Self { map: SharedModuleMap::new(), of_changes, of_module })
    }

    fn write(data: &UnsafeCell<u32>) {
        // SAFETY: none is claimed: loom checks that no other access runs.
        data.with_mut(|data| unsafe { *data += 1 });
    }
}

/// Tries a change until no other one is under way.
fn change<T>(mut change: impl FnMut() -> Result<T, MapError>) -> T {
    loop {
        match change() {
            Err(MapError::Busy) => thread::yield_now(),
            result => return result.unwrap(),
        }
    }
}

fn module_at(start: u64) -> Module<TableLocation> {
    Module { text: VirtAddr::new(start)..VirtAddr::new(start + 8), table: table(start) }
}

fn bounded(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

#[test]
fn two_that_add_a_module_at_the_same_time_both_have_it_in() {
    bounded(|| {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || change(|| other.map.add(&module_at(0x10))));
        change(|| shared.map.add(&module_at(0x20)));
        thread.join().unwrap();
        for start in [0x10, 0x20] {
            let found = shared.map.find(VirtAddr::new(start)).unwrap();
            assert_eq!(found, Some(module_at(start)));
        }
        assert_eq!(shared.map.generation(), 2);
    });
}

#[test]
fn f23_a_module_that_stays_is_found_wherever_two_changes_move_it() {
    bounded(|| {
        let shared = Shared::new();
        change(|| shared.map.add(&module_at(0x20)));
        change(|| shared.map.add(&module_at(0x10)));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            if let Ok(found) = other.map.find(VirtAddr::new(0x20)) {
                assert_eq!(found, Some(module_at(0x20)));
            }
        });
        change(|| shared.map.remove_table(VirtAddr::new(0x10)));
        change(|| shared.map.add(&module_at(0x30)));
        thread.join().unwrap();
    });
}

#[test]
fn a_change_sees_all_that_those_before_it_did() {
    bounded(|| {
        let shared = Shared::new();
        change(|| shared.map.add(&module_at(0x10)));
        let other = Arc::clone(&shared);
        let work = |shared: &Shared, keeps: bool| {
            change(|| {
                shared.map.retain(|_| {
                    Shared::write(&shared.of_changes);
                    keeps
                })
            })
        };
        let thread = thread::spawn(move || work(&other, true));
        let gone = work(&shared, false);
        assert_eq!((gone, thread.join().unwrap()), (1, 0));
    });
}

#[test]
fn whoever_finds_a_module_sees_what_was_made_before_it_was_added() {
    sees_what_was_made(|map| map.find(VirtAddr::new(0x10)).is_ok_and(|found| found.is_some()));
}

#[test]
fn whoever_sees_another_generation_sees_what_was_made_before_the_change() {
    sees_what_was_made(|map| map.generation() != 0);
}

/// Makes something, then adds a module, while another looks whether it is there.
fn sees_what_was_made(is_there: fn(&SharedModuleMap<2>) -> bool) {
    bounded(move || {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            if is_there(&other.map) {
                // SAFETY: as above.
                let seen = other.of_module.with(|data| unsafe { *data });
                assert_eq!(seen, 1);
            }
        });
        Shared::write(&shared.of_module);
        change(|| shared.map.add(&module_at(0x10)));
        thread.join().unwrap();
    });
}
