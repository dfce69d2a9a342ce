//! Sorting in place, without recursion.
//!
//! The sort of the standard library panics where a comparison contradicts
//! itself, which the linker cannot know does not happen here.
//!
//! Public for the crates of formats only: no part of the interface.

/// Sorts `entries` so that `less` of none and the one before it is true.
pub fn sort<T: Copy>(entries: &mut [T], less: impl Fn(T, T) -> bool) {
    for at in (0..entries.len() / 2).rev() {
        sift_down(entries, at, &less);
    }
    let mut heap = entries;
    while let Some((last, rest)) = heap.split_last_mut() {
        if let Some(first) = rest.first_mut() {
            core::mem::swap(first, last);
        }
        sift_down(rest, 0, &less);
        heap = rest;
    }
}

/// Moves the entry at `at` down, until none below it is greater.
fn sift_down<T: Copy>(heap: &mut [T], mut at: usize, less: &impl Fn(T, T) -> bool) {
    let Some(&entry) = heap.get(at) else { return };
    loop {
        let left = at.saturating_mul(2).saturating_add(1);
        let right = left.saturating_add(1);
        let (child, greater) = match (heap.get(left), heap.get(right)) {
            (Some(&a), Some(&b)) if less(a, b) => (right, b),
            (Some(&a), _) => (left, a),
            (None, _) => break,
        };
        if !less(entry, greater) {
            break;
        }
        if let Some(slot) = heap.get_mut(at) {
            *slot = greater;
        }
        at = child;
    }
    if let Some(slot) = heap.get_mut(at) {
        *slot = entry;
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn every_order_of_few_and_any_of_many_is_sorted() {
        for len in 0..200_u32 {
            for seed in 1..12_u32 {
                // Keys that repeat, in an order without one.
                let keys: Vec<u32> = (0..len).map(|at| at.wrapping_mul(seed * 7919) % 97).collect();
                let key = |index: u32| keys[usize::try_from(index).unwrap()];
                let mut indices: Vec<u32> = (0..len).collect();
                sort(&mut indices, |a, b| (key(a), a) < (key(b), b));
                let mut expected: Vec<u32> = (0..len).collect();
                expected.sort_by_key(|&index| key(index));
                assert_eq!(indices, expected);
            }
        }
    }

    #[test]
    fn a_comparison_that_contradicts_itself_does_no_harm() {
        let mut indices: Vec<u32> = (0..100).collect();
        sort(&mut indices, |_, _| true);
        indices.sort_unstable();
        assert!(indices.iter().copied().eq(0..100));
    }
}
