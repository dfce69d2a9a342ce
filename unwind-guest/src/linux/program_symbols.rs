//! What an object has for the dynamic linker.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;
use crate::linux::module::read_name;
use crate::linux::symbol::{Symbol, SymbolName};
use crate::linux::window::Window;

/// How many entries of the dynamic section, and how many symbols, are looked at.
const ENTRIES: u64 = 256;
const SYMBOLS: u64 = 1 << 18;

/// A page, of which symbols are passed over where it is not resident.
const PAGE: u64 = 4096;

/// Where the symbols are, how many, and their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dynamic {
    is_wide: bool,
    symbols: u64,
    count: u64,
    strings: u64,
    name: Option<u64>,
}

impl Dynamic {
    /// Reads the dynamic section of an object that begins at `start`.
    pub(crate) fn read<M: Memory>(
        range: Range<u64>,
        is_wide: bool,
        (start, bias): (u64, u64),
        window: &mut Window<'_, M>,
    ) -> Result<Option<Self>, LinuxError> {
        const STRINGS: u64 = 5;
        const SYMBOL_TABLE: u64 = 6;
        const NAME: u64 = 14;
        /// Tables that may follow the symbols: names, hashes, versions, relocations.
        const TABLES: [u64; 9] =
            [STRINGS, 4, 0x6fff_fef5, 0x6fff_fff0, 0x6fff_fffc, 0x6fff_fffe, 7, 17, 23];
        let word: u64 = if is_wide { 8 } else { 4 };
        let (mut symbols, mut strings, mut name) = (None, None, None);
        let mut tables = [0; TABLES.len()];
        let mut at = range.start;
        for _ in 0..ENTRIES {
            if at >= range.end {
                break;
            }
            let mut next = || {
                let value = match is_wide {
                    true => window.u64(at)?,
                    false => window.u32(at)?.into(),
                };
                at = at.wrapping_add(word);
                Ok(value)
            };
            let (tag, value) = (next()?, next()?);
            // Linkers of old leave addresses there, newer ones what they find.
            let addr = if value < start { value.wrapping_add(bias) } else { value };
            for (table, _) in tables.iter_mut().zip(TABLES).filter(|(_, kind)| *kind == tag) {
                *table = addr;
            }
            match tag {
                0 => break,
                STRINGS => strings = Some(addr),
                SYMBOL_TABLE => symbols = Some(addr),
                NAME => name = Some(value),
                _ => {}
            }
        }
        let (Some(symbols), Some(strings)) = (symbols, strings) else { return Ok(None) };
        // Their number is told only by what finds them by name; linkers put another table after them.
        let size: u64 = if is_wide { 24 } else { 16 };
        let end = tables.into_iter().filter(|table| *table > symbols).min().unwrap_or(symbols);
        let count = end.saturating_sub(symbols).checked_div(size).unwrap_or_default();
        let name = name.map(|offset| strings.wrapping_add(offset));
        Ok(Some(Self { is_wide, symbols, count: count.min(SYMBOLS), strings, name }))
    }

    pub(crate) fn name<M: Memory>(&self, mem: &mut M) -> Option<SymbolName> {
        let name = read_name(self.name?, mem);
        (!name.as_bytes().is_empty()).then_some(name)
    }

    pub(crate) fn find_at<M: Memory>(
        &self,
        addr: VirtAddr,
        bias: u64,
        mem: &mut M,
    ) -> Option<Symbol> {
        let linked = addr.get().wrapping_sub(bias);
        let size: u64 = if self.is_wide { 24 } else { 16 };
        let mut window = Window::new(mem);
        let mut best: Option<(Range<u64>, u32)> = None;
        let mut absent = None;
        for index in 0..self.count {
            let at = self.symbols.wrapping_add(index.wrapping_mul(size));
            if absent == Some(at / PAGE) {
                continue;
            }
            match self.function(at, &mut window) {
                Ok(Some((range, name))) if range.contains(&linked) => {
                    if best.as_ref().is_none_or(|(best, _)| range.start > best.start) {
                        best = Some((range, name));
                    }
                }
                Ok(_) => {}
                Err(_) => absent = Some(at / PAGE),
            }
        }
        let (Range { start, end }, name) = best?;
        let name = read_name(self.strings.wrapping_add(name.into()), window.memory());
        if name.as_bytes().is_empty() {
            return None;
        }
        let [start, end] = [start, end].map(|addr| VirtAddr::new(addr.wrapping_add(bias)));
        Some(Symbol { start, end, kind: 0, name })
    }

    /// The addresses of a symbol and the place of its name, if it is a function that is defined.
    fn function<M: Memory>(
        &self,
        at: u64,
        window: &mut Window<'_, M>,
    ) -> Result<Option<(Range<u64>, u32)>, LinuxError> {
        const FUNCTION: u8 = 2;
        const INDIRECT: u8 = 10;
        let of = |offset: u64| at.wrapping_add(offset);
        let (info, section, start, len) = match self.is_wide {
            true => {
                let (info, section) = (window.u8(of(4))?, window.u16(of(6))?);
                (info, section, window.u64(of(8))?, window.u64(of(16))?)
            }
            false => {
                let (info, section) = (window.u8(of(12))?, window.u16(of(14))?);
                (info, section, window.u32(of(4))?.into(), window.u32(of(8))?.into())
            }
        };
        let is_function = matches!(info & 0xf, FUNCTION | INDIRECT) && section != 0;
        let name = window.u32(at)?;
        Ok(is_function.then(|| (start..start.saturating_add(len), name)))
    }
}
