//! Where the tables of a kernel's symbols are, by their shape.

use core::ops::Range;

use unwind_core::Memory;

use crate::linux::error::LinuxError;
use crate::linux::window::{Window, align};

/// The most symbols of a kernel; those of distributions have 200,000.
pub const SYMBOLS_LIMIT: u32 = 1 << 20;

/// How many symbols have a marker in common.
pub(crate) const GROUP: u32 = 256;

/// How many bytes the tokens may have together; those of kernels have 1,000.
pub(crate) const TOKENS_LEN: usize = 4096;

/// The token `0`, by which the table is found.
const ZERO: usize = 0x30;

/// The fewest groups of a kernel's symbols; the least of them has twice as many.
const FEWEST_GROUPS: u32 = 16;

/// Words that may follow the markers: for each symbol three bytes of its number in the order of names (since
/// Linux 6.2, until its tables were put in another order).
const WORDS_AFTER_MARKERS: u64 = 3 << 18;

/// How many words are looked at for markers, how many chains of words may turn out to be none, and how many numbers before
/// names to be none of symbols.
const STEPS: u32 = 1 << 22;
const TRIES: u32 = 16;

/// The most bytes that the names of a group have.
const GROUP_BYTES: u64 = 256 * 256;

/// The most bytes of a name: each stands for one of its letters, or its kind, at least, and Linux has no longer names.
const NAME_BYTES: u16 = 512;

/// How an address is made of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Above a base.
    Base(u64),
    /// Above a base if it is negative, as a distance; otherwise the value itself, of variables that each CPU has.
    BaseOrValue(u64),
    /// Above its own place.
    Place,
}

/// Where the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) count: u32,
    pub(crate) names: u64,
    pub(crate) markers: u64,
    pub(crate) offsets: u64,
    pub(crate) encoding: Encoding,
}

/// The tokens, which names are made of.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    bytes: [u8; TOKENS_LEN],
    /// And where the one after the last would begin.
    starts: [u16; 257],
}

impl Tokens {
    /// The first bytes of the table, as far as a few.
    pub(crate) fn start(&self) -> &[u8; 64] {
        self.bytes.first_chunk().unwrap_or(&[0; 64])
    }

    /// Reads the tokens of the table of which `0` is at `zero`: gives them with the addresses where their table begins
    /// and where the index after it ends. `None` if it is no such table.
    pub(crate) fn find<M: Memory>(
        zero: u64,
        window: &mut Window<'_, M>,
    ) -> Option<(Self, Range<u64>)> {
        let mut end = zero;
        let mut left = 256 - ZERO;
        while left > 0 {
            if window.u8(end).ok()? == 0 {
                left = left.saturating_sub(1);
            }
            end = end.wrapping_add(1);
            if end.wrapping_sub(zero) > 4096 {
                return None;
            }
        }
        let mut places = [align(end, 4), align(end, 8)].into_iter();
        places.find_map(|index| Self::with_index(zero, end, index, window))
    }

    fn with_index<M: Memory>(
        zero: u64,
        end: u64,
        index: u64,
        window: &mut Window<'_, M>,
    ) -> Option<(Self, Range<u64>)> {
        let mut starts = [0; 257];
        let mut at = index;
        for start in starts.iter_mut().take(256) {
            *start = window.u16(at).ok()?;
            at = at.wrapping_add(2);
        }
        let table = zero.wrapping_sub(starts.get(ZERO).copied()?.into());
        let len = usize::try_from(end.wrapping_sub(table)).ok()?;
        let mut bytes = [0; TOKENS_LEN];
        let mut place = table;
        for byte in bytes.get_mut(..len)? {
            *byte = window.u8(place).ok()?;
            place = place.wrapping_add(1);
        }
        // Each begins where the one before has ended.
        let mut expected = 0;
        let (tokens, end) = starts.split_at_mut(256);
        for start in tokens {
            if usize::from(*start) != expected {
                return None;
            }
            let token = bytes.get(expected..)?;
            let len = token.iter().position(|byte| *byte == 0)?;
            expected = expected.checked_add(len)?.checked_add(1)?;
        }
        *end.first_mut()? = u16::try_from(expected).ok()?;
        Some((Self { bytes, starts }, table..at))
    }

