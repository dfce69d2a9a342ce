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
    /// By ascending index: a function, and the number of its first point.
    pub(crate) long: &'i [[u32; 2]],
    /// Where a row is, in bytes from the function's first, and where it begins
    /// to hold. The first is the 32nd row of the first function, and so on.
    pub(crate) points: &'i [[u32; 2]],
}

impl<'i> Checkpoints<'i> {
    pub(crate) const NONE: Self = Self { long: &[], points: &[] };

    /// Lays out as many as fit in `memory`.
    pub(crate) fn build(table: &Table<'_>, memory: &'i mut [u32]) -> Self {
        let (words, _) = memory.as_chunks_mut();
        let long = table.fdes().flatten().filter(|fde| fde.num_fres >= LONG).count();
        // A function without a point is of no use.
        let long = long.min(words.len() / 2);
        let (long, points) = words.split_at_mut_checked(long).unwrap_or_default();
        let mut functions = 0_usize;
        let mut used = 0_usize;
        for fde in table.fdes().flatten().filter(|fde| fde.num_fres >= LONG) {
            let Some(slot) = long.get_mut(functions) else { break };
            let Some(room) = points.get_mut(used..).filter(|room| !room.is_empty()) else { break };
            *slot = [fde.index, u32::try_from(used).unwrap_or(u32::MAX)];
            functions = functions.saturating_add(1);
            used = used.saturating_add(mark(table, &fde, room));
        }
        Self {
            long: long.get(..functions).unwrap_or_default(),
            points: points.get(..used).unwrap_or_default(),
        }
    }

    /// The last point at or before `target` of the function at `index`, which
    /// has so many rows.
    #[inline]
    pub(crate) fn find(&self, index: u32, num_fres: u32, target: u32) -> Option<Checkpoint> {
        if num_fres < LONG { None } else { self.find_in_long(index, target) }
    }

    #[inline(never)]
    fn find_in_long(&self, index: u32, target: u32) -> Option<Checkpoint> {
        let at = self.long.binary_search_by_key(&index, |&[function, _]| function).ok()?;
        let &[_, first] = self.long.get(at)?;
        let end = self.long.get(at.checked_add(1)?).map(|&[_, first]| first);
        let points = self.points.get(usize::try_from(first).ok()?..)?;
        let count = end.and_then(|end| usize::try_from(end.checked_sub(first)?).ok());
        let points = points.get(..count.unwrap_or(points.len()))?;
        let passed = points.partition_point(|&[_, start]| start <= target);
        let &[at, start] = points.get(passed.checked_sub(1)?)?;
        let passed = u32::try_from(passed).ok()?.checked_mul(EVERY)?;
        Some(Checkpoint { passed, at, start })
    }
}

/// Writes the points of one function, up to a bad row, and returns how many.
fn mark(table: &Table<'_>, fde: &Fde, points: &mut [[u32; 2]]) -> usize {
    let Ok(rows) = table.fres(fde) else { return 0 };
    let mut first = None;
    let mut count = 0;
    let mut points = points.iter_mut();
    for (number, fre) in (0_u32..).zip(rows.map_while(Result::ok)) {
        let TableOffset(first) = *first.get_or_insert(fre.at);
        if number == 0 || number % EVERY != 0 {
            continue;
        }
        let (Some(point), Ok(at)) = (points.next(), u32::try_from(fre.at.0.wrapping_sub(first)))
        else {
            break;
        };
        *point = [at, fre.start];
        count = number / EVERY;
    }
    usize::try_from(count).unwrap_or(usize::MAX)
}
