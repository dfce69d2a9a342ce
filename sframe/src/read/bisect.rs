//! Bisections among functions that ascend.

use crate::format::flags::Flags;
use crate::format::header::Header;

/// Chooses without a branch: half of all guesses would be wrong.
#[cfg(not(before_rust_1_88))]
#[expect(clippy::incompatible_msrv, reason = "left out for older compilers, see build.rs")]
#[inline(always)]
fn choose(condition: bool, yes: usize, no: usize) -> usize {
    core::hint::select_unpredictable(condition, yes, no)
}

/// The same for a compiler that cannot be told so.
#[cfg(before_rust_1_88)]
#[inline(always)]
fn choose(condition: bool, yes: usize, no: usize) -> usize {
    if condition { yes } else { no }
}

/// Functions that ascend by start: of those at other positions, the ones before
/// start at or below any pc that is looked for here, the ones after above it.
///
/// A position is the index of a function in a sorted table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ascending {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Ascending {
    /// All functions, of a table that says that they ascend.
    #[inline]
    pub(crate) const fn all(header: &Header) -> Self {
        Self { first: 0, count: header.num_fdes }
    }

    /// The same if it says so.
    #[inline]
    pub(crate) const fn all_if_sorted(header: &Header) -> Option<Self> {
        if header.flags.contains(Flags::SORTED) { Some(Self::all(header)) } else { None }
    }

    /// The position of the last function that starts at or before a pc, or of
    /// the first one. `is_reached` says whether the function at a position
    /// starts there.
    pub(crate) fn last<E>(
        self,
        mut is_reached: impl FnMut(u32) -> Result<bool, E>,
    ) -> Result<u32, E> {
        let mut last = self.first;
        for step in Steps::new(self.count) {
            let Some(next) = last.checked_add(step) else { continue };
            if next.wrapping_sub(self.first) < self.count && is_reached(next)? {
                last = next;
            }
        }
        Ok(last)
    }

    /// The same among functions in memory, by the same [`Steps`]. Positions are multiples of
    /// `unit`, by which an array is easily indexed; none after the last one is reached.
    #[inline(always)]
    pub(crate) fn last_at_hand(
        self,
        unit: usize,
        mut is_reached: impl FnMut(usize) -> bool,
    ) -> usize {
        let mut last = scaled(self.first, unit);
        let mut probe = |step: usize| {
            let next = last.wrapping_add(step);
            last = choose(is_reached(next), next, last);
        };
        let Steps { mut probes, mut count, .. } = Steps::new(self.count);
        if count <= Steps::FEW {
            // The highest power of two of which there are more.
            let Some(log) = probes.checked_sub(1) else { return last };
            let mut step = unit.wrapping_shl(log);
            probe(scaled(count, unit).wrapping_sub(step));
            loop {
                step >>= 1;
                if step < unit {
                    return last;
                }
                probe(step);
            }
        }
        while probes & 3 != 0 {
            let half = count >> 1;
            probe(scaled(half, unit));
            count = count.wrapping_sub(half);
            probes = probes.wrapping_sub(1);
        }
        // The loop itself costs a third of a probe.
        while probes != 0 {
            count = sixteenth(count);
            let step = scaled(count, unit);
            probe(step.wrapping_mul(8));
            probe(step.wrapping_mul(4));
            probe(step.wrapping_mul(2));
            probe(step);
            probes = probes.wrapping_sub(4);
        }
        last
    }
}

/// How far a bisection looks ahead from the function that it has reached, in
/// functions: by halves of what is left, then, where four more probes and a
/// multiple of four are left, by 8, 4, 2 and 1 sixteenths of it.
///
/// Not by powers of two: the entries of a large table that are so far apart
/// share one place of a CPU's cache, and lookups take twice as long. Among few
/// functions these are the quickest: by as many as leave a power of two, then by those below.
#[derive(Clone, Copy, Debug)]
struct Steps {
    /// How many probes are left.
    probes: u32,
    /// Among this number of functions.
    count: u32,
    step: u32,
    are_few: bool,
}

impl Steps {
    /// How many functions are few.
    const FEW: u32 = 64;

