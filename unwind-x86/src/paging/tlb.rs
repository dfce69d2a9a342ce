//! Translations that were found before.

use super::mode::PAGE_BITS;
use super::physical::PhysAddr;

/// The translations of at most `N` pages of 4 KiB, each kept in the one place
/// that its number gives. Large pages are kept by the pieces that were used.
#[derive(Clone, Debug)]
pub(super) struct Tlb<const N: usize> {
    /// Page numbers; `EMPTY` where there is none.
    pages: [u64; N],
    /// Where the page of the same index begins.
    starts: [PhysAddr; N],
}

/// No linear address has so high a page number.
const EMPTY: u64 = u64::MAX;

impl<const N: usize> Tlb<N> {
    pub(super) const fn new() -> Self {
        Self { pages: [EMPTY; N], starts: [PhysAddr::new(0); N] }
    }

    fn place(page: u64) -> usize {
        // A TLB without places has no page at 0 either.
        let count = u64::try_from(N).unwrap_or(u64::MAX);
        usize::try_from(page.checked_rem(count).unwrap_or(0)).unwrap_or(0)
    }

    /// Where the page that holds `addr` begins, if that is known.
    #[inline]
    pub(super) fn get(&self, addr: u64) -> Option<PhysAddr> {
        let page = addr >> PAGE_BITS;
        let place = Self::place(page);
        if self.pages.get(place) == Some(&page) { self.starts.get(place).copied() } else { None }
    }

    #[inline]
    pub(super) fn insert(&mut self, addr: u64, start: PhysAddr) {
        let page = addr >> PAGE_BITS;
        let place = Self::place(page);
        if let (Some(key), Some(value)) = (self.pages.get_mut(place), self.starts.get_mut(place)) {
            (*key, *value) = (page, start);
        }
    }

    pub(super) fn flush(&mut self) {
        self.pages = [EMPTY; N];
    }

    pub(super) fn flush_page(&mut self, addr: u64) {
        let page = addr >> PAGE_BITS;
        if let Some(key) = self.pages.get_mut(Self::place(page)).filter(|key| **key == page) {
            *key = EMPTY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_share_a_place_replace_each_other_and_no_others() {
        let mut tlb = Tlb::<4>::new();
        for page in 0..4 {
            tlb.insert(page << 12 | 0x123, PhysAddr::new(0x10_0000 + (page << 12)));
        }
        tlb.insert(5 << 12, PhysAddr::new(0x20_0000));
        assert_eq!(tlb.get(1 << 12), None);
        assert_eq!(tlb.get(5 << 12 | 0xfff), Some(PhysAddr::new(0x20_0000)));
        assert_eq!(tlb.get(2 << 12), Some(PhysAddr::new(0x10_2000)));
    }

    #[test]
    fn a_flushed_page_is_gone_and_its_neighbours_are_not() {
        let mut tlb = Tlb::<4>::new();
        tlb.insert(0x1000, PhysAddr::new(0x5000));
        tlb.insert(0x2000, PhysAddr::new(0x6000));
        tlb.flush_page(0x5000);
        assert_eq!(tlb.get(0x1000), Some(PhysAddr::new(0x5000)), "another page of that place");
        tlb.flush_page(0x1fff);
        assert_eq!((tlb.get(0x1000), tlb.get(0x2000)), (None, Some(PhysAddr::new(0x6000))));
        tlb.flush();
        assert_eq!(tlb.get(0x2000), None);
    }

    #[test]
    fn a_tlb_without_places_keeps_nothing() {
        let mut tlb = Tlb::<0>::new();
        tlb.insert(0, PhysAddr::new(0));
        tlb.flush_page(0);
        assert_eq!(tlb.get(0), None);
    }
}
