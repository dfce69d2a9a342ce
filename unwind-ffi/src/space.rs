//! The modules of an address space.

use core::num::NonZero;
use core::sync::atomic::{AtomicU64, Ordering};

use unwind_core::{Contended, MapError, Module, SharedModuleMap, TableLocation, VirtAddr};

use crate::numbers::unwind_format;

/// How many spaces were made, and the number of the last one.
static SPACES: AtomicU64 = AtomicU64::new(0);

/// The modules, and a number that no other space has.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Space<M> {
    pub(crate) serial: u64,
    pub(crate) modules: M,
}

/// The number of a new space.
pub(crate) fn next_serial() -> u64 {
    SPACES.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

/// A space of any of its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnySpace<'s> {
    Of16(&'s Space<SharedModuleMap<16>>),
    Of64(&'s Space<SharedModuleMap<64>>),
    Of256(&'s Space<SharedModuleMap<256>>),
}

/// Does the same with the modules of a space, whatever their number.
macro_rules! with {
    ($space:expr, $modules:ident => $result:expr) => {
        match $space {
            AnySpace::Of16(Space { modules: $modules, .. }) => $result,
            AnySpace::Of64(Space { modules: $modules, .. }) => $result,
            AnySpace::Of256(Space { modules: $modules, .. }) => $result,
        }
    };
}

impl AnySpace<'_> {
    pub(crate) const fn serial(self) -> u64 {
        match self {
            Self::Of16(Space { serial, .. })
            | Self::Of64(Space { serial, .. })
            | Self::Of256(Space { serial, .. }) => *serial,
        }
    }

    pub(crate) fn generation(self) -> u64 {
        with!(self, modules => modules.generation())
    }

    pub(crate) fn find(self, addr: VirtAddr) -> Result<Option<Table>, Contended> {
        let found = with!(self, modules => modules.find(addr))?;
        Ok(found.map(|module| Table::from_location(module.table)))
    }

    pub(crate) fn add(self, start: u64, end: u64, table: Table) -> Result<(), MapError> {
        let text = VirtAddr::new(start)..VirtAddr::new(end);
        let module = Module { text, table: table.to_location() };
        with!(self, modules => modules.add(&module))
    }

    /// Removes the modules that have an address of the range.
    pub(crate) fn remove(self, start: u64, end: u64) -> Result<usize, MapError> {
        let range = VirtAddr::new(start)..VirtAddr::new(end);
        let is_apart = |module: &Module<TableLocation>| {
            module.text.end <= range.start || range.end <= module.text.start
        };
        with!(self, modules => modules.retain(is_apart))
    }

    pub(crate) fn clear(self) -> Result<(), MapError> {
        with!(self, modules => modules.clear())
    }

    /// Makes the modules those of `parent`; `None` if it is of another size.
    pub(crate) fn copy_from(self, parent: Self) -> Option<Result<(), MapError>> {
        Some(match (self, parent) {
            (Self::Of16(to), Self::Of16(from)) => to.modules.copy_from(&from.modules),
            (Self::Of64(to), Self::Of64(from)) => to.modules.copy_from(&from.modules),
            (Self::Of256(to), Self::Of256(from)) => to.modules.copy_from(&from.modules),
            _ => return None,
        })
    }
}

/// A table, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) format: unwind_format,
    /// Where the target has it.
    pub(crate) addr: u64,
    pub(crate) len: u32,
    /// The bytes that the host holds.
    pub(crate) held: Option<HeldBytes>,
}

/// Bytes of the host with what the target has somewhere: an address, and not a reference, since a map of
/// words keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldBytes {
    pub(crate) at: NonZero<u64>,
    pub(crate) len: u32,
    /// How far below the table they begin, in the target.
    pub(crate) before: u32,
}

impl Table {
    /// A table in the target's memory, or none.
    pub(crate) const fn of_target(format: unwind_format, addr: u64, len: u32) -> Self {
        Self { format, addr, len, held: None }
    }

    /// What a map keeps of a table: three words, of which it looks at none.
    ///
    /// | word | bits |
    /// |---|---|
    /// | `addr` | where the target has it |
    /// | `len` | 0-2 the format; 3-26 how far below the held bytes begin; 32-63 how many bytes there are |
    /// | `id` | where the held bytes are |
    ///
    /// A held SFrame table ends with its bytes.
    fn to_location(self) -> TableLocation {
        let (len, before, id) = match self.held {
            Some(HeldBytes { at, len, before }) => (len, before, Some(at)),
            None => (self.len, 0, None),
        };
        let format = self.format.number();
        let len = u64::from(len) << 32 | u64::from(before) << 3 | u64::from(format);
        TableLocation { addr: VirtAddr::new(self.addr), len, id }
    }

    fn from_location(location: TableLocation) -> Self {
        let TableLocation { addr, len: bits, id } = location;
        let part = |bits: u64| u32::try_from(bits).unwrap_or(0);
        let (len, before) = (part(bits >> 32), part(bits >> 3 & u64::from(MOST_BEFORE)));
        let held = id.map(|at| HeldBytes { at, len, before });
        // The whole of what is held, from where the table is in it.
        let len = len.saturating_sub(before);
        let format = unwind_format::from_number(part(bits & 7)).unwrap_or(unwind_format::None);
        Self { format, addr: addr.get(), len, held }
    }
}

/// How far below a table its held bytes may begin.
pub(crate) const MOST_BEFORE: u32 = (1 << 24) - 1;