    /// As many as can tell `count` functions apart.
    #[inline(always)]
    fn new(count: u32) -> Self {
        let log = count.wrapping_sub(1).checked_ilog2().filter(|_| count != 0);
        let probes = log.map_or(0, |log| log.wrapping_add(1));
        Self { probes, count, step: 0, are_few: count <= Self::FEW }
    }
}

impl Iterator for Steps {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let probes = self.probes;
        self.probes = probes.checked_sub(1)?;
        if self.are_few {
            let power = 1_u32.wrapping_shl(self.probes);
            self.step = match self.count {
                0 => power,
                count => count.wrapping_sub(power),
            };
            self.count = 0;
        } else if self.step > self.count {
            self.step >>= 1;
        } else if probes & 3 == 0 {
            self.count = sixteenth(self.count);
            self.step = self.count.wrapping_mul(8);
        } else {
            self.step = self.count >> 1;
            self.count = self.count.wrapping_sub(self.step);
        }
        Some(self.step)
    }
}

/// A sixteenth of `count`, which is not zero, rounded up.
#[inline(always)]
const fn sixteenth(count: u32) -> u32 {
    (count.wrapping_sub(1) >> 4).wrapping_add(1)
}

/// A position as an index. A table is shorter than `usize::MAX`, so that nothing
/// wraps.
#[inline(always)]
fn scaled(position: u32, unit: usize) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX).wrapping_mul(unit)
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::vec::Vec;
    use core::convert::Infallible;

    use super::*;

    /// What is found, and by which probes, where `reached` functions start at or
    /// before the pc.
    fn last(among: Ascending, reached: u32) -> (u32, Vec<u32>) {
        let mut probes = Vec::new();
        let found = among.last(|position| {
            probes.push(position);
            Ok::<_, Infallible>(position < reached)
        });
        (found.unwrap(), probes)
    }

    #[test]
    fn all_searches_find_the_last_function_that_is_reached_or_the_first() {
        for count in (1..300).chain([4095, 4096, 4097, 65_537]) {
            let among = Ascending { first: 7, count };
            let end = 7 + count;
            for reached in (0..end + 2).step_by(1 + usize::try_from(count).unwrap() / 90) {
                let expected = reached.min(end).saturating_sub(1).max(7);
                let (found, probes) = last(among, reached.min(end));
                assert_eq!(found, expected, "{reached} of {count}");
                assert!(probes.len() <= usize::try_from(count.ilog2()).unwrap() + 1);
                for unit in [1, 2, 5] {
                    let is_reached =
                        |at: usize| at < usize::try_from(reached.min(end)).unwrap() * unit;
                    let at = usize::try_from(expected).unwrap() * unit;
                    assert_eq!(among.last_at_hand(unit, is_reached), at);
                }
            }
        }
    }

    #[test]
    fn the_search_at_hand_asks_for_what_the_other_one_does() {
        // In a table that is not in order it then finds the same, too.
        for count in 1..2000 {
            let among = Ascending { first: 0, count };
            let is_reached = |position: u32| position.wrapping_mul(0x9e37_79b9) % 5 < 3;
            let mut probes = Vec::new();
            let found = among.last(|position| {
                probes.push(position);
                Ok::<_, Infallible>(is_reached(position))
            });
            let mut same = Vec::new();
            let found_same = among.last_at_hand(1, |position| {
                let position = u32::try_from(position).unwrap();
                same.extend((position < count).then_some(position));
                position < count && is_reached(position)
            });
            assert_eq!(found.unwrap(), u32::try_from(found_same).unwrap());
            assert_eq!(probes, same, "{count}");
        }
    }

    #[test]
    fn any_number_of_functions_is_searched_by_as_many_probes_as_it_has_bits() {
        for count in [0, 1, 2, 3, 1 << 31, u32::MAX - 1, u32::MAX] {
            let among = Ascending { first: 0, count };
            for reached in [0, 1, count / 2, count.saturating_sub(1), count] {
                let (found, probes) = last(among, reached);
                assert_eq!(found, reached.saturating_sub(1), "{reached} of {count}");
                assert!(probes.len() <= 32 && probes.iter().all(|&probe| probe < count));
            }
        }
    }
}
