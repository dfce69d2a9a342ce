//! The functions at a few addresses, by a look at each symbol: nothing is sorted or kept.

use std::cell::Cell;
use std::sync::Arc;

use object::elf;

use crate::elf::ElfFile;
use crate::elf::error::ElfError;
use crate::symbols::{Function, NAME_LIMIT, Rank, Symbol, Symbols, for_each_of_kind, function_of};

/// For how many addresses the symbols are not sorted. Each may be in as many functions as
/// there are symbols.
const MOST: usize = 256;

/// The functions that hold these link-time addresses, which ascend: as [`Symbols::find`]
/// would say of each. `debug_file` finds the file with what was stripped off this one.
///
/// # Errors
///
/// As [`Symbols::read`].
pub(crate) fn functions_at(
    file: &ElfFile,
    addrs: &[u64],
    debug_file: impl FnOnce() -> Option<Arc<ElfFile>>,
) -> Result<Vec<Option<Function>>, ElfError> {
    if addrs.len() > MOST {
        let symbols = Symbols::read_with(file, debug_file)?;
        return Ok(addrs.iter().map(|&addr| symbols.find(file, addr)).collect());
    }
    let search = |file: &ElfFile, kind| {
        let sections = file.sections()?;
        Search::of(addrs, |wanted, search| {
            let is_wanted = |start, size| wanted.is(start, size);
            for_each_of_kind(file, sections, kind, is_wanted, |symbol| {
                wanted.none_yet.set(false);
                search.add(&symbol);
            })
        })
    };
    let name = |file: &ElfFile, search: Search<'_>| {
        let mut last: Option<(Symbol, Option<Function>)> = None;
        let found = search.finish().into_iter();
        let name = |symbol: Option<Symbol>| {
            let symbol = symbol?;
            // Addresses next to each other are often of one function.
            let same = last.take().filter(|(known, _)| *known == symbol);
            let (_, function) = last
                .insert(same.unwrap_or_else(|| (symbol, function_of(file, &symbol, NAME_LIMIT))));
            function.clone()
        };
        found.map(name).collect()
    };
    let all = search(file, elf::SHT_SYMTAB)?;
    if !all.is_empty {
        return Ok(name(file, all));
    }
    if let Some(debug_file) = debug_file() {
        let all = search(&debug_file, elf::SHT_SYMTAB)?;
        if !all.is_empty {
            return Ok(name(&debug_file, all));
        }
    }
    Ok(name(file, search(file, elf::SHT_DYNSYM)?))
}

/// Which symbols are looked at. Nearly all are far from the few addresses.
struct Wanted {
    /// All of them, since an address is in none that is near.
    all: bool,
    /// Any, as long as it is not known whether the table has one.
    none_yet: Cell<bool>,
    /// A bit for each page with an address, by the page's number modulo their count.
    pages: [u64; 64],
}

impl Wanted {
    const PAGE: u64 = 4096;

    fn near(addrs: &[u64]) -> Self {
        let mut pages = [0; 64];
        for addr in addrs {
            let (word, bit) = Self::place(*addr);
            if let Some(word) = pages.get_mut(word) {
                *word |= bit;
            }
        }
        Self { all: false, none_yet: Cell::new(true), pages }
    }

    /// The word and the bit of an address.
    fn place(addr: u64) -> (usize, u64) {
        let page = addr / Self::PAGE;
        let word = usize::try_from(page / 64 % 64).unwrap_or(0);
        (word, 1_u64.wrapping_shl(u32::try_from(page % 64).unwrap_or(0)))
    }

    fn is_near(&self, addr: u64) -> bool {
        let (word, bit) = Self::place(addr);
        self.pages.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Whether a symbol of this start and size is looked at: one that may hold an address is.
    fn is(&self, start: u64, size: u64) -> bool {
        if self.all || self.none_yet.get() {
            return true;
        }
        let Some(to_last) = size.checked_sub(1) else { return false };
        // A longer one has pages in between.
        to_last >= Self::PAGE || self.is_near(start) || self.is_near(start.saturating_add(to_last))
    }
}

/// What was found so far for each address.
struct Search<'a> {
    /// Ascending.
    addrs: &'a [u64],
    found: Vec<Found>,
    /// Where the last symbol starts: those of one file of source are near each other.
    gap: Gap,
    /// There was no symbol yet.
    is_empty: bool,
}

/// The starts between two addresses next to each other.
#[derive(Clone, Copy)]
struct Gap {
    /// After the address before.
    first: u64,
    /// The address, or the highest one of all.
    last: u64,
    /// The index of the address, or their count.
    at: usize,
}

impl Gap {
    /// The one that a start is in.
    fn of(addrs: &[u64], start: u64) -> Self {
        let at = addrs.partition_point(|&addr| addr < start);
        let before = at.checked_sub(1).and_then(|before| addrs.get(before));
        let first = before.map_or(0, |before| before.saturating_add(1));
        Self { first, last: addrs.get(at).copied().unwrap_or(u64::MAX), at }
    }
}

