//! Which module's table covers an address.

use core::fmt;
use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::VirtAddr;

/// A loaded object: a range of code and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module<T> {
    /// The addresses of its code, the end exclusive.
    pub text: Range<VirtAddr>,
    /// Its table, or what leads to it.
    pub table: T,
}

/// Why a module could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// The range holds no address.
    EmptyRange,
    /// The range shares an address with a module that starts here.
    Overlap(VirtAddr),
    /// There is no room for one more.
    Full,
    /// Another change is under way; only of a
    /// [`SharedModuleMap`](crate::SharedModuleMap).
    Busy,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyRange => f.write_str("the range of code is empty"),
            Self::Overlap(start) => write!(f, "the range overlaps the module at {start}"),
            Self::Full => f.write_str("no room for another module"),
            Self::Busy => f.write_str("the modules are being changed"),
        }
    }
}

impl core::error::Error for MapError {}

/// The modules of one address space, at most `N`, in order of address.
///
/// A fork copies the map with [`Clone`]; an exec empties it with
/// [`clear`](Self::clear). The [`generation`](Self::generation) changes with
/// every change, so that rows cached from before are not used.
///
/// Lookups take the map shared and changes take it exclusively, so a lookup
/// never sees half a change. Where both happen at once, take a
/// [`SharedModuleMap`](crate::SharedModuleMap), or keep this one under the
/// host's own read-copy-update: clone it, change the clone, swap the pointer.
#[derive(Clone, Debug)]
pub struct ModuleMap<T, const N: usize> {
    /// Where each is, by address. A change moves these, which are small.
    order: ArrayVec<Place, N>,
    /// In any order; ranges do not overlap.
    modules: ArrayVec<Module<T>, N>,
    generation: u64,
}

/// Where a module is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The end of its code.
    end: VirtAddr,
    /// Its index.
    at: usize,
}

impl<T, const N: usize> ModuleMap<T, N> {
    /// A map without modules.
    #[must_use]
    pub const fn new() -> Self {
        Self { order: ArrayVec::new_const(), modules: ArrayVec::new_const(), generation: 0 }
    }

    /// Adds a module.
    ///
    /// # Errors
    ///
    /// [`MapError`], and the map is as it was.
    pub fn add(&mut self, module: Module<T>) -> Result<(), MapError> {
        if module.text.is_empty() {
            return Err(MapError::EmptyRange);
        }
        // The first module that ends above the start is the only one that can
        // be in the way, and the place to insert at if it is not.
        let at = self.first_after(module.text.start);
        let other = self.module(at).filter(|other| other.text.start < module.text.end);
        if let Some(other) = other {
            return Err(MapError::Overlap(other.text.start));
        }
        let place = Place { end: module.text.end, at: self.modules.len() };
        self.order.try_insert(at, place).map_err(|_| MapError::Full)?;
        // There is as much room as for its place.
        _ = self.modules.try_push(module);
        self.changed();
        Ok(())
    }

    /// Removes and returns the module whose code starts at `text_start`.
    pub fn remove(&mut self, text_start: VirtAddr) -> Option<Module<T>> {
        let place = self.first_after(text_start);
        if self.module(place)?.text.start != text_start {
            return None;
        }
        let module = self.take(place)?;
        self.changed();
        Some(module)
    }

    /// Takes the module of a place out.
    fn take(&mut self, place: usize) -> Option<Module<T>> {
        let Place { at, .. } = self.order.pop_at(place)?;
        let module = self.modules.swap_pop(at)?;
        // The last one is there now, if it was another.
        if let Some(moved) = self.modules.get(at) {
            let place = self.first_after(VirtAddr::new(moved.text.end.get().wrapping_sub(1)));
            if let Some(place) = self.order.get_mut(place) {
                place.at = at;
            }
        }
        Some(module)
    }

    /// Keeps the modules for which `keep` says so, such as all but those of a
    /// table that is being unregistered; returns how many went.
    pub fn retain(&mut self, mut keep: impl FnMut(&Module<T>) -> bool) -> usize {
        let (mut place, mut removed) = (0, 0_usize);
        while let Some(module) = self.module(place) {
            if keep(module) {
                place = place.wrapping_add(1);
            } else {
                self.take(place);
                removed = removed.wrapping_add(1);
            }
        }
        if removed != 0 {
            self.changed();
        }
        removed
    }