    /// A token; empty if there is none.
    pub(crate) fn get(&self, number: u8) -> &[u8] {
        let place = |number: usize| self.starts.get(number).copied().map_or(0, usize::from);
        let (start, next) = (place(number.into()), place(usize::from(number).saturating_add(1)));
        // A zero ends each.
        self.bytes.get(start..next.saturating_sub(1)).unwrap_or_default()
    }
}

impl Tables {
    /// Finds the tables around that of the tokens, which begins and whose index ends there.
    pub(crate) fn find<M: Memory>(
        tokens: &Range<u64>,
        image: &Range<u64>,
        window: &mut Window<'_, M>,
    ) -> Option<Self> {
        let aligned = tokens.start & !3;
        let (mut steps, mut tries) = (STEPS, TRIES);
        for words in 0..WORDS_AFTER_MARKERS {
            let end = aligned.wrapping_sub(words.wrapping_mul(4));
            if end < image.start || steps == 0 {
                break;
            }
            let Some((markers, groups)) = chain_before(end, &mut steps, window) else { continue };
            if let Some(found) = Self::with_markers(markers..end, groups, tokens, image, window) {
                return Some(found);
            }
            tries = tries.checked_sub(1)?;
        }
        None
    }

    fn with_markers<M: Memory>(
        markers: Range<u64>,
        groups: u32,
        tokens: &Range<u64>,
        image: &Range<u64>,
        window: &mut Window<'_, M>,
    ) -> Option<Self> {
        let last = u64::from(window.u32(markers.end.wrapping_sub(4)).ok()?);
        let second = u64::from(window.u32(markers.start.wrapping_add(4)).ok()?);
        let highest = markers.start.wrapping_sub(last);
        let mut tries = TRIES;
        for step in 0..GROUP_BYTES / 4 {
            let names = (highest & !3).wrapping_sub(step.wrapping_mul(4));
            if !image.contains(&names) {
                return None;
            }
            let near = window.u32(names.wrapping_sub(4)).ok()?;
            // Zero is what fills up to a multiple of eight.
            let (count, count_at) = match near {
                0 => (window.u32(names.wrapping_sub(8)).ok()?, names.wrapping_sub(8)),
                count => (count, names.wrapping_sub(4)),
            };
            if count.div_ceil(GROUP) != groups || count > SYMBOLS_LIMIT {
                continue;
            }
            tries = tries.checked_sub(1)?;
            let first_end = skip(names, GROUP, window);
            let in_last = count.wrapping_sub(groups.saturating_sub(1).wrapping_mul(GROUP));
            let last_end = skip(names.wrapping_add(last), in_last, window);
            if first_end != Some(names.wrapping_add(second))
                || last_end.is_none_or(|end| markers.start.wrapping_sub(end) > 7)
            {
                continue;
            }
            let markers = markers.start;
            let found = Self { count, names, markers, offsets: 0, encoding: Encoding::Place };
            return found.with_offsets(count_at, tokens.end, image, window);
        }
        None
    }

    /// Finds the addresses: before the names with the base after them, as it was up to Linux 6.4, or after the tokens,
    /// with the base after them, or without one.
    fn with_offsets<M: Memory>(
        self,
        count_at: u64,
        tokens_end: u64,
        image: &Range<u64>,
        window: &mut Window<'_, M>,
    ) -> Option<Self> {
        let bytes = u64::from(self.count).wrapping_mul(4);
        let base_before = count_at.wrapping_sub(8);
        let before = (base_before.wrapping_sub(bytes) & !7, Some(base_before));
        let after = [4, 8].into_iter().flat_map(|alignment| {
            let offsets = align(tokens_end, alignment);
            let base = align(offsets.wrapping_add(bytes), 8);
            [(offsets, Some(base)), (offsets, None)]
        });
        [before].into_iter().chain(after).find_map(|(offsets, base_at)| {
            let last = u64::from(self.count.saturating_sub(1)).wrapping_mul(4);
            let encoding = match base_at {
                None => Encoding::Place,
                Some(at) => {
                    let base = window.u64(at).ok()?;
                    if !image.contains(&base) {
                        return None;
                    }
                    let last = window.u32(offsets.wrapping_add(last)).ok()?;
                    match last >> 31 {
                        0 => Encoding::Base(base),
                        _ => Encoding::BaseOrValue(base),
                    }
                }
            };
            let found = Self { offsets, encoding, ..self };
            found.is_plausible(image, window).then_some(found)
        })
    }

