//! The shared module map, alone and while it changes.
#![cfg(not(loom))]
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, reason = "tests")]

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};

use unwind_core::{MapError, Module, ModuleMap, SharedModuleMap, TableLocation, VirtAddr};

fn module(start: u64, end: u64) -> Module<TableLocation> {
    let table = TableLocation {
        addr: VirtAddr::new(start * 2),
        len: end - start,
        id: NonZero::new(!start),
    };
    Module { text: VirtAddr::new(start)..VirtAddr::new(end), table }
}

#[test]
fn it_answers_as_the_plain_map_does() {
    // A xorshift generator: the same operations each time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let shared = SharedModuleMap::<8>::new();
    let mut plain = ModuleMap::<_, 8>::new();
    for _ in 0..20_000 {
        match random(8) {
            0..6 => {
                let (start, len) = (1 + random(60), random(9));
                let module = module(start, start + len);
                let generation = shared.generation();
                let added = shared.add(&module);
                assert_eq!(added, plain.add(module));
                assert_eq!(shared.generation() != generation, added.is_ok());
            }
            6 => {
                let table = VirtAddr::new(2 * random(64));
                let gone = plain.retain(|module| module.table.addr != table);
                assert_eq!(shared.remove_table(table), Ok(gone));
            }
            _ if random(16) == 0 => {
                plain.clear();
                shared.clear().unwrap();
            }
            _ => {}
        }
        let addr = VirtAddr::new(random(72));
        assert_eq!(shared.find(addr).unwrap().as_ref(), plain.find(addr), "{addr}");
    }
}

#[test]
fn f21_a_forked_map_has_the_parents_modules() {
    let (parent, child) = (SharedModuleMap::<4>::new(), SharedModuleMap::<4>::new());
    parent.add(&module(0x1000, 0x2000)).unwrap();
    child.add(&module(0x9000, 0xa000)).unwrap();
    child.copy_from(&parent).unwrap();
    let found = |map: &SharedModuleMap<4>, addr| map.find(VirtAddr::new(addr)).unwrap().is_some();
    assert!(found(&child, 0x1800) && !found(&child, 0x9800));
    parent.clear().unwrap();
    assert!(found(&child, 0x1800));
    assert_eq!(parent.copy_from(&parent), Err(MapError::Busy), "not even of itself");
    assert_eq!(parent.clear(), Ok(()), "a refused change leaves no mark");
}

/// Whether the words of a module belong together.
fn is_whole(found: &Module<TableLocation>) -> bool {
    *found == module(found.text.start.get(), found.text.end.get())
}

#[test]
fn f20_f23_lookups_during_changes_see_the_old_or_the_new_modules() {
    let map = SharedModuleMap::<16>::new();
    // This one stays throughout; others come and go on both sides of it.
    map.add(&module(0x8000, 0x9000)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut found, mut overtaken) = (0, 0);
                    while !done.load(Ordering::Relaxed) {
                        match map.find(VirtAddr::new(0x8800)) {
                            Ok(kept) => assert_eq!(kept, Some(module(0x8000, 0x9000))),
                            Err(_) => overtaken += 1,
                        }
                        for addr in [0x1800, 0xf800] {
                            if let Ok(Some(module)) = map.find(VirtAddr::new(addr)) {
                                assert!(is_whole(&module), "{module:?}");
                                found += 1;
                            }
                        }
                    }
                    (found, overtaken)
                })
            })
            .collect();
        for round in 0..20_000_u64 {
            let (low, high) = (0x1000 + round % 0x800, 0xf000 + round % 0x800);
            map.add(&module(low, 0x2000)).unwrap();
            map.add(&module(high, 0x1_0000)).unwrap();
            assert_eq!(map.remove_table(VirtAddr::new(2 * low)), Ok(1));
            assert_eq!(map.remove_table(VirtAddr::new(2 * high)), Ok(1));
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn changes_from_two_sides_are_done_one_at_a_time_or_refused() {
    let map = SharedModuleMap::<64>::new();
    let added: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2_u64)
            .map(|side| {
                let map = &map;
                scope.spawn(move || {
                    let starts = (0..32).map(|n| 0x1000 * (2 * n + side));
                    let add = |start| loop {
                        match map.add(&module(start, start + 0x1000)) {
                            Err(MapError::Busy) => std::thread::yield_now(),
                            other => return other,
                        }
                    };
                    starts.filter(|&start| add(start).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(added, 64);
    for n in 0..64 {
        assert_eq!(
            map.find(VirtAddr::new(0x1000 * n + 0x800)).unwrap(),
            Some(module(0x1000 * n, 0x1000 * n + 0x1000))
        );
    }
}

#[test]
fn b11_retain_asks_once_about_each_module_in_order_of_address() {
    let map = SharedModuleMap::<8>::new();
    for start in [0x4000, 0x1000, 0x3000, 0x2000] {
        map.add(&module(start, start + 0x1000)).unwrap();
    }
    let generation = map.generation();
    let mut seen = Vec::new();
    // Every other module, by a count of the calls.
    let gone = map.retain(|module| {
        seen.push(module.text.start.get());
        seen.len() % 2 == 1
    });
    assert_eq!(gone, Ok(2));
    assert_eq!(seen, [0x1000, 0x2000, 0x3000, 0x4000]);
    assert_ne!(map.generation(), generation);
    for (addr, is_left) in [(0x1000, true), (0x2000, false), (0x3000, true), (0x4000, false)] {
        assert_eq!(map.find(VirtAddr::new(addr)).unwrap().is_some(), is_left, "{addr:#x}");
    }
    let generation = map.generation();
    assert_eq!(map.retain(|_| true), Ok(0));
    assert_eq!(map.generation(), generation, "nothing has changed");
    assert!(map.find(VirtAddr::new(0x3000)).unwrap().is_some());
}