    /// Removes all modules.
    pub fn clear(&mut self) {
        self.order.clear();
        self.modules.clear();
        self.changed();
    }

    /// The module whose code holds `addr`.
    #[inline]
    #[must_use]
    pub fn find(&self, addr: VirtAddr) -> Option<&Module<T>> {
        self.module(self.first_after(addr)).filter(|module| module.text.start <= addr)
    }

    /// The first place of a module that ends after `addr`.
    #[inline]
    fn first_after(&self, addr: VirtAddr) -> usize {
        self.order.partition_point(|place| place.end <= addr)
    }

    #[inline]
    fn module(&self, place: usize) -> Option<&Module<T>> {
        self.modules.get(self.order.get(place)?.at)
    }

    /// The modules in order of address.
    pub fn iter(&self) -> ModuleIter<'_, T> {
        ModuleIter { order: self.order.iter(), modules: &self.modules }
    }

    /// How many modules there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.modules.len()
    }

    /// Whether there are no modules.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// A number that every change makes another one.
    #[inline]
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    const fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

impl<T, const N: usize> Default for ModuleMap<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a ModuleMap<T, N> {
    type Item = &'a Module<T>;
    type IntoIter = ModuleIter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The modules of a [`ModuleMap`] in order of address.
#[derive(Clone, Debug)]
pub struct ModuleIter<'a, T> {
    order: core::slice::Iter<'a, Place>,
    modules: &'a [Module<T>],
}

impl<'a, T> Iterator for ModuleIter<'a, T> {
    type Item = &'a Module<T>;

    fn next(&mut self) -> Option<Self::Item> {
        self.modules.get(self.order.next()?.at)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.order.size_hint()
    }
}

