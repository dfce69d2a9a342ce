//! A module map that is looked up while it changes.

use core::fmt;
use core::num::NonZero;

use crate::addr::VirtAddr;
use crate::modules::map::{MapError, Module};
use crate::sync::{AtomicU64, Ordering, atomics, const_unless_loom, fence};

/// Where a table is in the target's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableLocation {
    /// Its first byte.
    pub addr: VirtAddr,
    /// Its length in bytes.
    pub len: u64,
    /// The number that names it in all address spaces, if it has one: see
    /// [`RowKey::table`](crate::RowKey::table).
    pub id: Option<NonZero<u64>>,
}

/// A lookup was overtaken by one change after another and gave up. The same
/// lookup may be done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contended;

impl fmt::Display for Contended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the modules change faster than they can be read")
    }
}

impl core::error::Error for Contended {}

/// The modules of one address space, at most `N`, whose tables lie in the
/// target's memory.
///
/// As [`ModuleMap`](crate::ModuleMap), but lookups and changes both take it
/// shared. There are two copies of the modules: lookups use one, a change
/// writes the other and then exchanges the two: a latched double buffer. So a lookup sees the modules
/// as they were before a change or as they are after it, it never waits, and
/// it may interrupt a change on the same CPU, as an NMI does.
///
/// A map whose bytes are all zero is an empty one.
///
/// Changes come one at a time; one that meets another is refused with
/// [`MapError::Busy`].
pub struct SharedModuleMap<const N: usize> {
    /// How many changes there were. The lowest bit tells which copy is in use.
    generation: AtomicU64,
    /// 1 while a change is under way.
    changing: AtomicU64,
    copies: [Copy<N>; 2],
}

/// Modules sorted by start; ranges do not overlap.
struct Copy<const N: usize> {
    len: AtomicU64,
    entries: [Stored; N],
}

/// A module as a map stores it, read and written a word at a time.
struct Stored {
    start: AtomicU64,
    end: AtomicU64,
    table_addr: AtomicU64,
    table_len: AtomicU64,
    /// 0 if it has none.
    table_id: AtomicU64,
}

impl Stored {
    const_unless_loom! {
        fn new() -> Self {
            Self {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                table_addr: AtomicU64::new(0),
                table_len: AtomicU64::new(0),
                table_id: AtomicU64::new(0),
            }
        }
    }

    fn load(&self) -> Module<TableLocation> {
        let addr = |word: &AtomicU64| VirtAddr::new(word.load(Ordering::Relaxed));
        Module {
            text: addr(&self.start)..addr(&self.end),
            table: TableLocation {
                addr: addr(&self.table_addr),
                len: self.table_len.load(Ordering::Relaxed),
                id: NonZero::new(self.table_id.load(Ordering::Relaxed)),
            },
        }
    }

    fn store(&self, module: &Module<TableLocation>) {
        self.start.store(module.text.start.get(), Ordering::Relaxed);
        self.end.store(module.text.end.get(), Ordering::Relaxed);
        self.table_addr.store(module.table.addr.get(), Ordering::Relaxed);
        self.table_len.store(module.table.len, Ordering::Relaxed);
        let id = module.table.id.map_or(0, NonZero::get);
        self.table_id.store(id, Ordering::Relaxed);
    }
}

impl<const N: usize> Copy<N> {
    const_unless_loom! {
        fn new() -> Self {
            Self { len: AtomicU64::new(0), entries: atomics![Stored::new(); N] }
        }
    }

    fn entries(&self) -> &[Stored] {
        let len = usize::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(N);
        self.entries.get(..len).unwrap_or(&self.entries)
    }

    /// The first module that ends above `addr`, by index. While the copy is
    /// being written the answer may be any index up to the length.
    fn first_above(&self, addr: VirtAddr) -> usize {
        let addr = addr.get();
        self.entries().partition_point(|entry| entry.end.load(Ordering::Relaxed) <= addr)
    }

    fn find(&self, addr: VirtAddr) -> Option<Module<TableLocation>> {
        let module = self.entries().get(self.first_above(addr))?.load();
        module.text.contains(&addr).then_some(module)
    }

    /// Takes over modules in order of address. Only the one who may write the
    /// copy calls this, with no more than `N` modules.
    /// Returns how many there were.
    fn write(&self, modules: impl Iterator<Item = Module<TableLocation>>) -> usize {
        let (mut len, mut count) = (0_u64, 0_usize);
        for (entry, module) in self.entries.iter().zip(modules) {
            entry.store(&module);
            len = len.wrapping_add(1);
            count = count.wrapping_add(1);
        }
        self.len.store(len, Ordering::Relaxed);
        count
    }
}

impl<const N: usize> SharedModuleMap<N> {
    /// How often a lookup starts again because it was overtaken.
    const TRIES: u32 = 4;

    const_unless_loom! {
        /// A map without modules.
        #[must_use]
        pub fn new() -> Self {
            Self {
                generation: AtomicU64::new(0),
                changing: AtomicU64::new(0),
                copies: [Copy::new(), Copy::new()],
            }
        }
    }