/// What was found for one address.
#[derive(Clone, Copy, Default)]
struct Found {
    /// The best symbol with a size that holds the address.
    sized: Option<Symbol>,
    /// The last start of any symbol after the address before and up to this one.
    start: Option<u64>,
    /// The best symbol without a size that starts there.
    label: Option<Symbol>,
}

impl<'a> Search<'a> {
    /// For these addresses, by one or two looks at each symbol: `for_each` shows those that are
    /// wanted.
    fn of<E>(
        addrs: &'a [u64],
        mut for_each: impl FnMut(&Wanted, &mut Self) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (mut wanted, mut near) = (Wanted::near(addrs), Self::new(addrs));
        for_each(&wanted, &mut near)?;
        if near.is_empty || near.found.iter().all(|found| found.sized.is_some()) {
            return Ok(near);
        }
        // How far a label reaches is known by all starts.
        let mut search = Self::new(addrs);
        wanted.all = true;
        for_each(&wanted, &mut search)?;
        Ok(search)
    }

    fn new(addrs: &'a [u64]) -> Self {
        let found = vec![Found::default(); addrs.len()];
        Self { addrs, found, gap: Gap::of(addrs, 0), is_empty: true }
    }

    fn add(&mut self, symbol: &Symbol) {
        self.is_empty = false;
        if symbol.start < self.gap.first || self.gap.last < symbol.start {
            self.gap = Gap::of(self.addrs, symbol.start);
        }
        let Gap { last: addr, at: first, .. } = self.gap;
        let after = self.found.get_mut(first..).unwrap_or_default();
        let Some(found) = after.first_mut() else { return };
        if found.start < Some(symbol.start) {
            found.start = Some(symbol.start);
            found.label = None;
        }
        if symbol.rank == Rank::Label {
            if found.start == Some(symbol.start) {
                found.label = better(found.label, symbol);
            }
            return;
        }
        // Nearly all end before the address.
        if symbol.end <= addr {
            return;
        }
        let inside = self.addrs.iter().skip(first).take_while(|&&addr| addr < symbol.end);
        for (found, _) in after.iter_mut().zip(inside) {
            found.sized = better(found.sized, symbol);
        }
    }

    /// The symbol for each address.
    fn finish(self) -> Vec<Option<Symbol>> {
        // The last start up to an address may be before others, too.
        let mut label = None;
        let symbol = |(found, &addr): (Found, &u64)| {
            if found.start.is_some() {
                label = found.label;
            }
            // It reaches to the next start, which is none up to here, or to the code's end.
            let label = label.filter(|label: &Symbol| addr < label.end);
            found.sized.or(label)
        };
        self.found.into_iter().zip(self.addrs).map(symbol).collect()
    }
}

/// The one of two that is shown.
fn better(one: Option<Symbol>, other: &Symbol) -> Option<Symbol> {
    let order = |symbol: &Symbol| (symbol.start, symbol.rank, symbol.end, symbol.name);
    Some(match one {
        Some(one) if order(&one) >= order(other) => one,
        _ => *other,
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::symbols::sorted;

    #[test]
    fn a_look_at_the_symbols_finds_what_a_search_among_the_sorted_ones_does() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2_000 {
            // On one page, and on many.
            let scale = [1, 1024][usize::try_from(random(2)).unwrap()];
            let code_end = 60 * scale;
            let symbols: Vec<_> = (1..=1 + random(12))
                .map(|name| {
                    let start = random(50) * scale;
                    let end = start + (1 + random(20)) * scale;
                    let (rank, end) = match random(4) {
                        0 => (Rank::Label, code_end),
                        1 => (Rank::Local, end),
                        2 => (Rank::Weak, end),
                        _ => (Rank::Global, end),
                    };
                    Symbol { start, end, furthest_end: 0, name, rank }
                })
                .collect();
            let chosen = 2 + random(8);
            let addrs = (0..70).filter(|_| random(chosen) == 0);
            let addrs: Vec<u64> = addrs.map(|addr| addr * scale).collect();
            let Ok(search) = Search::of(&addrs, |wanted, search| {
                for symbol in &symbols {
                    let size = match symbol.rank {
                        Rank::Label => 0,
                        _ => symbol.end - symbol.start,
                    };
                    if wanted.is(symbol.start, size) {
                        wanted.none_yet.set(false);
                        search.add(symbol);
                    }
                }
                Ok::<(), Infallible>(())
            });
            let few = search.finish().into_iter().map(|symbol| Some(symbol?.name));
            let all = Symbols { symbols: sorted(symbols), debug_file: None };
            let all = addrs.iter().map(|&addr| Some(all.find_symbol(addr)?.name));
            assert_eq!(few.collect::<Vec<_>>(), all.collect::<Vec<_>>());
        }
    }
}
