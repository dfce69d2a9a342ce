//! A table where it is, and the search in it.

use core::ops::Range;

use unwind_core::{Memory, VirtAddr};

use crate::orc::entry::{OrcEntry, OrcLayout};
use crate::orc::error::OrcError;

/// The size of an entry of the table of addresses: how far above itself the code is, signed.
const IP_SIZE: usize = 4;

/// A table of ORC entries in place, for code that is loaded: that of a kernel, or of a module.
///
/// Linux keeps it in two arrays: the addresses at which an entry begins to hold, ascending
/// (`.orc_unwind_ip`), and the [entries](OrcEntry) (`.orc_unwind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrcTable<'a> {
    layout: OrcLayout,
    /// The code that it is of, from and to; `None` for all code.
    code: Option<(u64, u64)>,
    /// Where the addresses are in the guest; the code is relative to that.
    ips_at: u64,
    count: u32,
    place: Place<'a>,
}

/// Where the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place<'a> {
    Sections { ips: &'a [u8], entries: &'a [u8] },
    Memory { entries_at: u64 },
}

impl<'a> OrcTable<'a> {
    /// The table of a file. `ips_at` is where `.orc_unwind_ip` is loaded: its linked address and
    /// what KASLR adds to it.
    ///
    /// # Errors
    ///
    /// [`OrcError::Size`] if the sections do not fit each other.
    pub fn from_sections(
        layout: OrcLayout,
        (ips, ips_at): (&'a [u8], VirtAddr),
        entries: &'a [u8],
    ) -> Result<Self, OrcError> {
        let is_whole = ips.len() % IP_SIZE == 0 && entries.len() % OrcLayout::ENTRY_SIZE == 0;
        let count = ips.len() / IP_SIZE;
        if !is_whole || count != entries.len() / OrcLayout::ENTRY_SIZE {
            return Err(OrcError::Size);
        }
        let count = u32::try_from(count).map_err(|_| OrcError::Size)?;
        let place = Place::Sections { ips, entries };
        Ok(Self { layout, code: None, ips_at: ips_at.get(), count, place })
    }

    /// The table of `count` entries that the guest has in its memory, at these addresses: there
    /// it is read at each lookup, by the walk's own [`Memory`].
    #[must_use]
    pub const fn in_memory(
        layout: OrcLayout,
        ips_at: VirtAddr,
        entries_at: VirtAddr,
        count: u32,
    ) -> Self {
        let place = Place::Memory { entries_at: entries_at.get() };
        Self { layout, code: None, ips_at: ips_at.get(), count, place }
    }

    /// The same for code at these addresses alone: what a module has had for its start may be
    /// other code later.
    #[must_use]
    pub const fn within(mut self, code: Range<VirtAddr>) -> Self {
        self.code = Some((code.start.get(), code.end.get()));
        self
    }

    /// How many entries there are.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The entry with this index, and the address from which on it holds; `None` if there are
    /// not that many.
    ///
    /// # Errors
    ///
    /// [`OrcError::Unreadable`] where it lies in memory.
    pub fn get<M: Memory>(
        &self,
        index: u32,
        mem: &mut M,
    ) -> Result<Option<(VirtAddr, OrcEntry)>, OrcError> {
        if index >= self.count {
            return Ok(None);
        }
        let start = self.start(index, mem)?;
        let bytes = match self.place {
            Place::Sections { entries, .. } => item(entries, index),
            Place::Memory { entries_at } => Some(read(entries_at, index, mem)?),
        };
        Ok(bytes.map(|bytes| (VirtAddr::new(start), OrcEntry::decode(bytes, self.layout))))
    }

    /// The entry that holds at an address: the last one that begins there or before. `None` if
    /// all begin after it, or the address is not [within](Self::within) the table's code.
    ///
    /// It takes as many steps as the number of entries has bits, 32 at most, each a read of 4 bytes
    /// where the table is in memory. A table that is not in order gives some entry or none.
    ///
    /// # Errors
    ///
    /// [`OrcError::Unreadable`] where it lies in memory.
    pub fn find<M: Memory>(
        &self,
        addr: VirtAddr,
        mem: &mut M,
    ) -> Result<Option<OrcEntry>, OrcError> {
        if let Some((start, end)) = self.code {
            if !(start..end).contains(&addr.get()) {
                return Ok(None);
            }
        }
        let (mut first, mut end) = (0, self.count);
        while first < end {
            let middle = first.midpoint(end);
            if self.start(middle, mem)? <= addr.get() {
                first = middle.wrapping_add(1);
            } else {
                end = middle;
            }
        }
        match first.checked_sub(1) {
            Some(index) => Ok(self.get(index, mem)?.map(|(_, entry)| entry)),
            None => Ok(None),
        }
    }

    /// From which address on an entry holds.
    fn start<M: Memory>(&self, index: u32, mem: &mut M) -> Result<u64, OrcError> {
        let bytes = match self.place {
            Place::Sections { ips, .. } => item(ips, index).unwrap_or_default(),
            Place::Memory { .. } => read(self.ips_at, index, mem)?,
        };
        let offset = i64::from(i32::from_le_bytes(bytes));
        Ok(place_of(self.ips_at, index, IP_SIZE).wrapping_add_signed(offset))
    }
}

/// Where an entry of an array is.
fn place_of(array: u64, index: u32, size: usize) -> u64 {
    let size = u64::try_from(size).unwrap_or_default();
    array.wrapping_add(u64::from(index).wrapping_mul(size))
}

fn read<const N: usize, M: Memory>(
    array: u64,
    index: u32,
    mem: &mut M,
) -> Result<[u8; N], OrcError> {
    let addr = VirtAddr::new(place_of(array, index, N));
    let mut bytes = [0; N];
    match mem.read(addr, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(OrcError::Unreadable { addr, error }),
    }
}

/// An item of an array in a file.
fn item<const N: usize>(array: &[u8], index: u32) -> Option<[u8; N]> {
    let at = usize::try_from(index).ok()?.checked_mul(N)?;
    array.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwind_core::SliceMemory;

    #[test]
    fn a_table_holds_for_its_code_alone() {
        let (ips, entries) = ([0; 4], [0; 6]);
        let at = VirtAddr::new(0x1000);
        let table = OrcTable::from_sections(OrcLayout::Linux6_4, (&ips, at), &entries).unwrap();
        let code = |end| VirtAddr::new(0x1800)..VirtAddr::new(end);
        let mut memory = SliceMemory::new(VirtAddr::new(0), &[]);
        let mut find = |table: OrcTable<'_>, addr| table.find(VirtAddr::new(addr), &mut memory);
        assert!(find(table, 0x2000).unwrap().is_some());
        assert!(find(table, u64::MAX).unwrap().is_some());
        assert!(find(table.within(code(0x2001)), 0x2000).unwrap().is_some());
        assert_eq!(find(table.within(code(0x2000)), 0x2000), Ok(None));
    }
}
