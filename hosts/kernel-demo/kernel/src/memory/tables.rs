//! The page tables of one address space: 4 levels, pages of 4 KiB.

use unwind_x86::paging::{AddressSpace, PagingMode};

use super::PAGE;
use super::direct_map::pointer;
use super::frames::Frame;
use crate::cpu;

/// An entry of any level.
#[derive(Clone, Copy)]
pub(super) struct Entry(u64);

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// In an entry that is not present: its page was written out, to the frame
/// that the entry names.
const SWAPPED: u64 = 1 << 9;
/// With it: the page is on its way out, and where it was.
const LEAVING: u64 = 1 << 10;
const ADDR: u64 = 0x000f_ffff_ffff_f000;

impl Entry {
    pub(super) const NONE: Self = Self(0);

    pub(super) const fn page(frame: Frame, writable: bool) -> Self {
        Self(frame.phys() | PRESENT | USER | if writable { WRITABLE } else { 0 })
    }

    pub(super) const fn swapped(frame: Frame) -> Self {
        Self(frame.phys() | SWAPPED)
    }

    /// A page that is taken away, but that CPUs may still use.
    pub(super) const fn leaving(frame: Frame) -> Self {
        Self(frame.phys() | SWAPPED | LEAVING)
    }

    /// The page, if it is on its way out.
    pub(super) fn as_leaving(self) -> Option<Frame> {
        self.as_swapped().filter(|_| self.0 & LEAVING != 0)
    }

    /// The page, if it is present.
    pub(super) fn as_page(self) -> Option<Frame> {
        (self.0 & PRESENT != 0).then_some(Frame::from_phys(self.0 & ADDR))
    }

    /// Where the page was written to, if it was.
    pub(super) fn as_swapped(self) -> Option<Frame> {
        (self.0 & (PRESENT | SWAPPED) == SWAPPED).then_some(Frame::from_phys(self.0 & ADDR))
    }
}

unsafe extern "C" {
    static boot_pml4: [u64; 512];
}

/// The physical address of the kernel's own root table.
pub(crate) fn kernel_root() -> u64 {
    // boot.s is linked at its physical address.
    &raw const boot_pml4 as u64
}

/// Takes away the low mapping that only the way into long mode needs.
pub(crate) fn drop_identity_map() {
    // SAFETY: nothing at a low address is in use any more.
    unsafe { entry_pointer(kernel_root(), 0).write(0) }
    // SAFETY: the kernel's own tables; their other entries are unchanged.
    unsafe { cpu::set_page_tables(kernel_root()) }
}

/// The user half of an address space, for page walks.
pub(crate) const fn user_space_of(root: u64) -> AddressSpace {
    AddressSpace::new(PagingMode::FourLevel, root)
}

/// Reads user memory that this CPU has just used, and of which its page may have been taken
/// away since: until the CPU has answered ([`shootdown`](super::shootdown)), the page is
/// where its entry says. Interrupts are off.
pub(crate) fn read_as_used(root: u64, addr: u64, buf: &mut [u8]) -> Option<()> {
    let tables = Tables { root: Frame::from_phys(root) };
    for (at, byte) in (addr..).zip(buf) {
        let entry = tables.get(at);
        let frame = entry.as_page().or(entry.as_swapped())?;
        // SAFETY: in a frame, and so in memory; user code may write there meanwhile.
        *byte = unsafe { pointer(frame.phys() + at % PAGE).read_volatile() };
    }
    Some(())
}

/// The tables of one address space.
pub(super) struct Tables {
    root: Frame,
}

impl Tables {
    /// Tables without user pages; `None` if memory is short.
    pub(super) fn new() -> Option<Self> {
        let tables = Self { root: Frame::allocate()? };
        // SAFETY: the last entry of the kernel's root, which never changes.
        let shared = unsafe { entry_pointer(kernel_root(), 511).read() };
        // SAFETY: the last entry of a root that is not in use yet.
        unsafe { entry_pointer(tables.root.phys(), 511).write(shared) }
        Some(tables)
    }

    pub(super) const fn root(&self) -> u64 {
        self.root.phys()
    }

    /// The entry of the page that holds `addr`, a user address.
    pub(super) fn get(&self, addr: u64) -> Entry {
        let mut table = self.root;
        for shift in [39, 30, 21] {
            match read(table, index(addr, shift)).as_page() {
                Some(next) => table = next,
                None => return Entry::NONE,
            }
        }
        read(table, index(addr, 12))
    }

    /// Sets the entry of the page that holds `addr`, a user address, making
    /// tables as needed; `None` if memory is short.
    pub(super) fn set(&mut self, addr: u64, entry: Entry) -> Option<()> {
        let mut table = self.root;
        for shift in [39, 30, 21] {
            let at = index(addr, shift);
            table = match read(table, at).as_page() {
                Some(next) => next,
                None => {
                    let next = Frame::allocate()?;
                    write(table, at, Entry::page(next, true));
                    next
                }
            };
        }
        write(table, index(addr, 12), entry);
        Some(())
    }

    /// Frees all tables. The pages are freed before.
    pub(super) fn free(self) {
        // The kernel's half, in the last entry, is shared.
        for entry in (0..511).filter_map(|at| read(self.root, at).as_page()) {
            free_table(entry, 2);
        }
        self.root.free();
    }
}

/// Frees a table and, `levels` below it, the others.
fn free_table(table: Frame, levels: u32) {
    if levels > 0 {
        for next in (0..512).filter_map(|at| read(table, at).as_page()) {
            free_table(next, levels - 1);
        }
    }
    table.free();
}

const fn index(addr: u64, shift: u32) -> usize {
    (addr >> shift & 511) as usize
}

fn entry_pointer(table: u64, at: usize) -> *mut u64 {
    pointer(table).cast::<u64>().wrapping_add(at)
}

fn read(table: Frame, at: usize) -> Entry {
    // SAFETY: an entry of a table; the CPU sets bits in it meanwhile.
    Entry(unsafe { entry_pointer(table.phys(), at).read_volatile() })
}

fn write(table: Frame, at: usize, entry: Entry) {
    // SAFETY: an entry of a table that belongs to the caller; the CPU reads it
    // as a whole.
    unsafe { entry_pointer(table.phys(), at).write_volatile(entry.0) }
}