    /// Whether addresses ascend to one in the image.
    fn is_plausible<M: Memory>(&self, image: &Range<u64>, window: &mut Window<'_, M>) -> bool {
        const SAMPLES: u32 = 64;
        let step = (self.count / SAMPLES).max(1);
        let mut before = 0;
        for index in (0..SAMPLES).map(|sample| sample.wrapping_mul(step)) {
            match self.address(index, window) {
                Ok(address) if address >= before => before = address,
                _ => return false,
            }
        }
        let last = self.address(self.count.saturating_sub(1), window);
        last.is_ok_and(|last| last >= before && image.contains(&last))
    }

    /// The address of a symbol.
    pub(crate) fn address<M: Memory>(
        &self,
        index: u32,
        window: &mut Window<'_, M>,
    ) -> Result<u64, LinuxError> {
        let place = self.offsets.wrapping_add(u64::from(index).wrapping_mul(4));
        let entry = window.u32(place)?;
        let signed = i64::from(i32::from_le_bytes(entry.to_le_bytes()));
        Ok(match self.encoding {
            Encoding::Base(base) => base.wrapping_add(entry.into()),
            Encoding::BaseOrValue(_) if signed >= 0 => entry.into(),
            Encoding::BaseOrValue(base) => {
                base.wrapping_sub(1).wrapping_add_signed(signed.wrapping_neg())
            }
            Encoding::Place => place.wrapping_add_signed(signed),
        })
    }
}

/// Goes back over words that descend to zero, of which the last ends there: where they begin, and how many there are.
fn chain_before<M: Memory>(
    end: u64,
    steps: &mut u32,
    window: &mut Window<'_, M>,
) -> Option<(u64, u32)> {
    let (mut at, mut above, mut count) = (end, u32::MAX, 0_u32);
    loop {
        *steps = steps.checked_sub(1)?;
        at = at.wrapping_sub(4);
        let word = window.u32(at).ok()?;
        if word >= above {
            return None;
        }
        count = count.saturating_add(1);
        if word == 0 {
            return (count >= FEWEST_GROUPS).then_some((at, count));
        }
        if count > SYMBOLS_LIMIT / GROUP {
            return None;
        }
        above = word;
    }
}

/// Where the name is that comes after this number of names.
pub(crate) fn skip<M: Memory>(
    mut names: u64,
    count: u32,
    window: &mut Window<'_, M>,
) -> Option<u64> {
    for _ in 0..count {
        let (start, len) = name_at(names, window).ok()?;
        names = start.wrapping_add(len.into());
    }
    Some(names)
}

/// Where the bytes of a name begin, and how many there are: a number of one byte, or two. It is an error if a name is
/// longer than any of Linux.
pub(crate) fn name_at<M: Memory>(
    at: u64,
    window: &mut Window<'_, M>,
) -> Result<(u64, u16), LinuxError> {
    let low = window.u8(at)?;
    let after = at.wrapping_add(1);
    if low & 0x80 == 0 {
        return Ok((after, low.into()));
    }
    let len = u16::from(low & 0x7f) | u16::from(window.u8(after)?) << 7;
    match len <= NAME_BYTES {
        true => Ok((after.wrapping_add(1), len)),
        false => Err(LinuxError::NoSymbols),
    }
}