impl<T> ExactSizeIterator for ModuleIter<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(start: u64, end: u64) -> Module<u64> {
        Module { text: VirtAddr::new(start)..VirtAddr::new(end), table: start }
    }

    fn found(map: &ModuleMap<u64, 4>, addr: u64) -> Option<u64> {
        map.find(VirtAddr::new(addr)).map(|module| module.table)
    }

    #[test]
    fn f16_neighbours_that_touch_are_all_there_in_order_and_the_end_is_exclusive() {
        let mut map = ModuleMap::new();
        map.add(module(0x2000, 0x3000)).unwrap();
        map.add(module(0x1000, 0x2000)).unwrap();
        map.add(module(0x3000, 0x4000)).unwrap();
        let expected = [
            (0xfff, None),
            (0x1000, Some(0x1000)),
            (0x1fff, Some(0x1000)),
            (0x2000, Some(0x2000)),
            (0x3fff, Some(0x3000)),
            (0x4000, None),
        ];
        for (addr, table) in expected {
            assert_eq!(found(&map, addr), table, "{addr:#x}");
        }
        let mut tables = [0x1000, 0x2000, 0x3000].into_iter();
        for module in &map {
            assert_eq!(Some(module.table), tables.next());
        }
        assert_eq!(tables.next(), None);
    }

    #[test]
    fn overlaps_are_refused_and_leave_the_map_as_it_was() {
        let mut map = ModuleMap::<_, 4>::new();
        map.add(module(0x1000, 0x2000)).unwrap();
        map.add(module(0x3000, 0x4000)).unwrap();
        let generation = map.generation();
        for (start, end, other) in [
            (0x1000, 0x2000, 0x1000),
            (0x0fff, 0x1001, 0x1000),
            (0x1fff, 0x2001, 0x1000),
            (0x1800, 0x1900, 0x1000),
            (0x0000, 0x9000, 0x1000),
            (0x2000, 0x3001, 0x3000),
        ] {
            let refused = Err(MapError::Overlap(VirtAddr::new(other)));
            assert_eq!(map.add(module(start, end)), refused, "{start:#x}..{end:#x}");
        }
        assert_eq!(map.add(module(0x5000, 0x5000)), Err(MapError::EmptyRange));
        assert_eq!(map.add(module(0x6000, 0x5000)), Err(MapError::EmptyRange));
        assert_eq!((map.len(), map.generation()), (2, generation));
    }

    #[test]
    fn a_full_map_refuses_and_works_on() {
        let mut map = ModuleMap::<_, 2>::new();
        map.add(module(0x1000, 0x2000)).unwrap();
        map.add(module(0x2000, 0x3000)).unwrap();
        let generation = map.generation();
        assert_eq!(map.add(module(0x3000, 0x4000)), Err(MapError::Full));
        assert_eq!(map.generation(), generation, "nothing has changed");
        assert!(map.remove(VirtAddr::new(0x1000)).is_some());
        assert_eq!(map.add(module(0x3000, 0x4000)), Ok(()));
    }

    #[test]
    fn only_the_start_of_a_module_removes_it() {
        let mut map = ModuleMap::<_, 4>::new();
        map.add(module(0x1000, 0x2000)).unwrap();
        for addr in [0, 0x1001, 0x2000] {
            assert!(map.remove(VirtAddr::new(addr)).is_none(), "{addr:#x}");
        }
        assert!(!map.is_empty());
        assert_eq!(map.remove(VirtAddr::new(0x1000)), Some(module(0x1000, 0x2000)));
        assert!(map.is_empty());
    }

    #[test]
    fn f21_a_fork_has_the_modules_and_goes_its_own_way() {
        let mut parent = ModuleMap::<_, 4>::new();
        parent.add(module(0x1000, 0x2000)).unwrap();
        let mut child = parent.clone();
        assert_eq!(found(&child, 0x1800), Some(0x1000));
        child.clear();
        assert_eq!((found(&child, 0x1800), found(&parent, 0x1800)), (None, Some(0x1000)));
    }

    #[test]
    fn every_change_makes_another_generation() {
        let mut map = ModuleMap::<_, 4>::new();
        let mut last = map.generation();
        let mut changed = |map: &ModuleMap<u64, 4>| {
            let changed = map.generation() != last;
            last = map.generation();
            changed
        };
        map.add(module(0x1000, 0x2000)).unwrap();
        assert!(changed(&map));
        map.add(module(0x2000, 0x3000)).unwrap();
        assert!(changed(&map));
        assert!(map.remove(VirtAddr::new(0x2000)).is_some());
        assert!(changed(&map));
        assert_eq!(map.retain(|_| true), 0);
        assert!(!changed(&map));
        assert_eq!(map.retain(|_| false), 1);
        assert!(changed(&map));
        map.clear();
        assert!(changed(&map));
    }

    #[test]
    fn any_changes_leave_the_modules_that_a_plain_list_has() {
        let mut map = ModuleMap::<_, 8>::new();
        let mut list: ArrayVec<u64, 8> = ArrayVec::new();
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 16
        };
        for _ in 0..4000 {
            let start = next();
            let addr = VirtAddr::new(start);
            match next() {
                0..8 => {
                    let added = map.add(module(start, start + 1)).is_ok();
                    assert_eq!(added, !list.contains(&start) && list.len() < 8);
                    if added {
                        list.push(start);
                    }
                }
                8..15 => {
                    let removed = map.remove(addr).map(|module| module.table);
                    let at = list.iter().position(|other| *other == start);
                    assert_eq!(removed, at.map(|at| list.remove(at)));
                }
                _ => {
                    let before = list.len();
                    list.retain(|other| *other % 3 != start % 3);
                    assert_eq!(map.retain(|kept| kept.table % 3 != start % 3), before - list.len());
                }
            }
            list.sort_unstable();
            assert!(map.iter().map(|module| module.table).eq(list.iter().copied()));
            assert_eq!(map.len(), list.len());
            for addr in 0..17 {
                let found = map.find(VirtAddr::new(addr)).map(|module| module.table);
                assert_eq!(found, list.contains(&addr).then_some(addr));
            }
        }
    }

    #[test]
    fn search_agrees_with_a_scan_at_both_ends_of_the_address_space() {
        let mut map = ModuleMap::<_, 4>::new();
        for (start, end) in [(0, 1), (8, 16), (16, 17), (u64::MAX - 1, u64::MAX)] {
            map.add(module(start, end)).unwrap();
        }
        for addr in (0..32).chain(u64::MAX - 4..=u64::MAX) {
            let addr = VirtAddr::new(addr);
            let scanned = map.iter().find(|module| module.text.contains(&addr));
            assert_eq!(map.find(addr), scanned, "{addr}");
        }
        // Ascending, whatever it is gone through by.
        assert_eq!(map.iter().len(), map.len());
        assert!((&map).into_iter().is_sorted_by_key(|module| module.text.start));
    }
}