    /// Adds a module.
    ///
    /// # Errors
    ///
    /// [`MapError`], and the map is as it was.
    pub fn add(&self, module: &Module<TableLocation>) -> Result<(), MapError> {
        if module.text.is_empty() {
            return Err(MapError::EmptyRange);
        }
        let change = Change::begin(self)?;
        let modules = change.now.entries();
        let at = change.now.first_above(module.text.start);
        let other = modules.get(at).map(Stored::load);
        if let Some(other) = other.filter(|other| other.text.start < module.text.end) {
            return Err(MapError::Overlap(other.text.start));
        }
        if modules.len() >= N {
            return Err(MapError::Full);
        }
        let (before, after) = modules.split_at_checked(at).unwrap_or((modules, &[]));
        let added = core::iter::once(module.clone());
        let after = after.iter().map(Stored::load);
        change.commit(before.iter().map(Stored::load).chain(added).chain(after));
        Ok(())
    }

    /// Removes all modules whose table starts at `table`, as one table may
    /// serve several ranges of code; returns how many there were.
    ///
    /// # Errors
    ///
    /// [`MapError::Busy`] if another change is under way.
    pub fn remove_table(&self, table: VirtAddr) -> Result<usize, MapError> {
        self.retain(|module| module.table.addr != table)
    }

    /// Keeps the modules for which `keep` says so, as when code is unmapped;
    /// returns how many went. `keep` is called once for each module, in order of
    /// address; changes of this map are refused meanwhile.
    ///
    /// # Errors
    ///
    /// [`MapError::Busy`] if another change is under way.
    pub fn retain(
        &self,
        mut keep: impl FnMut(&Module<TableLocation>) -> bool,
    ) -> Result<usize, MapError> {
        let change = Change::begin(self)?;
        let modules = change.now.entries();
        let kept = change.write(modules.iter().map(Stored::load).filter(|module| keep(module)));
        let gone = modules.len().saturating_sub(kept);
        if gone != 0 {
            change.turn();
        }
        Ok(gone)
    }

    /// Removes all modules, for an exec.
    ///
    /// # Errors
    ///
    /// [`MapError::Busy`] if another change is under way.
    pub fn clear(&self) -> Result<(), MapError> {
        Change::begin(self)?.commit(core::iter::empty());
        Ok(())
    }

    /// Makes the modules those of `parent`, for a fork. The parent does not
    /// change meanwhile.
    ///
    /// # Errors
    ///
    /// [`MapError::Busy`] if another change of either map is under way.
    pub fn copy_from(&self, parent: &Self) -> Result<(), MapError> {
        let parent = Change::begin(parent)?;
        let change = Change::begin(self)?;
        change.commit(parent.now.entries().iter().map(Stored::load));
        Ok(())
    }

    /// The module whose code holds `addr`.
    ///
    /// # Errors
    ///
    /// [`Contended`] if the map was changed again and again meanwhile.
    pub fn find(&self, addr: VirtAddr) -> Result<Option<Module<TableLocation>>, Contended> {
        for _ in 0..Self::TRIES {
            let generation = self.generation.load(Ordering::Acquire);
            let found = self.copy(generation).find(addr);
            // Pairs with the fence of a change that writes this copy: a reader that
            // read a word of it sees the generation before it, too.
            fence(Ordering::Acquire);
            if self.generation.load(Ordering::Relaxed) == generation {
                return Ok(found);
            }
        }
        Err(Contended)
    }

    /// A number that every change makes another one. Whoever sees it sees what
    /// was done before that change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    const fn copy(&self, generation: u64) -> &Copy<N> {
        let [even, odd] = &self.copies;
        if generation & 1 == 0 { even } else { odd }
    }
}

impl<const N: usize> Default for SharedModuleMap<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Debug for SharedModuleMap<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedModuleMap").field("generation", &self.generation()).finish()
    }
}

/// The right to change a map, until it is dropped.
struct Change<'m, const N: usize> {
    map: &'m SharedModuleMap<N>,
    generation: u64,
    /// The copy that is in use. It stays as it is for as long as this lives.
    now: &'m Copy<N>,
}

impl<'m, const N: usize> Change<'m, N> {
    fn begin(map: &'m SharedModuleMap<N>) -> Result<Self, MapError> {
        let taken = map.changing.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return Err(MapError::Busy);
        }
        let generation = map.generation.load(Ordering::Relaxed);
        Ok(Self { map, generation, now: map.copy(generation) })
    }

    /// Writes the copy that is not in use and turns the two round.
    fn commit(self, modules: impl Iterator<Item = Module<TableLocation>>) {
        self.write(modules);
        self.turn();
    }

    /// Writes the copy that is not in use; returns how many modules there were.
    fn write(&self, modules: impl Iterator<Item = Module<TableLocation>>) -> usize {
        // A lookup that is still in this copy came before the last change. It
        // must not see our words without seeing that change's generation.
        fence(Ordering::Release);
        self.map.copy(self.next()).write(modules)
    }

    /// Turns the two copies round.
    fn turn(self) {
        self.map.generation.store(self.next(), Ordering::Release);
    }

    const fn next(&self) -> u64 {
        self.generation.wrapping_add(1)
    }
}

impl<const N: usize> Drop for Change<'_, N> {
    fn drop(&mut self) {
        self.map.changing.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_new_entry_is_the_entry_of_zeroes() {
        let module = Stored::new().load();
        assert_eq!(module.text, VirtAddr::new(0)..VirtAddr::new(0));
        let TableLocation { addr, len, id } = module.table;
        assert_eq!((addr, len, id), (VirtAddr::new(0), 0, None));
    }
}
