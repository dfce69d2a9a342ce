//! The symbols that a kernel keeps of itself.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::linux::error::LinuxError;
use crate::linux::kallsyms_tables::{GROUP, Tables, Tokens, name_at, skip};
use crate::linux::symbol::{Symbol, SymbolName};
use crate::linux::window::Window;

/// A kernel's symbols in place (`kallsyms`), in each of the layouts that Linux has had since 5.10: tables before or
/// after the names, addresses above a base, with or without those of variables of each CPU, or above their own place.
///
/// Names are made of at most 256 tokens, which are kept here; all else is read where it is.
#[derive(Clone, Debug)]
pub struct Kallsyms {
    tables: Tables,
    tokens: Tokens,
    tokens_at: u64,
}

impl Kallsyms {
    /// The symbols of which the table of tokens has its `0` there, of a kernel at `image`. `None` if they are none.
    pub(crate) fn find<M: Memory>(zero: u64, image: &Range<u64>, mem: &mut M) -> Option<Self> {
        let mut window = Window::new(mem);
        let (tokens, place) = Tokens::find(zero, &mut window)?;
        let tables = Tables::find(&place, image, &mut window)?;
        Some(Self { tables, tokens, tokens_at: place.start })
    }

    /// Whether these symbols are in this memory, too.
    pub(crate) fn is_in<M: Memory>(&self, mem: &mut M) -> bool {
        let mut start = [0; 64];
        let read = mem.read(VirtAddr::new(self.tokens_at), &mut start);
        read.is_ok() && start == *self.tokens.start()
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.tables.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.tables.count == 0
    }

    /// The symbol with this index, in the order of addresses; `None` if there are not that many.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn get<M: Memory>(&self, index: u32, mem: &mut M) -> Result<Option<Symbol>, LinuxError> {
        if index >= self.tables.count {
            return Ok(None);
        }
        let mut window = Window::new(mem);
        let start = self.tables.address(index, &mut window)?;
        let next = index.saturating_add(1);
        let end = match next < self.tables.count {
            true => self.tables.address(next, &mut window)?,
            false => start,
        };
        let marker = u64::from(index / GROUP).wrapping_mul(4);
        let marker = window.u32(self.tables.markers.wrapping_add(marker))?;
        let group = self.tables.names.wrapping_add(marker.into());
        let at = skip(group, index % GROUP, &mut window).ok_or(LinuxError::NoSymbols)?;
        let (mut name, _) = self.name(at, &mut window)?;
        let kind = name.take_first().unwrap_or_default();
        Ok(Some(Symbol { start: VirtAddr::new(start), end: VirtAddr::new(end), kind, name }))
    }

    /// The last symbol that begins at an address or before; of several that begin there, the first, as
    /// Linux has it. `None` if all begin after it.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn find_at<M: Memory>(
        &self,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<Symbol>, LinuxError> {
        let mut window = Window::new(mem);
        let after = self.first_from(addr.get().saturating_add(1), &mut window)?;
        let Some(last) = after.checked_sub(1) else { return Ok(None) };
        let start = self.tables.address(last, &mut window)?;
        let first = self.first_from(start, &mut window)?;
        let end = match after < self.tables.count {
            true => self.tables.address(after, &mut window)?,
            false => start,
        };
        let found = self.get(first, mem)?;
        Ok(found.map(|found| Symbol { end: VirtAddr::new(end), ..found }))
    }

    /// The index of the first symbol that begins there or after it.
    fn first_from<M: Memory>(
        &self,
        addr: u64,
        window: &mut Window<'_, M>,
    ) -> Result<u32, LinuxError> {
        let (mut first, mut end) = (0, self.tables.count);
        while first < end {
            let middle = first.midpoint(end);
            if self.tables.address(middle, window)? < addr {
                first = middle.wrapping_add(1);
            } else {
                end = middle;
            }
        }
        Ok(first)
    }

    /// The addresses of symbols by their names, in one pass over all; zero for those that there are not. Of several with
    /// one name it is the first that other files see, if there is such a one.
    ///
    /// # Errors
    ///
    /// [`LinuxError::Unreadable`].
    pub fn addresses_of<const N: usize, M: Memory>(
        &self,
        names: [&str; N],
        mem: &mut M,
    ) -> Result<[u64; N], LinuxError> {
        let (mut found, mut is_global) = ([0; N], [false; N]);
        let mut window = Window::new(mem);
        let mut at = self.tables.names;
        for index in 0..self.tables.count {
            if at >= self.tables.markers {
                return Err(LinuxError::NoSymbols);
            }
            let (mut name, next) = self.name(at, &mut window)?;
            at = next;
            let kind = name.take_first().unwrap_or_default();
            let is_it = |wanted: &&str| wanted.as_bytes() == name.as_bytes();
            let Some(place) = names.iter().position(is_it) else { continue };
            // The window stays where the names are.
            let address = self.tables.address(index, &mut Window::new(window.memory()))?;
            let slot = found.get_mut(place).zip(is_global.get_mut(place));
            if let Some((slot, is_global)) = slot {
                if *slot == 0 || (kind.is_ascii_uppercase() && !*is_global) {
                    (*slot, *is_global) = (address, kind.is_ascii_uppercase());
                }
            }
        }
        Ok(found)
    }

    /// The name with its kind in front, and where the next one is.
    fn name<M: Memory>(
        &self,
        at: u64,
        window: &mut Window<'_, M>,
    ) -> Result<(SymbolName, u64), LinuxError> {
        let (start, len) = name_at(at, window)?;
        let mut name = SymbolName::new();
        for offset in 0..u64::from(len) {
            name.push(self.tokens.get(window.u8(start.wrapping_add(offset))?));
        }
        Ok((name, start.wrapping_add(len.into())))
    }
}
