//! Places to enter the rows of long functions, in memory that the caller gives.

use crate::{
    error::TableOffset,
    format::fde::Fde,
    read::{source::Checkpoint, table::Table},
};

/// A function of fewer rows has no checkpoints.
pub(crate) const LONG: u32 = 96;
/// The rows between two checkpoints.
pub(crate) const EVERY: u32 = 32;

/// Places to enter the rows of long functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoints<'i> {
    /// The indices of the functions, which ascend.
    functions: &'i [u32],
    /// The number of the first point of each.
    first: &'i [u32],
    /// Where the row of a point is, in bytes from the function's first. The first is
    /// the 32nd row of the first function, and so on.
    at: &'i [u32],
    /// Where that row begins to hold, in bytes from the function's start.
    start: &'i [u32],
}

/// How many of the words are which part of [`Checkpoints`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointShape {
    /// For how many functions there is room.
    long: usize,
    functions: usize,
    used: usize,
}

impl<'i> Checkpoints<'i> {
    pub(crate) const NONE: Self = Self { functions: &[], first: &[], at: &[], start: &[] };

    /// Those that were laid out in `memory`.
    pub(crate) fn with(memory: &'i [u32], shape: CheckpointShape) -> Self {
        let CheckpointShape { long, functions, used } = shape;
        let (indices, memory) = memory.split_at_checked(long).unwrap_or_default();
        let (first, memory) = memory.split_at_checked(long).unwrap_or_default();
        let (at, start) = memory.split_at_checked(memory.len() / 2).unwrap_or_default();
        Self {
            functions: indices.get(..functions).unwrap_or_default(),
            first: first.get(..functions).unwrap_or_default(),
            at: at.get(..used).unwrap_or_default(),
            start: start.get(..used).unwrap_or_default(),
        }
    }

    /// Lays out as many as fit in `memory`.
    pub(crate) fn fill(table: &Table<'_>, memory: &mut [u32]) -> CheckpointShape {
        let long = table.fdes().flatten().filter(|fde| fde.num_fres >= LONG).count();
        // A function without a point is of no use.
        let long = long.min(memory.len() / 4);
        let (indices, memory) = memory.split_at_mut_checked(long).unwrap_or_default();
        let (first, memory) = memory.split_at_mut_checked(long).unwrap_or_default();
        let (at, start) = memory.split_at_mut_checked(memory.len() / 2).unwrap_or_default();
        let mut functions = 0_usize;
        let mut used = 0_usize;
        for fde in table.fdes().flatten().filter(|fde| fde.num_fres >= LONG) {
            let (Some(index), Some(first)) = (indices.get_mut(functions), first.get_mut(functions))
            else {
                break;
            };
            let (Some(at), Some(start)) = (at.get_mut(used..), start.get_mut(used..)) else {
                break;
            };
            if at.is_empty() {
                break;
            }
            (*index, *first) = (fde.index, u32::try_from(used).unwrap_or(u32::MAX));
            functions = functions.saturating_add(1);
            used = used.saturating_add(mark(table, &fde, at, start));
        }
        CheckpointShape { long, functions, used }
    }

    /// How many functions and points there are, each of which takes two words.
    #[cfg(test)]
    pub(crate) const fn pairs(&self) -> usize {
        self.functions.len().saturating_add(self.at.len())
    }

    /// The last point at or before `target` of the function at `index`, which
    /// has `num_fres` rows.
    #[inline]
    pub(crate) fn find(&self, index: u32, num_fres: u32, target: u32) -> Option<Checkpoint> {
        if num_fres < LONG { None } else { self.find_in_long(index, target) }
    }

    #[inline(never)]
    fn find_in_long(&self, index: u32, target: u32) -> Option<Checkpoint> {
        let function = self.functions.binary_search(&index).ok()?;
        let first = usize::try_from(*self.first.get(function)?).ok()?;
        let end = self.first.get(function.checked_add(1)?);
        let end = end.map_or(Some(self.start.len()), |&end| usize::try_from(end).ok())?;
        let passed = self.start.get(first..end)?.partition_point(|&start| start <= target);
        let last = first.checked_add(passed.checked_sub(1)?)?;
        let (&at, &start) = (self.at.get(last)?, self.start.get(last)?);
        let passed = u32::try_from(passed).ok()?.checked_mul(EVERY)?;
        Some(Checkpoint { passed, at, start })
    }
}

/// Writes the points of one function, up to a bad row, and returns how many.
fn mark(table: &Table<'_>, fde: &Fde, at: &mut [u32], start: &mut [u32]) -> usize {
    let Ok(rows) = table.fres(fde) else { return 0 };
    let mut first = None;
    let mut count = 0;
    let mut points = at.iter_mut().zip(start);
    for (number, fre) in (0_u32..).zip(rows.map_while(Result::ok)) {
        let TableOffset(first) = *first.get_or_insert(fre.at);
        if number == 0 || number % EVERY != 0 {
            continue;
        }
        let Ok(from_first) = u32::try_from(fre.at.0.wrapping_sub(first)) else { break };
        let Some((at, start)) = points.next() else { break };
        (*at, *start) = (from_first, fre.start);
        count = number / EVERY;
    }
    usize::try_from(count).unwrap_or(usize::MAX)
}
