//! Modules that a kernel has loaded.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;
use crate::linux::symbol::{Symbol, SymbolName};
use crate::linux::window::{Window, read, read_u32, read_u64};
use crate::orc::{OrcLayout, OrcTable};

/// How many modules are looked at.
pub const MODULES_LIMIT: u32 = 1 << 10;

/// How many symbols of a module are looked at.
pub const MODULE_SYMBOLS_LIMIT: u32 = 1 << 16;

const NAME_LEN: usize = 56;

/// Where a module's structure has what is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleLayout {
    pub(crate) list: u32,
    pub(crate) name: u32,
    /// Where its code is, and how long that is: of Linux 6.4 and later, or of those before.
    pub(crate) text: (u32, u32),
    pub(crate) symbols: Option<ModuleSymbols>,
    pub(crate) orc: Option<ModuleOrc>,
}

/// Where the pointer to its symbols is, and what is where there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleSymbols {
    pub(crate) at: u32,
    pub(crate) table: u32,
    pub(crate) count: u32,
    pub(crate) strings: u32,
}

/// Where its ORC tables are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleOrc {
    pub(crate) count: u32,
    pub(crate) ips: u32,
    pub(crate) entries: u32,
}

/// A module that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    name: [u8; NAME_LEN],
    text: Range<u64>,
    symbols: Option<(u64, u32, u64)>,
    orc: Option<OrcTable<'static>>,
}

/// The modules that are loaded.
#[derive(Clone, Copy, Debug)]
pub struct ModuleList {
    layout: ModuleLayout,
    orc: Option<OrcLayout>,
    head: u64,
    next: Option<u64>,
    left: u32,
}

impl ModuleList {
    pub(crate) const fn new(head: u64, layout: ModuleLayout, orc: Option<OrcLayout>) -> Self {
        Self { layout, orc, head, next: None, left: MODULES_LIMIT }
    }

    /// The next one; `None` after the last, or after more than a list of modules has.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`]. If it is one module that cannot be read, those after it come next.
    pub fn next<M: Memory>(&mut self, mem: &mut M) -> Result<Option<Module>, LinuxError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        // Where one leads nowhere, none comes after it.
        self.left = 0;
        let next = read_u64(mem, self.next.unwrap_or(self.head))?;
        if next == self.head {
            return Ok(None);
        }
        (self.left, self.next) = (left, Some(next));
        let at = next.wrapping_sub(self.layout.list.into());
        Module::read(at, &self.layout, self.orc, mem).map(Some)
    }
}

impl Module {
    fn read<M: Memory>(
        at: u64,
        layout: &ModuleLayout,
        orc: Option<OrcLayout>,
        mem: &mut M,
    ) -> Result<Self, LinuxError> {
        let of = |offset: u32| at.wrapping_add(offset.into());
        let mut name = [0; NAME_LEN];
        read(mem, of(layout.name), &mut name)?;
        let start = read_u64(mem, of(layout.text.0))?;
        let len = read_u32(mem, of(layout.text.1))?;
        let symbols = match layout.symbols {
            Some(symbols) => {
                let told = read_u64(mem, of(symbols.at))?;
                let of = |offset: u32| told.wrapping_add(offset.into());
                let table = read_u64(mem, of(symbols.table))?;
                let count = read_u32(mem, of(symbols.count))?;
                Some((table, count, read_u64(mem, of(symbols.strings))?))
            }
            None => None,
        };
        let text = start..start.saturating_add(len.into());
        let code = VirtAddr::new(text.start)..VirtAddr::new(text.end);
        let orc = match orc.zip(layout.orc) {
            Some((layout, orc)) => {
                let count = read_u32(mem, of(orc.count))?;
                let ips = VirtAddr::new(read_u64(mem, of(orc.ips))?);
                let entries = VirtAddr::new(read_u64(mem, of(orc.entries))?);
                Some(OrcTable::in_memory(layout, ips, entries, count).within(code))
            }
            None => None,
        };
        Ok(Self { name, text, symbols, orc })
    }

    /// Its name: the guest's, any bytes.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        self.name.get(..end).unwrap_or_default()
    }

    /// The addresses of its code.
    #[must_use]
    pub const fn text(&self) -> &Range<u64> {
        &self.text
    }

    /// Its ORC table, in place, for this code. What a module has for its start alone has no rows.
    #[must_use]
    pub const fn orc_table(&self) -> Option<OrcTable<'static>> {
        self.orc
    }

    /// The last symbol of its code that begins at an address or before.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn find_at<M: Memory>(
        &self,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Symbol>, LinuxError> {
        /// The section of what is not defined.
        const UNDEFINED: u16 = 0;
        let Some((table, count, strings)) =
            self.symbols.filter(|_| self.text.contains(&addr.get()))
        else {
            return Ok(None);
        };
        let mut window = Window::new(mem);
        let mut best: Option<(u64, SymbolName)> = None;
        let mut end = self.text.end;
        for index in 1..count.min(MODULE_SYMBOLS_LIMIT) {
            let at = table.wrapping_add(u64::from(index).wrapping_mul(24));
            let value = window.u64(at.wrapping_add(8))?;
            if value > addr.get() {
                end = end.min(value);
            }
            let is_better = best.is_none_or(|(best, _)| value > best);
            let is_here = value <= addr.get() && self.text.contains(&value);
            if !is_better || !is_here || window.u16(at.wrapping_add(6))? == UNDEFINED {
                continue;
            }
            let name = strings.wrapping_add(window.u32(at)?.into());
            let name = read_name(name, window.memory());
            if !name.as_bytes().is_empty() {
                best = Some((value, name));
            }
        }
        let end = VirtAddr::new(end);
        Ok(best.map(|(start, name)| Symbol { start: VirtAddr::new(start), end, kind: 0, name }))
    }
}

/// A name up to its zero; what there is of it, if not all can be read.
pub(crate) fn read_name<M: Memory>(mut at: u64, mem: &mut M) -> SymbolName {
    let mut name = SymbolName::new();
    let mut window = Window::new(mem);
    for _ in 0..512 {
        match window.u8(at) {
            Ok(0) | Err(_) => break,
            Ok(byte) => name.push(&[byte]),
        }
        at = at.wrapping_add(1);
    }
    name
}
