//! Modules of the kernel that come and go while NMIs on all CPUs look them up.
//!
//! Their code is made up, and so are their tables: what counts is that a lookup gets a
//! module whole, as it was at one moment, and that the memory of its table is there for as
//! long as the NMI lasts.

use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::{Module, SharedModuleMap, TableLocation, VirtAddr};

use super::counter::count;
use crate::memory::shootdown;
use crate::options::Protection;
use crate::serial::println;

/// Places for modules.
const PLACES: usize = 6;

static MODULES: SharedModuleMap<PLACES> = SharedModuleMap::new();

/// A table: the number of the module that it is of, in each word; zeroes if it is none's.
struct Table([AtomicU64; 64]);

static TABLES: [Table; PLACES] = [const { Table([const { AtomicU64::new(0) }; 64]) }; PLACES];

static LOADED: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);
static ABSENT: AtomicU64 = AtomicU64::new(0);
static CONTENDED: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

const CODE: u64 = 0xffff_ffff_c000_0000;
const CODE_LEN: u64 = 1 << 16;

/// The code of a place: each module there has another length.
fn text(place: usize, number: u64) -> core::ops::Range<VirtAddr> {
    let start = CODE + place as u64 * CODE_LEN;
    VirtAddr::new(start)..VirtAddr::new(start + CODE_LEN / 2 + number % 1000)
}

impl Table {
    fn fill(&self, number: u64) {
        self.0.iter().for_each(|word| word.store(number, Ordering::Relaxed));
    }

    /// The number in all words, if it is the same.
    fn number(&self) -> Option<u64> {
        let first = self.0[0].load(Ordering::Relaxed);
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == first).then_some(first)
    }

    fn addr(&self) -> VirtAddr {
        VirtAddr::new(self as *const Self as u64)
    }
}

/// Unloads the module of a place, if there is one, and loads another. One caller at a time;
/// task context.
pub(crate) fn exchange(turn: usize) {
    let place = turn % PLACES;
    let table = &TABLES[place];
    let removed = MODULES.remove_table(table.addr());
    assert!(removed.is_ok(), "no other code changes the modules: {removed:?}");
    if Protection::ModuleGrace.is_on() {
        // No NMI that has found it runs any more.
        shootdown::flush_everywhere();
    }
    let number = LOADED.fetch_add(1, Ordering::Relaxed) + 1;
    table.fill(0);
    table.fill(number);
    let location = TableLocation { addr: table.addr(), len: number, id: None };
    let added = MODULES.add(&Module { text: text(place, number), table: location });
    assert!(added.is_ok(), "the modules do not overlap: {added:?}");
}

/// Looks one up as a walk of kernel code would. In NMIs.
pub(super) fn look_up(turn: u64) {
    let place = turn as usize % PLACES;
    let addr = VirtAddr::new(CODE + place as u64 * CODE_LEN + turn % (CODE_LEN / 2));
    let module = match MODULES.find(addr) {
        Ok(Some(module)) => module,
        Ok(None) => return count(&ABSENT),
        Err(_) => return count(&CONTENDED),
    };
    // As long as a walk that reads the table.
    for _ in 0..READS {
        let table = &TABLES[place];
        let number = module.table.len;
        let is_whole = module.table.addr == table.addr() && module.text == text(place, number);
        if !is_whole || table.number() != Some(number) {
            return count(&WRONG);
        }
    }
    count(&FOUND);
}

/// How often an NMI reads the table.
const READS: usize = 40;

/// Prints the counters.
pub(crate) fn account() {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "modules: {} loaded, {} found, {} absent, {} contended, {} wrong",
        get(&LOADED),
        get(&FOUND),
        get(&ABSENT),
        get(&CONTENDED),
        get(&WRONG),
    );
}
