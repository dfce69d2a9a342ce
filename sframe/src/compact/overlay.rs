//! Ranges that may overlap become ranges that do not.

use alloc::{collections::BinaryHeap, vec::Vec};
use core::{cmp::Reverse, ops::Range};

use crate::write::lost::WriteError;

/// A range of addresses, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Layer<T> {
    /// Of those that overlap, the one with the lowest order is seen.
    pub(super) order: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) value: T,
}

/// Hands what is seen of the layers to `each`, ascending. Sorts them.
pub(super) fn overlay<T: Copy + Ord>(
    layers: &mut [Layer<T>],
    mut each: impl FnMut(Range<u64>, T) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    layers.sort_unstable_by_key(|layer| (layer.start, layer.order));
    // Those that have started, the one that is seen first.
    let mut open: BinaryHeap<Reverse<Layer<T>>> = BinaryHeap::new();
    let mut at = 0;
    let next_start = |rest: &[Layer<T>]| rest.first().map_or(u64::MAX, |layer| layer.start);
    let mut rest = &*layers;
    loop {
        let next = next_start(rest);
        while let Some(Reverse(top)) = open.peek().copied() {
            let end = top.end.min(next);
            if at < end {
                each(at..end, top.value)?;
                at = end;
            }
            if top.end > next {
                break;
            }
            open.pop();
        }
        let Some((layer, after)) = rest.split_first() else { return Ok(()) };
        (rest, at) = (after, layer.start);
        // Most overlap no other.
        if open.is_empty() && layer.end <= next_start(rest) {
            each(layer.start..layer.end, layer.value)?;
            continue;
        }
        open.try_reserve(1)?;
        open.push(Reverse(*layer));
    }
}

/// Layers in the order in which they are added: the first one is seen.
#[derive(Debug)]
pub(super) struct Layers<T> {
    layers: Vec<Layer<T>>,
}

impl<T: Copy + Ord> Layers<T> {
    pub(super) const fn new() -> Self {
        Self { layers: Vec::new() }
    }

    /// Adds one below all others.
    pub(super) fn push(&mut self, range: Range<u64>, value: T) -> Result<(), WriteError> {
        let Range { start, end } = range;
        if start >= end {
            return Ok(());
        }
        if let Some(last) = self.layers.last_mut() {
            if last.end == start && last.value == value {
                last.end = end;
                return Ok(());
            }
        }
        let order = u32::try_from(self.layers.len()).map_err(|_| WriteError::TooLarge)?;
        if self.layers.len() == self.layers.capacity() {
            self.layers.try_reserve(1)?;
        }
        self.layers.push(Layer { order, start, end, value });
        Ok(())
    }

    /// From the first address to the last.
    pub(super) fn span(&self) -> Option<Range<u64>> {
        let start = self.layers.iter().map(|layer| layer.start).min()?;
        let end = self.layers.iter().map(|layer| layer.end).max()?;
        Some(start..end)
    }

    /// See [`overlay`].
    pub(super) fn overlay(
        &mut self,
        each: impl FnMut(Range<u64>, T) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        overlay(&mut self.layers, each)
    }
}
